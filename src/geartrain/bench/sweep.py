"""Measures one level after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from geartrain.bench.connection import Target
from geartrain.bench.load import Level, Limits, Load
from geartrain.bench.meter import Meter
from geartrain.bench.pool import Pool
from geartrain.bench.results import LevelResult, result_of
from geartrain.bench.server_figures import MetricsError, ServerFigures, Snapshot, difference, take_snapshot
from geartrain.bench.work import Work

RISE: Final = 1.05
"""A rate that is not so many times the best one before has not risen."""
_FLAT: Final = 2  # levels in a row whose rate has not risen: then a search ends
_MOST: Final = 1024  # requests in flight, of a search
_TOO_MANY_FAILED: Final = 0.1  # of the requests of a level: then a search ends


class Plan(NamedTuple):
    """Plan of measurements: the `levels`, or none for as many as it takes until the rate no longer rises.

    `warmup`: seconds of uncounted requests before each level.
    """

    levels: tuple[Level, ...]
    limits: Limits
    warmup: float


class Observer(Protocol):
    """Hears how a measurement goes on."""

    def warming(self, level: Level) -> None:
        """Hear that a level is about to begin."""

    def measuring(self, level: Level, meter: Meter) -> None:
        """Hear that a level has begun; the meter shows how it goes on."""

    def measured(self, result: LevelResult) -> None:
        """Hear that a level is over."""


class Sweep:
    """One measurement of a server."""

    def __init__(self, target: Target, model: str, *, work: Work, plan: Plan) -> None:
        self.results: list[LevelResult] = []
        self.silence = ""  # reason for missing figures of the server
        self.slots = 0
        self._target = target
        self._model = model
        self._work = work
        self._plan = plan
        self._load: Load | None = None
        self._is_stopped = False

    async def run(self, observer: Observer) -> None:
        """Measure. Raises `OSError` if the server cannot be reached when a level begins."""
        pool = Pool(self._target)
        try:
            for level in self._levels():
                await self._measure(level, pool, observer)
                if self._is_stopped:
                    return
        finally:
            await pool.close()

    def stop(self) -> None:
        """End it; what has been measured by now is kept."""
        self._is_stopped = True
        if self._load is not None:
            self._load.abort()

    def _levels(self) -> Iterator[Level]:
        """Yield what is still to be measured."""
        if self._plan.levels:
            yield from self._plan.levels
            return
        value = 1
        while value <= _MOST and not has_levelled_off(self.results):
            yield Level("concurrency", value)
            value *= 2

    async def _measure(self, level: Level, pool: Pool, observer: Observer) -> None:
        limits = self._plan.limits
        if self._plan.warmup:
            observer.warming(level)
            await self._put_under_load(
                pool, level, limits._replace(seconds=self._plan.warmup, requests=0), meter=Meter()
            )
            if self._is_stopped:
                return
        meter = Meter()
        before = await self._snapshot()
        observer.measuring(level, meter)
        computed = time.process_time()
        await self._put_under_load(pool, level, limits, meter=meter)
        computed = time.process_time() - computed
        after = await self._snapshot()
        figures = ServerFigures() if before is None or after is None else difference(before, after)
        self.slots = after.slots if after is not None else self.slots
        result = result_of(level, meter, cpu_seconds=computed, server=figures, is_partial=self._is_stopped)
        if result.sent:
            self.results.append(result)
            observer.measured(result)

    async def _put_under_load(self, pool: Pool, level: Level, limits: Limits, *, meter: Meter) -> None:
        if self._is_stopped:
            return
        self._load = Load(pool, self._work, meter=meter, limits=limits)
        try:
            await self._load.run(level)
        finally:
            self._load = None

    async def _snapshot(self) -> Snapshot | None:
        if self.silence:
            return None
        try:
            return await take_snapshot(self._target, self._model)
        except MetricsError as error:
            self.silence = str(error)
            return None


def has_levelled_off(results: list[LevelResult]) -> bool:
    """Tell whether the rate has stopped rising, or too many requests have failed."""
    if results and results[-1].failed > _TOO_MANY_FAILED * results[-1].sent:
        return True
    best, flat = 0.0, 0
    for result in results:
        flat = 0 if result.rate >= RISE * best else flat + 1
        best = max(best, result.rate)
    return flat >= _FLAT
