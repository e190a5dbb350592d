"""Signs of life of a server for a supervisor: messages to systemd, and the file of readiness in Kubernetes.

A message is a datagram of lines such as `READY=1` to the socket that `NOTIFY_SOCKET` names: see sd_notify(3).
"""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from enum import StrEnum
from typing import Final, Self

from geartrain.domain.state_machine import steps_to
from geartrain.service.models.catalogue import Readiness

logger = logging.getLogger("geartrain.server")

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_MICROSECOND: Final = 1e-6
_NO_WATCHDOG: Final = float("inf")
_LONGEST: Final = 1.0  # seconds between two looks
_SOON: Final = 0.1  # seconds between two looks at a server that is not ready yet
_LONGEST_STATUS: Final = 300  # characters


class Notifier:
    """Sends to the supervisor; does nothing where there is none."""

    def __init__(self, address: str = "", watchdog: float = _NO_WATCHDOG) -> None:
        """`address`: of the socket, `@` stands for an abstract one; empty: there is no supervisor.

        `watchdog`: seconds after which the supervisor gives up a server that says nothing.
        """
        self.watchdog = watchdog
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._has_failed = False

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Self:
        """Read the variables, and remove them: workers and what they start must not speak for the server."""
        address = environ.pop(_SOCKET, "")
        microseconds = environ.pop(_WATCHDOG, "")
        is_meant = environ.pop(_WATCHDOG_PID, "") in {"", str(os.getpid())}
        if not (is_meant and microseconds.isascii() and microseconds.isdecimal() and int(microseconds)):
            return cls(address)
        return cls(address, int(microseconds) * _MICROSECOND)

    @property
    def is_on(self) -> bool:
        """True if there is a supervisor."""
        return bool(self._address)

    def send(self, *lines: str) -> bool:
        """Send the lines, without waiting; return True if they have been sent, or there is no supervisor."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning("cannot notify the supervisor at %s: %s", _SOCKET, error.strerror or error)
            return False
        self._has_failed = False
        return True


class ServiceState(StrEnum):
    """State of the server in the supervisor's eyes."""

    STARTING = "starting"
    READY = "ready"
    RELOADING = "reloading"
    STOPPING = "stopping"


_S = ServiceState
SERVICE_STEPS: Final[dict[ServiceState, frozenset[ServiceState]]] = {
    _S.STARTING: frozenset({_S.READY, _S.STOPPING}),
    _S.READY: frozenset({_S.RELOADING, _S.STOPPING}),
    _S.RELOADING: frozenset({_S.READY, _S.STOPPING}),
    _S.STOPPING: frozenset(),
}
_TO: Final = steps_to("a service", SERVICE_STEPS)


class Supervision:
    """Looks at the server again and again, and tells the supervisor what is new.

    It is ready once all models are. What becomes of them later is told in the status alone, since a supervisor knows no
    way back. The watchdog is told by the event loop, so it hears nothing of a server whose loop no longer turns.
    """

    def __init__(
        self,
        notifier: Notifier,
        readiness: Readiness,
        *,
        is_reloading: Callable[[], bool] = lambda: False,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state = _S.STARTING
        self._notifier = notifier
        self._readiness = readiness
        self._is_reloading = is_reloading
        self._is_stopping = is_stopping
        self._status = ""
        self._next_ping = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self) -> None:
        """Look from now on, if there is a supervisor. Needs a running loop."""
        if self._notifier.is_on:
            self._tick()

    def close(self) -> None:
        """Look no more."""
        for timer in self._timers:
            timer.cancel()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        pause = _SOON if self.state is _S.STARTING else _LONGEST
        self._timers = [loop.call_later(min(pause, self._notifier.watchdog / 4), self._tick)]
        self.look()
        self._ping(loop.time())

    def look(self) -> None:
        """Tell what is new."""
        reasons = self._readiness.reasons()
        wanted = self._wanted(is_ready=not reasons)
        status = _clip(_describe(wanted, reasons))
        lines = [f"STATUS={status}"] if status != self._status else []
        if wanted is not self.state:
            wanted = _TO[wanted](self.state)
            lines += _lines(wanted)
        if lines and self._notifier.send(*lines):  # otherwise with the next look
            self.state, self._status = wanted, status

    def _wanted(self, *, is_ready: bool) -> ServiceState:
        if self.state is _S.STOPPING or self._is_stopping() or self._readiness.is_leaving:
            return _S.STOPPING
        if self.state is _S.STARTING and not is_ready:
            return _S.STARTING
        return _S.RELOADING if self.state is not _S.STARTING and self._is_reloading() else _S.READY

    def _ping(self, now: float) -> None:
        """Tell the watchdog that the loop turns, when half of its time is over at the latest."""
        if now >= self._next_ping and self._notifier.watchdog < _NO_WATCHDOG and self._notifier.send("WATCHDOG=1"):
            self._next_ping = now + self._notifier.watchdog / 4  # with the next look it may be twice as much


def _lines(state: ServiceState) -> list[str]:
    if state is _S.RELOADING:  # the time tells systemd that this is the answer to its signal
        return ["RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"]
    return [f"{state.upper()}=1"]


def _describe(state: ServiceState, reasons: list[str]) -> str:
    if not reasons or state in {_S.STOPPING, _S.RELOADING}:
        return f"{state.capitalize()}."
    more = f" And {len(reasons) - 1} more." if len(reasons) > 1 else ""
    return f"{'Starting' if state is _S.STARTING else 'Not ready'}: {reasons[0]}{more}"


def _clip(text: str) -> str:
    """Return a status that is one line, and not a long one."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_STATUS else f"{line[: _LONGEST_STATUS - 1]}…"


READY_FILE: Final = pathlib.Path("/var/run/cog/ready")
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # which the kubelet sets in every container


def find_ready_file(environ: Mapping[str, str]) -> pathlib.Path | None:
    """Return the file to write when the server is ready; None outside of Kubernetes."""
    return READY_FILE if environ.get(_IN_KUBERNETES) else None


def write_ready_file(path: pathlib.Path) -> None:
    """Make an empty file, and its folder if there is none; a failure is logged at debug level.

    Most clusters have no probe that looks at the file, and most containers no right to write it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        logger.debug("the ready file %s cannot be written: %s", path, error.strerror or error)
