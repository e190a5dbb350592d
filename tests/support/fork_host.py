"""The process from which `tests.support.forked` has its commands forked. A script: it imports nothing of the tests.

Its one argument is the descriptor of a socket. Each request on it is a length, a JSON object and four descriptors:
three streams, and a pipe for the process id and, at the end, the wait status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

# Imported by commands at one time or another. None of them starts a thread, which a fork would lose.
_IMPORTED: Final = (
    "asyncio",
    "geartrain.cli.batch_run",
    "geartrain.cli.commands",
    "geartrain.cli.serve_command",
    "geartrain.cli.serving",
    "runpy",
    "uvloop",
)
_NUMBER: Final = struct.Struct("!i")
_FIRST: Final = 3  # descriptor that is not a standard stream


class Host:
    """Forks the commands and reaps them."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._pipes: dict[int, int] = {}  # by process
        self._wake, waker = os.pipe()
        for end in (self._wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> list[str]:
        """Serve requests. Return the arguments of the command, in its process; the host ends with its client."""
        requests = self._requests.fileno()
        while True:
            ready, _, _ = select.select((requests, self._wake), (), ())
            if self._wake in ready:
                self._reap()
            if requests in ready:
                command = self._fork()
                if command is not None:
                    return command

    def _reap(self) -> None:
        os.read(self._wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pipe = self._pipes.pop(found[0])
                with contextlib.suppress(BrokenPipeError):
                    os.write(pipe, _NUMBER.pack(found[1]))
                os.close(pipe)

    def _fork(self) -> list[str] | None:
        head, descriptors, _, _ = socket.recv_fds(self._requests, _NUMBER.size, 4)
        if not head:
            os._exit(0)
        [size] = _NUMBER.unpack(head)
        request = json.loads(self._requests.recv(size, socket.MSG_WAITALL))
        *streams, pipe = descriptors
        pid = os.fork()
        if not pid:
            return self._become(request, streams, pipe)
        for stream in streams:
            os.close(stream)
        self._pipes[pid] = pipe
        return None

    def _become(self, request: dict[str, Any], streams: list[int], pipe: int) -> list[str]:
        """Turn the forked process into what a fresh interpreter would be, then report its id."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._requests.detach()
        if request["leads"]:
            os.setsid()
        os.chdir(request["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(_FIRST, pipe)
        os.closerange(pipe + 1, max(int(each.name) for each in Path("/dev/fd").iterdir()) + 1)
        os.write(pipe, _NUMBER.pack(os.getpid()))
        os.close(pipe)
        sys.path[0] = request["cwd"]
        os.environ.clear()
        os.environ.update(request["environ"])
        _open_streams()
        arguments: list[str] = request["arguments"]
        return arguments


def _open_streams() -> None:
    """Open the standard streams as Python does when it starts."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8")  # type: ignore[misc]
    lines = 1 if os.isatty(1) else -1
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", lines, encoding="utf-8")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace")  # type: ignore[misc]


def main() -> None:
    """Import, serve, and in each forked process run the command."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # commands share these pages
    sys.argv[1:] = Host(socket.socket(fileno=int(sys.argv[1]))).run()
    runpy.run_module("geartrain", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
