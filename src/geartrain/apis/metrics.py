"""The metrics of a server for Prometheus, as its text format or as OpenMetrics. Pure.

Sources: Prometheus text exposition format 0.0.4; OpenMetrics 1.0. The names `nv_inference_…` are those that dashboards
of Triton know (observed Triton, section 13), the names `process_…` those of Prometheus' own clients, the names
`geartrain_…` geartrain's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from geartrain.apis.metric_families import TRITON_COUNTERS, families
from geartrain.apis.metric_values import ServerMetrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Families(Collector):
    """Gives families that are there already, with labels of the server beside their own."""

    def __init__(self, found: Iterable[Metric], labels: Mapping[str, str]) -> None:
        self._found = tuple(found)
        if not labels:
            return
        for family in self._found:
            family.samples = [each._replace(labels={**each.labels, **labels}) for each in family.samples]

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        return self._found


def wants_openmetrics(accept: str) -> bool:
    """True if the `Accept` of a request names OpenMetrics, as Prometheus does, and does not refuse it."""
    for choice in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        if kind == "application/openmetrics-text":
            return not any(parameter in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for parameter in parameters)
    return False


def encode_metrics(server: ServerMetrics, *, as_openmetrics: bool = False) -> bytes:
    """Return the text: each metric with its help, its type and its values."""
    found = _Families(families(server), server.labels)
    if as_openmetrics:
        generate: Callable[..., bytes] = openmetrics.generate_latest  # which has no types
        return generate(found, version="1.0.0")
    text = exposition.generate_latest(found)
    for name in TRITON_COUNTERS:  # the text format has counters without `_total`, and its writer does not
        text = text.replace(f"# TYPE {name} untyped\n".encode(), f"# TYPE {name} counter\n".encode())
    return text
