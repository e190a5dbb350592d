"""Which models stay loaded: those without work rest after a while, or when others need their memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

import msgspec

from geartrain.service.models.entry import ModelEntry
from geartrain.service.models.reconciler import Reconciler
from geartrain.service.scheduling.pending import DEFAULT_QUEUE

logger = logging.getLogger(__name__)

_SHORTEST_PERIOD: Final = 0.02  # seconds between two looks
_LONGEST_PERIOD: Final = 1.0
_SHARE: Final = 4  # looks in the time after which a model rests
_JUMP: Final = 1.0  # seconds by which a clock that was not set goes wrong between two looks at most


class ResidencyPolicy(msgspec.Struct, frozen=True):
    """Limits for models on demand. `idle`: seconds that a model stays without work; `max_memory`: bytes of all workers.

    `on_demand`: nothing is loaded at the start. `waiting`: number of requests that may wait for the load of a model.
    """

    idle: float = inf
    max_memory: float = inf
    on_demand: bool = False
    waiting: int = DEFAULT_QUEUE

    @property
    def is_watching(self) -> bool:
        """True if models may be unloaded."""
        return self.idle < inf or self.max_memory < inf

    @property
    def wakes(self) -> bool:
        """True if requests load models."""
        return self.on_demand or self.is_watching


STAY: Final = ResidencyPolicy()
"""Policy that keeps loaded models."""


class Residency:
    """Looks at all models again and again. What has work, or is being loaded, is left alone."""

    def __init__(
        self,
        entries: Mapping[str, ModelEntry],
        reconciler: Reconciler,
        policy: ResidencyPolicy,
        *,
        measure: Callable[[str], int],
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`measure` gives the bytes that the workers of a model use; it may block. `clock` is that of its counts.

        `steady` cannot be set. When `clock` was, every model counts as used at that moment.
        """
        self._entries = entries
        self._reconciler = reconciler
        self._policy = policy
        self._measure = measure
        self._clock = clock
        self._steady = steady
        self._ahead = clock() - steady()  # of the clock, at the latest look
        self._jumped_at = 0.0
        self._sizes: dict[str, int] = {}  # when it was last measured
        self._has_warned = False
        self._watch: tuple[asyncio.Task[None], ...] = ()

    def start(self) -> None:
        """Look from now on, if anything can follow from it."""
        if self._policy.is_watching:
            self._watch = (asyncio.ensure_future(self._run()),)

    async def stop(self) -> None:
        """Look no more."""
        for task in self._watch:
            task.cancel()
            await asyncio.wait((task,))

    async def make_room(self, entry: ModelEntry) -> None:
        """Return when a model that is about to be loaded fits beside the others, as far as its size is known.

        Others that have no work rest for it, the least recently used first. One that fits nowhere is loaded alone.
        """
        if self._policy.max_memory == inf:
            return
        wanted = self._sizes.get(entry.name, 0)
        while True:
            others = [each for each in self._loaded() if each is not entry]
            used = await self._measure_all(others)
            if not others or used + wanted <= self._policy.max_memory:
                return
            if not await self._rest_one(others):
                await asyncio.sleep(self._period)  # until one of them has no more work

    # inside

    @property
    def _period(self) -> float:
        return max(_SHORTEST_PERIOD, min(_LONGEST_PERIOD, self._policy.idle / _SHARE))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            try:
                await self.look()
            except Exception:
                logger.exception("models could not be looked at; those that have no work stay loaded for now")

    async def look(self) -> None:
        """Let those rest that have to."""
        now = self._clock()
        ahead = now - self._steady()
        if abs(ahead - self._ahead) > _JUMP:
            self._jumped_at = now
        self._ahead = ahead
        for entry in self._loaded():
            unused = now - self._last_use(entry, now)
            if unused >= self._policy.idle:
                self._reconciler.rest(entry, f"no work for {unused:.0f} s")
        if self._policy.max_memory == inf:
            return
        loaded = self._loaded()
        while await self._measure_all(loaded) > self._policy.max_memory:
            latest = max(loaded, key=lambda each: self._last_use(each, now))
            if len(loaded) == 1:
                self._warn(latest)
                return
            if not await self._rest_one([each for each in loaded if each is not latest]):
                return
            loaded = self._loaded()

    async def _rest_one(self, entries: list[ModelEntry]) -> bool:
        """Let the least recently used of those rest that have no work; return whether there was one."""
        now = self._clock()
        for entry in sorted(entries, key=lambda each: self._last_use(each, now)):
            if is_idle(entry):
                self._reconciler.rest(entry, "its memory is needed")
                leaving = {end for version in entry.versions.values() for end in version.leaving}
                if leaving:
                    await asyncio.wait(leaving)
                return True
        return False

    def _last_use(self, entry: ModelEntry, now: float) -> float:
        """Return when a model has last had work, or has been loaded, in seconds since the epoch; `now` for one at work.

        Of a model that was used before the clock was set, that is when the clock was set.
        """
        if not is_idle(entry):
            return now
        loaded = [version for version in entry.versions.values() if version.is_loaded]
        ready = [version.deployment.workers.setup.completed_at or 0.0 for version in loaded]
        latest = max([0.0, *ready, *(version.record.counts.latest for version in loaded)])
        return max(self._jumped_at, latest if latest <= now else 0.0)

    def _loaded(self) -> list[ModelEntry]:
        return [each for each in self._entries.values() if any(v.is_loaded for v in each.versions.values())]

    async def _measure_all(self, entries: list[ModelEntry]) -> int:
        names = [entry.name for entry in entries]
        sizes = await asyncio.to_thread(lambda: [self._measure(name) for name in names])
        self._sizes.update(zip(names, sizes, strict=True))
        return sum(sizes)

    def _warn(self, entry: ModelEntry) -> None:
        if not self._has_warned:
            self._has_warned = True
            size, limit = self._sizes.get(entry.name, 0), self._policy.max_memory
            logger.warning(
                "the model %r alone uses %.0f MiB, and --max-memory allows %.0f MiB for all models; it stays",
                entry.name,
                size / 1024**2,
                limit / 1024**2,
            )


def is_idle(entry: ModelEntry) -> bool:
    """True if a model has no work: no live prediction, no waiting request, no running load."""
    waiting = 0 if entry.waking is None else entry.waking.waiting
    return entry.loading.is_idle and not (entry.predictions.live or waiting)
