"""The spans of requests: which of them have one, what it says, and what is passed on."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain.domain.predictions.tracing import NO_CONTEXT, Span, read_context
from geartrain.transport.records import RequestRecord
from geartrain.transport.tracing import TracedRecords
from geartrain.transport.wire.exchange import Head, RequestNotes
from geartrain.transport.wire.outgoing import UNREADABLE
from tests.support.tracers import KeepingTracer

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OK, UNKNOWN, INVALID = ((b"grpc-status", b"0"),), ((b"grpc-status", b"2"),), ((b"grpc-status", b"3"),)


class Bench:
    """Records whose spans are kept, and what another observer hears."""

    def __init__(self, **options: Any) -> None:
        self.tracer = KeepingTracer(**options)
        self.ended: list[RequestRecord] = []
        routes = {("POST", "/predictions"): "/predictions", ("GET", "/predictions/7"): "/predictions/{id}"}
        self.records = TracedRecords(
            self, self.tracer, scheme="https", route_of=lambda method, path: routes.get((method, path), "")
        )

    def add(self, request: RequestRecord) -> None:
        self.ended.append(request)

    def record(
        self, method: str = "POST", path: bytes = b"/predictions", *headers: tuple[bytes, bytes], **notes: Any
    ) -> RequestRecord:
        head = Head(method, path, b"", headers, notes=RequestNotes(**notes))
        record = self.records.of(head)("10.0.0.7:5123")
        assert isinstance(record, RequestRecord)
        return record

    @property
    def span(self) -> Span:
        """The only one."""
        (span,) = self.tracer.spans
        return span


def test_http() -> None:
    bench = Bench()
    record = bench.record("POST", b"/predictions", (b"x-request-id", b"r-1"), key="ops")
    record.received, record.sent = 12, 34
    record.end(200)
    span = bench.span
    assert (span.name, span.kind, span.parent, span.is_failed) == ("POST /predictions", "server", NO_CONTEXT, False)
    assert span.attributes == {
        "http.request.method": "POST",
        "url.path": "/predictions",
        "url.scheme": "https",
        "http.route": "/predictions",
        "http.request.body.size": 12,
        "http.response.body.size": 34,
        "http.response.status_code": 200,
        "client.address": "10.0.0.7",
        "client.port": 5123,
        "geartrain.request.id": "r-1",
        "geartrain.key": "ops",
    }
    assert bench.ended[0].context.traceparent == span.context.traceparent
    assert dict(record.fields())[b"traceparent"] == span.context.traceparent.encode()


def test_trace_of_the_client_goes_on() -> None:
    bench = Bench()
    bench.record("POST", b"/predictions", (b"traceparent", PARENT.encode()), (b"tracestate", b"a=1")).end(200)
    assert bench.span.parent == read_context(PARENT, "a=1")
    assert bench.span.context.trace_id == bench.span.parent.trace_id
    assert bench.ended[0].context.tracestate == "a=1"


@pytest.mark.parametrize(
    ("method", "path", "name", "shown"),
    [
        ("GET", b"/predictions/7", "GET /predictions/{id}", "GET"),
        ("GET", b"/nowhere", "GET", "GET"),
        ("BREW", b"/predictions", "HTTP", "_OTHER"),
    ],
)
def test_names_are_few(method: str, path: bytes, name: str, shown: str) -> None:
    bench = Bench()
    bench.record(method, path).end(404)
    assert (bench.span.name, bench.span.attributes["http.request.method"]) == (name, shown)


@pytest.mark.parametrize(
    ("status", "is_failed", "error"), [(200, False, None), (422, False, None), (500, True, "500"), (503, True, "503")]
)
def test_errors_of_http(status: int, *, is_failed: bool, error: str | None) -> None:
    bench = Bench()
    bench.record().end(status)
    assert (bench.span.is_failed, bench.span.attributes.get("error.type")) == (is_failed, error)


def test_client_that_has_left() -> None:
    bench = Bench()
    bench.record().leave()
    assert (bench.span.is_failed, bench.span.attributes["error.type"]) == (False, "client_disconnected")
    assert "http.response.status_code" not in bench.span.attributes


@pytest.mark.parametrize(
    ("trailers", "status", "is_failed"),
    [(OK, "OK", False), (UNKNOWN, "UNKNOWN", True), (INVALID, "INVALID_ARGUMENT", False)],
)
def test_grpc(trailers: Any, status: str, *, is_failed: bool) -> None:
    bench = Bench()
    bench.record("POST", b"/inference.GRPCInferenceService/ModelInfer", protocol="grpc").end(200, trailers)
    span = bench.span
    assert (span.name, span.is_failed) == ("inference.GRPCInferenceService/ModelInfer", is_failed)
    assert span.attributes["rpc.method"] == span.name
    assert span.attributes["rpc.response.status_code"] == status


def test_routine_has_no_span() -> None:
    bench = Bench()
    bench.record(is_routine=True).end(200)
    assert (len(bench.ended), bench.tracer.spans) == (1, [])


def test_what_is_no_http_has_no_span() -> None:
    bench = Bench()
    bench.records.of(UNREADABLE)("10.0.0.7:5123").end(400)
    assert (len(bench.ended), bench.tracer.spans) == (1, [])


def test_not_sampled() -> None:
    bench = Bench(samples=False)
    bench.record().end(200)
    assert bench.tracer.spans == []
    assert bench.ended[0].context.traceparent.endswith("-00")


def test_later_requests_with_the_same_head_have_spans_of_their_own() -> None:
    bench = Bench()
    new_record = bench.records.of(Head("POST", b"/predictions", b"", ()))
    for _ in range(2):
        new_record("").end(200)
    first, second = bench.tracer.spans
    assert first.context.trace_id != second.context.trace_id
