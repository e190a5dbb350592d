"""Models on Ray: `app` makes an application of Ray Serve, `map_batches` runs a model over a data set of Ray Data.

Nothing else in the package imports ray, and this does when one of them is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from geartrain.ray.application import app, build
    from geartrain.ray.data import map_batches

__all__ = ["app", "build", "map_batches"]

_MODULES: Final = {"app": "application", "build": "application", "map_batches": "data"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'geartrain.ray' has no attribute {name!r}", name=name, obj=None)
    found: object = getattr(importlib.import_module(f"geartrain.ray.{_MODULES[name]}"), name)
    return found
