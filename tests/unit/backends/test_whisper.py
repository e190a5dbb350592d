"""The pieces of a window that Whisper has heard. The model itself is tested with the libraries in tests/text_models."""

from __future__ import annotations

import pytest

from geartrain.backends.whisper import Timed, cut

FIRST = 1000  # the token of the time 0


def at(seconds: float) -> int:
    return FIRST + round(seconds * 50)


@pytest.mark.parametrize(
    ("tokens", "pieces", "heard"),
    [
        ([], [], 30.0),
        ([at(0)], [], 30.0),
        ([at(0), 1, 2, at(4)], [Timed(0.0, 4.0, [1, 2])], 30.0),
        ([at(0), 1, at(4), at(5), 2, at(6)], [Timed(0.0, 4.0, [1]), Timed(5.0, 6.0, [2])], 30.0),
        ([at(0), 1, at(4), at(4), 2], [Timed(0.0, 4.0, [1])], 4.0),  # the second is left to the next window
        ([at(2), 1], [Timed(2.0, 30.0, [1])], 30.0),
        ([1, 2], [Timed(0.0, 30.0, [1, 2])], 30.0),
        ([at(3), 1, at(2)], [Timed(3.0, 3.0, [1])], 30.0),  # times that run backwards
        ([at(0), 1, at(29.98), at(29.98), 2], [Timed(0.0, 29.98, [1])], 29.98),
    ],
)
def test_pieces_of_a_window(tokens: list[int], pieces: list[Timed], heard: float) -> None:
    found, seconds = cut(tokens, first_time=FIRST, step=0.02, seconds=30.0)
    assert [one.tokens for one in found] == [one.tokens for one in pieces]
    assert [(one.start, one.end) for one in found] == [pytest.approx((one.start, one.end)) for one in pieces]
    assert seconds == pytest.approx(heard)


def test_times_end_with_the_window() -> None:
    assert cut([at(0), 1, at(20)], first_time=FIRST, step=0.02, seconds=7.5)[0] == [Timed(0.0, 7.5, [1])]
