"""Runs models: the wiring, the signals, the reload of what has changed on disk."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from geartrain.server.app import App, build
    from geartrain.server.notify import find_ready_file
    from geartrain.server.option_kinds import NO_LIMIT
    from geartrain.server.options import (
        CacheOptions,
        ClusterOptions,
        DebugOptions,
        DownloadLines,
        Progress,
        ProgressLines,
        ProgressLog,
        ServeOptions,
        StoreOptions,
        WebhookOptions,
        log_progress,
    )
    from geartrain.server.running import PortInUseError, listen, run_server
    from geartrain.server.sockets import ActivationError

__all__ = [
    "NO_LIMIT",
    "ActivationError",
    "App",
    "CacheOptions",
    "ClusterOptions",
    "DebugOptions",
    "DownloadLines",
    "PortInUseError",
    "Progress",
    "ProgressLines",
    "ProgressLog",
    "ServeOptions",
    "StoreOptions",
    "WebhookOptions",
    "build",
    "find_ready_file",
    "listen",
    "log_progress",
    "run_server",
]

_HOMES: Final = {
    "geartrain.server.app": (
        "App",
        "build",
    ),
    "geartrain.server.notify": ("find_ready_file",),
    "geartrain.server.option_kinds": ("NO_LIMIT",),
    "geartrain.server.options": (
        "CacheOptions",
        "ClusterOptions",
        "DebugOptions",
        "DownloadLines",
        "Progress",
        "ProgressLines",
        "ProgressLog",
        "ServeOptions",
        "StoreOptions",
        "WebhookOptions",
        "log_progress",
    ),
    "geartrain.server.running": (
        "PortInUseError",
        "listen",
        "run_server",
    ),
    "geartrain.server.sockets": ("ActivationError",),
}


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for: a command looks at its options before it needs a server."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(importlib.import_module(module), name)
            return found
    raise AttributeError(f"module 'geartrain.server' has no attribute {name!r}", name=name, obj=None)
