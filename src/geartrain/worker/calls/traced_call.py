"""A call whose run is the current span of OpenTelemetry, for what the author's own code records."""

from __future__ import annotations

from contextvars import Token
from typing import Any

from geartrain.domain.predictions.tracing import TraceContext, read_context
from geartrain.telemetry.current_span import enter, leave
from geartrain.worker.calls.call import Call


class TracedCall(Call):
    """A call of a model that may record spans. The run of a batch is that of the first item that is recorded."""

    __slots__ = ("_span_token",)

    def __enter__(self) -> None:
        """Begin the next invocation, inside its span."""
        super().__enter__()
        self._span_token: Token[Any] = enter(self._run())

    def __exit__(self, *arguments: object) -> None:
        """End the routing, and leave the span."""
        leave(self._span_token)
        super().__exit__(*arguments)

    def _run(self) -> TraceContext:
        items = self._message.items
        first, *others = self._invocation.items
        run = read_context(items[first].traceparent, items[first].tracestate)
        for index in others:
            if run.is_sampled:
                break
            other = read_context(items[index].traceparent, items[index].tracestate)
            run = other if other.is_sampled else run
        return run
