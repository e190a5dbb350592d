"""`GET /playground/history`: the figures of the last five minutes, for the status page of the playground."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qs

import msgspec

from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.transport.routing import GET, HISTORY, Api, Route
from geartrain.transport.runs import Request, by_task
from geartrain.transport.wire.exchange import Answer

logger = logging.getLogger(__name__)

PERIOD: Final = 1.0  # seconds between two points
KEPT: Final = 300  # points of a series
MOST_SERIES: Final = 64  # models that have a series of their own; the sum of all models counts every one
_WINDOW: Final = 30  # points over which latencies and batches are counted
_MAX_BODY: Final = 65_536  # bytes of a body, which is ignored
_MAX_QUERY: Final = 1024  # bytes
_FIGURES: Final = (
    *("succeeded", "failed", "canceled", "median", "p95", "p99", "queue_p95"),
    *("running", "waiting", "batch", "memory", "cpu", "server_memory", "server_cpu"),
)


class ProcessorAndMemory(NamedTuple):
    """Processor time in seconds and resident memory in bytes."""

    cpu: float = 0.0
    memory: int = 0


class Sample(NamedTuple):
    """Counters and gauges of a model, or the sum of several, at one moment. Latencies are counts by bucket."""

    succeeded: int
    failed: int
    canceled: int
    inferences: int
    calls: int
    running: int
    waiting: int
    bounds: tuple[float, ...]
    latencies: tuple[int, ...]
    queue: tuple[int, ...]
    pids: tuple[int, ...]


_NOTHING: Final = Sample(0, 0, 0, 0, 0, 0, 0, (), (), (), ())


class Series:
    """The points of one model, at most `KEPT`: a column of numbers for each figure, NaN where there is none."""

    def __init__(self, before: Sample | None = None) -> None:
        """`before` is the sample of a period before the first point; without it that point has no rates."""
        self.at = array("d")
        self.columns = {name: array("d") for name in _FIGURES}
        self._window: deque[Sample] = deque([] if before is None else [before], maxlen=_WINDOW + 1)
        self._uses = (ProcessorAndMemory(), ProcessorAndMemory())

    def add(self, at: float, sample: Sample, *, workers: ProcessorAndMemory, server: ProcessorAndMemory) -> None:
        """Add the point of a moment, in seconds since the epoch."""
        before = self._window[-1] if self._window else None
        since = at - self.at[-1] if self.at else PERIOD
        self._window.append(sample)
        earlier = self._window[0]
        latencies = _grown(sample.latencies, earlier.latencies)
        queue = _grown(sample.queue, earlier.queue)
        calls = sample.calls - earlier.calls
        figures = {
            "running": sample.running,
            "waiting": sample.waiting,
            "memory": workers.memory,
            "server_memory": server.memory,
            "batch": (sample.inferences - earlier.inferences) / calls if calls > 0 else math.nan,
            "median": quantile(sample.bounds, latencies, 0.5),
            "p95": quantile(sample.bounds, latencies, 0.95),
            "p99": quantile(sample.bounds, latencies, 0.99),
            "queue_p95": quantile(sample.bounds, queue, 0.95),
        }
        if before is not None and since > 0:
            figures |= {
                "succeeded": max(0, sample.succeeded - before.succeeded) / since,
                "failed": max(0, sample.failed - before.failed) / since,
                "canceled": max(0, sample.canceled - before.canceled) / since,
            }
        if self.at and since > 0:
            figures |= {
                "cpu": max(0.0, workers.cpu - self._uses[0].cpu) / since,
                "server_cpu": max(0.0, server.cpu - self._uses[1].cpu) / since,
            }
        self._uses = (workers, server)
        _push(self.at, at)
        for name, column in self.columns.items():
            _push(column, figures.get(name, math.nan))

    def after(self, at: float) -> dict[str, list[float | None]]:
        """Return the points later than a moment, as columns."""
        first = bisect_right(self.at, at)
        columns = {"at": self.at, **self.columns}
        return {
            name: [None if math.isnan(each) else each for each in column[first:]] for name, column in columns.items()
        }


class AllSeries:
    """The series of all models, by name, and under "" that of their sum. `MOST_SERIES` models have their own."""

    def __init__(self) -> None:
        self._by_model = {"": Series(_NOTHING)}
        self._latest: frozenset[str] = frozenset()  # names of the latest samples: other models begin at zero

    def add(
        self,
        at: float,
        samples: Mapping[str, Sample],
        *,
        uses: Mapping[str, ProcessorAndMemory],
        server: ProcessorAndMemory,
    ) -> None:
        """Add a point to each; forget models that are gone."""
        found = self._by_model
        found[""].add(at, _sum(samples.values()), workers=_sum_of_uses(uses.values()), server=server)
        for name in [name for name in found if name and name not in samples]:
            del found[name]
        for name, sample in samples.items():
            if name in found or len(found) <= MOST_SERIES:
                if name not in found:
                    found[name] = Series(None if name in self._latest else _NOTHING)
                found[name].add(at, sample, workers=uses[name], server=server)
        self._latest = frozenset(samples)

    def of(self, model: str) -> Series:
        """Return the series of a model; an empty one where it has none."""
        return self._by_model.get(model) or Series()


class StatusHistory:
    """Samples the models of a server once a second, from when it is made until it is closed."""

    def __init__(self, catalogue: Catalogue, use_of: Callable[[int], ProcessorAndMemory]) -> None:
        """Needs a running loop. `use_of` returns what a process uses, by its id, and may block for a moment."""
        self._series = AllSeries()
        self._catalogue = catalogue
        self._use_of = use_of
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        """Sample no more."""
        self._task.cancel()

    def route(self, api: Api) -> Route:
        """Make the route of the figures."""
        return Route(GET, HISTORY, by_task(self._answer, api, _MAX_BODY), api, "read", subject="all")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.sample()
            except Exception:
                logger.exception("the status of the server could not be sampled")

    async def sample(self) -> None:
        """Add a point to each series."""
        found: dict[str, list[Sample]] = {}
        for deployment in self._catalogue.deployments():
            found.setdefault(deployment.name, []).append(_read(deployment))
        await asyncio.to_thread(self._add, time.time(), found)

    def _add(self, at: float, found: dict[str, list[Sample]]) -> None:
        """Look at the processes, which may block, and add the points."""
        samples = {name: _sum(each) for name, each in found.items()}
        uses = {name: _sum_of_uses(map(self._use_of, sample.pids)) for name, sample in samples.items()}
        self._series.add(at, samples, uses=uses, server=self._use_of(os.getpid()))

    async def _answer(self, request: Request) -> Answer:
        """Answer with the points of a model, `?model=`, later than `?after=`."""
        fields = parse_qs(request.head.query[:_MAX_QUERY].decode("latin-1"))
        series = self._series.of(fields.get("model", [""])[-1])
        try:
            after = float(fields.get("after", ["0"])[-1])
        except ValueError:
            after = 0.0
        return Answer(HTTPStatus.OK, (msgspec.json.encode({"seconds": KEPT * PERIOD, **series.after(after)}),))


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return a quantile of a histogram as Prometheus computes it; NaN if it is empty."""
    left = share * sum(counts)
    if not left:
        return math.nan
    below = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if left <= count:
            return below + (bound - below) * (left / count)
        left -= count
        below = bound
    return below


