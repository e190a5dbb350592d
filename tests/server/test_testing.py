"""`geartrain.testing` with real servers and in test suites of users; and the models that `geartrain init` writes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import httpx
import pytest

from geartrain import BaseRunner
from geartrain.testing import ServerError, serve
from tests.support.servers import write_model
from tests.support.terminal import on_terminal
from tests.support.upper import Upper

ROOT: Final = Path(__file__).parents[2]
# For each template: inputs for `geartrain run`, and what it prints.
TEMPLATES: Final = {
    "text": (["name=Ada"], "Hello, Ada!\n"),
    "image": ([f"image=@{ROOT}/examples/digits/three.png"], ""),
    "stream": (["prompt=one two", "pause=0"], "one two "),
    "batch": (["text=two words"], '"words": 2'),
    "tensor": (["features=[[1, 0, 0]]"], "scores"),
    "train": (["x=2"], "2"),
}


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a test suite as its author does, in a process of its own."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "asyncio_default_fixture_loop_scope=function")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def geartrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "geartrain", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)


def test_class_of_a_test_is_served_and_ended() -> None:
    with serve(Upper, queue=4, env={"COG_USER_AGENT": "mine"}) as server:
        answer = httpx.post(f"{server.url}/predictions", json={"input": {"text": "a"}}).json()
        assert answer["output"] == "A"
        os.kill(server.pid, 0)
    assert '"message":"ready"' in server.log
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_folder_of_models_is_ready_as_a_whole(tmp_path: Path) -> None:
    source = "import time\ndef run(text: str) -> str:\n    return text\n"
    for name in ("one", "two"):
        write_model(tmp_path / name, source)
    with serve(tmp_path) as server:
        for name in ("one", "two"):
            assert httpx.get(f"{server.url}/v2/models/{name}/ready").status_code == 200


def test_server_that_does_not_become_ready_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no model here"), serve(tmp_path):
        pass
    broken = write_model(tmp_path / "broken", "def run(text: str) -> str:\n    return text\n1 / 0\n")
    with pytest.raises(ServerError, match=r"(?s)cannot set up a model.*run\.py:3: ZeroDivisionError"), serve(broken):
        pass
    with pytest.raises(ValueError, match="log_level is debug or info"), serve(broken, log_level="error"):
        pass

    class Local(BaseRunner):
        def run(self) -> str:
            return ""

    with pytest.raises(TypeError, match="at the top level of a file"), serve(Local):
        pass


def test_server_that_ignores_its_end_would_not_stay(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the test itself"), serve(Upper) as server:
        raise RuntimeError("the test itself")
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)


def test_plugin_shares_servers_and_shows_logs_of_failures(tmp_path: Path) -> None:
    (tmp_path / "test_upper.py").write_text(
        textwrap.dedent("""
            import time
            import httpx
            pytest_plugins = ["geartrain.testing.pytest"]

            def run(text: str) -> str:
                return text.upper()

            def ask(server, text):
                logged = len(server.log)
                answer = httpx.post(f"{server.url}/predictions", json={"input": {"text": text}}).json()["output"]
                while '"message":"request"' not in server.log[logged:]:
                    time.sleep(0.01)
                return answer

            def test_one(geartrain_server):
                assert ask(geartrain_server(run), "quietly") == "QUIETLY"

            def test_two(geartrain_server):
                server = geartrain_server(run)
                assert server is geartrain_server(run)
                assert ask(server, "loudly") == "SOMETHING ELSE"
        """)
    )
    done = pytest_in(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    shown = done.stdout[done.stdout.index("- log of http://127.0.0.1:") :]
    assert shown.count('"message":"request"') == 1  # the one of the test that failed


def test_tests_of_the_examples_pass() -> None:
    done = pytest_in(ROOT / "examples", "digits", "slow_counter")
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_templates_work_as_they_are(tmp_path: Path) -> None:
    """Their tests are run together, as those of one repository with several models."""
    for name in TEMPLATES:
        done = geartrain(tmp_path, "init", f"my {name}", "--template", name)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert f"# my {name}\n" in (tmp_path / f"my {name}" / "README.md").read_text()
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "16 passed" in done.stdout


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_runs_as_it_is(tmp_path: Path, name: str) -> None:
    inputs, printed = TEMPLATES[name]
    assert geartrain(tmp_path, "init", "model", "-t", name).returncode == 0
    done = geartrain(tmp_path, "run", "model", *[part for given in inputs for part in ("-i", given)])
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_init_asks_on_a_terminal(tmp_path: Path) -> None:
    with on_terminal("init", "model", cwd=tmp_path, stdin=None, stdout=None) as terminal:
        assert "batch      many requests in one call" in terminal.read_until("[text]")
        terminal.type("tensor\n")
        assert "Wrote model/run.py" in terminal.read_to_end()
    assert "NDArray" in (tmp_path / "model/run.py").read_text()


def test_readme_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert geartrain(tmp_path, "init").returncode == 0
    assert (tmp_path / "README.md").read_text() == "mine"


def test_examples_of_the_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs/testing.md").read_text()
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        (tmp_path / f"test_page_{index}.py").write_text(block)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert geartrain(tmp_path, "init", ".", "--template", "text").returncode == 0
    done = pytest_in(tmp_path, *sorted(path.name for path in tmp_path.glob("test_page_*.py")))
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
