"""Tests of the model beside this file: `pytest`."""

from pathlib import Path

import numpy as np
import pytest

from geartrain.testing import call, runner

MODEL = Path(__file__).parent


def test_scores_add_up_to_one() -> None:
    with runner(MODEL) as run:
        result = run(features=np.array([[1, 0, 0], [0, 0, 1]], np.float32))
        np.testing.assert_allclose(result.scores.sum(axis=1), 1, rtol=1e-6)
        assert result.best.tolist() == [0, 1]


def test_nested_lists_are_taken_as_well() -> None:
    assert call(MODEL, features=[[1, 0, 0]]).best.tolist() == [0]


def test_wrong_shape_is_told() -> None:
    with pytest.raises(ValueError, match="send rows of 3 numbers"):
        call(MODEL, features=[[1, 2]])
