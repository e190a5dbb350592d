"""Values in the sentences of errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from geartrain.domain.rendering import MAX_SHOWN_CHARACTERS, clip, json_fault, render


@pytest.mark.parametrize("value", ["a" * 1000, "é" * 1000, ["b"] * 1000, {"k" * 1000: "v"}, 10**300])
def test_long_value_is_shown_in_part(value: Any) -> None:
    shown = render(value)
    assert len(shown) <= MAX_SHOWN_CHARACTERS
    assert "…" in shown


@pytest.mark.parametrize(("value", "text"), [("a" * 198, f'"{"a" * 198}"'), (1e300, "1e+300"), ([1, None], "[1,null]")])
def test_short_value_is_shown_as_it_is(value: Any, text: str) -> None:
    assert render(value) == text


def test_middle_is_left_out() -> None:
    assert clip("abcdefgh", 5) == "ab…gh"
    assert clip("abcde", 5) == "abcde"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'"\\ud800"', "\\ud800 is a lone surrogate: the other half of the pair is missing"),
        (b'"\\\\ud800', "Input data was truncated"),
        (b'["a"', "Input data was truncated"),
    ],
)
def test_end_of_a_text_is_told_from_a_lone_surrogate(text: bytes, fault: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(text)
    assert json_fault(text, caught.value) == fault
