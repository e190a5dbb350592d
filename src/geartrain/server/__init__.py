"""Runs models: the wiring, the signals, the reload of what has changed on disk."""

from __future__ import annotations

from geartrain.server.app import App, build
from geartrain.server.notify import find_ready_file
from geartrain.server.options import (
    NO_LIMIT,
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
