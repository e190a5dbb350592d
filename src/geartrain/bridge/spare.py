"""The process of a worker that starts before it is known what it will run: while the server is still being imported.

It imports what a worker needs, and waits for its first message. A server that starts gives it to its first model.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from geartrain.bridge.process import WorkerProcess


class Spare:
    """At most one unused process."""

    def __init__(self) -> None:
        self._processes: list[WorkerProcess] = []
        self._environment: dict[str, str] = {}  # that it was started with

    def begin(self) -> None:
        """Spawn one. To be called on the main thread."""
        with suppress(OSError):  # the first model says what is wrong
            self._environment = dict(os.environ)
            self._processes.append(WorkerProcess(Path.cwd(), {}))

    def take(self) -> tuple[WorkerProcess, ...]:
        """Return the process, if it fits this environment; none otherwise."""
        if self._environment != os.environ:
            self.discard()
        found = tuple(self._processes)
        self._processes.clear()
        return found

    def discard(self) -> None:
        """End the process, if it was not taken."""
        while self._processes:
            self._processes.pop().discard()


SPARE: Final = Spare()
"""That of this program."""
