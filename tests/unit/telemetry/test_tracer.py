"""The tracer on OpenTelemetry: the sampler's decisions, and what becomes of a record."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from geartrain.domain.predictions.tracing import NO_CONTEXT, Span, TraceContext
from geartrain.telemetry.tracer import OtelTracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def make_tracer(monkeypatch: pytest.MonkeyPatch, **variables: str) -> OtelTracer:
    """A tracer that sends nothing."""
    for name, value in {"OTEL_TRACES_EXPORTER": "none", **variables}.items():
        monkeypatch.setenv(name, value)
    return OtelTracer("1.2.3")


@pytest.mark.parametrize(
    ("sampler", "argument", "parent", "flags"),
    [
        ("parentbased_always_on", "", None, 1),
        ("parentbased_always_on", "", 1, 1),
        ("parentbased_always_on", "", 0, 0),
        ("parentbased_always_on", "", 3, 3),
        ("parentbased_always_off", "", None, 0),
        ("parentbased_traceidratio", "0", None, 0),
        ("parentbased_traceidratio", "0", 1, 1),
        ("traceidratio", "0", 3, 2),
        ("always_off", "", 1, 0),
        ("always_on", "", 0, 1),
    ],
)
def test_sampler_decides(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str, *, parent: int | None, flags: int
) -> None:
    tracer = make_tracer(monkeypatch, OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    before = NO_CONTEXT if parent is None else TraceContext(TRACE, SPAN, parent, "vendor=1")
    context = tracer.begin(before)
    assert context.flags == flags
    assert context.span_id != SPAN
    assert (context.trace_id, context.state) == ((TRACE, "vendor=1") if parent is not None else (context.trace_id, ""))


def test_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = make_tracer(monkeypatch)
    first, second = tracer.begin(NO_CONTEXT), tracer.begin(NO_CONTEXT)
    assert first.trace_id != second.trace_id
    child = tracer.child(first)
    assert (child.trace_id, child.flags) == (first.trace_id, first.flags)
    assert len({first.span_id, second.span_id, child.span_id}) == 3


def test_record(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = make_tracer(monkeypatch)
    exporter = InMemorySpanExporter()
    tracer._provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent, context, other = (tracer.child(TraceContext(TRACE, SPAN, 1, "vendor=1")) for _ in range(3))
    span = Span(name="a name", context=context, parent=parent, is_parent_remote=True, kind="server", start=1.5, end=2.5)
    tracer.record(span)
    failed = Span(
        name="failed",
        context=other,
        start=1,
        end=2,
        attributes={"a": 1, "b": ("x", "y")},
        links=(context,),
        error="x" * 5000,
        is_failed=True,
    )
    tracer.record(failed)
    first, second = exporter.get_finished_spans()
    assert (first.name, first.kind, first.start_time, first.end_time) == (
        "a name",
        SpanKind.SERVER,
        1_500_000_000,
        2_500_000_000,
    )
    assert first.context is not None
    assert first.parent is not None
    assert f"{first.context.trace_id:032x}-{first.context.span_id:016x}" == f"{TRACE}-{context.span_id}"
    assert (f"{first.parent.span_id:016x}", first.parent.is_remote) == (parent.span_id, True)
    assert first.context.trace_state.to_header() == "vendor=1"
    assert first.status.status_code is StatusCode.UNSET
    assert first.instrumentation_scope is not None
    assert (first.instrumentation_scope.name, first.instrumentation_scope.version) == ("geartrain", "1.2.3")
    assert first.resource.attributes["service.name"] == "geartrain"
    assert second.context is not None
    assert (second.parent, f"{second.context.trace_id:032x}") == (None, TRACE)
    assert (second.status.status_code, second.status.description) == (StatusCode.ERROR, "x" * 4096)
    assert dict(second.attributes or {}) == {"a": 1, "b": ("x", "y")}
    assert [f"{link.context.span_id:016x}" for link in second.links] == [context.span_id]


async def test_close_ends_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = make_tracer(monkeypatch)
    exporter = InMemorySpanExporter()
    tracer._provider.add_span_processor(SimpleSpanProcessor(exporter))
    await tracer.close()
    tracer.record(Span(name="late", context=tracer.begin(NO_CONTEXT), start=1, end=2))
    assert exporter.get_finished_spans() == ()
