"""The worker's operating-system process: spawned, watched by a thread that waits on this one child, killed, reaped.

No process of a worker outlives the server, not even one that the model has started: the child leads a process group of
its own. The server kills the group when the child ends, and the kernel kills it when the server ends: the child has the
kernel watch a pipe that the server holds open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final


class WorkerProcess:
    """One child process in a session of its own, with sockets for control and calls, and captured standard streams."""

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        cpus: Sequence[int] = (),
        *,
        inherited: Sequence[int] = (),
    ) -> None:
        """Spawn the child in `root` with `environment` added to ours. It pins itself to the processors `cpus`, if any.

        The descriptors `inherited` have the same numbers in the child.

        Best called on the main thread: where the kernel cannot watch the pipe, the child asks to be killed when the
        thread that made it ends.
        """
        self.control, control_end = socket.socketpair()
        self.calls, calls_end = socket.socketpair()
        alarm, self._lifeline = os.pipe()
        with control_end, calls_end:
            descriptors = (control_end.fileno(), calls_end.fileno(), alarm)
            self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                # -P: the model's folder must not shadow the modules that the worker itself is made of.
                # -u: what is written to the interpreter's own streams belongs to this prediction, not to a later one.
                [sys.executable, "-P", "-u", "-m", "geartrain.worker", *map(str, (*descriptors, *cpus))],
                cwd=root,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(*descriptors, *inherited),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._lock = threading.Lock()
        os.close(alarm)  # the child keeps it open

    @property
    def stdout(self) -> IO[bytes]:
        """The read end of what the child writes to descriptor 1."""
        if self._popen.stdout is None:  # pragma: no cover - always a pipe
            msg = "the worker's stdout is no pipe"
            raise RuntimeError(msg)
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """The read end of what the child writes to descriptor 2."""
        if self._popen.stderr is None:  # pragma: no cover - always a pipe
            msg = "the worker's stderr is no pipe"
            raise RuntimeError(msg)
        return self._popen.stderr

    def watch(self, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit(returncode)` from a thread of its own once the child has been reaped."""
        threading.Thread(target=lambda: on_exit(self.reap()), name=f"geartrain-wait-{self.pid}", daemon=True).start()

    def reap(self) -> int:
        """Wait for the end of the child, kill what it has left in its process group, and return its code. Once only."""
        if hasattr(os, "waitid"):  # as long as the child is not reaped, its group cannot be anybody else's
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # pragma: no cover - macOS has it from Python 3.13 on
            self._popen.wait()
        with self._lock:
            self._kill_group()
            os.close(self._lifeline)
            return self._popen.wait()

    def kill(self) -> None:
        """Kill the child and its process group; nothing happens when they are gone."""
        with self._lock:
            if self._popen.returncode is None:
                self._kill_group()

    def discard(self) -> None:
        """End a child that is unused and unwatched."""
        self.kill()
        self.reap()
        for stream in (self.control, self.calls, self.stdout, self.stderr):
            stream.close()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def describe_exit(returncode: int) -> str:
    """Say in words how a process ended."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (out of memory, or killed from outside)" if -returncode == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


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
