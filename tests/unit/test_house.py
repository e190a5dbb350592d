"""Figures of the source that may only fall (tools/house.py)."""

from __future__ import annotations

import pytest

from tools import house

WORDS = 0
PROTOCOLS = 97
LONE_PROTOCOLS = 17
NULL_OBJECTS = 25


@pytest.fixture(scope="module")
def figures() -> house.Figures:
    return house.measure()


@pytest.mark.parametrize(
    ("name", "most"),
    [("protocols", PROTOCOLS), ("lone_protocols", LONE_PROTOCOLS), ("null_objects", NULL_OBJECTS), ("words", WORDS)],
)
def test_figure_only_falls(figures: house.Figures, name: str, most: int) -> None:
    """A figure that has fallen becomes the bound above."""
    value = getattr(figures, name)
    assert (value if isinstance(value, int) else len(value)) <= most, value


@pytest.mark.parametrize(
    "opening", ["What it is.", "Return what it has.", "whether it runs", "How many wait.", "As `x`."]
)
def test_wording_that_is_found(opening: str) -> None:
    assert house.is_to_reword(opening)


@pytest.mark.parametrize("text", ["Whatever comes.", "As soon as it ends.", "True if it runs.", "Wait until it ends."])
def test_wording_that_is_fine(text: str) -> None:
    assert not house.is_to_reword(text)


def test_code_is_compared_without_its_words() -> None:
    before = '"""Module."""\n\ndef ask() -> int:\n    """Ask."""\n    return 1  # why\n'
    assert house.bare(before) == house.bare(before.replace("Ask", "Question").replace("why", "reason"))
    assert house.bare(before) != house.bare(before.replace("return 1", "return 2"))
    assert house.code_lines(before) == 2
