"""Models on Ray Serve: `app` makes an application whose replicas are servers of geartrain.

Nothing else in the package imports ray, and this does when `app` or `build` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geartrain.ray.application import app, build

__all__ = ["app", "build"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'geartrain.ray' has no attribute {name!r}", name=name, obj=None)
    from geartrain.ray import application

    found: object = getattr(application, name)
    return found
