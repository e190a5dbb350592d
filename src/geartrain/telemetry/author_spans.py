"""The spans of the author's own code, in the worker: whether there can be any, and what sends them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from geartrain.telemetry.settings import MISSING, TelemetryError, is_installed, wants_traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_API: Final = "opentelemetry.trace"
_FLUSH_LIMIT: Final = 0.8  # seconds; a worker has one to end


def may_record(environ: Mapping[str, str]) -> bool:
    """True if the author's code may record spans, once the model is set up.

    Otherwise OpenTelemetry is not imported: without the variables, only a model that has imported it can have spans.
    """
    return _API in sys.modules or (wants_traces(environ) and is_installed())


def provide(environ: Mapping[str, str], warn: Callable[[str], None]) -> Callable[[], None]:
    """Have the author's spans sent as the variables say, unless the author has a provider of spans; return the end.

    `warn` is told why they cannot be sent.
    """
    if not wants_traces(environ):
        return _end_nothing
    if not is_installed():
        warn(MISSING)
        return _end_nothing
    from opentelemetry import trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _end_nothing  # the author's own
    from geartrain.telemetry.tracer import make_provider

    try:
        provider = make_provider()
    except TelemetryError as error:
        warn(f"the spans of the model are not sent: {error}")
        return _end_nothing
    trace.set_tracer_provider(provider)
    return lambda: _end(provider)


def _end(provider: TracerProvider) -> None:
    """Send what has been recorded, in the time that a worker has to end."""
    from geartrain.telemetry.tracer import begin_shutdown

    begin_shutdown(provider).join(_FLUSH_LIMIT)


def _end_nothing() -> None:
    """Do nothing: there is nothing to send."""
