"""Tests of the model beside this file: `pytest examples/digits`."""

from pathlib import Path

import pytest

from geartrain.testing import runner

MODEL = Path(__file__).parent


def test_reads_digits() -> None:
    with runner(MODEL) as run:  # setup() trains it once
        assert run(image=MODEL / "three.png").digit == 3
        assert run(image=MODEL / "seven.png").digit == 7
        with pytest.raises(OSError, match="cannot identify image file"):
            run(image=b"no picture")
