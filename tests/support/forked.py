"""`geartrain` commands forked from a process that has already imported the package.

Each command is a process of its own that runs `python -m geartrain`, with its own folder, variables, streams and
signals. It skips the start of the interpreter and the imports, about half of what a short command takes.

Use `subprocess` with `sys.executable` instead for one test of each command, and where a test looks at the start, at
memory or at what the kernel shows of the process, or sets variables that Python reads when it starts.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_NUMBER: Final = struct.Struct("!i")
_IS_KNOWN: Final = sys.version_info < (3, 15)  # newer ones get fresh processes until `_Forked` is looked at


class _Host:
    """The process from which commands are forked (`fork_host.py`)."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        with theirs:
            script = Path(__file__).with_name("fork_host.py")
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def fork(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        """Have it fork a command."""
        body = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._requests, [_NUMBER.pack(len(body))], descriptors)
            self._requests.sendall(body)

    def close(self) -> None:
        """End it."""
        self._requests.close()
        self._process.wait()


_host = functools.cache(_Host)


class _Forked(subprocess.Popen[Any]):
    """`subprocess.Popen` whose arguments are those of `geartrain`.

    It overrides private methods, which are alike in CPython 3.11 to 3.14.
    """

    _end: int  # of a pipe, which has the process id and then the wait status

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Have the host fork the command. The constructor has made the pipes."""
        cwd, env, handles, leads = rest[4], rest[5], rest[9:15], rest[20]
        environ = dict(os.environ if env is None else env)
        host = _host()
        if any(host.environ.get(name) != environ.get(name) for name in host.environ | environ if name[:6] == "PYTHON"):
            msg = "Python reads such a variable when it starts: use a fresh interpreter"
            raise ValueError(msg)
        request = {
            "arguments": [str(each) for each in args],
            "cwd": str(Path(cwd or ".").resolve(strict=True)),
            "environ": environ,
            "leads": leads,
        }
        theirs = (handles[0], handles[3], handles[5])
        streams = [handle if handle >= 0 else number for number, handle in enumerate(theirs)]
        self._end, reported = os.pipe()
        host.fork(request, [*streams, reported])
        os.close(reported)
        self._close_pipe_fds(*handles)  # type: ignore[attr-defined]
        [self.pid] = _NUMBER.unpack(os.read(self._end, _NUMBER.size))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Read the wait status, as the host is the parent; `(0, 0)` if the process runs and `wait_flags` is WNOHANG."""
        os.set_blocking(self._end, not wait_flags)
        try:
            [status] = _NUMBER.unpack(os.read(self._end, _NUMBER.size))
        except BlockingIOError:
            return 0, 0
        os.close(self._end)
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def start_forked(arguments: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Start `geartrain` with these arguments; the options are those of `subprocess.Popen`."""
    if _IS_KNOWN:
        return _Forked(arguments, **options)
    return subprocess.Popen([sys.executable, "-m", "geartrain", *arguments], **options)


def run_forked(
    *arguments: str | Path, stdin: str | None = None, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `geartrain` with these arguments to its end, as `subprocess.run` does with `capture_output` and `text`."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    given = None if stdin is None else subprocess.PIPE
    with start_forked(arguments, stdin=given, text=True, **options) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
