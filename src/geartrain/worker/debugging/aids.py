"""The debuggers and profiles that the parent has asked for, put in place before the model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geartrain.ipc.messages import ControlToParent, Debugging, TerminalLent, TerminalRefused, WorkerLog

if TYPE_CHECKING:
    from geartrain.worker.calls.call import Call
    from geartrain.worker.debugging.terminal import Shield


class Aids:
    """Debugging aids of a worker; imports only those that are on."""

    def __init__(self, wanted: Debugging, send: Callable[[ControlToParent], None], shield: Shield) -> None:
        """`shield` keeps the cancel of a run away."""
        self._wanted = wanted
        self._send = send
        self.on_answer: Callable[[TerminalLent | TerminalRefused], None] = _ignore
        if wanted.terminal is None:
            from geartrain.worker.debugging import no_terminal

            no_terminal.install()
            return
        from geartrain.worker.debugging import prompt
        from geartrain.worker.debugging.terminal import Terminal

        terminal = Terminal(wanted.terminal, send, shield)
        self.on_answer = terminal.on_answer
        prompt.install(terminal)

    def let_editors_attach(self) -> None:
        """Listen for editors if that is wanted, and wait for one if that is. Raises RuntimeError with the reason."""
        if self._wanted.port:
            from geartrain.worker.debugging import editor

            editor.listen(self._wanted.port, self._tell, waits=self._wanted.waits)
            editor.install(sys.breakpointhook)

    def kind_of_calls(self, kind: type[Call]) -> type[Call]:
        """Return the kind of the calls, which are profiled if that is wanted."""
        if not self._wanted.profiles:
            return kind
        from geartrain.worker.debugging.profiled_call import Profiles, profiled

        return profiled(kind, Profiles(Path(self._wanted.profiles), self._wanted.profile_format))

    def _tell(self, level: Literal["info", "warning"], text: str) -> None:
        self._send(WorkerLog("geartrain.worker", level, text))


def _ignore(_message: TerminalLent | TerminalRefused) -> None:
    """Ignore the answer: no prompt is waiting for it."""
