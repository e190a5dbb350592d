"""`geartrain run MODEL --with FOLDER`: a model that calls others, and a pipeline, at the terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import run_forked
from tests.support.servers import write_model

UPPER = "def run(text: str) -> str:\n    return text.upper()\n"
CALLER = """
    import geartrain
    class Runner(geartrain.BaseRunner):
        upper: geartrain.Model
        def run(self, text: str) -> str:
            return "<" + self.upper(text=text) + geartrain.models["lower"](text="Z") + ">"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with")
    write_model(folder / "models/upper", UPPER)
    write_model(folder / "models/lower", UPPER.replace("upper", "lower"))
    write_model(folder / "models/broken", "raise RuntimeError('nobody needs this one')\n")
    write_model(folder / "caller", CALLER)
    (folder / "models/twice").mkdir()
    (folder / "models/twice/geartrain.yaml").write_text("pipeline: [{model: upper, output: text}, lower]\n")
    return folder


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_forked("run", *words, cwd=folder, timeout=60)


def test_a_model_calls_those_of_the_folder(folder: Path) -> None:
    done = run("caller", "--with", "models", "text=a", folder=folder)
    assert (done.returncode, done.stdout) == (0, "<Az>\n"), done.stderr
    assert "nobody" not in done.stderr  # what is not called is not loaded


def test_models_that_are_missing_are_named(folder: Path) -> None:
    done = run("caller", "text=a", folder=folder)
    assert done.returncode == 1
    assert "the model calls upper; `--with FOLDER` names the folder that holds them" in done.stderr
    done = run("caller", "--with", "nowhere", "text=a", folder=folder)
    assert "--with: nowhere is no folder" in done.stderr


def test_a_pipeline_runs_with_its_models(folder: Path) -> None:
    done = run("models/twice", "--with", "models", "--json", '{"text": "aB"}', folder=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "ab"
    done = run("models/twice", "text=a", folder=folder)
    assert done.returncode == 1
    assert "a pipeline needs its models: upper, lower; `--with FOLDER` names the folder" in done.stderr
