"""Tests of the model beside this file: `pytest`. They pass with a GPU and without."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from geartrain.testing import call, runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def test_rows_are_probabilities(run: Run) -> None:
    rows = run(x=X)
    assert rows.shape == (3, 10)
    assert rows.sum(axis=1) == pytest.approx(1, abs=1e-2)


def test_batch_gives_what_single_requests_give(run: Run) -> None:
    together = run.batch([{"x": X[:1]}, {"x": X[1:]}])
    assert np.concatenate(together) == pytest.approx(run(x=X), abs=1e-2)


def test_needed_gpu_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEED_GPU", "yes")
    monkeypatch.setenv("GEARTRAIN_DEVICE", "cpu")  # as `geartrain serve --devices cpu` has it
    with pytest.raises(RuntimeError, match=r"no GPU is given to this worker.* NEED_GPU=no serves it on the CPU"):
        call(MODEL, x=X)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch cannot use a GPU here")
def test_runs_on_the_gpu(run: Run) -> None:
    assert run.instance.device.type == "cuda"
    assert next(run.instance.network.parameters()).is_cuda
