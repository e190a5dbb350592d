"""Tests of the model beside this file: `pytest`."""

import os
import signal
import time
from pathlib import Path

import pytest

from geartrain import Client
from geartrain.testing import call, serve

MODEL = Path(__file__).parent


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "checkpoints"
    monkeypatch.setenv("CHECKPOINTS", str(folder))
    return folder


def test_fits_the_line(checkpoints: Path) -> None:
    fit = call(MODEL, steps=200, pause=0)
    assert (fit.slope, fit.offset) == pytest.approx((3, 1), abs=0.01)
    assert list(checkpoints.iterdir()) == []


def test_goes_on_where_it_was_after_a_crash(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    with serve(MODEL, store=store) as server, Client(server.url) as client:
        job = client.submit({"steps": 60, "pause": 0.05, "every": 5})
        deadline = time.monotonic() + 60
        while not job.poll().metrics.get("progress"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(server.pid, signal.SIGKILL)
    with serve(MODEL, store=store) as server, Client(server.url) as client:
        done = client.model().handle(job.id).wait(timeout=60)
    assert done.status == "succeeded"
    assert done.output is not None
    assert 5 <= done.output["resumed_at"] < 60
    assert done.logs.startswith("goes on at step ")
