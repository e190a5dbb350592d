"""Lines of the access log."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from geartrain.domain.predictions.lifecycle import PREDICTION_STEPS, Status
from geartrain.domain.rendering import timestamp
from geartrain.transport.records import LEFT, NO_GRPC, RequestRecord

_LOGGER_NAME: Final = "geartrain.access"
LOGGER: Final = logging.getLogger(_LOGGER_NAME)
MESSAGE: Final = "request"
# By the status of a prediction; to read the value of a member of an enumeration takes many times as long.
_OUTCOMES: Final = {status: status.value if not PREDICTION_STEPS[status] else "accepted" for status in Status}
_STARTING: Final = Status.STARTING
_NOTHING: Final = -1.0
_LONGEST_ERROR: Final = 2048  # characters

PreparedT = TypeVar("PreparedT")


class RequestWriter(abc.ABC, Generic[PreparedT]):
    """Writes lines for requests, in two steps."""

    @abc.abstractmethod
    def prepare(self, requests: Sequence[RequestRecord]) -> PreparedT:
        """Prepare the lines of some requests. Called on the event loop: it takes microseconds for each."""

    @abc.abstractmethod
    def write(self, prepared: Sequence[PreparedT]) -> None:
        """Write it, in this order. Called by a thread, one call after the other; may block."""


class SlowWriter(RequestWriter[Sequence[RequestRecord]]):
    """Leaves all to the thread, for lines that take long to make."""

    def __init__(self, write: Callable[[RequestRecord], None]) -> None:
        """`write` writes the line of one request."""
        self._write = write

    def prepare(self, requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        """Return the requests themselves."""
        return requests

    def write(self, prepared: Sequence[Sequence[RequestRecord]]) -> None:
        """Make each line and write it."""
        for requests in prepared:
            for request in requests:
                self._write(request)


class AccessLine(msgspec.Struct, omit_defaults=True, gc=False):
    """A line, in the order of its fields; what does not apply to a request is left out.

    Attributes:
        timestamp: when the answer was complete, in UTC.
        outcome: `succeeded`, `failed` or `canceled` of its prediction, `accepted` if that goes on without the client,
            `disconnected` if the client has left. Without a prediction `refused` for an error, otherwise `done`.
        queue_ms: milliseconds between the admission of the prediction and the beginning of its run.
        run_ms: milliseconds of the run, and of the delivery of its files.
        total_ms: milliseconds between the head of the request and the end of the answer.
        bytes_in: of the body of the request.
        bytes_out: of the body of the answer.
        grpc_status: the number of it; `status` is always 200 in gRPC, or 499.
        requests: of a stream of gRPC, as are the `failures` among them.
        error: the reason of a refusal; that of a failed run has a record of its own.
    """

    timestamp: str
    level: str
    logger: str
    message: str
    protocol: str
    method: str
    path: str
    status: int
    outcome: str
    request_id: str
    trace_id: str
    total_ms: float
    bytes_in: int
    bytes_out: int
    model: str = ""
    version: str = ""
    prediction_id: str = ""
    queue_ms: float = _NOTHING
    run_ms: float = _NOTHING
    peer: str = ""
    key: str = ""
    grpc_status: int = NO_GRPC
    requests: int = 0
    failures: int = 0
    error: str = ""


def line_of(request: RequestRecord) -> AccessLine:
    """Return the line of a request."""
    origin, context, ended, prediction = request.origin, request.context, request.ended, request.prediction
    began = prediction.began
    queue = run = _NOTHING
    if began and request.outcome is not _STARTING:  # a request that goes on may have begun after the answer
        # Milliseconds with three digits: this takes half the time of `round`.
        queue = int((began - prediction.admitted) * 1_000_000) / 1000
        run = int((prediction.completed - began) * 1_000_000) / 1000
    return AccessLine(
        timestamp(ended),
        "debug" if origin.is_routine else "info",
        _LOGGER_NAME,
        MESSAGE,
        origin.protocol,
        origin.method,
        origin.path,
        request.status,
        outcome_of(request),
        context.request_id,
        context.traceparent[3:35],
        int((ended - request.began) * 1_000_000) / 1000,
        request.received,
        request.sent,
        prediction.model or origin.model,
        prediction.version,
        prediction.prediction_id or origin.prediction_id,
        queue,
        run,
        request.peer,
        origin.key,
        request.grpc_status,
        request.requests,
        request.failures,
        "" if prediction.prediction_id else request.error[:_LONGEST_ERROR],
    )


def outcome_of(request: RequestRecord) -> str:
    """Return the outcome of a request; see `AccessLine`."""
    if request.status == LEFT:
        return "disconnected"
    if not request.prediction.prediction_id:
        return "refused" if request.has_failed else "done"
    return _OUTCOMES[request.outcome]


def fields_of(line: AccessLine) -> dict[str, Any]:
    """Return the fields of a line that apply to its request, without those that every record of a log has."""
    fields: dict[str, Any] = msgspec.to_builtins(line)
    for name in ("timestamp", "level", "logger", "message"):
        del fields[name]
    return fields


def by_logging() -> SlowWriter:
    """Create the writer of records of `geartrain.access`, for applications that configure logging."""

    def write(request: RequestRecord) -> None:
        line = line_of(request)
        level = logging.DEBUG if request.origin.is_routine else logging.INFO
        LOGGER.log(level, "%s %s %d", line.method, line.path, line.status, extra=fields_of(line))

    return SlowWriter(write)
