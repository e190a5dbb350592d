"""The metrics of a model's author, as the workers of one deployment report them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable

from geartrain.domain.predictions.own_metrics import MAX_SERIES, OwnMetrics, OwnReport, merge_gauges

logger = logging.getLogger(__name__)


class DeployedMetrics:
    """Adds counters and histograms to the totals of the version, and keeps the gauges of each worker."""

    def __init__(self, model: str = "", version: str = "", totals: OwnMetrics | None = None) -> None:
        """`totals` are those of the version, which stay when another deployment serves it."""
        self._model = model
        self._version = version
        self._totals = totals or OwnMetrics()
        self._gauges: dict[Hashable, OwnMetrics] = {}
        self._has_warned = False

    def add(self, worker: Hashable, reports: Iterable[OwnReport]) -> None:
        """Add what a worker reports. Series that have no place are left out, with one warning."""
        for report in reports:
            is_gauge = report.metric.kind == "gauge"
            metrics = self._gauges.setdefault(worker, OwnMetrics()) if is_gauge else self._totals
            if not metrics.add(report) and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "the model's own metrics have more than %d series; the values of further ones are left out. Use "
                    "labels with few values.",
                    MAX_SERIES,
                    extra={"model": self._model, "version": self._version},
                )

    def forget(self, worker: Hashable) -> None:
        """Forget the gauges of a worker that is gone."""
        self._gauges.pop(worker, None)

    def all(self) -> tuple[OwnReport, ...]:
        """Return every metric with its series, the gauges of all workers merged."""
        return (*self._totals.all(), *merge_gauges(self._gauges.values()))
