"""The access log: a line for each request when it is over, and the options that choose the requests.

The lines are made many at a time. A thread writes them, because their reader may be slow.
"""

from __future__ import annotations

import abc
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import filterfalse
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar, cast

import msgspec

from geartrain.apis.timestamps import timestamp
from geartrain.domain.predictions.lifecycle import PREDICTION_STEPS, Status
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
Mode = Literal["on", "sampled", "errors", "off"]

_MODE: Final = re.compile(r"on|errors|off|sampled:([1-9][0-9]{0,8})")
MAX_WAITING: Final = 16_384  # requests that wait to be written; further ones are dropped and counted
_is_routine: Final = attrgetter("origin.is_routine")
_INTERVAL: Final = 0.05  # seconds in which lines are gathered
_FAULT: Final = "lines of the access log could not be written"
_LAST: Final = 5.0  # seconds that the last lines have at the end of the server


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


class AccessLogOptions(msgspec.Struct, frozen=True):
    """Which requests have a line.

    Attributes:
        mode: all of them (`on`), one in `each` and those that failed (`sampled`), those that failed (`errors`), or none
            (`off`).
        each: as above; 1 for any other mode.
        new_writer: makes what writes the lines.
    """

    mode: Mode = "on"
    each: int = 1
    new_writer: Callable[[], RequestWriter[Any]] = by_logging


def read_access_log(text: str) -> AccessLogOptions:
    """Parse the value of `--access-log`; raise ValueError with a sentence."""
    match = _MODE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is none of on, errors, off, and sampled:N, such as sampled:100 for one in 100 requests"
        )
    if match[1] is None:
        return AccessLogOptions(cast("Mode", text))
    return AccessLogOptions("sampled", int(match[1]))


class AccessLog:
    """Hears of requests (`RequestsObserver`), and has lines written for those that the options want.

    Used as a context: it ends with all lines written.
    """

    def __init__(self, options: AccessLogOptions) -> None:
        self._options = options
        self._writer = options.new_writer()
        self._count = 0  # of requests that may be left out
        self._lines = _Lines(self._writer)

    def __enter__(self) -> Self:
        if self._options.mode != "off":
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._options.mode != "off":
            self._lines.close()

    def add_all(self, requests: Sequence[RequestRecord]) -> None:
        """Have the lines of requests written."""
        wanted = self._wanted(requests)
        if not wanted:
            return
        if not self._lines.has_room(len(wanted)):
            self._lines.dropped += len(wanted)
            return
        try:
            prepared = self._writer.prepare(wanted)
        except Exception:
            LOGGER.exception(_FAULT)
        else:
            self._lines.add(prepared, len(wanted))

    def _wanted(self, requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        """Return those that have a line."""
        if self._options.mode == "off":
            return ()
        has_routine, has_others = LOGGER.isEnabledFor(logging.DEBUG), LOGGER.isEnabledFor(logging.INFO)
        if self._options.mode == "on" and has_others:
            return requests if has_routine else list(filterfalse(_is_routine, requests))
        return [
            request
            for request in requests
            if (has_routine if _is_routine(request) else has_others and self._is_chosen(request))
        ]

    def _is_chosen(self, request: RequestRecord) -> bool:
        if request.has_failed:
            return True
        if self._options.mode == "errors":
            return False
        self._count += 1
        return self._count % self._options.each == 0


class _Lines:
    """Lines that have been prepared, and the thread that writes them."""

    def __init__(self, writer: RequestWriter[Any]) -> None:
        self._writer = writer
        self._waiting: deque[tuple[Any, int]] = deque()  # with the number of lines
        # Each is changed by one side alone.
        self._added = self._written = 0  # lines
        self.dropped = 0  # lines, in all
        self._told = 0  # of these
        self._is_awake = False  # the thread has been told that something waits
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def has_room(self, count: int) -> bool:
        """True if so many more lines may wait."""
        return self._added - self._written + count <= MAX_WAITING

    def add(self, prepared: Any, count: int) -> None:
        """Have something written that is so many lines."""
        self._added += count
        self._waiting.append((prepared, count))
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_LAST)  # the reader of the log may have stopped

    # in the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_INTERVAL)
            self._wake.clear()
            self._is_awake = False  # before the first look: what comes behind the last one wakes the thread again
            self._write_all()
        self._write_all()

    def _write_all(self) -> None:
        waiting = self._waiting
        while waiting:
            taken = [waiting.popleft() for _ in range(len(waiting))]
            try:
                self._writer.write([prepared for prepared, _ in taken])
            except Exception:
                LOGGER.exception(_FAULT)
            self._written += sum([count for _, count in taken])
        dropped = self.dropped - self._told
        if dropped:
            self._told += dropped
            LOGGER.warning("lines of the access log were dropped: they are not read in time", extra={"count": dropped})
