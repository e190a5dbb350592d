"""The record of each request, and the counts of those that have ended, by protocol and status.

A wire makes a record when the head of a request has been decided about, and ends it with the answer. The exchange
notes its prediction in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from http import HTTPStatus
from operator import attrgetter
from time import time
from types import TracebackType
from typing import Final, Protocol, Self, cast
from urllib.parse import quote

import msgspec

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import NO_PREDICTION, PredictionRecord
from geartrain.domain.predictions.request_context import (
    NOTHING_SENT,
    ForwardedFields,
    RequestContext,
    SentIds,
    new_context,
    new_contexts,
    read_ids,
)
from geartrain.domain.predictions.tracing import Value
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.wire.exchange import Fields, Head, Headers, NewRecord, Responder

LEFT: Final = 499
"""In place of a status, where the client has left before its answer was complete. Other servers say so, too."""
_BAD: Final = 400  # the first status of an error
_LONGEST: Final = 1024  # characters that are kept of a path, and of the names in it
_GRPC_STATUS: Final = b"grpc-status"
NO_GRPC: Final = -1
_FAILED: Final = Status.FAILED  # to read it from its class takes several times as long
_TOGETHER: Final = 64  # ids that are made, or requests that are counted and have their lines made, at once
_Ids = tuple[RequestContext, bytes]
_kind: Final = attrgetter("origin.protocol", "status", "grpc_status")
_INTERVAL: Final = 0.05  # seconds in which requests are gathered


class Origin(msgspec.Struct, frozen=True):
    """Shared facts of all requests with one head. Attributes as in `Head` and `RequestNotes`."""

    method: str
    path: str
    protocol: str
    key: str
    model: str
    is_routine: bool
    prediction_id: str
    sent: SentIds


class RequestObserver(Protocol):
    """Hears of the requests that are over."""

    def add(self, request: RequestRecord, /) -> None:
        """Take one. It is on the path of requests: it must not take long, and raises nothing."""


class RequestsObserver(Protocol):
    """Hears of the requests that are over, many at a time."""

    def add_all(self, requests: Sequence[RequestRecord], /) -> None:
        """Take some, in the order in which they have ended. The loop does nothing else meanwhile. Raises nothing."""


class RequestRecord(msgspec.Struct, gc=False, eq=False):
    """Record of one request. See `Record`. Moments are in seconds since the epoch.

    Attributes:
        observer: is notified of its end.
        origin: facts from its head.
        peer: the address of the client.
        began: arrival of its head.
        context: its ids.
        id_lines: these as header fields of the answer, as lines of HTTP/1.1.
        prediction: the record of the one that it has asked for.
        headers: the fields of its head, until the answer is complete: a log may hold the record for longer.
        received: bytes of the body so far.
        sent: bytes of the body of the answer so far.
        requests: their number, if it is a stream of gRPC.
        failures: number of these that were answered with an error.
        ended: completion of its answer, 0 until then. The following ones are unset until then.
        status: of HTTP; `LEFT` if the client has left.
        grpc_status: `NO_GRPC` where it is no call of gRPC, or one without a status.
        outcome: the status of the prediction when the answer was complete: `STARTING` if it goes on.
        error: the reason of a refusal.
        attributes: those that its handler adds to its span; None where it has no span.
    """

    observer: RequestObserver
    origin: Origin
    peer: str
    began: float
    context: RequestContext
    id_lines: bytes
    prediction: PredictionRecord
    headers: Headers = ()
    received: int = 0
    sent: int = 0
    requests: int = 0
    failures: int = 0
    ended: float = 0.0
    status: int = 0
    grpc_status: int = NO_GRPC
    outcome: Status = Status.STARTING
    error: str = ""
    attributes: dict[str, Value] | None = None

    def context_for(self, forwarded: ForwardedFields | None) -> RequestContext:
        """Return its ids, with the header fields that are parameters of a model's runs."""
        if forwarded is None:
            return self.context
        is_grpc = self.origin.protocol == "grpc"
        return msgspec.structs.replace(self.context, fields=forwarded.of(self.headers, is_grpc=is_grpc))

    @property
    def has_failed(self) -> bool:
        """True if it was answered with an error, or its run failed, or its client has left."""
        return self.status >= _BAD or self.grpc_status > 0 or self.failures > 0 or self.outcome is _FAILED

    def lines(self) -> bytes:
        """Return the header fields of the answer as lines of HTTP/1.1."""
        prediction_id = self.prediction.prediction_id or self.origin.prediction_id
        if not prediction_id:
            return self.id_lines
        if not (prediction_id.isascii() and prediction_id.isprintable()):
            prediction_id = header_text(prediction_id)
        lines = b"%bx-prediction-id: %b\r\n" % (self.id_lines, prediction_id.encode())
        if self.prediction.cache:
            lines += b"".join(b"%b: %b\r\n" % field for field in cache_fields(self.prediction))
        return lines

    def fields(self) -> Fields:
        """Return the header fields of the answer."""
        context = self.context
        ids = ((b"x-request-id", context.request_id.encode()), (b"traceparent", context.traceparent.encode()))
        prediction_id = self.prediction.prediction_id or self.origin.prediction_id
        if not prediction_id:
            return ids
        cached = cache_fields(self.prediction) if self.prediction.cache else ()
        return (*ids, (b"x-prediction-id", header_text(prediction_id).encode()), *cached)

    def end(self, status: int, trailers: Fields = ()) -> None:
        """Tell of the request: its answer is complete."""
        self.ended = time()
        self.headers = ()
        self.status = status
        self.outcome = self.prediction.outcome
        if trailers:
            self.grpc_status = _grpc_status(trailers)
        self.observer.add(self)

    def leave(self) -> None:
        """Tell of the request: its client has left."""
        self.end(LEFT)


