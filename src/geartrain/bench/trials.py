"""Servers with different settings of one model, put under the same load in turn."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from geartrain.bench.load import Level, Limits
from geartrain.bench.meter import Meter
from geartrain.bench.prepared import Prepared
from geartrain.bench.results import LevelResult
from geartrain.bench.search import Settings
from geartrain.bench.sweep import Plan, Sweep
from geartrain.launch.server import Server, ServerError, serve_command
from geartrain.project.config import read_text
from geartrain.project.settings import SETTINGS_NAME
from geartrain.project.settings_edit import edit

_OPTIONS: Final = {"access_log": "off", "queue": 4096, "shutdown_grace": 0}
_WARM: Final = 0.3  # of a measurement, before it
_ENOUGH: Final = 200  # requests of one measurement, where there is time
_ARRIVALS: Final = 10  # requests of a point of a curve, where there is time
_CALLS: Final = 4  # times of a request that a measurement takes at least, where there is time
_CLEAR: Final = (1.5, 1.15, 1.0)  # differences that need not be measured again, after each turn of comparing two
_MOST: Final = 1024  # requests at once
_FAILED: Final = 0.01  # of the requests: more of them make settings worthless
_READY: Final = 600.0  # seconds for the setup of a model
_KEPT: Final = 1000  # lines of a log


class Score(NamedTuple):
    """Figures of one measurement. `level` is the number of requests at once; seconds.

    `held` is the number of rows that fitted into memory, where batches did not and were run in halves; else 0. It may
    be that of a second before, when even fewer were still to be tried.
    """

    level: int
    rate: float
    p50: float
    p99: float
    failed: float = 0.0  # part of the requests
    held: int = 0


class Tried(NamedTuple):
    """Settings that were measured: their best score, or the reason why they cannot be."""

    settings: Settings
    score: Score | None
    fault: str = ""


class _Silent:
    """Observer of a sweep without a display."""

    def warming(self, level: Level) -> None:
        """See `Observer`."""

    def measuring(self, level: Level, meter: Meter) -> None:
        """See `Observer`."""

    def measured(self, result: LevelResult) -> None:
        """See `Observer`."""


class _Running(NamedTuple):
    server: Server
    prepared: Prepared


class Trials:
    """Measures settings of one model.

    Two servers run at a time at most: that of the best settings so far, and the one that it is compared with.

    Attributes:
        tried: all settings that were measured, in order.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        prepare: Callable[[str], Prepared],
        *,
        p99: float | None,
        measured: tuple[float, float] = (0.6, 4.0),
        options: Sequence[str] = (),
        on_tried: Callable[[Tried], None] = lambda _: None,
    ) -> None:
        """`folder` is an empty one for copies of `model`. `prepare` makes the requests for a server, by its URL.

        `p99` is the longest time of 99 of 100 requests, None for no limit; `measured` how long a measurement takes at
        least and at most; all in seconds. `options` are those of `geartrain serve`. `on_tried` hears of all settings
        that were measured.
        """
        self.tried: list[Tried] = []
        self._model = model
        self._folder = folder
        self._prepare = prepare
        self._p99 = p99
        self._least, self._longest = measured
        self._options = options
        self._on_tried = on_tried
        self._running: dict[str, _Running] = {}
        self._levels: dict[str, int] = {}  # at which settings are best
        self._latest: dict[str, Score] = {}  # of settings

    async def close(self) -> None:
        """End the servers."""
        for name in [*self._running]:
            await self._stop(name)

    async def first(self) -> Prepared:
        """Return a server with the model's own settings. Raises `ServerError`."""
        return (await self._serve({})).prepared

    def adopt(self, settings: Settings) -> None:
        """Take that server for these settings, which are the same in full."""
        self._running[_name(settings)] = self._running.pop(_name({}))

    async def measure(self, settings: Settings) -> Score:
        """Return the best score of settings, over the numbers of requests at once. Raises `ServerError`."""
        await self._keep(settings)
        score = await self._climb(settings, _rows(settings))
        self._note(Tried(dict(settings), score))
        return score

    async def gain(self, best: Settings, other: Settings) -> float:
        """Return the worth of `other` by that of `best`, measured in turn; 0 for settings that cannot be.

        Batches that do not fit into memory cannot be. Each is worth its best measurement: a busy machine only takes
        from it.
        """
        await self._keep(best, other)
        try:
            score = await self._first_look(best, other)
        except ServerError as error:
            self._note(Tried(dict(other), None, _reason(str(error))))
            return 0.0
        if score.held:
            self._note(Tried(dict(other), None, f"memory has room for {score.held} rows. Larger batches ran in halves"))
            return 0.0
        ones: list[float] = []
        others = [self._worth(score)]
        found = 0.0
        for clear in _CLEAR:
            if ones:
                others.append(self._worth(await self._at(other, score.level)))
            ones.append(self._worth(await self._at(best, self._levels[_name(best)])))
            found = max(others) / max(ones) if max(ones) else float("inf")
            if not 1 / clear < found < clear:
                break
        self._note(Tried(dict(other), score))
        return found

    async def _first_look(self, best: Settings, other: Settings) -> Score:
        """Return the score of settings that are to be compared. Raises `ServerError`."""
        known = self._levels.get(_name(other))
        if known is not None:
            return await self._at(other, known)
        # More rows take more requests at once.
        begin = self._levels.get(_name(best), 1) * _rows(other) // _rows(best)
        latest = self._latest.get(_name(best))
        clear = _CLEAR[0] * self._worth(latest) if latest is not None else float("inf")
        return await self._climb(other, max(1, begin), clear=clear)

    async def curve(self, settings: Settings, rates: Sequence[float], seconds: float) -> list[LevelResult]:
        """Measure settings with arrivals at random moments, at some rates.

        Each takes `seconds`, up to four times as long where few requests would arrive, and is left out if none does.
        """
        running = await self._serve(settings)
        found: list[LevelResult] = []
        for rate in rates:
            limits = Limits(min(max(seconds, _ARRIVALS / rate), 4 * seconds), 0, 60.0, 512)
            found += await self._sweep(running, Plan((Level("rate", rate),), limits, self._least * _WARM))
        return found

    def _note(self, tried: Tried) -> None:
        self.tried.append(tried)
        self._on_tried(tried)

    def _worth(self, score: Score) -> float:
        """Return the rate of a score, less where it is slower than wanted."""
        if score.failed > _FAILED:
            return 0.0
        if self._p99 is None or score.p99 <= self._p99:
            return score.rate
        return score.rate * (self._p99 / score.p99) ** 2

    async def _climb(self, settings: Settings, begin: int, *, clear: float = float("inf")) -> Score:
        """Return the score at the number of requests at once that is best, from `begin` on. Raises `ServerError`.

        Less than `begin` is not tried where the score is worth `clear`.
        """
        level = begin = min(begin, _MOST)
        best = await self._at(settings, begin)
        while level < _MOST and not best.held:  # more at once, as long as that is better
            level *= 2
            score = await self._at(settings, level)
            if not score.held and self._worth(score) <= self._worth(best) * 1.03:
                break
            best = score
        if best.level == begin and not best.held and self._worth(best) < clear:
            level = begin
            while level > 1:
                level //= 2
                score = await self._at(settings, level)
                if self._worth(score) < self._worth(best):
                    break
                best = score
        self._levels[_name(settings)] = best.level
        return best

    async def _at(self, settings: Settings, level: int) -> Score:
        running = await self._serve(settings)
        latest = self._latest.get(_name(settings))
        seconds = self._least
        if latest is not None and latest.rate:
            seconds = min(max(_ENOUGH / latest.rate, _CALLS * latest.p50, self._least), self._longest)
        plan = Plan((Level("concurrency", level),), Limits(seconds, 0, 60.0, level), self._least * _WARM)
        [result] = await self._sweep(running, plan)
        failed = result.failed / result.sent if result.sent else 1.0
        fitted = result.server.memory_rows or 0
        score = Score(level, result.rate, result.latency.p50, result.latency.p99, failed, fitted)
        self._latest[_name(settings)] = score
        return score

    async def _sweep(self, running: _Running, plan: Plan) -> list[LevelResult]:
        target, model, work = running.prepared
        sweep = Sweep(target, model, work=work, plan=plan)
        await sweep.run(_Silent())
        return sweep.results

    # servers

    async def _serve(self, settings: Settings) -> _Running:
        """Return a server with some settings, which is ready. Raises `ServerError`."""
        name = _name(settings)
        if name not in self._running:
            self._running[name] = await asyncio.to_thread(self._start, settings)
        return self._running[name]

    def _start(self, settings: Settings) -> _Running:
        model = overlay(self._model, self._folder / f"{time.monotonic_ns()}", settings)
        server = Server([*serve_command(str(model), _OPTIONS), *self._options], {}, kept_lines=_KEPT, process_group=0)
        try:
            server.wait_until_ready(_READY)
            return _Running(server, self._prepare(server.url))
        except BaseException:
            server.stop()
            raise

    async def _keep(self, *settings: Settings) -> None:
        """End the servers of all other settings."""
        kept = set(map(_name, settings))
        for name in [*self._running]:
            if name not in kept:
                await self._stop(name)

    async def _stop(self, name: str) -> None:
        await asyncio.to_thread(self._running.pop(name).server.stop)


def overlay(model: Path, folder: Path, settings: Settings) -> Path:
    """Make a folder that has the files of `model` by links, and a `geartrain.yaml` with `settings`; return it."""
    made = folder / model.name
    made.mkdir(parents=True)
    for each in model.iterdir():
        if each.name not in {SETTINGS_NAME, "__pycache__"}:
            (made / each.name).symlink_to(each.resolve())
    (made / SETTINGS_NAME).write_text(edit(read_text(model / SETTINGS_NAME) or "", settings))
    return made


def stated(model: Path) -> dict[str, Any]:
    """Return the contents of the `geartrain.yaml` of a model."""
    return yaml.safe_load(read_text(model / SETTINGS_NAME) or "") or {}


def _rows(settings: Settings) -> int:
    """The most rows that run at once."""
    return (settings.get("batching.max_size") or 1) * (settings.get("replicas") or 1)


def _name(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)


def _reason(text: str) -> str:
    """Return the reason in the log of a server that did not start."""
    for line in reversed(text.splitlines()):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("message") == "setup-failed":
            return str(record.get("text", "")).strip().rpartition("\n")[2]
    return next((line for line in reversed(text.splitlines()) if line.startswith("error: ")), "it does not start")


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
