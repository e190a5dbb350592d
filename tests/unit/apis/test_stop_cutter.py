"""Stop sequences: however a text comes in pieces, it ends before the first of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geartrain.apis.openai.growth import StopCutter

LETTERS = "ab#"
PIECES = st.lists(st.text(LETTERS, max_size=5) | st.text(LETTERS, min_size=101, max_size=110), max_size=8)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What should be left of a text, and the stop sequence that has ended it."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    place, stop = min(found, default=(len(text), None))
    return text[:place], stop


@given(PIECES, STOPS)
def test_text_ends_before_the_first_stop_sequence(pieces: list[str], stops: list[str]) -> None:
    cutter = StopCutter(stops)
    passed: list[str] = []
    seen = ""
    for piece in pieces:
        passed.append(cutter.add(piece))
        if not cutter.is_over:
            seen += piece
            held = seen[len("".join(passed)) :]  # no more than may become a stop sequence
            assert held == "" or any(stop.startswith(held) for stop in stops)
    ends = [at for at in range(len(pieces) + 1) if cut("".join(pieces[:at]), stops)[1] is not None]
    read = pieces[: ends[0]] if ends else pieces  # what comes after a stop sequence is not looked at
    left, stop = cut("".join(read), stops)
    assert (cutter.found, "".join(passed) + cutter.rest()) == (stop, left)


def test_piece_without_a_beginning_is_passed_on_as_it_is() -> None:
    cutter = StopCutter(["##"])
    piece = "one two"
    assert cutter.add(piece) is piece
    assert (cutter.add("a#"), cutter.add("b")) == ("a", "#b")