def _read(deployment: Deployment) -> Sample:
    """Read what changes on the loop."""
    workers, scheduler = deployment.workers, deployment.scheduler
    counts = scheduler.context.counts
    counts.settle()
    statistics = counts.statistics(deployment.name, deployment.version)
    canceled = counts.faults["CANCELED"]
    histograms = counts.histograms
    return Sample(
        succeeded=statistics.success.count,
        failed=statistics.fail.count - canceled,
        canceled=canceled,
        inferences=statistics.inference_count,
        calls=statistics.execution_count,
        running=len(deployment.executions.live) - scheduler.waiting,
        waiting=scheduler.waiting,
        bounds=histograms.total.bounds,
        latencies=tuple(histograms.total.counts),
        queue=tuple(histograms.queue.counts),
        pids=tuple(pid for replica in workers.replicas for pid in replica.worker.pids),
    )


def _sum(samples: Iterable[Sample]) -> Sample:
    """Add samples. All models of a server have the same buckets, by its options."""
    total = _NOTHING
    for each in samples:
        total = Sample(
            succeeded=total.succeeded + each.succeeded,
            failed=total.failed + each.failed,
            canceled=total.canceled + each.canceled,
            inferences=total.inferences + each.inferences,
            calls=total.calls + each.calls,
            running=total.running + each.running,
            waiting=total.waiting + each.waiting,
            bounds=each.bounds,
            latencies=_together(total.latencies, each.latencies),
            queue=_together(total.queue, each.queue),
            pids=total.pids + each.pids,
        )
    return total


def _sum_of_uses(uses: Iterable[ProcessorAndMemory]) -> ProcessorAndMemory:
    cpu, memory = 0.0, 0
    for use in uses:
        cpu, memory = cpu + use.cpu, memory + use.memory
    return ProcessorAndMemory(cpu, memory)


def _together(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip(one, other, strict=True))) if one else other


def _grown(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    """Return by how much counts have grown; all of them where a model begins anew."""
    if len(now) != len(before):
        return now
    return tuple(max(0, new - old) for new, old in zip(now, before, strict=True))


def _push(column: array[float], value: float) -> None:
    column.append(value)
    if len(column) > KEPT:
        del column[0]
