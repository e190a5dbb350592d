"""The search for settings, on models that are formulas: it finds what a look at every combination finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from geartrain.bench.search import Knob, Settings, search

Rate = Callable[[Settings], float]


def batches(settings: Settings) -> float:
    """A call takes 4 ms and 20 µs a row; memory ends at 256 rows."""
    size, replicas = settings["size"], settings["replicas"]
    if size * replicas > 512:
        return 0.0
    return float(min(replicas, 2) * size / (0.004 + 0.00002 * size + (settings["delay"] or 0.0)))


def replicas_alone(settings: Settings) -> float:
    """Runs on one processor of two: more than two processes get into each other's way."""
    replicas = settings["replicas"]
    return float(100.0 * min(replicas, 2) - 4 * max(0, replicas - 2) - settings["size"] / 64)


def plateau(settings: Settings) -> float:
    """Two replicas share what one has; four have an accelerator of their own."""
    share = {1: 1.0, 2: 0.98, 4: 2.4, 8: 2.0}[settings["replicas"]]
    return float(share * settings["size"] / (1 + settings["size"] / 32))


KNOBS = (
    Knob("size", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    Knob("delay", (None, 0.001, 0.01)),
    Knob("replicas", (1, 2, 4, 8)),
)
START = {"size": 8, "delay": None, "replicas": 1}


@pytest.mark.parametrize("rate", [batches, replicas_alone, plateau])
@pytest.mark.parametrize("seed", range(3))
async def test_best_of_all_combinations_is_found(rate: Rate, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - noise
    measured: list[Settings] = []

    async def gain(one: Settings, other: Settings) -> float:
        measured.append(other)
        return rate(other) / rate(one) * (1 + chance.uniform(-0.01, 0.01))

    found = await search(KNOBS, START, gain, has_time=lambda: True)
    grid = [dict(zip(START, values, strict=True)) for values in itertools.product(*(knob.values for knob in KNOBS))]
    assert rate(found) >= 0.95 * max(map(rate, grid))
    assert len(measured) < len(grid) / 2
    assert len({tuple(each.values()) for each in measured}) == len(measured), "something was measured twice"


async def test_no_more_is_measured_when_the_time_is_up() -> None:
    left = 3

    async def gain(_one: Settings, other: Settings) -> float:
        nonlocal left
        left -= 1
        return 2.0 if other["size"] else 0.0

    found = await search(KNOBS, START, gain, has_time=lambda: left > 0)
    assert left == 0
    assert found["size"] == 64


async def test_value_that_cannot_be_is_given_up() -> None:
    tried: list[Any] = []

    async def gain(one: Settings, other: Settings) -> float:
        tried.append(dict(other))
        if other["slots"] != 1:
            return 0.0
        return float(other["replicas"] / one["replicas"])

    knobs = (Knob("slots", (1, 2, 4)), Knob("replicas", (1, 2, 4)))
    found = await search(knobs, {"slots": 1, "replicas": 1}, gain, has_time=lambda: True)
    assert found == {"slots": 1, "replicas": 4}
    assert [each["slots"] for each in tried].count(2) == 2


def test_values_around_one() -> None:
    knob = Knob("size", (1, 2, 4, 8))
    assert knob.around(4, 1) == (8,)
    assert knob.around(4, -1) == (2, 1)
    assert knob.around(None, 1) == (1, 2, 4, 8)
    assert knob.around(None, -1) == ()
