"""Traces, where the variables of OpenTelemetry ask for them."""

from __future__ import annotations

import logging
import os

from geartrain.authoring import __version__
from geartrain.domain.predictions.tracing import TracerPort
from geartrain.telemetry.settings import MISSING, TelemetryError, is_installed, wants_traces
from geartrain.transport.records import RequestObserver, RequestRecords
from geartrain.transport.routing import Router
from geartrain.transport.wire.exchange import Records

logger = logging.getLogger(__name__)


def open_tracer() -> TracerPort | None:
    """Return the tracer that the variables ask for; None if there can be none, and the log says why."""
    if not wants_traces(os.environ):
        return None
    if not is_installed():
        logger.warning(MISSING)
        return None
    from geartrain.telemetry.tracer import OtelTracer

    try:
        return OtelTracer(__version__)
    except TelemetryError as error:
        logger.warning("there are no traces: %s", error)
        return None


def records_of(observer: RequestObserver, tracer: TracerPort | None, router: Router, *, scheme: str = "") -> Records:
    """Create the factory of the records of requests to a router, with spans if there are traces.

    `scheme`: `http` or `https`, empty if it is not known.
    """
    if tracer is None:
        return RequestRecords(observer).of
    from geartrain.transport.tracing import TracedRecords

    return TracedRecords(observer, tracer, scheme=scheme, route_of=router.template).of
