"""A tracer that keeps what it is told; see `TracerPort`."""

from __future__ import annotations

import itertools

from geartrain.domain.predictions.tracing import NO_CONTEXT, Span, TraceContext


class KeepingTracer:
    """Gives ids by counting, and keeps the spans. A request without a parent is sampled if `samples`."""

    def __init__(self, *, samples: bool = True) -> None:
        self.spans: list[Span] = []
        self.is_closed = False
        self._flags = int(samples)
        self._ids = itertools.count(1)

    def begin(self, parent: TraceContext) -> TraceContext:
        """See `TracerPort`."""
        if parent is NO_CONTEXT:
            return TraceContext(f"{next(self._ids):032x}", self._new_id(), self._flags)
        return self.child(parent)

    def child(self, parent: TraceContext) -> TraceContext:
        """See `TracerPort`."""
        return TraceContext(parent.trace_id, self._new_id(), parent.flags, parent.state)

    def record(self, span: Span) -> None:
        """See `TracerPort`."""
        self.spans.append(span)

    async def close(self) -> None:
        """See `TracerPort`."""
        self.is_closed = True

    def _new_id(self) -> str:
        return f"{next(self._ids):016x}"
