"""debugpy in the worker: an editor attaches to a port of this machine, by the Debug Adapter Protocol."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

HOST: Final = "127.0.0.1"
_AGAIN: Final = 0.2  # seconds until a port that is not free is tried again

Tell = Callable[[Literal["info", "warning"], str], None]
"""Logs a sentence with a level."""


def listen(port: int, tell: Tell, *, waits: bool) -> None:
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
        tell("warning", f"debugpy waits on {HOST}:{port} for an editor")
        debugpy.wait_for_client()


def install(ask: Callable[..., Any]) -> None:
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


def _listen(port: int, tell: Tell) -> None:
    import debugpy

    # In this process: an adapter of its own would be a process that outlives the server as long as an editor stays.
    debugpy.listen((HOST, port), in_process_debug_adapter=True)
    tell("info", f"debugpy listens on {HOST}:{port}")


def _listen_later(port: int, tell: Tell) -> None:
    while not _is_free(port):
        time.sleep(_AGAIN)
    _listen(port, tell)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
    return True
