"""The harnesses of `tools/fuzz` on bytes made by chance: no reader raises what it should not, whole or in pieces."""

from __future__ import annotations

import random

import pytest

from tools.fuzz.fuzz import by_chance, mutated
from tools.fuzz.harnesses import HARNESSES, Harness

RUNS = 500


@pytest.mark.parametrize("name", HARNESSES)
def test_seeds_pass(name: str) -> None:
    for seed in HARNESSES[name].seeds:
        HARNESSES[name].run(seed)


@pytest.mark.parametrize("name", HARNESSES)
def test_bytes_made_by_chance_pass(name: str) -> None:
    assert by_chance(HARNESSES[name], runs=RUNS, seed=1) == RUNS


def test_what_raises_is_told_with_its_bytes() -> None:
    def fail(data: bytes) -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - any will do
        by_chance(Harness(fail, [b"seed"], [b"word"]), runs=1, seed=0)
    assert "the bytes were" in caught.value.__notes__[0]


def test_bytes_differ() -> None:
    chance = random.Random(0)  # noqa: S311
    assert len({mutated(HARNESSES["head"], chance) for _ in range(100)}) > 80
