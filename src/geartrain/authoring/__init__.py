"""Names that a model's author imports; `geartrain` itself re-exports them.

Stands on cheap modules of the standard library alone, so that `import geartrain` costs next to nothing.
"""

from __future__ import annotations

from geartrain.authoring import metrics
from geartrain.authoring.batches import ItemError
from geartrain.authoring.decorators import Opaque, batched, cached, concurrent, joint, streaming
from geartrain.authoring.inputs import Input
from geartrain.authoring.nested import Job, Model, ModelError, Record, Stream, model, models
from geartrain.authoring.runner import BasePredictor, BaseRunner, CancelationException, CancellationException
from geartrain.authoring.scope import Scope, batch_item, current_scope
from geartrain.authoring.values import AsyncConcatenateIterator, BaseModel, ConcatenateIterator, File, Path, Secret

__version__ = "0.1.0"  # here, where every package may import it from

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
    "Job",
    "Model",
    "ModelError",
    "Opaque",
    "Path",
    "Record",
    "Scope",
    "Secret",
    "Stream",
    "batch_item",
    "batched",
    "cached",
    "concurrent",
    "current_scope",
    "joint",
    "metrics",
    "model",
    "models",
    "streaming",
]
