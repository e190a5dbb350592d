"""A model server: one model class, every protocol.

This is the authoring API, what a model imports; `asgi`, which serves models inside another server; and the clients.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
    Job,
    Model,
    ModelError,
    Opaque,
    Path,
    Record,
    Scope,
    Secret,
    Stream,
    __version__,
    batch_item,
    batched,
    cached,
    concurrent,
    current_scope,
    joint,
    metrics,
    model,
    models,
    streaming,
)

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from geartrain.authoring.joining import Batch, LiveRequest
    from geartrain.authoring.requests import Request, Response, Tensors
    from geartrain.bench.tuning import tune
    from geartrain.client.async_client import AsyncClient
    from geartrain.client.client import Client
    from geartrain.dataset.mapping import map, map_async  # noqa: A004 - its name
    from geartrain.server.asgi_options import AsgiOptions
    from geartrain.transport.asgi import AsgiApplication

__all__ = [
    "AsyncClient",
    "AsyncConcatenateIterator",
    "BaseModel",
    "BasePredictor",
    "BaseRunner",
    "Batch",
    "CancelationException",
    "CancellationException",
    "Client",
    "ConcatenateIterator",
    "File",
    "Input",
    "ItemError",
    "Job",
    "LiveRequest",
    "Model",
    "ModelError",
    "Opaque",
    "Path",
    "Record",
    "Request",
    "Response",
    "Scope",
    "Secret",
    "Stream",
    "Tensors",
    "__version__",
    "asgi",
    "batch_item",
    "batched",
    "cached",
    "concurrent",
    "current_scope",
    "joint",
    "map",
    "map_async",
    "metrics",
    "model",
    "models",
    "streaming",
    "tune",
]


def asgi(model: str | os.PathLike[str] | None = None, **options: Unpack[AsgiOptions]) -> AsgiApplication:
    """Return an ASGI application that serves a model, or a folder of models.

    `model` is what `geartrain serve` takes: a folder, `path/to/run.py:Runner`, `package.module:name`, a model file, or
    a folder of models; the current folder by default. `options` are those of `geartrain serve`, see `AsgiOptions`.

    Its workers start with the lifespan of the application. Raises `ProjectError` where there is no such model.
    """
    from geartrain.server.asgi import make_application

    return make_application(model, **options)


_LATE = {
    "AsyncClient": "geartrain.client",
    "Batch": "geartrain.authoring.joining",
    "Client": "geartrain.client",
    "LiveRequest": "geartrain.authoring.joining",
    "Request": "geartrain.authoring.requests",
    "Response": "geartrain.authoring.requests",
    "Tensors": "geartrain.authoring.requests",
    "map": "geartrain.dataset.mapping",
    "map_async": "geartrain.dataset.mapping",
    "tune": "geartrain.bench.tuning",
}


def __getattr__(name: str) -> object:
    """Import late names when they are first asked for: few models need them, and some need packages."""
    if name not in _LATE:
        raise AttributeError(f"module 'geartrain' has no attribute {name!r}", name=name, obj=None)
    found: object = getattr(importlib.import_module(_LATE[name]), name)
    globals()[name] = found
    return found
