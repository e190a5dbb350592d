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


Gain = Callable[[Settings, Settings], Awaitable[float]]
"""Measures how many times as good the second settings are as the first; 0 if they cannot be."""


async def search(knobs: Sequence[Knob], start: Settings, gain: Gain, *, has_time: Callable[[], bool]) -> Settings:
    """Return the best settings that were found, when nothing pays any more or there is no more time."""
    climb = _Climb(knobs, start, gain, has_time=has_time)
    while climb.has_time() and (await climb.along_each() or await climb.across()):
        pass
    return climb.best


class _Climb:
    """The way from the first settings to the best ones."""

    def __init__(self, knobs: Sequence[Knob], start: Settings, gain: Gain, *, has_time: Callable[[], bool]) -> None:
        self.best = dict(start)
        self.has_time = has_time
        self._knobs = knobs
        self._gain = gain
        self._seen = {_key(start)}
        self._failures: Counter[tuple[str, Any]] = Counter()  # of values with which the model could not be served

    async def along_each(self) -> bool:
        """Turn one knob after the other; return whether that has paid."""
        before = self.best
        for knob in self._knobs:
            for direction in (1, -1):
                if await self._along(self._hopeful(knob), direction):
                    break  # the other direction leads back
        return self.best != before

    async def across(self) -> bool:
        """Turn one knob up and another one down, where that pays: both may share what there is."""
        for up, down in itertools.permutations(map(self._hopeful, self._knobs), 2):
            more, less = up.around(self.best[up.name], 1), down.around(self.best[down.name], -1)
            if more and less and await self._gain_of(up.name, more[0], down.name, less[0]) >= RISE:
                self.best = {**self.best, up.name: more[0], down.name: less[0]}
                return True
        return False

    async def _along(self, knob: Knob, direction: int) -> bool:
        """Turn one knob in one direction, as far as that pays; return whether it has."""
        has_paid = is_near = False  # near: the value before gained nothing, and lost little
        for value in knob.around(self.best[knob.name], direction):
            found = await self._gain_of(knob.name, value)
            if found >= RISE:
                self.best = {**self.best, knob.name: value}
                has_paid, is_near = True, False
            elif found < _NEAR or is_near:
                break
            else:
                is_near = True
        return has_paid

    async def _gain_of(self, *changes: Any) -> float:
        """Return the gain of some changes, names and values in turn; 0 for what has been measured, or without time."""
        candidate = {**self.best, **dict(zip(changes[::2], changes[1::2], strict=True))}
        if not self.has_time() or _key(candidate) in self._seen:
            return 0.0
        self._seen.add(_key(candidate))
        found = await self._gain(self.best, candidate)
        if not found:
            self._failures.update(zip(changes[::2], changes[1::2], strict=True))
        return found

    def _hopeful(self, knob: Knob) -> Knob:
        return Knob(knob.name, tuple(each for each in knob.values if self._failures[knob.name, each] < _HOPELESS))


def _key(settings: Settings) -> tuple[Any, ...]:
    return tuple(settings[name] for name in sorted(settings))
