"""Makes what records and sends spans, as the variables of OpenTelemetry say. Imports OpenTelemetry."""

from __future__ import annotations

import importlib.metadata
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

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
