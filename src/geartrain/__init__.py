"""A model server: one model class, every protocol. This is the authoring API: what a model imports."""

from __future__ import annotations

from geartrain.authoring import (
    AsyncConcatenateIterator,
    BaseModel,
    BasePredictor,
    BaseRunner,
    CancelationException,
    CancellationException,
    ConcatenateIterator,
    File,
    Input,
    ItemError,
    Opaque,
    Path,
    Scope,
    Secret,
    batch_item,
    batched,
    concurrent,
    current_scope,
    streaming,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncConcatenateIterator",
    "BaseModel",
    "BasePredictor",
    "BaseRunner",
    "CancelationException",
    "CancellationException",
    "ConcatenateIterator",
    "File",
    "Input",
    "ItemError",
    "Opaque",
    "Path",
    "Scope",
    "Secret",
    "__version__",
    "batch_item",
    "batched",
    "concurrent",
    "current_scope",
    "streaming",
]
