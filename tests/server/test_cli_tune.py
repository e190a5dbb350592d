"""`geartrain tune`: it finds larger batches and more replicas of a real model, and writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import geartrain
from geartrain.bench.trials import Tried
from geartrain.cli.commands import app
from tests.support.servers import write_model

BATCHED = """
    import time
    from geartrain import BaseRunner, Input, batched

    class Runner(BaseRunner):
        @batched(max_size=2)
        def run(self, x: list[float]) -> list[float]:
            time.sleep(0.01)
            return [2 * each for each in x]
"""
NARROW = """
    import time
    from geartrain import BaseRunner, Input, batched

    class Runner(BaseRunner):
        @batched(max_size=64)
        def run(self, x: list[float]) -> list[float]:
            if len(x) > 10:
                raise MemoryError
            time.sleep(0.005)
            return [2 * each for each in x]
"""
SINGLE = """
    import time
    from geartrain import BaseRunner, Input

    class Runner(BaseRunner):
        def run(self, seconds: float = Input(default=0.005)) -> float:
            time.sleep(seconds)
            return seconds
"""
SETTINGS = "# of my model\nreplicas: 1  # one\n"


def tune(*words: str) -> Result:
    return CliRunner().invoke(app, ["tune", *words], prog_name="geartrain")


def test_settings_that_pay_are_written_with_their_figures(tmp_path: Path) -> None:
    model = write_model(tmp_path / "twice", BATCHED)
    (model / "geartrain.yaml").write_text(SETTINGS)
    results = tmp_path / "results.json"
    done = tune(str(model), "-i", "x=1", "--for", "15s", "--p99", "1s", "--results", str(results))
    assert done.exit_code == 0, done.output
    found = json.loads(results.read_text())
    assert found["start"]["batching.max_size"] == 2
    # How much is tried depends on the machine; tests/unit/bench/test_search.py holds that the best is found.
    assert found["tried"][0]["settings"] == found["start"]
    assert all(each["score"] or each["fault"] for each in found["tried"])
    assert [len(curve) for curve in found["curves"].values()] == [5, 5]
    written = (model / "geartrain.yaml").read_text()
    if found["best"] == found["start"]:
        assert written == SETTINGS
        assert "nothing is changed" in done.stdout
        return
    assert written.startswith("# of my model\nreplicas: ")
    for name, value in found["best"].items():
        if value != found["start"][name]:
            assert f"{name.rpartition('.')[2]}: {value}" in written
    assert "# geartrain tune: 2" in written
    assert "# geartrain tune: before, " in written
    assert "a second" in done.stdout
    assert "max_size" in done.stdout
    assert {path.name for path in model.iterdir()} <= {"geartrain.yaml", "run.py", "__pycache__"}


def test_library_changes_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "single", SINGLE)
    tried: list[Tried] = []
    found = geartrain.tune(model, [{"seconds": 0.01}], seconds=4, on_tried=tried.append)
    assert tried[0].settings == found.start
    assert found.start["slots"] == 1
    assert not (model / "geartrain.yaml").exists()


def test_a_cost_that_is_found_is_where_the_search_begins(tmp_path: Path) -> None:
    model = write_model(tmp_path / "twice", BATCHED.replace("max_size=2", "max_size=8"))
    settings = "batching:\n  cost: x\n  max_cost: auto\nwarmup:\n  - x: 3\n"
    (model / "geartrain.yaml").write_text(settings)
    found = geartrain.tune(model, [{"x": 3}], seconds=4)
    assert found.start["batching.max_cost"] == "auto"
    assert (model / "geartrain.yaml").read_text() == settings


def test_size_without_room_in_memory_gives_way_to_the_one_that_held(tmp_path: Path) -> None:
    model = write_model(tmp_path / "narrow", NARROW)
    found = geartrain.tune(model, [{"x": 1.0}], seconds=12)
    assert found.start["batching.max_size"] == 64
    assert 0 < found.before.held < 64, "half of a batch of any size; the last of the halves may not be known yet"
    assert found.best["batching.max_size"] <= 10
    assert not found.after.held
    faults = [each.fault for each in found.tried if each.settings["batching.max_size"] > 10 and each.score is None]
    assert all(fault.startswith("memory has room for ") for fault in faults)


@pytest.mark.parametrize(
    ("source", "words", "message"),
    [
        (BATCHED, (), "the model has no default for x; give -i x=…"),
        (BATCHED, ("-i", "x=one"), "x"),
        (SINGLE.replace("return seconds", "raise ValueError"), (), "answers none of these inputs well"),
        ("raise ValueError('not here')\n", ("-i", "x=1"), "not here"),
    ],
)
def test_model_that_cannot_be_asked(source: str, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = tune(str(write_model(tmp_path / "model", source)), *words, "--for", "2s")
    assert done.exit_code == 1, done.output
    assert message in done.stderr
    assert not (tmp_path / "model" / "geartrain.yaml").exists()


def test_target_that_is_no_single_model(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, SINGLE)
    done = tune(str(tmp_path))
    assert done.exit_code == 1
    assert "is a folder of models; name one of them" in done.stderr
    assert "--p99 is a time above 0" in tune(str(tmp_path / "a"), "--p99", "0").stderr
    done = tune(str(tmp_path / "a"), "-i", "seconds=1", "--inputs", str(tmp_path / "a" / "run.py"))
    assert "--inputs are whole inputs" in done.stderr
