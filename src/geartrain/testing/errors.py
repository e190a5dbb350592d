"""What the helpers of tests raise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from geartrain.worker.values.faults import OutputError

__all__ = ["CanceledError", "InvalidInputError", "OutputError", "RequestFailedError", "ServerError"]


class InvalidInputError(ValueError):
    """A server would refuse these inputs.

    `detail` is what its answer with status 422 says: a dict for each fault, with `loc`, `msg` and `type`.
    """

    def __init__(self, detail: Iterable[dict[str, Any]]) -> None:
        self.detail = [{**fault, "loc": list(fault["loc"])} for fault in detail]
        super().__init__("\n".join([f"{'.'.join(fault['loc'][1:])}: {fault['msg']}" for fault in self.detail]))


class RequestFailedError(Exception):
    """One request of a batch has failed, with the message that its client would get."""


class CanceledError(Exception):
    """The run was canceled."""


class ServerError(Exception):
    """A server has not become ready; the message ends with its log."""
