"""Wires the rooms together: a start list, and its mirrored stop list."""

from __future__ import annotations

from geartrain.server.options import Progress, ServeOptions, WebhookOptions, log_progress
from geartrain.server.ready_file import find_ready_file
from geartrain.server.running import PortInUseError, listen, run_server
from geartrain.server.services import open_all, open_service
from geartrain.server.workers import launch, new_model, read_model

__all__ = [
    "PortInUseError",
    "Progress",
    "ServeOptions",
    "WebhookOptions",
    "find_ready_file",
    "launch",
    "listen",
    "log_progress",
    "new_model",
    "open_all",
    "open_service",
    "read_model",
    "run_server",
]