class RequestRecords:
    """Makes the records of the requests to a server. Its `of` is the `Records` of its wires."""

    def __init__(self, observer: RequestObserver) -> None:
        self._observer = observer
        self._made: defaultdict[str, list[_Ids]] = defaultdict(list)  # for requests that come without ids

    def of(self, head: Head) -> NewRecord:
        """Create the factory of the records for requests with a decided head."""
        notes = head.notes
        origin = Origin(
            head.method,
            head.path[:_LONGEST].decode("latin-1"),
            notes.protocol,
            notes.key,
            notes.model[:_LONGEST],
            notes.is_routine,
            notes.prediction_id[:_LONGEST],
            ids_of(head),
        )
        observer, sent, protocol, shows_logs = self._observer, origin.sent, origin.protocol, notes.shows_logs
        headers = head.headers
        if sent is not NOTHING_SENT:

            def continue_record(peer: str) -> RequestRecord:
                context = new_context(sent, protocol, shows_logs=shows_logs)
                return RequestRecord(observer, origin, peer, time(), context, id_lines(context), NO_PREDICTION, headers)

            return continue_record
        made = self._made[protocol]

        def new_record(peer: str) -> RequestRecord:
            if not made:
                made.extend(
                    [
                        (context, id_lines(context))
                        for context in new_contexts(protocol, _TOGETHER, shows_logs=shows_logs)
                    ]
                )
            context, lines = made.pop()
            return RequestRecord(observer, origin, peer, time(), context, lines, NO_PREDICTION, headers)

        return new_record


def id_lines(context: RequestContext) -> bytes:
    """Return the ids of a request as header fields, as lines of HTTP/1.1."""
    return f"x-request-id: {context.request_id}\r\ntraceparent: {context.traceparent}\r\n".encode()


def cache_fields(prediction: PredictionRecord) -> Fields:
    """Return the header fields that tell where an answer is from. Source: RFC 9111, section 5.1, and custom."""
    found = (b"x-cache", prediction.cache.encode())
    return (found, (b"age", b"%d" % prediction.age)) if prediction.cache == "hit" else (found,)


def record_of(responder: Responder) -> RequestRecord:
    """Return the record of a request, which the wires of this server get from `RequestRecords`."""
    return cast("RequestRecord", responder.record)


def _grpc_status(trailers: Fields) -> int:
    return next((int(value) for name, value in trailers if name == _GRPC_STATUS), NO_GRPC)


def ids_of(head: Head) -> SentIds:
    """Return the ids that the client has sent."""
    ids, parents, states, controls = (b"x-request-id", b"traceparent", b"tracestate", b"cache-control")
    values: dict[bytes, list[bytes]] = {ids: [], parents: [], states: [], controls: []}
    for name, value in head.headers:
        if name in values:
            values[name].append(value)
    return read_ids(values[ids], values[parents], values[states], cache_controls=values[controls])


def header_text(prediction_id: str) -> str:
    """Return an id as the value of a header field: what no field may hold is percent-encoded."""
    if prediction_id.isascii() and prediction_id.isprintable():
        return prediction_id
    return quote(prediction_id, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}~")


class RequestCounts:
    """Hears of each request that is over (`RequestObserver`), counts many at a time, and passes them on.

    Used as a context on the event loop that ends the requests: at its end it has passed on all of them.
    """

    def __init__(self, following: RequestsObserver | None = None) -> None:
        self._following = following
        self._gathered: list[RequestRecord] = []
        self._is_timed = False  # true if the gathered requests are settled at the end of the interval
        self._counts: Counter[tuple[str, int, int]] = Counter()  # by protocol, status of HTTP and status of gRPC

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.settle()

    def add(self, request: RequestRecord) -> None:
        """Take a request that is over."""
        gathered = self._gathered
        gathered.append(request)
        count = len(gathered)
        if count >= _TOGETHER:
            self.settle()
        elif count == 1 and not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(_INTERVAL, self._on_interval)

    def _on_interval(self) -> None:
        self._is_timed = False
        self.settle()

    def settle(self) -> None:
        """Count what has been gathered, and pass it on."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        self._counts.update(map(_kind, gathered))
        if self._following is not None:
            self._following.add_all(gathered)

    def all(self) -> dict[tuple[str, str], int]:
        """Return the counts by protocol and status: the name of gRPC's, otherwise the number of HTTP's."""
        self.settle()
        counts: Counter[tuple[str, str]] = Counter()
        for (protocol, status, grpc_status), count in self._counts.items():
            if protocol == "grpc" and status == HTTPStatus.OK:
                counts[protocol, GrpcStatus(max(grpc_status, 0)).name] += count
            else:
                counts[protocol, str(int(status)) if grpc_status == NO_GRPC else GrpcStatus(grpc_status).name] += count
        return dict(counts)
