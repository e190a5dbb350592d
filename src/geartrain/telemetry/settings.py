"""Settings in the variables of OpenTelemetry. Imports nothing of it: most servers have no traces."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

SERVICE: Final = "geartrain"  # `service.name`, unless a variable says another
MISSING: Final = (
    "the variables OTEL_* ask for traces, but OpenTelemetry is not installed; "
    "install geartrain[otel], or set OTEL_SDK_DISABLED=true"
)
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENTRY_POINTS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_NONE: Final = "none"
_OTLP: Final = "otlp"


class TelemetryError(Exception):
    """A variable of OpenTelemetry has a value that cannot be followed; the message names it and what it may be."""


def wants_traces(environ: Mapping[str, str]) -> bool:
    """True if traces are asked for: by an exporter or an endpoint."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = _exporters(environ)
    if exporters:
        return exporters != [_NONE]
    return any(environ.get(name, "").strip() for name in _ENDPOINTS)


def is_installed() -> bool:
    """True if the SDK of OpenTelemetry can be imported; it is not."""
    try:
        return importlib.util.find_spec("opentelemetry.sdk.trace") is not None
    except ModuleNotFoundError:
        return False


def exporter_names(environ: Mapping[str, str]) -> list[str]:
    """Return the exporters by the names of their entry points. Raises `TelemetryError`."""
    named = dict.fromkeys(_exporters(environ) or [_OTLP])
    return [_otlp_exporter(environ) if name == _OTLP else name for name in named if name != _NONE]


def _exporters(environ: Mapping[str, str]) -> list[str]:
    names = environ.get("OTEL_TRACES_EXPORTER", "").split(",")
    return [name.strip() for name in names if name.strip()]


def _otlp_exporter(environ: Mapping[str, str]) -> str:
    for variable in _PROTOCOLS:
        protocol = environ.get(variable, "").strip()
        if protocol:
            try:
                return _ENTRY_POINTS[protocol]
            except KeyError:
                choices = " or ".join(_ENTRY_POINTS)
                raise TelemetryError(f"{variable} is {protocol!r}; it may be {choices}") from None
    return _ENTRY_POINTS["http/protobuf"]
