"""The run of a prediction as OpenTelemetry's current span, so that spans of the author's own code are its children."""

from __future__ import annotations

from contextvars import Token
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach

from geartrain.domain.predictions.tracing import NO_CONTEXT, TraceContext

_NO_SPAN: Final = Context()


def enter(run: TraceContext) -> Token[Context]:
    """Make a run the current span of this context, or none for `NO_CONTEXT`; `leave` takes it back."""
    if run is NO_CONTEXT:
        return attach(_NO_SPAN)
    state = trace.TraceState.from_header([run.state]) if run.state else None
    ids = int(run.trace_id, 16), int(run.span_id, 16)
    span = trace.SpanContext(*ids, is_remote=True, trace_flags=trace.TraceFlags(run.flags), trace_state=state)
    return attach(trace.set_span_in_context(trace.NonRecordingSpan(span), _NO_SPAN))


def leave(token: Token[Context]) -> None:
    """Undo the `enter` that gave this token."""
    detach(token)
