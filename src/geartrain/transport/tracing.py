"""Server spans: one for each incoming request, made of its record at its end.

Where traces are configured, the records of requests get the ids of their spans, so that code which passes a trace on,
to a worker or to another server, needs no tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, cast

import msgspec

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.tracing import Span, TraceContext, TracerPort, Value, read_context
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.records import LEFT, NO_GRPC, RequestObserver, RequestRecord, RequestRecords, id_lines, ids_of
from geartrain.transport.wire.exchange import Head, NewRecord
from geartrain.transport.wire.outgoing import UNREADABLE

RouteOf = Callable[[str, str], str]
"""Gives the template of the route of a method and a path of HTTP; empty if there is none."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"})
_FIRST_REFUSAL: Final = 400
_FIRST_ERROR: Final = 500
_GRPC_NAMES: Final = {int(status): status.name for status in GrpcStatus}
# errors of the server, by the conventions for gRPC
_GRPC_ERRORS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)


class TracedRecords(RequestRecords):
    """Makes the records of requests, each with the context of its span.

    Probes and the like have none, and neither has what is no valid HTTP.
    """

    def __init__(self, observer: RequestObserver, tracer: TracerPort, *, scheme: str, route_of: RouteOf) -> None:
        """`observer` hears of each request that is over; `scheme` is `http` or `https`, or empty."""
        super().__init__(_Observers(observer, _RequestSpans(tracer, scheme=scheme, route_of=route_of)))
        self._tracer = tracer

    def of(self, head: Head) -> NewRecord:
        """Create the factory of the records for requests with a decided head."""
        new_record = super().of(head)
        if head.notes.is_routine or head is UNREADABLE:
            return new_record
        sent = ids_of(head)
        parent = read_context(sent.traceparent, sent.tracestate)
        return partial(self._new_record, new_record, parent)

    def _new_record(self, new_record: NewRecord, parent: TraceContext, peer: str) -> RequestRecord:
        record = cast("RequestRecord", new_record(peer))
        context = self._tracer.begin(parent)
        record.context = msgspec.structs.replace(
            record.context, traceparent=context.traceparent, tracestate=context.state
        )
        record.id_lines = id_lines(record.context)
        if context.is_sampled:
            record.attributes = {}
        return record


class _Observers:
    """Tells of the requests that are over to several."""

    def __init__(self, *observers: RequestObserver) -> None:
        self._observers = observers

    def add(self, request: RequestRecord) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.add(request)


class _RequestSpans:
    """Records the spans of requests that are over."""

    def __init__(self, tracer: TracerPort, *, scheme: str, route_of: RouteOf) -> None:
        self._tracer = tracer
        self._scheme = scheme
        self._route_of = route_of

    def add(self, request: RequestRecord) -> None:
        """Take one; those that are not sampled have no span."""
        context = read_context(request.context.traceparent, request.context.tracestate)
        if request.origin.is_routine or not request.origin.method or not context.is_sampled:
            return
        sent = request.origin.sent
        name, attributes, is_failed = self._grpc(request) if _is_grpc(request) else self._http(request)
        self._tracer.record(
            Span(
                name=name,
                context=context,
                parent=read_context(sent.traceparent, sent.tracestate),
                is_parent_remote=True,
                kind="server",
                start=request.began,
                end=request.ended,
                attributes={**attributes, **_common(request), **(request.attributes or {})},
                is_failed=is_failed,
            )
        )

    def _http(self, request: RequestRecord) -> tuple[str, dict[str, Value], bool]:
        origin, status = request.origin, request.status
        is_known = origin.method in _METHODS
        route = self._route_of(origin.method, origin.path)
        attributes: dict[str, Value] = {
            "http.request.method": origin.method if is_known else "_OTHER",
            "url.path": origin.path,
            "http.request.body.size": request.received,
            "http.response.body.size": request.sent,
        }
        if self._scheme:
            attributes["url.scheme"] = self._scheme
        if route:
            attributes["http.route"] = route
        if status == LEFT:
            attributes["error.type"] = "client_disconnected"
        else:
            attributes["http.response.status_code"] = status
        is_failed = status >= _FIRST_ERROR
        if is_failed:
            attributes["error.type"] = str(status)
        elif request.outcome is Status.FAILED and status < _FIRST_REFUSAL:  # Cog's API tells of it with 200
            attributes["error.type"], is_failed = "run_failed", True
        method = origin.method if is_known else "HTTP"
        return (f"{method} {route}" if route else method), attributes, is_failed

    @staticmethod
    def _grpc(request: RequestRecord) -> tuple[str, dict[str, Value], bool]:
        method, number = request.origin.path.lstrip("/"), request.grpc_status
        attributes: dict[str, Value] = {"rpc.system.name": "grpc", "rpc.method": method}
        if request.status == LEFT:
            attributes["error.type"] = "client_disconnected"
            return method, attributes, False
        text = _GRPC_NAMES.get(number, str(number))
        attributes["rpc.response.status_code"] = text
        if number:
            attributes["error.type"] = text
        return method, attributes, text in _GRPC_ERRORS


def _is_grpc(request: RequestRecord) -> bool:
    return request.origin.protocol == "grpc" or request.grpc_status != NO_GRPC


def _common(request: RequestRecord) -> dict[str, Value]:
    """Return the attributes of every request's span."""
    known: dict[str, Value] = {
        "geartrain.request.id": request.context.request_id,
        "geartrain.prediction.id": request.prediction.prediction_id or request.origin.prediction_id,
        "geartrain.model.name": request.prediction.model,
        "geartrain.model.version": request.prediction.version,
        "geartrain.outcome": request.outcome.value if request.prediction.prediction_id else "",
        "geartrain.key": request.origin.key,
    }
    address, _, port = request.peer.rpartition(":")
    if port.isdecimal():
        known |= {"client.address": address.strip("[]"), "client.port": int(port)}
    return {name: value for name, value in known.items() if value}
