"""Traces as the layers speak of them: which span a request is in, and spans that are over, as plain records.

A span is made when it has ended, from moments that are known anyway. Only its ids are made before, where something
has to know them earlier: the worker, a receiver of webhooks, the next server. Source: W3C Trace Context, OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, Protocol

import msgspec

Kind = Literal["internal", "server", "client"]
Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]

SAMPLED: Final = 1  # the flag of `traceparent`
_NO_TRACE_ID: Final = "0" * 32
_NO_SPAN_ID: Final = "0" * 16


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A span of a trace, as W3C Trace Context names it.

    Attributes:
        trace_id: 32 hexadecimal digits in lower case.
        span_id: 16 of them.
        flags: 8 bits; the lowest says that the trace is sampled.
        state: the field `tracestate`; empty if there is none.
    """

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """True if spans of this trace are recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The field `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The fields that carry it to another server."""
        named = (("traceparent", self.traceparent),)
        return (*named, ("tracestate", self.state)) if self.state else named


NO_CONTEXT: Final = TraceContext(_NO_TRACE_ID, _NO_SPAN_ID, 0)
"""In place of a context, where there is none."""


def read_context(traceparent: str, tracestate: str = "") -> TraceContext:
    """Return the context in the fields of a `RequestContext`, which are valid; `NO_CONTEXT` if they are empty."""
    if not traceparent:
        return NO_CONTEXT
    return TraceContext(traceparent[3:35], traceparent[36:52], int(traceparent[53:], 16), tracestate)


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A span that is over. Times in seconds since the epoch.

    Attributes:
        parent: the span that it is a child of; `NO_CONTEXT` for the first of a trace.
        is_parent_remote: whether the parent is of another process.
        links: spans of other traces that it has to do with.
        error: why it failed; empty if it did not.
        is_failed: whether its status is an error, with or without a text.
    """

    name: str
    context: TraceContext
    start: float
    end: float
    parent: TraceContext = NO_CONTEXT
    is_parent_remote: bool = False
    kind: Kind = "internal"
    attributes: Attributes = {}
    links: tuple[TraceContext, ...] = ()
    error: str = ""
    is_failed: bool = False


class TracerPort(Protocol):
    """Decides which requests are recorded, makes ids, and takes the spans that are over."""

    def begin(self, parent: TraceContext) -> TraceContext:
        """Return the span of a request that has come, in the trace of `parent` or a new one, sampled or not."""

    def child(self, parent: TraceContext) -> TraceContext:
        """Return a new span in the trace of `parent`."""

    def record(self, span: Span) -> None:
        """Take a span that is over. It is sent later, and dropped if there are too many."""

    async def close(self) -> None:
        """Send what has been recorded, within a few seconds."""


class OutgoingTrace(msgspec.Struct, frozen=True):
    """Trace of the requests that this server sends."""

    tracer: TracerPort
    parent: TraceContext


_outgoing: ContextVar[OutgoingTrace | None] = ContextVar("geartrain_outgoing", default=None)


def current_outgoing() -> OutgoingTrace | None:
    """Return the trace of requests that this task sends; None if they are not recorded."""
    return _outgoing.get()


@contextmanager
def outgoing(tracer: TracerPort, parent: TraceContext) -> Iterator[None]:
    """Make requests that are sent by the tasks begun inside this block children of `parent`."""
    token = _outgoing.set(OutgoingTrace(tracer, parent))
    try:
        yield
    finally:
        _outgoing.reset(token)
