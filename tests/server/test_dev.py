"""`geartrain dev`, as a person sees it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.askers import Request, url_of
from tests.support.gates import Gates
from tests.support.person import Person
from tests.support.servers import write_model

AtTerminal = Callable[..., Person]

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

MODEL = """
    from geartrain import BaseRunner, Input

    class Runner(BaseRunner):
        def run(self, number: int = Input(ge=0)) -> float:
            print("dividing by", number)
            return 1 / number
"""


@pytest.fixture
def browser(tmp_path: Path) -> tuple[Gates, dict[str, str]]:
    """A gate that a browser opens, and the environment in which it is the browser of a person with a display."""
    gates = Gates(tmp_path / "gates")
    program = tmp_path / "browser"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'opened')!r}, 'w').write(sys.argv[1])\n"
        f"open({str(gates['opened'].path)!r}, 'w').write('x')\n"
    )
    program.chmod(0o755)
    return gates, {"DISPLAY": ":0", "BROWSER": str(program)}


def test_page_is_opened_and_each_request_has_its_lines(
    tmp_path: Path, at_terminal: AtTerminal, browser: tuple[Gates, dict[str, str]]
) -> None:
    gates, environ = browser
    path = write_model(tmp_path / "model", MODEL) / "run.py"
    person = at_terminal("dev", str(path.parent), "--port", "0", env=environ)
    url = url_of(person)
    gates["opened"].wait(40)
    gates.remove()
    assert (tmp_path / "opened").read_text() == url

    answer = Request(url, number=0).answer()
    assert answer["error"] == "ZeroDivisionError: division by zero"
    person.sees(f"{answer['id']} dividing by 0")
    person.matches(rf"POST /predictions 200 failed in [\d.]+ m?s {answer['id']}")
    person.sees(f"{answer['id']} failed: ZeroDivisionError: division by zero")
    assert "return 1 / number" in person.sees("ZeroDivisionError")
    Request(url, number=-1).answer()
    person.matches(r"POST /predictions 422 refused in [\d.]+ ms: number: -1 is less than the minimum of 0")

    path.write_text(path.read_text().replace("1 / number", "2 / number"))
    person.sees("Reloaded")
    assert Request(url, number=1).answer()["output"] == 2.0
    person.interrupts()
    assert person.exit_code() == 0


def test_current_folder_is_served_without_a_browser(tmp_path: Path, at_terminal: AtTerminal) -> None:
    model = write_model(tmp_path / "model", MODEL)
    environ = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": str(tmp_path / "none")}
    person = at_terminal("dev", "--port", "0", cwd=model, env=environ)
    url = url_of(person)
    assert Request(url, number=2).answer()["output"] == 0.5
    os.kill(person.child.pid, 15)
    assert person.exit_code() == 0
