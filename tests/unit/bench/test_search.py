"""The search for settings, on models that are formulas: it finds what a look at every combination finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from geartrain.bench.search import Found, Knob, Settings, confirm, search

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

    found = (await search(KNOBS, START, gain, left=lambda: 1.0)).best
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

    found = (await search(KNOBS, START, gain, left=lambda: left)).best
    assert left == 0
    assert found == {"size": 32, "delay": 0.001, "replicas": 2}, "the knobs share the time"


async def test_value_that_cannot_be_is_given_up() -> None:
    tried: list[Any] = []

    async def gain(one: Settings, other: Settings) -> float:
        tried.append(dict(other))
        if other["slots"] != 1:
            return 0.0
        return float(other["replicas"] / one["replicas"])

    knobs = (Knob("slots", (1, 2, 4)), Knob("replicas", (1, 2, 4)))
    found = (await search(knobs, {"slots": 1, "replicas": 1}, gain, left=lambda: 1.0)).best
    assert found == {"slots": 1, "replicas": 4}
    assert [each["slots"] for each in tried].count(2) == 2


def memory_bound(settings: Settings) -> float:
    """A call takes 10 ms and 0.1 ms a row; memory ends at 40 rows, of each replica."""
    size: int = settings["size"]
    return 0.0 if size > 40 else float(settings["replicas"] ** 0.9 * size / (0.01 + 0.0001 * size))


def long_runs(settings: Settings) -> float:
    """A call takes 30 ms and 1 ms a row, and leaves the processor alone."""
    return float(settings["replicas"] * settings["size"] / (0.03 + 0.001 * max(settings["size"], 16)))


def short_runs(settings: Settings) -> float:
    """A call takes 0.2 ms and 10 µs a row; the server itself is the bound."""
    own = min(settings["replicas"], 1.2) * settings["size"] / (0.0002 + 0.00001 * settings["size"])
    return float(1 / (1 / own + 1 / 10_000 + 0.0002 * (settings["delay"] or 0)))


@pytest.mark.parametrize("rate", [memory_bound, long_runs, short_runs])
@pytest.mark.parametrize("seed", range(5))
async def test_short_search_on_a_noisy_machine_comes_to_every_setting(rate: Rate, seed: int) -> None:
    """A measurement may be a tenth off, and there is time for 16 of them."""
    chance = random.Random(seed)  # noqa: S311 - noise
    knobs = (
        Knob("size", tuple(2**power for power in range(11)), 4),
        Knob("replicas", (1, 2, 4), 3),
        Knob("slots", (1, 2, 4, 8)),
        Knob("delay", (None, 0.0005, 0.001, 0.002)),
    )
    start = {"size": 4, "replicas": 1, "slots": 1, "delay": None}
    left = 16

    async def gain(one: Settings, other: Settings) -> float:
        nonlocal left
        left -= 1
        if other["slots"] > 1:
            return 0.0
        return rate(other) / rate(one) * chance.uniform(0.9, 1.1)

    found = await search(knobs, start, gain, left=lambda: left - 4)
    best = await confirm(found, gain, left=lambda: left)
    grid = [{**start, "size": size, "replicas": replicas} for size in (4, 16, 32, 64, 128) for replicas in (1, 2)]
    assert left >= 0
    assert rate(best) >= 0.95 * max(map(rate, grid))


async def test_settings_that_were_nearly_as_good_are_compared_once_more() -> None:
    """The machine was busy while the better one was measured."""
    measured: list[Settings] = []

    async def gain(one: Settings, other: Settings) -> float:
        measured.append(other)
        is_first = measured.count(other) == 1
        return 0.98 if other["size"] == 2 and is_first else float(other["size"] / one["size"])

    found = await search((Knob("size", (1, 2)),), {"size": 1}, gain, left=lambda: 1.0)
    assert found == Found({"size": 1}, ({"size": 2},))
    assert await confirm(found, gain, left=lambda: 0.0) == {"size": 1}
    assert await confirm(found, gain, left=lambda: 1.0) == {"size": 2}


def test_values_around_one() -> None:
    knob = Knob("size", (1, 2, 4, 8))
    assert knob.around(4, 1) == (8,)
    assert knob.around(4, -1) == (2, 1)
    assert knob.around(None, 1) == (1, 2, 4, 8)
    assert knob.around(None, -1) == ()
