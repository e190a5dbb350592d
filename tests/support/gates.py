"""Gates in the way of a model that runs in another process: it waits for them, and a test opens them.

A gate is a named pipe. To open it is to write a byte that nobody ever takes out, so whoever waits, in whatever
process and whenever, finds it readable: no polling, no sleep.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest


class Gate:
    """A gate, closed at first. `path` is what a model waits for."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def open(self) -> None:
        """Let everybody pass, from now on."""
        os.write(self._fd, b"x")

    def wait(self, seconds: float = 20) -> None:
        """Wait, in place, until somebody opens it."""
        if not select.select([self._fd], [], [], seconds)[0]:
            raise TimeoutError(f"nobody has opened the gate {self.path.name!r}")

    def remove(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class Gates:
    """Gates by name, in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._gates: dict[str, Gate] = {}

    def __getitem__(self, name: str) -> Gate:
        """The gate of that name."""
        if name not in self._gates:
            self._gates[name] = Gate(self._folder / name)
        return self._gates[name]

    def remove(self) -> None:
        """Give all descriptors back."""
        for gate in self._gates.values():
            gate.remove()
        self._gates.clear()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    """The gates of one test."""
    found = Gates(tmp_path / "gates")
    yield found
    found.remove()
