"""`geartrain tune`: the settings of a model that give the most answers a second, and what they give."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from geartrain.bench.inputs import default_input
from geartrain.bench.prepared import Prepared, Way, prepare
from geartrain.bench.results import LevelResult
from geartrain.bench.search import RISE, Knob, Settings, confirm, search
from geartrain.bench.server_figures import ask, take_snapshot
from geartrain.bench.trials import Score, Trials, Tried, processors, stated
from geartrain.bench.work import InputsError, ProtocolName
from geartrain.domain.signature.types import Signature

_SIZE: Final = "batching.max_size"
_WEIGHTS: Final = {_SIZE: 4, "replicas": 3, "batching.max_cost": 3}  # of those that matter most; they come first
_SIZES: Final = tuple(2**power for power in range(11))
_SLOTS: Final = tuple(2**power for power in range(9))
_DELAYS: Final = (None, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)  # seconds; None is learned
_COSTS: Final = (0.125, 0.25, 0.5, 1, 2, 4, 8)  # of the cost of a call that is set
_LOADS: Final = (0.3, 0.5, 0.7, 0.8, 0.9)  # arrivals, as a part of the best rate
_FOR_REST: Final = 0.25  # of the time, for the last comparison and the curves
_FOR_SEARCH: Final = 0.6  # of the time; what is left before the rest is for comparing the best ones once more
_POINT: Final = (0.3, 5.0)  # seconds for each point of a curve, at least and at most
_LEAST: Final = (0.15, 0.6)  # seconds of each measurement at least, in a short search and in a long one
_LONGEST: Final = (0.3, 4.0)  # and at most
_PARTS: Final = (200, 60)  # of the time, for one measurement


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a search.

    Attributes:
        start: the settings that were there.
        best: those that were found; the same as `start` if nothing pays.
        before: the score of `start`.
        after: the score of `best`.
        tried: everything that was measured.
        curves: times at rates of arrivals, of `start` and of `best`.
    """

    start: Settings
    best: Settings
    before: Score
    after: Score
    tried: tuple[Tried, ...]
    curves: tuple[tuple[LevelResult, ...], tuple[LevelResult, ...]] = ((), ())

    @property
    def changes(self) -> dict[str, Any]:
        """The keys of `geartrain.yaml` that are to be changed."""
        return {name: value for name, value in self.best.items() if value != self.start[name]}


def tune(
    model: str | os.PathLike[str],
    inputs: Sequence[dict[str, Any]] | None = None,
    *,
    p99: float | None = None,
    seconds: float = 300.0,
    protocol: ProtocolName = "cog",
    on_tried: Callable[[Tried], None] = lambda _: None,
) -> Tuned:
    """Search for the settings of the model in a folder with which it answers most requests, as `geartrain tune` does.

    `inputs` are sent in turn; without them the model's own examples and defaults are. `p99` is the longest time of 99
    of 100 requests, in seconds. Nothing is written: `Tuned.changes` has what to change in `geartrain.yaml`. Raises
    `ServerError` if the model cannot be served, `InputsError` and `ClientError` if it cannot be asked.
    """

    def choose(document: Mapping[str, Any], _signature: Signature) -> list[dict[str, Any]]:
        return [default_input(document)] if inputs is None else [*inputs]

    def prepared(url: str) -> Prepared:
        return prepare(url, choose, Way(protocol=protocol))

    return asyncio.run(tune_async(Path(model).absolute(), prepared, p99=p99, seconds=seconds, on_tried=on_tried))


