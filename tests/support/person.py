"""A person at a terminal, who reads what a command shows and types."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import PATIENCE

PROMPT = "(Pdb) "

_PLAIN = {"TERM": "dumb", "NO_COLOR": "1"}  # neither colours nor movements of the cursor
_SIZE = (50, 200)  # lines and columns


class Person:
    """Runs a command of geartrain at a terminal of its own."""

    def __init__(self, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
        environ = {**os.environ, **_PLAIN, **(env or {})}
        environ.pop("LOG_FORMAT", None)
        pexpect: Any = pytest.importorskip("pexpect")
        self.end_of_output = pexpect.EOF
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "geartrain", *arguments],
            cwd=None if cwd is None else str(cwd),
            env=environ,
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=_SIZE,
        )
        self.child.delaybeforesend = None

    def sees(self, text: str) -> str:
        """Wait for a text; return what has been shown between the last one and this."""
        self.child.expect_exact(text)
        return self._before()

    def matches(self, pattern: str) -> re.Match[str]:
        """Wait for what a pattern matches."""
        self.child.expect(pattern)
        match: re.Match[str] = self.child.match
        return match

    def types(self, line: str) -> None:
        """Type a line, at a prompt."""
        self.child.sendline(line)

    def asks(self, line: str) -> str:
        """At a prompt, type a line; return what is shown before the next prompt, without the line itself."""
        self.types(line)
        return self.sees(PROMPT).removeprefix(line).strip()

    def interrupts(self) -> None:
        """Press Ctrl-C."""
        self.child.sendintr()

    def sees_the_end(self) -> str:
        """Wait for the end of the command; return the rest."""
        self.child.expect(self.end_of_output)
        return self._before()

    def exit_code(self) -> int | None:
        """Wait for the end of the command; return its code."""
        self.sees_the_end()
        self.child.wait()
        code: int | None = self.child.exitstatus
        return code

    def leave(self) -> None:
        """Make sure nothing is left."""
        if self.child.isalive():
            self.child.kill(signal.SIGKILL)
            self.child.wait()
        self.child.ptyproc.delayafterclose = 0
        self.child.close()

    def _before(self) -> str:
        before: str = self.child.before
        return before.replace("\r\n", "\n").replace("\r", "")


@pytest.fixture
def at_terminal() -> Iterator[Callable[..., Person]]:
    """Run a command at a terminal."""
    people: list[Person] = []

    def start(*arguments: str, **options: Any) -> Person:
        people.append(Person(*arguments, **options))
        return people[-1]

    yield start
    for person in people:
        person.leave()
