"""`geartrain call` against a real server; and what a shell completes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from geartrain.testing import serve
from geartrain.testing.server import Server
from tests.support.forked import run_forked
from tests.support.servers import PATIENCE
from tests.support.terminal import on_terminal

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("hello", "slow_counter", "thumbnails"):
        (folder / name).symlink_to(EXAMPLES / name)
    with serve(folder) as server:
        yield server


def geartrain(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_forked(*arguments, cwd=cwd, env={**os.environ, **environ})


def fresh(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter of its own."""
    command = [sys.executable, "-m", "geartrain", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)


def test_output_is_that_of_run(server: Server, tmp_path: Path) -> None:
    for model, inputs in (
        ("hello", ["-i", "name=Ada"]),
        ("slow_counter", ["-i", "up_to=2", "-i", "pause=0"]),
        ("thumbnails", ["-i", f"image=@{EXAMPLES / 'digits/three.png'}", "-i", "widths=8", "-i", "widths=9"]),
    ):
        run = fresh("run", str(EXAMPLES / model), *inputs, cwd=tmp_path)
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        call = fresh("call", server.url, "-m", model, *inputs, cwd=tmp_path)
        assert (call.returncode, call.stdout, call.stderr) == (run.returncode, run.stdout, run.stderr)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


RECORDS = """
from geartrain import BaseModel, BaseRunner


class Box(BaseModel):
    top: int
    left: int


class Runner(BaseRunner):
    def run(self) -> list[Box]:
        return [Box(left=1, top=2)]
"""


def test_members_stand_in_the_order_of_the_author(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(RECORDS)
    with serve(tmp_path) as server:
        for command, place in (("run", str(tmp_path)), ("call", server.url)):
            done = geartrain(command, place)
            assert json.dumps(json.loads(done.stdout)) == '[{"top": 2, "left": 1}]', done.stderr


def test_json_is_answered_with_json(server: Server) -> None:
    done = geartrain("call", server.url, "-m", "slow_counter", "--json", '{"up_to": 1, "pause": 0}')
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["output"], answer["logs"]) == ("succeeded", [1], "counting 1 of 1\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "slow_counter", "-i", "up_to=0"], 'invalid input "up_to": 0 is less than the minimum of 1'),
        (["-m", "slow_counter", "-i", "upto=1"], 'unknown input "upto"; this model takes up_to, pause'),
        (["-m", "slow_countr"], "'slow_countr' is not found; did you mean slow_counter?"),
        ([], "; there are hello, slow_counter, thumbnails: name one with --model"),
        (["-m", "thumbnails", "-i", "image=@gone.png"], "cannot read gone.png: No such file or directory"),
        (["--cacert", "gone.pem"], "there is no file gone.pem"),
    ],
)
def test_what_is_wrong_is_one_sentence(server: Server, arguments: list[str], words: str) -> None:
    done = geartrain("call", server.url, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_server_that_is_not_there_is_told() -> None:
    done = geartrain("call", "localhost:5000")
    assert done.stderr.startswith("error: 'localhost:5000' is no URL; write for example http://127.0.0.1:5000")
    done = geartrain("call", "http://127.0.0.1:1", "-i", "name=Ada")
    assert done.stderr.startswith("error: http://127.0.0.1:1 cannot be reached")


def test_interrupt_cancels_the_prediction(server: Server) -> None:
    with on_terminal("call", server.url, "-m", "slow_counter", "-i", "pause=1", "-i", "up_to=1000") as terminal:
        terminal.read_until("counting 2 of 1000")
        terminal.process.send_signal(signal.SIGINT)
        assert "error: the prediction was canceled" in terminal.read_to_end()
        assert terminal.process.wait(PATIENCE) == 130


# mistakes and completion


def test_nearest_name_is_offered(tmp_path: Path) -> None:
    assert "Did you mean 'serve'?" in geartrain("srve").stderr
    assert "--port" in geartrain("serve", "--prot", "1").stderr
    assert geartrain("run", "helo", cwd=EXAMPLES).stderr.endswith(f"in {EXAMPLES}; did you mean hello?\n")
    assert "did you mean" not in geartrain("run", "something else", cwd=tmp_path).stderr


def completed(shell: str, line: str, cwd: Path) -> list[str]:
    """What a shell offers at the end of a line."""
    words = line.split()
    index = len(words) if line.endswith(" ") else len(words) - 1
    done = geartrain(
        cwd=cwd,
        _GEARTRAIN_COMPLETE=f"complete_{shell}",
        COMP_WORDS=line,
        COMP_CWORD=str(index),
        _TYPER_COMPLETE_ARGS=line,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_models_and_inputs_are_completed(shell: str) -> None:
    def offered(line: str) -> str:
        return " ".join(completed(shell, line, EXAMPLES))

    assert "serve" in offered("geartrain se")
    assert "slow_counter" in offered("geartrain run slow")
    assert "up_to=" in offered("geartrain run slow_counter -i up")


def test_inputs_are_those_of_the_model(server: Server, tmp_path: Path) -> None:
    assert completed("bash", "geartrain run slow_counter -i ", EXAMPLES) == ["up_to=", "pause="]
    assert completed("bash", "geartrain train centroid -i ", EXAMPLES) == ["data="]
    assert completed("bash", f"geartrain call {server.url} -m slow_counter -i ", tmp_path) == ["up_to=", "pause="]
    assert completed("bash", "geartrain call http://127.0.0.1:1 -i ", tmp_path) == []
    (tmp_path / "run.py").write_text("def run(text: str, *, times: int = 1) -> str: ...\n")
    assert completed("bash", "geartrain run . -i ", tmp_path) == ["text=", "times="]
    (tmp_path / "run.py").write_text("def run(text: str\n")
    assert completed("bash", "geartrain run . -i ", tmp_path) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_for_a_shell_is_shown(shell: str) -> None:
    done = geartrain("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_GEARTRAIN_COMPLETE" in done.stdout