async def tune_async(
    model: Path,
    prepare: Callable[[str], Prepared],
    *,
    p99: float | None = None,
    seconds: float = 300.0,
    options: Sequence[str] = (),
    on_tried: Callable[[Tried], None] = lambda _: None,
) -> Tuned:
    """Search as `tune` does. `prepare` makes the requests for a server, by its URL; it has `options`."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="geartrain-tune-") as folder:
        measured = _within(seconds / _PARTS[0], _LEAST), _within(seconds / _PARTS[1], _LONGEST)
        trials = Trials(model, Path(folder), prepare, p99=p99, measured=measured, options=options, on_tried=on_tried)
        try:
            start, knobs = await _knobs(await trials.first(), stated(model))
            trials.adopt(start)
            before = await trials.measure(start)
            if not before.rate:
                raise InputsError("the model answers none of these inputs well; try them with `geartrain bench`")
            first, score = start, before
            while score.held:  # its batches ran in halves: it stands for one with the size that held
                first = {**start, _SIZE: score.held}
                knobs = [_knob(_SIZE, knob.values, score.held) if knob.name == _SIZE else knob for knob in knobs]
                score = await trials.measure(first)

            def left(part: float) -> float:
                return begin + part * seconds - time.monotonic()

            found = await search(knobs, first, trials.gain, left=lambda: left(_FOR_SEARCH))
            best = await confirm(found, trials.gain, left=lambda: left(1 - _FOR_REST))
            after = before
            gain = 0.0 if best == start else await trials.gain(start, best)
            # Batches that fit into memory need not be faster than those that ran in halves for a moment.
            if gain >= RISE or (gain and before.held):
                after = trials.tried[-1].score or before
            else:
                best = start
            each = _within(seconds * _FOR_REST / (3 * len(_LOADS)), _POINT)
            curves = [
                tuple(await trials.curve(settings, [score.rate * part for part in _LOADS], each))
                for settings, score in ((start, before), (best, after))
            ]
        finally:
            await trials.close()
    return Tuned(
        start=start, best=best, before=before, after=after, tried=tuple(trials.tried), curves=(curves[0], curves[1])
    )


async def _knobs(server: Prepared, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Knob]]:
    """Return the settings of the model that a server has, and those that can be changed. `given` is its file."""
    target, name, _ = server
    path = f"/v2/models/{quote(name, safe='')}"
    _, content = await ask(target, target.request("GET", path, headers={}, content=b""))
    properties = msgspec.json.decode(content).get("properties", {})
    replicas = int(given.get("replicas") or 1)
    slots = (await take_snapshot(target, name)).slots // replicas or 1
    start: dict[str, Any] = {}
    of_batches: list[Knob] = []
    size = int(properties.get("batch_max_size", 0))
    if size:
        batching = given.get("batching")
        delay = batching.get("max_delay") if isinstance(batching, dict) else None
        start = {_SIZE: size, "batching.max_delay": delay}
        delays = _DELAYS if delay in _DELAYS else (None, delay, *_DELAYS[1:])
        of_batches = [_knob(_SIZE, _SIZES, size), Knob("batching.max_delay", delays)]
        cost = batching.get("max_cost") if isinstance(batching, dict) else None
        found = float(properties.get("batch_max_cost", 0)) if cost == "auto" else cost
        if found:
            start["batching.max_cost"] = cost
            costs = tuple(cost if factor == 1 else found * factor for factor in _COSTS)
            of_batches.insert(1, Knob("batching.max_cost", costs, _WEIGHTS["batching.max_cost"]))
    most = processors()
    start |= {"slots": slots, "replicas": replicas}
    # The delay of a batch comes last: it is learned where it is not set.
    knobs = [
        *of_batches[:-1],
        _knob("replicas", [each for each in _SIZES if each <= 2 * most], replicas),
        _knob("slots", _SLOTS, slots),
    ]
    if most > 1:
        start["cpus_per_replica"] = given.get("cpus_per_replica")
        knobs.append(Knob("cpus_per_replica", (None, *(each for each in _SIZES if each <= most))))
    return start, [*knobs, *of_batches[-1:]]


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def _knob(name: str, values: Sequence[int], value: int) -> Knob:
    return Knob(name, tuple(sorted({*values, value})), _WEIGHTS.get(name, 1))
