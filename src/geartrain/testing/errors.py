"""Exceptions of the test helpers."""

from __future__ import annotations

from geartrain.client.errors import InvalidInputError
from geartrain.launch.server import ServerError
from geartrain.worker.values.faults import OutputError

__all__ = ["CanceledError", "InvalidInputError", "OutputError", "RequestFailedError", "ServerError"]


class RequestFailedError(Exception):
    """One request of a batch has failed, with the message that its client would get."""


class CanceledError(Exception):
    """The run was canceled."""
