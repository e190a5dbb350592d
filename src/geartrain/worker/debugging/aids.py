"""The debuggers and profiles that the parent has asked for, put in place before the model is loaded.

debugpy listens on a port of this machine, and an editor attaches to it by the Debug Adapter Protocol.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from geartrain.ipc.messages import ControlToParent, Debugging, TerminalLent, TerminalRefused, WorkerLog

if TYPE_CHECKING:
    from geartrain.worker.calls.call import Call
    from geartrain.worker.channels.cancellation import Shield

_HOST: Final = "127.0.0.1"
_AGAIN: Final = 0.2  # seconds until a port that is not free is tried again

_Tell = Callable[[Literal["info", "warning"], str], None]
"""Logs a sentence with a level."""


class Aids:
    """Debugging aids of a worker; imports only those that are on."""

    def __init__(self, wanted: Debugging, send: Callable[[ControlToParent], None], shield: Shield) -> None:
        """`shield` keeps the cancel of a run away."""
        self._wanted = wanted
        self._send = send
        self.on_answer: Callable[[TerminalLent | TerminalRefused], None] = _ignore
        if wanted.profiles:
            # On a slow clock pyinstrument warns in the log of a run, of options that geartrain has not. It reads the
            # variable when it is imported, which the author's code may do.
            os.environ.setdefault("PYINSTRUMENT_IGNORE_OVERHEAD_WARNING", "1")
        if wanted.terminal is None:
            from geartrain.worker.debugging import no_terminal

            no_terminal.install()
            return
        from geartrain.worker.debugging.terminal import Terminal, ask_at

        terminal = Terminal(wanted.terminal, send, shield)
        self.on_answer = terminal.on_answer
        ask_at(terminal)

    def let_editors_attach(self) -> None:
        """Listen for editors if that is wanted, and wait for one if that is. Raises RuntimeError with the reason."""
        if self._wanted.port:
            _let_editors_attach(self._wanted.port, self._tell, waits=self._wanted.waits)
            _stop_for_editors(sys.breakpointhook)

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


def _let_editors_attach(port: int, tell: _Tell, *, waits: bool) -> None:
    """Let editors attach; with `waits` return when one has.

    The port may still be that of the worker that this one follows. Then editors can attach when that has ended, and the
    call does not wait. Raises RuntimeError with the reason if editors cannot attach.
    """
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning about the interpreter's own modules
    import debugpy

    debugpy.configure(subProcess=False)
    if not _is_free(port):
        threading.Thread(target=_listen_later, args=(port, tell), name="geartrain-debugpy", daemon=True).start()
        return
    _listen(port, tell)
    if waits:
        tell("warning", f"debugpy waits on {_HOST}:{port} for an editor")
        debugpy.wait_for_client()


def _stop_for_editors(ask: Callable[..., Any]) -> None:
    """Have `breakpoint()` stop for an editor if one is attached; otherwise call `ask`, which it called before."""
    import debugpy
    import pydevd

    def breakpoint_(*arguments: Any, **options: Any) -> Any:
        if not debugpy.is_client_connected():
            return ask(*arguments, **options)
        author = sys._getframe().f_back  # noqa: SLF001 - where the author has written it
        pydevd.settrace(suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=author)
        return None

    sys.breakpointhook = breakpoint_


def _listen(port: int, tell: _Tell) -> None:
    import debugpy

    # In this process: an adapter of its own would be a process that outlives the server as long as an editor stays.
    debugpy.listen((_HOST, port), in_process_debug_adapter=True)
    tell("info", f"debugpy listens on {_HOST}:{port}")


def _listen_later(port: int, tell: _Tell) -> None:
    while not _is_free(port):
        time.sleep(_AGAIN)
    _listen(port, tell)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, port))
        except OSError:
            return False
    return True
