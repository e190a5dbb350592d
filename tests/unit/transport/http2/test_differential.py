"""The codec and h2 see the same in sequences of frames, or differ for a reason that is written down."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from tools.fuzz import http2_verdicts
from tools.fuzz.http2_differential import fuzz
from tools.fuzz.http2_sequences import Piece, Step, make_sequence, run_ours

SEQUENCES = 500


@pytest.mark.parametrize("seed", [20, 21])
def test_sequences_made_by_chance_are_seen_alike(seed: int) -> None:
    found, reasons = fuzz(SEQUENCES, seed=seed)
    assert found == []
    assert 0 < reasons.total() < SEQUENCES / 2  # most are the same without any reason


def test_difference_without_a_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(pieces: Sequence[Piece]) -> Iterator[Step]:
        for step in run_ours(pieces):
            step.settings = 0
            yield step

    monkeypatch.setattr(http2_verdicts, "run_ours", forgetful)
    pieces = make_sequence(random.Random(1))  # noqa: S311
    assert "settings=0" in http2_verdicts.compare(pieces, random.Random(1)).fault  # noqa: S311


def test_reasons_differ() -> None:
    assert len({text for text, _ in http2_verdicts.REASONS}) == len(http2_verdicts.REASONS)
