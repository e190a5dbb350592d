"""Contexts of traces, and what outgoing requests belong to."""

from __future__ import annotations

import pytest

from geartrain.domain.predictions.tracing import (
    NO_CONTEXT,
    OutgoingTrace,
    TraceContext,
    current_outgoing,
    outgoing,
    read_context,
)
from tests.support.tracers import KeepingTracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("flags", [0, 1, 2, 3, 0xFE, 0xFF])
def test_fields(flags: int) -> None:
    text = f"00-{TRACE}-{SPAN}-{flags:02x}"
    context = read_context(text, "vendor=1")
    assert context == TraceContext(TRACE, SPAN, flags, "vendor=1")
    assert context.is_sampled is bool(flags & 1)
    assert context.traceparent == text
    assert context.headers == (("traceparent", text), ("tracestate", "vendor=1"))


def test_no_fields() -> None:
    assert read_context("", "") is NO_CONTEXT
    assert not NO_CONTEXT.is_sampled


def test_outgoing_requests_belong_to_the_block() -> None:
    context = TraceContext(TRACE, SPAN, 1)
    tracer = KeepingTracer()
    with outgoing(tracer, context):
        assert current_outgoing() == OutgoingTrace(tracer, context)
        assert context.headers == (("traceparent", context.traceparent),)
    assert current_outgoing() is None
