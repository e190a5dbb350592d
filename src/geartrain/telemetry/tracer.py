"""The tracer of the server on OpenTelemetry (`TracerPort`), and the provider that sends spans."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags, TraceState

from geartrain.domain.predictions.tracing import NO_CONTEXT, SAMPLED, Span, TraceContext
from geartrain.telemetry.settings import SERVICE, TelemetryError, exporter_names

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import Sampler

_GROUP: Final = "opentelemetry_traces_exporter"
_PACKAGES: Final = {
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}
_UNNAMED: Final = "unknown_service"
logger = logging.getLogger(__name__)

_SCOPE: Final = "geartrain"
_REQUEST: Final = "request"  # name for samplers, before the real one is known
_CLOSE_LIMIT: Final = 3.0  # seconds to send what is left at the end
_LONGEST_ERROR: Final = 4096  # characters
_NANOSECONDS: Final = 1e9
_KINDS: Final = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


def make_provider(*, sampler: Sampler | None = None, ids: IdGenerator | None = None) -> TracerProvider:
    """Return a provider with the exporters that are asked for. Raises `TelemetryError`.

    `sampler` and `ids` come before what the variables say. The provider has threads that send in the background.
    """
    exporters = [_make_exporter(name) for name in exporter_names(os.environ)]
    provider = TracerProvider(sampler=sampler, id_generator=ids, resource=_resource(), shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def sampler_of_variables() -> Sampler:
    """Return the sampler that `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` name."""
    return TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False).sampler


def begin_shutdown(provider: TracerProvider) -> threading.Thread:
    """Send what is left, and end the provider, in a thread that does not keep the process from ending."""
    thread = threading.Thread(target=provider.shutdown, name="geartrain-traces", daemon=True)
    thread.start()
    return thread


def _resource() -> Resource:
    resource = Resource.create()
    name = str(resource.attributes.get("service.name", _UNNAMED))
    return resource.merge(Resource({"service.name": SERVICE})) if name.startswith(_UNNAMED) else resource


def _make_exporter(name: str) -> SpanExporter:
    found = [*importlib.metadata.entry_points(group=_GROUP, name=name)]
    try:
        make: Any = found[0].load()
        exporter: SpanExporter = make()
    except (IndexError, ImportError) as error:
        package = _PACKAGES.get(name)
        fix = f"install {package}" if package else "OTEL_TRACES_EXPORTER may be otlp, console or none"
        raise TelemetryError(f"there is no exporter of traces {name!r}: {fix}") from error
    return exporter


class _GivenIds(RandomIdGenerator):
    """Gives the ids of the span that is being made, which have been handed out before."""

    def __init__(self) -> None:
        self.given = NO_CONTEXT

    def generate_span_id(self) -> int:
        return int(self.given.span_id, 16)

    def generate_trace_id(self) -> int:
        return int(self.given.trace_id, 16)


class OtelTracer:
    """Decides with the sampler of the variables, and makes each span when it is over."""

    def __init__(self, version: str) -> None:
        """`version` is that of geartrain. Raises `TelemetryError`."""
        self._sampler = sampler_of_variables()
        self._random = RandomIdGenerator()
        self._ids = _GivenIds()
        # Spans here have been sampled: a second decision could only differ.
        self._provider = make_provider(sampler=ALWAYS_ON, ids=self._ids)
        self._tracer = self._provider.get_tracer(_SCOPE, version)

    def begin(self, parent: TraceContext) -> TraceContext:
        """Return the span of a request."""
        if parent is NO_CONTEXT:
            trace_id, context = self._random.generate_trace_id(), Context()
        else:
            trace_id, context = int(parent.trace_id, 16), _context_of(parent, is_remote=True)
        result = self._sampler.should_sample(context, trace_id, _REQUEST, SpanKind.SERVER)
        state = "" if result.trace_state is None else result.trace_state.to_header()
        flags = parent.flags & ~SAMPLED | (SAMPLED if result.decision is Decision.RECORD_AND_SAMPLE else 0)
        return TraceContext(f"{trace_id:032x}", self._new_id(), flags, state)

    def child(self, parent: TraceContext) -> TraceContext:
        """Return a new span in the trace of `parent`."""
        return TraceContext(parent.trace_id, self._new_id(), parent.flags, parent.state)

    def record(self, span: Span) -> None:
        """Make the span, and have it sent."""
        self._ids.given = span.context
        has_parent = span.parent is not NO_CONTEXT
        made = self._tracer.start_span(
            span.name,
            _context_of(span.parent, is_remote=span.is_parent_remote) if has_parent else Context(),
            _KINDS[span.kind],
            dict(span.attributes),
            [Link(_otel_context(link, is_remote=False)) for link in span.links],
            start_time=int(span.start * _NANOSECONDS),
        )
        if span.is_failed or span.error:
            made.set_status(Status(StatusCode.ERROR, span.error[:_LONGEST_ERROR] or None))
        made.end(int(span.end * _NANOSECONDS))

    async def close(self) -> None:
        """Send what has been recorded. What a receiver has not taken after three seconds is lost."""
        thread = begin_shutdown(self._provider)
        loop = asyncio.get_running_loop()
        ends = loop.time() + _CLOSE_LIMIT
        while thread.is_alive():
            if loop.time() > ends:
                logger.warning("the last traces are lost: their receiver does not take them")
                return
            await asyncio.sleep(0.01)

    def _new_id(self) -> str:
        return f"{self._random.generate_span_id():016x}"


def _context_of(parent: TraceContext, *, is_remote: bool) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(_otel_context(parent, is_remote=is_remote)), Context())


def _otel_context(context: TraceContext, *, is_remote: bool) -> trace.SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    flags = TraceFlags(context.flags)
    return trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, flags, state)
