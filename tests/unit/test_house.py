"""Figures of the source that may only fall (tools/house.py)."""

from __future__ import annotations

import pathlib

import pytest

from tools import house

WORDS = 0
PROTOCOLS = 59
LONE_PROTOCOLS = 2
NULL_OBJECTS = 2


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


@pytest.mark.parametrize(
    "sentence",
    ["What it prints is shown.", "How it is done is told.", "So nobody waits.", "Whoever asks gets it."],
)
def test_wording_of_pages_that_is_found(sentence: str) -> None:
    assert house.is_prose_to_reword(sentence)


@pytest.mark.parametrize("sentence", ["What does it print?", "Where TLS is on, it holds.", "As in Cog, it is one."])
def test_wording_of_pages_that_is_fine(sentence: str) -> None:
    assert not house.is_prose_to_reword(sentence)


def test_sentences_of_a_page(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What a heading says\n\nIt runs. **What it\nsays** counts.\n\n```\nWhat code does\n```\n"
        "- Who waits, `nobody` (code)\n- [How it ends](ends.md).\n\n| a | What b is |\n|---|---|\n"
    )
    found = {each.text.rstrip(" |"): each.line for each in house.prose(page) if house.is_prose_to_reword(each.text)}
    assert found == {
        "What it says** counts.": 3,
        "Who waits, `code` (code)": 9,
        "How it ends](ends.md).": 10,
        "What b is": 12,
    }


def test_code_is_compared_without_its_words() -> None:
    before = '"""Module."""\n\ndef ask() -> int:\n    """Ask."""\n    return 1  # why\n'
    assert house.bare(before) == house.bare(before.replace("Ask", "Question").replace("why", "reason"))
    assert house.bare(before) != house.bare(before.replace("return 1", "return 2"))
    assert house.code_lines(house.parse(before)) == 2
