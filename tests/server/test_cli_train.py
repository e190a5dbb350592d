"""Trainings from the command line: `geartrain train`, and `geartrain serve --x-mode train`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.server.trainings import ASYNC, url, write
from tests.support.forked import run_forked
from tests.support.servers import ServerProcess

FUNCTION = """
    def train(data: str, times: int = 1) -> str:
        print("training")
        if data == "wait":
            while True:
                pass
        if data == "bad":
            raise ValueError("nothing learned")
        return data * times
    """
NO_RUNNER = "train: train.py:train\n"

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train the model in `model` from the folder above it; nothing may be left in the temporary folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "TMPDIR": str(temporary), **variables}
        done = run_forked("train", *arguments, cwd=tmp_path, env=environ)
        assert list(temporary.iterdir()) == []
        return done

    return start


def only_trains(tmp_path: Path, source: str = FUNCTION) -> Path:
    """A model that has nothing but a training."""
    folder = write(tmp_path / "model", source, NO_RUNNER)
    (folder / "run.py").unlink()
    return folder


# geartrain train


def test_result_goes_to_weights(train: Train, tmp_path: Path) -> None:
    only_trains(tmp_path)
    done = train("model", "-i", "data=ab", "-i", "times=2")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "training\nWritten output to: weights\n"
    assert (tmp_path / "weights").read_text() == "abab"


def test_file_of_the_result_goes_to_weights_and_the_rest_to_stdout(train: Train, tmp_path: Path) -> None:
    write(tmp_path / "model")
    done = train("model", "-i", "data=ab", "-i", "epochs=3")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"epochs": 3})
    assert done.stderr == "setting up to train\ntraining\nWritten output to: weights\n"
    assert (tmp_path / "weights").read_text() == "ababab"
    assert not (tmp_path / "model/predicted").exists()


def test_o_names_another_place(train: Train, tmp_path: Path) -> None:
    write(tmp_path / "model")
    assert train("model", "-i", "data=ab", "-o", "mine.bin").returncode == 0
    assert (tmp_path / "mine.bin").read_text() == "ab"
    (tmp_path / "out").mkdir()
    assert train("model", "-i", "data=ab", "-o", "out").returncode == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"output.weights.bin", "output.json"}
    assert not (tmp_path / "weights").exists()


def test_json_answer_is_on_stdout(train: Train, tmp_path: Path) -> None:
    only_trains(tmp_path)
    done = train("model", "--json", '{"data": "ab"}')
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["output"], answer["logs"]) == ("succeeded", "ab", "training\n")
    assert not (tmp_path / "weights").exists()


def test_file_is_an_input(train: Train, tmp_path: Path) -> None:
    only_trains(tmp_path, "from cog import Path\ndef train(data: Path) -> Path:\n    return data\n")
    (tmp_path / "data.txt").write_text("content")
    assert train("model", "-i", "data=@data.txt").returncode == 0
    assert (tmp_path / "weights").read_text() == "content"


@pytest.mark.parametrize("target", ["model", "model/train.py", "model/train.py:train"])
def test_targets(train: Train, tmp_path: Path, target: str) -> None:
    only_trains(tmp_path)
    assert train(target, "-i", "data=ab").returncode == 0
    assert (tmp_path / "weights").read_text() == "ab"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["-i", "dta=ab"],
            'error: unknown input "dta"; this model takes data, times\nerror: missing required input "data"\n',
        ),
        (["-i", "times=2"], 'error: missing required input "data"\n'),
        (["-i", "data=bad"], "error: ValueError: nothing learned\n"),
    ],
)
def test_what_is_wrong_is_said(train: Train, tmp_path: Path, arguments: list[str], said: str) -> None:
    only_trains(tmp_path)
    done = train("model", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(said)
    assert not (tmp_path / "weights").exists()


def test_first_use_5_wrong_input_is_refused_before_setup_is_over(train: Train, tmp_path: Path) -> None:
    source = """
        import time

        class Trainer:
            def setup(self) -> None:
                time.sleep(600)

            def train(self, data: str) -> str: ...
        """
    write(tmp_path / "model", source, "train: train.py:Trainer\n")
    done = train("model", "-i", "dta=ab")  # the setup alone takes 600 s
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ('error: unknown input "dta"; this model takes data\nerror: missing required input "data"\n')


def test_model_without_a_training(train: Train, tmp_path: Path) -> None:
    write(tmp_path / "model", config="run: run.py:Runner\n")
    done = train("model", "-i", "data=ab")
    assert done.returncode == 1
    folder = tmp_path / "model"
    said = "no training here; write a line such as `train: train.py:train` in its cog.yaml"
    assert done.stderr == f"error: {folder}: {said}\n"


def test_training_that_has_no_such_name_is_refused_at_once(train: Train, tmp_path: Path) -> None:
    only_trains(tmp_path, "def fit(data: str) -> str: ...\n")
    done = train("model", "-i", "data=ab")
    assert (done.returncode, done.stderr) == (1, "error: train.py has no 'train'; it defines fit\n")
    assert train("model/train.py").stderr == (
        "error: train.py has no class Trainer; it defines fit. Write a class Trainer with train(), "
        "or a function train(), or name what is meant, as train.py:fit\n"
    )


def test_interrupted_training_is_canceled(tmp_path: Path) -> None:
    only_trains(tmp_path)
    arguments = [sys.executable, "-m", "geartrain", "train", "model", "-i", "data=wait"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "training\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=40) == 130
        assert process.stderr.read() == "error: the training was canceled\n"
    assert not (tmp_path / "weights").exists()


# geartrain schema


def test_schema_has_the_training(tmp_path: Path) -> None:
    write(tmp_path / "model")
    done = run_forked("schema", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    schemas = json.loads(done.stdout)["components"]["schemas"]
    assert schemas["TrainingInput"]["required"] == ["data"]
    assert set(schemas["Input"]["properties"]) == {"text"}
    assert not (tmp_path / "model/setups").exists()


# geartrain serve


def test_unknown_x_mode_is_a_usage_error(tmp_path: Path) -> None:
    write(tmp_path / "model")
    done = run_forked("serve", tmp_path / "model", "--x-mode", "both")
    assert done.returncode == 2
    assert "x-mode" in done.stderr


def test_x_mode_train_of_a_model_without_a_training(tmp_path: Path) -> None:
    write(tmp_path / "model", config="")
    done = run_forked("serve", tmp_path / "model", "--x-mode", "train")
    assert done.returncode == 1
    assert "no training here" in done.stderr


def test_variable_names_the_training(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = write(tmp_path / "model", config="")
    stubs = {"COG_PREDICT_TYPE_STUB": "run.py:Runner", "COG_TRAIN_TYPE_STUB": "train.py:Trainer"}
    process = server_process(env=stubs, cwd=folder)
    address = process.wait_for("listening")["url"]
    assert httpx.post(f"{address}/trainings", json={"input": {"data": "ab"}}).json()["output"]["weights"] == url("ab")
    process.popen.terminate()
    assert process.popen.wait(timeout=40) == 0


def test_x_mode_train_needs_no_runner(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = write(tmp_path / "model", config="")
    (folder / "run.py").unlink()
    process = server_process("--x-mode", "train", env={"COG_TRAIN_TYPE_STUB": "train.py:Trainer"}, cwd=folder)
    address = process.wait_for("listening")["url"]
    process.wait_for("ready")
    assert httpx.post(f"{address}/trainings", json={"input": {"data": "ab"}}).json()["status"] == "succeeded"
    assert httpx.post(f"{address}/predictions", json={}).status_code == 404
    process.popen.terminate()
    assert process.popen.wait(timeout=40) == 0


def test_sigterm_lets_a_training_finish(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    process = server_process(cwd=folder)
    address = process.wait_for("listening")["url"]
    process.wait_for("ready")
    gate = tmp_path / "gate"
    body = {"id": "t", "input": {"data": "ab", "gate": str(gate)}}
    assert httpx.post(f"{address}/trainings", json=body, headers=ASYNC).status_code == 202
    process.popen.terminate()
    process.wait_for("stopping")
    gate.touch()
    assert process.popen.wait(timeout=40) == 0
    assert (folder / "weights.bin").read_text() == "ab"
