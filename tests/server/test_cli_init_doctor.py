"""`geartrain init` and `geartrain doctor` as a person calls them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers import write_model
from tests.support.terminal import on_terminal

GOOD = "from geartrain import BaseRunner\nclass Runner(BaseRunner):\n    def run(self, n: int = 1) -> str: ...\n"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for `PYTHONPATH` with which any interpreter says that it was built for speed."""
    folder = tmp_path_factory.mktemp("optimized")
    claim = "import sysconfig\nsysconfig.get_config_vars().update(CONFIG_ARGS='--enable-optimizations', Py_DEBUG=0)\n"
    (folder / "sitecustomize.py").write_text(claim)
    return str(folder)


@pytest.fixture
def geartrain(tmp_path: Path, optimized: str) -> Command:
    """Run the command in the folder above the model's; neither ports nor the Python of this machine shall matter."""

    def start(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        with socket.create_server(("", 0)) as unused:
            port = unused.getsockname()[1]
        path = os.pathsep.join(filter(None, (optimized, os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [sys.executable, "-m", "geartrain", *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PORT": str(port), "PYTHONPATH": path, **environ},
        )

    return start


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What is not well, with its fix."""
    return [line for line in done.stdout.splitlines() if not line.startswith("✓")]


# init


def test_first_model_runs_as_it_is_and_is_well(geartrain: Command, tmp_path: Path) -> None:
    done = geartrain("init", "my pets/first")
    assert (done.returncode, done.stderr) == (0, "")
    names = ("run.py", "test_first.py", "README.md")
    assert done.stdout.splitlines() == [
        f"Wrote {', '.join(f'my pets/first/{name}' for name in names)} and my pets/first/cog.yaml. Next:",
        "",
        "  geartrain run 'my pets/first' -i name=world   one prediction, here",
        "  geartrain serve 'my pets/first'               over HTTP, on port 5000",
        "  pytest 'my pets/first'                        its tests",
        "  geartrain doctor 'my pets/first'              what is wrong, if something is",
    ]
    done = geartrain("run", "my pets/first", "-i", "name=bob", "-i", "times=2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello, bob! Hello, bob!\n", "greeting bob\n")
    done = geartrain("doctor", "my pets/first")
    assert (done.returncode, told(done)) == (0, ["All is well."])
    folder = tmp_path / "my pets" / "first"
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        "README.md",
        "cog.yaml",
        "run.py",
        "test_first.py",
    }


def test_what_is_in_comments_of_the_first_model_is_right_too(geartrain: Command, tmp_path: Path) -> None:
    geartrain("init", "model")
    config = tmp_path / "model" / "cog.yaml"
    lines = config.read_text().splitlines()
    config.write_text("\n".join(line.removeprefix("# ") for line in lines if ":" in line or "- " in line))
    source = tmp_path / "model" / "run.py"
    source.write_text(source.read_text().replace("def run(", "async def run("))
    done = geartrain("doctor", "model")
    assert [line for line in told(done) if "python_version" not in line and "→" not in line] in (
        ["All is well."],
        ["1 warning."],
    )
    assert done.returncode == 0


def test_nothing_is_overwritten_unless_forced(geartrain: Command, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("mine")
    done = geartrain("init")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: run.py is there already; --force writes over it\n"
    assert not (tmp_path / "cog.yaml").exists()
    done = geartrain("init", "--force")
    assert done.returncode == 0
    assert "  geartrain run -i name=world " in done.stdout
    assert "class Runner" in (tmp_path / "run.py").read_text()
    done = geartrain("init", ".")
    assert done.stderr.endswith(" and cog.yaml are there already; --force writes over them\n")


def test_folder_that_cannot_be_made_is_one_sentence(geartrain: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = geartrain("init", "file")
    assert (done.returncode, done.stderr) == (1, "error: cannot write file: File exists\n")


# doctor


def test_model_that_is_well_says_what_it_takes(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD, cog_yaml="run: run.py:Runner\n")
    done = geartrain("doctor", "model")
    assert (done.returncode, done.stderr, told(done)) == (0, "", ["All is well."])
    assert done.stdout.startswith(
        "✓ cog.yaml\n✓ run.py:Runner: loads; it takes n: integer and gives string\n✓ Python 3."
    )


@pytest.mark.parametrize(
    ("source", "finding", "fix"),
    [
        ("def run() -> str\n    return 1", "✗ run.py:1: SyntaxError: expected ':': def run() -> str", ""),
        ("class Model: ...", "✗ run.py has no class Runner; it defines Model. Write a class Runner with run()", ""),
        (
            "class Runner:\n    def run(self) -> str: ...\n    def predict(self) -> str: ...",
            "✗ run.py:1: the class Runner has both run() and predict(): keep one of them",
            "",
        ),
        (
            "import os\nimport cv2.nothing\ndef run() -> str: ...",
            "✗ run.py:2: ModuleNotFoundError: No module named 'cv2'",
            f"  → if it is a package: {sys.executable} -m pip install opencv-python-headless",
        ),
        ("import helper\ndef run() -> str: ...", "✗ helper.py:2: ZeroDivisionError: division by zero", ""),
        (
            "def run(a: set[int]) -> str: ...",
            "✗ run.py:1: run(): the parameter 'a' is annotated set[int], which is not supported: use list[...] instead",
            "",
        ),
        ("def run(a) -> str: ...", "✗ run.py:1: run(): the parameter 'a' has no annotation: give it a type, ", ""),
    ],
)
def test_model_that_does_not_load_is_told_with_file_and_line(
    geartrain: Command, tmp_path: Path, source: str, finding: str, fix: str
) -> None:
    write_model(tmp_path / "model", source)
    (tmp_path / "model" / "helper.py").write_text("def f() -> None: ...\n1 / 0\n")
    done = geartrain("doctor", "model")
    assert done.returncode == 1
    *lines, total = told(done)
    assert lines[0].startswith(finding)
    assert lines[1:] == [fix] * bool(fix)
    assert total == "1 error."


def test_setup_runs_if_that_is_wanted(geartrain: Command, tmp_path: Path) -> None:
    source = (
        GOOD
        + "    def setup(self):\n        print('loading'); raise RuntimeError('no weights') from KeyError('path')\n"
    )
    write_model(tmp_path / "model", source)
    assert told(geartrain("doctor", "model")) == ["All is well."]
    done = geartrain("doctor", "model", "--setup")
    assert done.returncode == 1
    assert told(done) == ["✗ setup() failed: RuntimeError: no weights", "1 error."]
    assert done.stderr.startswith("loading\nKeyError: 'path'\n\nThe above exception was the direct cause")
    write_model(tmp_path / "model", GOOD)
    done = geartrain("doctor", "model", "--setup")
    assert done.returncode == 0
    assert "run.py: loads, and is set up after " in done.stdout


def test_machine_is_told(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD)
    lines = geartrain("doctor", "model").stdout.splitlines()
    assert any(line.startswith("✓ memory: ") for line in lines)
    assert any(line.startswith("✓ GPU") for line in lines)


def test_chain_of_an_error_at_import_is_shown(geartrain: Command, tmp_path: Path) -> None:
    error = "raise ModuleNotFoundError('no GPT2') from RuntimeError('no operator nms')"
    write_model(tmp_path / "model", f"{error}\ndef run() -> str: ...\n")
    done = geartrain("doctor", "model")
    assert told(done)[0] == "✗ run.py:1: ModuleNotFoundError: no GPT2 (caused by RuntimeError: no operator nms)"
    assert done.stderr.startswith("RuntimeError: no operator nms\n\nThe above exception was the direct cause")
    shown = geartrain("run", "model").stderr
    assert shown.startswith("RuntimeError: no operator nms\n\nThe above exception was the direct cause")
    assert shown.endswith("error: run.py:1: ModuleNotFoundError: no GPT2 (caused by RuntimeError: no operator nms)\n")


def test_concurrency_of_a_sync_run_is_told(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD, cog_yaml="concurrency: {max: 4}\n")
    done = geartrain("doctor", "model")
    assert done.returncode == 1
    assert told(done)[0].startswith("✗ concurrency.max is 4, but run() is not async: ")


def test_training_is_looked_at_as_well(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD, cog_yaml="run: run.py:Runner\ntrain: train.py:train\n")
    (tmp_path / "model" / "train.py").write_text("def train(a: bytes) -> str: ...\n")
    done = geartrain("doctor", "model")
    assert done.returncode == 1
    assert "✓ run.py:Runner: loads; " in done.stdout
    assert told(done)[0].startswith("✗ train.py:1: train(): the parameter 'a' is annotated bytes, ")


def test_error_in_cog_yaml_is_told_once_and_the_rest_is_looked_at(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD, cog_yaml="rnu: x\nrun: gone.py:Runner\n")
    (tmp_path / "model" / "requirements.txt").write_text("no-such-thing==1\n")
    done = geartrain("doctor", "model")
    assert done.returncode == 1
    assert told(done) == [
        "✗ cog.yaml:1: there is no key `rnu`",
        "  → write `run`",
        "✗ cog.yaml:2: `run` names gone.py, and there is no such file",
        "✗ not installed here: no-such-thing==1",
        f"  → {sys.executable} -m pip install no-such-thing==1",
        "3 errors.",
    ]


def test_warnings_alone_are_no_failure(geartrain: Command, tmp_path: Path) -> None:
    write_model(
        tmp_path / "model",
        "from cog import BasePredictor\nclass Predictor(BasePredictor):\n    def run(self) -> str: ...\n",
        cog_yaml="predict: run.py:Predictor\nbuild: {gpu: true}\n",
    )
    done = geartrain("doctor", "model", COG_MAX_CONCURENCY="2", COG_MAX_CONCURRENCY="many")
    assert done.returncode == 0
    assert [line for line in told(done) if "→" not in line] == [
        "! cog.yaml:1: `predict` is the older name of `run`",
        "! cog.yaml: `build.gpu`: only for building an image, and passed over here",
        "! COG_MAX_CONCURRENCY=many is passed over: it is not a whole number of at least 1",
        "! the variable COG_MAX_CONCURENCY is set, and nothing reads it",
        "! run.py:1: BasePredictor is the older name of BaseRunner, and works as before",
        "5 warnings.",
    ]


def test_doctor_shows_the_variables_that_are_set(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD)
    few = geartrain("doctor", "model", COG_MAX_CONCURRENCY="2").stdout
    assert "✓ COG_MAX_CONCURRENCY: 2 (environment)" in few
    assert "(default)" not in few
    assert "✓ COG_USER_AGENT: geartrain (default)" in geartrain("doctor", "model", "-v").stdout


def test_doctor_says_which_example_does_not_fit(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "def run(text: str, n: int = 1) -> str:\n    return text * n\n")
    settings = tmp_path / "model/geartrain.yaml"
    settings.write_text("examples:\n  - text: hello\n  - {text: hello, n: many}\n")
    done = geartrain("doctor", "model")
    assert done.returncode == 1
    assert "✗ `examples[1]` in geartrain.yaml does not fit the model: n: " in done.stdout
    settings.write_text("examples: hello\n")
    assert (
        "`examples` is the text 'hello'; write a list of inputs, such as `- text: hello`"
        in geartrain("doctor", "model").stdout
    )
    settings.write_text("examples: [{text: hello}]\n")
    assert geartrain("doctor", "model").returncode == 0


def test_doctor_checks_the_pipelines_of_a_folder(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "models/upper", "def run(text: str) -> str:\n    return text.upper()\n")
    for name, steps in {
        "good": "[{model: upper, output: text}, upper]",
        "after": "[good]",
        "wrong": "[{model: upper, inputs: {words: text}}]",
        "lost": "[nowhere]",
        "round": "[about]",
        "about": "[round]",
    }.items():
        (tmp_path / "models" / name).mkdir()
        (tmp_path / "models" / name / "geartrain.yaml").write_text(f"pipeline: {steps}\n")
    done = geartrain("doctor", "models")
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if ": " in line]
    for line in (
        "✓ good: a pipeline of upper; it takes text: string and gives string",
        "✓ after: a pipeline of good; it takes text: string and gives string",
        "✗ wrong: `pipeline[0]` (upper): `inputs` names 'words', and the model takes 'text'",
        "✗ lost: the model 'nowhere' is not in this folder",
        "✗ round: a model cannot be a step of itself: round → about → round",
    ):
        assert line in lines, done.stdout
    done = geartrain("doctor", "models/good")
    assert "! a pipeline of upper is checked with its models" in done.stdout


def test_doctor_warns_where_a_model_has_fewer_slots_than_its_callers(geartrain: Command, tmp_path: Path) -> None:
    caller = """
        import geartrain
        class Runner(geartrain.BaseRunner):
            reader: geartrain.Model
            gone: geartrain.Model
            @geartrain.concurrent(max=4)
            async def run(self, text: str) -> str:
                return await self.reader(text=text)
    """
    write_model(tmp_path / "models/caller", caller)
    write_model(tmp_path / "models/reader", "def run(text: str) -> str:\n    return text\n")
    done = geartrain("doctor", "models")
    assert "! caller: 4 runs at once may call 'reader', which has 1 slot: calls wait" in done.stdout, done.stdout
    assert "✗ caller: it calls 'gone', which is not in this folder" in done.stdout
    (tmp_path / "models/reader/geartrain.yaml").write_text("replicas: 4\n")
    assert "calls wait" not in geartrain("doctor", "models").stdout
    back = "import geartrain\nclass Runner:\n    caller: geartrain.Model\n    def run(self) -> int: return 1\n"
    write_model(tmp_path / "models/reader", back)
    done = geartrain("doctor", "models")
    assert "✗ models call each other in a circle: caller → reader → caller" in done.stdout, done.stdout


def test_doctor_checks_each_model_of_a_folder(geartrain: Command, tmp_path: Path) -> None:
    text = "def run(text: str, n: int = 1) -> str:\n    return text * n\n"
    for place in ("good", "several/1", "several/2", "wrong"):
        write_model(tmp_path / "models" / place, text)
    write_model(tmp_path / "models/broken", "import no_such_package\ndef run() -> str: ...\n")
    (tmp_path / "models/several/geartrain.yaml").write_text("versions: all\n")
    (tmp_path / "models/wrong/geartrain.yaml").write_text("examples: [{text: hello, n: many}]\n")
    done = geartrain("doctor", "models")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "✓ good: run.py: loads; it takes text: string, n: integer and gives string" in lines
    assert [line.partition(" loads")[0] for line in lines if "several" in line] == [
        "✓ several, version 1: run.py:",
        "✓ several, version 2: run.py:",
    ]
    for start in ("✗ wrong: `examples[0]` in geartrain.yaml does not fit the model: n: ", "✗ broken: run.py:1: Module"):
        assert any(line.startswith(start) for line in lines), start
    (tmp_path / "models/wrong/geartrain.yaml").unlink()
    shutil.rmtree(tmp_path / "models/broken")
    assert geartrain("doctor", "models").returncode == 0


@pytest.mark.parametrize("where", ["examples", "warmup"])
def test_setup_tells_the_cost_that_it_finds(where: str, geartrain: Command, tmp_path: Path) -> None:
    code = """
        import time
        from geartrain import BaseRunner, Input, batched

        class Runner(BaseRunner):
            @batched(max_size=4, cost="text", max_cost="auto")
            def run(self, text: list[str] = Input(max_length=8)) -> list[str]:
                time.sleep(0.02)
                return text
    """
    write_model(tmp_path / "model", code)
    (tmp_path / "model" / "geartrain.yaml").write_text(f"{where}:\n  - text: abcd\n")
    assert "; max_cost: auto\n" in geartrain("doctor", "model").stdout
    assert "; a call costs at most 32 (max_cost: auto)\n" in geartrain("doctor", "model", "--setup").stdout


def test_setup_does_not_run_and_prints_of_a_failed_import_are_shown(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "print('hello')\nraise RuntimeError('boom')\ndef run() -> str: ...\n")
    done = geartrain("doctor", "model")
    assert (done.returncode, done.stderr) == (1, "hello\n")
    assert "✗ run.py:2: RuntimeError: boom" in done.stdout
    setup = "    def setup(self) -> None:\n        raise RuntimeError('setup ran')\n"
    write_model(tmp_path / "model", GOOD + setup)
    assert geartrain("doctor", "model").returncode == 0


def test_port_and_machine_are_looked_at_without_a_model(geartrain: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = geartrain("doctor", "nowhere", "--port", str(port), TMPDIR=str(tmp_path / "gone"))
    assert done.returncode == 1
    assert [line for line in told(done) if "→" not in line] == [
        f"✗ nowhere: no such file or folder in {tmp_path}",
        f"✗ TMPDIR={tmp_path}/gone: No such file or directory",
        f"✗ port {port}: something else listens there (Address already in use)",
        "3 errors.",
    ]


def test_interpreter_that_was_not_built_for_speed_is_told(geartrain: Command, tmp_path: Path, optimized: str) -> None:
    claim = Path(optimized, "sitecustomize.py").read_text().replace("Py_DEBUG=0", "Py_DEBUG=1")
    (tmp_path / "sitecustomize.py").write_text(claim)
    write_model(tmp_path / "model", GOOD, cog_yaml="run: run.py:Runner\n")
    done = geartrain("doctor", "model", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    line, fix, total = told(done)
    assert line.startswith("! Python 3.")
    assert " is a debug build: " in line
    assert fix.startswith("  → make geartrain's environment with a release build")
    assert total == "1 warning."


def test_folder_without_a_model_is_told(geartrain: Command, tmp_path: Path) -> None:
    done = geartrain("doctor")
    assert done.returncode == 1
    assert told(done)[0].startswith(f"✗ {tmp_path}: no model here; a model is a run.py with a class Runner")


def test_terminal_without_these_marks_gets_plain_ones(geartrain: Command, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "class Model: ...")
    done = geartrain("doctor", "model", PYTHONIOENCODING="ascii")
    assert done.stdout.splitlines()[1].startswith("x run.py has no class Runner; it defines Model")
    assert done.stdout.startswith("ok cog.yaml: ")


def test_person_sees_that_loading_takes_time(tmp_path: Path) -> None:
    write_model(tmp_path / "model", GOOD)
    with on_terminal("doctor", "model", cwd=tmp_path, stdout=None) as terminal:
        shown = terminal.read_to_end()
        assert "Loading run.py 0." in shown
        assert "✓ run.py: loads; it takes n: integer and gives string\n" in shown
