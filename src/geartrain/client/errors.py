"""Exceptions of clients; each of them is a `ClientError`. Those of predictions are in `predictions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class ClientError(Exception):
    """Anything that keeps a client from an output."""


class UnreachableError(ClientError):
    """The server cannot be reached, or the connection broke, as often as it was tried."""


class TimedOutError(ClientError, TimeoutError):
    """The client's own time for the request was up; the prediction is canceled, unless it was submitted."""


class RefusedError(ClientError):
    """The server has refused the request: the `status` of its answer, and its `message`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class InvalidInputError(RefusedError, ValueError):
    """The inputs do not fit the model.

    `detail` is what the answer with status 422 says: a dict for each fault, with `loc`, `msg` and `type`. The text of
    the error has a line for each.
    """

    def __init__(self, detail: Iterable[Mapping[str, Any]], status: int = 422) -> None:
        self.detail = [{**fault, "loc": list(fault["loc"])} for fault in detail]
        super().__init__("\n".join([f"{'.'.join(fault['loc'][1:])}: {fault['msg']}" for fault in self.detail]), status)


class AccessError(RefusedError):
    """The key is missing, not valid, or for something else."""


class NotFoundError(RefusedError):
    """There is no such model or prediction."""


class BusyError(RefusedError):
    """The server has no place for the request now, as often as it was tried; or the model is not ready.

    `retry_after`: in how many seconds it may have one.
    """

    def __init__(self, message: str, status: int, retry_after: float) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after
