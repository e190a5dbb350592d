"""`geartrain run` as a person calls it: a real command, a real worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.forked import run_forked, start_forked
from tests.support.processes import is_there
from tests.support.servers import write_model

HELLO = """
    from geartrain import BaseRunner, Input

    class Runner(BaseRunner):
        def setup(self) -> None:
            print("setting up")
            self.greeting = "hello"

        def run(self, name: str, times: int = Input(default=1, ge=1, le=3), tags: list[str] = []) -> str:
            print("running")
            self.record_metric("times", times)
            return f"{self.greeting} {name}" * times + "".join(tags)
    """
COUNTER = """
    import time
    from geartrain import ConcatenateIterator

    def run(n: int = 3, pause: float = 0.0, fail: bool = False) -> ConcatenateIterator[str]:
        for i in range(n):
            yield f"{i} "
            time.sleep(pause)
        if fail:
            raise ValueError("no more numbers")
    """

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write the model and run it from the folder above it; nothing of it may be left in the temporary folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def start(source: str, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        write_model(tmp_path / "model", source)
        environ = {**os.environ, "TMPDIR": str(temporary), **options}
        stdin = environ.pop("stdin", "")
        done = run_forked("run", "model", *arguments, cwd=tmp_path, env=environ, stdin=stdin)
        assert list(temporary.iterdir()) == []
        return done

    return start


def test_one_worker_whatever_the_model_is_served_with(run: Run, tmp_path: Path) -> None:
    model = """
        import pathlib

        class Runner:
            def setup(self) -> None:
                with pathlib.Path("setups").open("a") as file:
                    file.write("setup\\n")

            def run(self) -> str:
                return "done"
    """
    write_model(tmp_path / "model", model)
    (tmp_path / "model" / "geartrain.yaml").write_text("replicas: 3\n")
    done = run(model)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert (tmp_path / "model" / "setups").read_text() == "setup\n"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command and leave it running."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        write_model(tmp_path / "model", source)
        process = start_forked(
            ["run", "model", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_output_is_on_stdout_and_all_else_on_stderr(run: Run) -> None:
    done = run(HELLO, "-i", "name=bob", "-i", "times=2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello bobhello bob\n", "setting up\nrunning\n")


def test_inputs_stand_behind_the_model_as_well(run: Run, tmp_path: Path) -> None:
    assert run(HELLO, "name=Ada", "-i", "times=2").stdout == "hello Adahello Ada\n"
    command = [sys.executable, "-m", "geartrain", "run", "name=Ada"]
    here = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path / "model", timeout=60)
    assert here.stdout == "hello Ada\n"
    wrong = run(HELLO, "--name", "Ada")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "no such option: --name. The input 'name' of a model is written as name=VALUE" in wrong.stderr


def test_repeated_input_is_a_list(run: Run) -> None:
    assert run(HELLO, "-i", "name=bob", "-i", "tags=!", "-i", "tags=?").stdout == "hello bob!?\n"


SLOW = """
    import os
    import pathlib
    import time

    from geartrain import BaseRunner, Input, Path

    pathlib.Path("pid").write_text(str(os.getpid()))

    class Runner(BaseRunner):
        def setup(self) -> None:
            time.sleep(600)
            pathlib.Path("set up").touch()

        def run(self, name: str, times: int = Input(default=1, ge=1), image: Path | None = None) -> str: ...
    """


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-i", "name=a", "-i", "nme=bob"], 'unknown input "nme"; this model takes name, times, image'),
        (["-i", "times=1"], 'missing required input "name"'),
        (["-i", "name=a", "-i", "times=two"], 'invalid input "times": "two" is not of type "integer"'),
        (["-i", "name=a", "-i", "times=0"], 'invalid input "times": 0 is less than the minimum of 1'),
        (["-i", "name=a", "-i", "image=cat.png"], 'invalid input "image": expected a URL or @file, '),
        (["--json", '{"name": 1}'], 'invalid input "name": '),
        (["--json", "{}"], 'missing required input "name"'),
        (["--json", '{"name": null}'], 'invalid input "name": must not be null; leave it out instead'),
    ],
)
def test_first_use_5_wrong_input_is_refused_before_setup_is_over(
    run: Run, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run(SLOW, *arguments)  # the setup alone takes 600 s
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.count("\n") == 1
    assert not is_there(int((tmp_path / "model/pid").read_text()))
    assert not (tmp_path / "model/set up").exists()


def test_missing_file_is_told_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    done = run(SLOW, "-i", "name=a", "-i", "image=@missing.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot read missing.png: No such file or directory ")
    assert not (tmp_path / "model/pid").exists()


def test_stdin_is_an_input(run: Run) -> None:
    source = "def run(x: int | str, y: str) -> str:\n    return f'{x!r} {y!r}'\n"
    assert run(source, "-i", "x=@-", "-i", "y=@-", stdin="hello").stdout == "'hello' 'hello'\n"


def test_every_wrong_input_is_told_at_once(run: Run) -> None:
    done = run(HELLO, "--json", '{"times": 9, "zzz": 1}')
    complaints = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert complaints[0] == 'error: invalid input "times": 9 is greater than the maximum of 3'
    assert complaints[1].startswith('error: unknown input "zzz"; ')
    assert complaints[2] == 'error: missing required input "name"'
    done = run(HELLO, "times=9", "zzz=1")
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        'error: unknown input "zzz"; this model takes name, times, tags',
        'error: missing required input "name"',
        'error: invalid input "times": 9 is greater than the maximum of 3',
    ]


def test_death_of_the_worker_is_told_once(run: Run) -> None:
    done = run("import os, signal\ndef run(x: int = 1) -> int:\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert done.returncode == 1
    assert done.stderr == "error: Worker crashed: killed by SIGKILL (out of memory, or killed from outside)\n"


def test_segfault_shows_the_authors_thread_alone(run: Run) -> None:
    done = run("import ctypes\ndef run(x: int = 1) -> int:\n    ctypes.string_at(0)\n    return x\n")
    assert done.stderr.count("(most recent call first)") == 1
    assert 'run.py", line 3 in run' in done.stderr


def test_json_in_json_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"name": "bob"}')
    for arguments, stdin in ((['{"name": "bob"}'], ""), (["@in.json"], ""), (["-"], '{"name": "bob"}')):
        done = run(HELLO, "--json", *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith('{\n  "status": "succeeded",\n  "output": "hello bob",\n')
        answer = json.loads(done.stdout)
        assert answer["logs"] == "running\n"
        assert answer["metrics"]["times"] == 1
        assert answer["metrics"]["predict_time"] > 0


def test_json_answer_of_a_failure(run: Run, tmp_path: Path) -> None:
    done = run(COUNTER, "--json", '{"n": 2, "fail": true}', "-o", "answer.json")
    assert (done.returncode, done.stdout) == (1, "")
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["status"], answer["output"]) == ("failed", ["0 ", "1 "])
    assert "no more numbers" in answer["error"]
    assert answer["error"] in done.stderr


def test_failed_prediction_ends_with_1_after_its_partial_output(run: Run) -> None:
    done = run(COUNTER, "-i", "fail=true")
    assert (done.returncode, done.stdout) == (1, "0 1 2 \n")
    assert "error: " in done.stderr
    assert "no more numbers" in done.stderr.splitlines()[-1]


def test_worker_that_dies_ends_with_1(run: Run) -> None:
    done = run("import os\ndef run() -> str:\n    os._exit(7)\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Worker crashed" in done.stderr


def test_failed_setup_ends_with_1_and_its_reason(run: Run) -> None:
    done = run("""
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def setup(self) -> None:
                print("looking for weights")
                raise FileNotFoundError("no weights")

            def run(self) -> str: ...
        """)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("looking for weights\n")
    assert "FileNotFoundError: no weights" in done.stderr.splitlines()[-1]


def test_setup_that_takes_too_long_is_ended(run: Run) -> None:
    source = """
        import threading
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def setup(self) -> None:
                threading.Event().wait()

            def run(self) -> str: ...
        """
    done = run(source, "--setup-timeout", "0.5")
    assert done.returncode == 1
    assert done.stderr == "error: worker setup timed out after 0.5 seconds\n"


def test_model_that_cannot_be_imported_is_one_sentence(run: Run) -> None:
    done = run("import nothing_like_that\nclass Runner: ...\n")
    assert done.returncode == 1
    assert done.stderr.startswith("error: run.py:1: ModuleNotFoundError: No module named 'nothing_like_that'")
    assert done.stderr.count("\n") == 1


def test_files_go_in_and_come_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    source = """
        import pathlib
        from geartrain import Path

        def run(image: Path, copies: int) -> list[Path]:
            paths = []
            for number in range(copies):
                path = pathlib.Path(image.parent / f"{number}.png")
                path.write_bytes(image.read_bytes() * (number + 1))
                paths.append(Path(path))
            return paths
        """
    done = run(source, "-i", "image=@cat.png", "-i", "copies=2")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "Written output to: output.0.png\nWritten output to: output.1.png\n"
    assert (tmp_path / "output.0.png").read_bytes() == b"\x89PNG"
    assert (tmp_path / "output.1.png").read_bytes() == b"\x89PNG\x89PNG"


def test_single_file_is_written_where_o_says(run: Run, tmp_path: Path) -> None:
    source = """
        import io

        from geartrain import File

        def run() -> File:
            return io.BytesIO(b"content")
        """
    done = run(source, "-o", "result.dat")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Written output to: result.dat\n")
    assert (tmp_path / "result.dat").read_bytes() == b"content"


def test_bare_local_path_is_explained(run: Run) -> None:
    done = run("from geartrain import Path\ndef run(image: Path) -> str: ...\n", "-i", "image=cat.png")
    assert done.returncode == 1
    assert "expected a URL or @file, got 'cat.png'; for a file of your own write @cat.png" in done.stderr


def test_chunks_come_as_they_are_yielded(running: Callable[..., subprocess.Popen[str]]) -> None:
    process = running(COUNTER, "-i", "n=1000", "-i", "pause=60")
    assert process.stdout is not None
    assert process.stdout.read(2) == "0 "  # while the model sleeps
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "\n")
    assert err.endswith("error: the prediction was canceled\n")


def test_ctrl_c_during_setup_ends_with_130(running: Callable[..., subprocess.Popen[str]]) -> None:
    process = running("""
        import threading
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def setup(self) -> None:
                print("waiting", flush=True)
                threading.Event().wait()

            def run(self) -> str: ...
        """)
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=40) == 130


def test_second_ctrl_c_ends_a_model_that_does_not_stop(running: Callable[..., subprocess.Popen[str]]) -> None:
    process = running("""
        import threading

        from geartrain import CancelationException

        def run() -> str:
            begun = False
            while True:
                try:
                    if not begun:
                        begun = True
                        print("begun", flush=True)  # in here: the signal may come as soon as it is read
                    threading.Event().wait()
                except CancelationException:
                    print("no", flush=True)
        """)
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "no\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=40) == 130


def test_reader_that_leaves_ends_the_run(running: Callable[..., subprocess.Popen[str]]) -> None:
    process = running(COUNTER, "-i", "n=100000", "-i", "pause=0.01")
    assert process.stdout is not None
    assert process.stdout.read(2) == "0 "
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=20)
    assert process.returncode == 141
    assert "Traceback" not in err


def test_more_chunks_than_the_log_holds_all_arrive(run: Run) -> None:
    done = run(COUNTER, "-i", "n=5000")
    assert done.stdout == "".join(f"{i} " for i in range(5000)) + "\n"


def test_order_of_prints_and_chunks_is_kept_on_one_terminal(tmp_path: Path) -> None:
    write_model(
        tmp_path / "model",
        """
        from collections.abc import Iterator

        def run() -> Iterator[str]:
            for i in range(3):
                print("log", i)
                yield f"chunk {i}"
        """,
    )
    done = run_forked("run", "model", stderr=subprocess.STDOUT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split("\n") == ["log 0", "chunk 0", "log 1", "chunk 1", "log 2", "chunk 2", ""]


def test_cog_yaml_environment_reaches_the_model(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "", cog_yaml="environment: [GREETING=salut]\n")
    assert run("import os\ndef run() -> str:\n    return os.environ['GREETING']\n").stdout == "salut\n"
