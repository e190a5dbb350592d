"""The search for the best settings of a model: each is changed as long as that pays. It measures nothing itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

Settings = Mapping[str, Any]
"""Values by the keys of `geartrain.yaml`, such as `batching.max_size`; None for one that is not set."""

RISE: Final = 1.03
"""A gain that is less than this is none: two measurements of the same settings differ by as much."""
_HOPELESS: Final = 2  # failures after which a value is no longer tried
_NEAR: Final = 0.8  # a gain from which the value behind is tried too: some settings pay only from a certain value on


class Knob(msgspec.Struct, frozen=True):
    """One setting, and the values that are tried, in order."""

    name: str
    values: tuple[Any, ...]

    def around(self, value: Any, direction: int) -> Sequence[Any]:
        """Return the values on one side of a value, the nearest first. One that is none of them lies before all."""
        if value not in self.values:
            return self.values if direction > 0 else ()
        place = self.values.index(value)
        return self.values[place + 1 :] if direction > 0 else self.values[:place][::-1]


async def search(
    knobs: Sequence[Knob],
    start: Settings,
    gain: Callable[[Settings, Settings], Awaitable[float]],
    *,
    has_time: Callable[[], bool],
) -> Settings:
    """Return the best settings that were found, when nothing pays any more or there is no more time.

    `gain` measures how many times as good the second settings are as the first, 0 if they cannot be.
    """
    best = dict(start)
    seen = {_key(best)}
    failures: Counter[tuple[str, Any]] = Counter()  # of values with which the model could not be served

    async def measured(one: Settings, other: Settings) -> float:
        found = await gain(one, other)
        if not found:
            failures.update((name, other[name]) for name in other if other[name] != one[name])
        return found

    def hopeful(knob: Knob) -> Knob:
        return Knob(knob.name, tuple(each for each in knob.values if failures[knob.name, each] < _HOPELESS))

    while True:
        before = best
        for knob in knobs:
            for direction in (1, -1):
                found = await _along(hopeful(knob), direction, best, measured, seen=seen, has_time=has_time)
                if found != best:
                    best = found
                    break  # the other direction leads back
            if not has_time():
                return best
        if best == before:
            best = await _across([hopeful(knob) for knob in knobs], best, measured, seen=seen, has_time=has_time)
            if best == before:
                return best


async def _along(
    knob: Knob,
    direction: int,
    best: dict[str, Any],
    gain: Callable[[Settings, Settings], Awaitable[float]],
    *,
    seen: set[tuple[Any, ...]],
    has_time: Callable[[], bool],
) -> dict[str, Any]:
    """Return the best settings with one knob turned in one direction."""
    is_near = False  # the value before gained nothing, and lost little
    for value in knob.around(best[knob.name], direction):
        candidate = {**best, knob.name: value}
        if not has_time() or _key(candidate) in seen:
            break
        seen.add(_key(candidate))
        found = await gain(best, candidate)
        if found >= RISE:
            best, is_near = candidate, False
        elif found < _NEAR or is_near:
            break
        else:
            is_near = True
    return best


async def _across(
    knobs: Sequence[Knob],
    best: dict[str, Any],
    gain: Callable[[Settings, Settings], Awaitable[float]],
    *,
    seen: set[tuple[Any, ...]],
    has_time: Callable[[], bool],
) -> dict[str, Any]:
    """Return the settings with one knob turned up and another one down, if that pays: both may share what there is."""
    for up, down in itertools.permutations(knobs, 2):
        more, less = up.around(best[up.name], 1), down.around(best[down.name], -1)
        candidate = {**best, up.name: more[0], down.name: less[0]} if more and less else best
        if not has_time() or _key(candidate) in seen:
            continue
        seen.add(_key(candidate))
        if await gain(best, candidate) >= RISE:
            return candidate
    return best


def _key(settings: Settings) -> tuple[Any, ...]:
    return tuple(settings[name] for name in sorted(settings))
