"""The search for the best settings of a model: each is changed as long as that pays. It measures nothing itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

Settings = Mapping[str, Any]
"""Values by the keys of `geartrain.yaml`, such as `batching.max_size`; None for one that is not set."""

RISE: Final = 1.03
"""A gain that is less than this is none: two measurements of the same settings differ by as much."""
_NEXT: Final = 1  # weight of the next round
_MANY: Final = 8  # a knob with more values is searched by every second one first
_CLOSE: Final = 0.85  # of the best worth: what is measured once more in the end
_CONFIRMED: Final = 3  # settings that are
_HOPELESS: Final = 2  # failures after which a value is no longer tried
_NEAR: Final = 0.8  # a gain from which the value behind is tried too: some settings pay only from a certain value on


class Knob(msgspec.Struct, frozen=True):
    """One setting, and the values that are tried, in order. `weight` is its part of the time, to that of others."""

    name: str
    values: tuple[Any, ...]
    weight: int = 1

    def around(self, value: Any, direction: int) -> Sequence[Any]:
        """Return the values on one side of a value, the nearest first. One that is none of them lies before all."""
        if value not in self.values:
            return self.values if direction > 0 else ()
        place = self.values.index(value)
        return self.values[place + 1 :] if direction > 0 else self.values[:place][::-1]


Gain = Callable[[Settings, Settings], Awaitable[float]]
"""Measures how many times as good the second settings are as the first; 0 if they cannot be."""


class Found(NamedTuple):
    """Result of a search.

    `others` are the settings that were nearly as good as `best` when they were measured, the nearest first.
    """

    best: Settings
    others: tuple[Settings, ...]


async def search(knobs: Sequence[Knob], start: Settings, gain: Gain, *, left: Callable[[], float]) -> Found:
    """Return the best settings that were found, when nothing pays any more or there is no more time.

    `left` returns the time that is left, in any unit. The knobs share it: in each round over all of them a knob has a
    part of what is left, by its weight, so that also a short search comes to the last one.
    """
    climb = _Climb(knobs, start, gain, left=left)
    while left() > 0 and (await climb.along_each() or await climb.across()):
        pass
    return Found(climb.best, climb.near())


async def confirm(found: Found, gain: Gain, *, left: Callable[[], float]) -> Settings:
    """Compare the best settings with those near them once more, and return the best of all."""
    best = found.best
    for other in found.others:
        if left() <= 0:
            break
        if await gain(best, other) >= RISE:
            best = other
    return best


class _Climb:
    """The way from the first settings to the best ones."""

    def __init__(self, knobs: Sequence[Knob], start: Settings, gain: Gain, *, left: Callable[[], float]) -> None:
        self.best = dict(start)
        self._knobs = knobs
        self._gain = gain
        self._left = left
        self._worth = 1.0  # of the best settings; that of the first ones is 1
        self._worths: dict[tuple[Any, ...], tuple[float, Settings]] = {_key(start): (1.0, start)}
        self._failures: Counter[tuple[str, Any]] = Counter()  # of values with which the model could not be served

    def near(self) -> tuple[Settings, ...]:
        """Return the settings whose worth is near that of the best, the nearest first; a few at most."""
        others = [each for each in self._worths.values() if each[1] != self.best and each[0] >= self._worth * _CLOSE]
        return tuple(settings for _, settings in sorted(others, key=lambda each: -each[0])[:_CONFIRMED])

    async def along_each(self) -> bool:
        """Turn one knob after the other; return true if that has paid, or has ended for want of time."""
        before, is_cut = self.best, False
        for place, knob in enumerate(self._knobs):
            left = self._left()
            parts = _NEXT + sum(each.weight for each in self._knobs[place:])
            until = left - left * knob.weight / parts
            for direction in (1, -1):
                if await self._along(self._hopeful(knob), direction, until):
                    break  # the other direction leads back
            is_cut = is_cut or self._left() <= until
        return self.best != before or is_cut

    async def across(self) -> bool:
        """Turn one knob up and another one down, where that pays: both may share what there is."""
        for up, down in itertools.permutations(map(self._hopeful, self._knobs), 2):
            more, less = up.around(self.best[up.name], 1), down.around(self.best[down.name], -1)
            if more and less and await self._gain_of(up.name, more[0], down.name, less[0]) >= RISE:
                return True
        return False

    async def _along(self, knob: Knob, direction: int, until: float) -> bool:
        """Turn one knob in one direction, as far as that pays and time is left; return true if it has.

        `until` is the time that is left for the others. Of many values every second one is tried first, and then the
        one before the first that did not pay.
        """
        values = knob.around(self.best[knob.name], direction)
        stride = 2 if len(knob.values) > _MANY else 1
        has_paid = is_near = False  # near: the value before gained nothing, and lost little
        while values and self._left() > until:
            place = min(stride, len(values)) - 1
            found = await self._gain_of(knob.name, values[place])
            if found >= RISE:
                has_paid, is_near = True, False
                values = values[place + 1 :]
            elif place:
                stride, values = 1, values[:place]
            elif found < _NEAR or is_near:
                break
            else:
                is_near, values = True, values[1:]
        return has_paid

    async def _gain_of(self, *changes: Any) -> float:
        """Return the gain of some changes, names and values in turn, and take them if it pays; 0 without time.

        The gain of settings that have been measured before is known, and 1 at most.
        """
        candidate = {**self.best, **dict(zip(changes[::2], changes[1::2], strict=True))}
        known = self._worths.get(_key(candidate))
        if known is not None:
            return min(known[0] / self._worth, 1.0)
        if self._left() <= 0:
            return 0.0
        found = await self._gain(self.best, candidate)
        self._worths[_key(candidate)] = (found * self._worth, candidate)
        if not found:
            self._failures.update(zip(changes[::2], changes[1::2], strict=True))
        elif found >= RISE:
            self.best, self._worth = candidate, found * self._worth
        return found

    def _hopeful(self, knob: Knob) -> Knob:
        values = tuple(each for each in knob.values if self._failures[knob.name, each] < _HOPELESS)
        return msgspec.structs.replace(knob, values=values)


def _key(settings: Settings) -> tuple[Any, ...]:
    return tuple(settings[name] for name in sorted(settings))
