"""Waiting of a sync worker for its next call: asleep, or awake for a moment.

To be woken by the kernel costs more than a small prediction does. A worker that stays awake for a moment after a call
answers the next one sooner, and takes CPU time for it.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final, Literal, Protocol

from geartrain.ipc.contention import LATE, Contention

CHUNK: Final = 65536  # bytes of one read
# After a call the next one is awaited awake for so long, if the calls have been following each other that closely. An
# idle worker never spins.
_SPIN = 400e-6  # seconds
_LONGEST_SPIN = 1.5e-3  # seconds
_PART = 0.2  # of the time that the last call took, where that is more
_CLOSE_BY = 2.5  # of the time that would have been waited awake
_can_spin = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1


class Wakeup(Protocol):
    """Waits for what comes on one socket."""

    def receive(self) -> bytes:
        """Wait until something comes and return it; empty when the parent has closed."""


class Blocking:
    """Sleeps until something comes."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def receive(self) -> bytes:
        """Wait until something comes and return it; empty when the parent has closed."""
        try:
            return self._socket.recv(CHUNK)
        except ConnectionResetError:
            return b""


class Adaptive:
    """Waits awake for a moment where one call follows closely on the other, and sleeps otherwise."""

    __slots__ = ("_asleep", "_came_at", "_contention", "_is_close", "_poll", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._asleep = Blocking(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._is_close = False  # true if the last call came soon after the one before it
        self._came_at = 0.0  # when something was read last
        self._contention = Contention()

    def receive(self) -> bytes:
        """Wait until something comes and return it; empty when the parent has closed."""
        began = time.perf_counter()
        # In proportion to what there was to do since the last one: so little of the time is spent in waiting awake.
        spin = _PART * (began - self._came_at)
        if spin < _SPIN:
            spin = _SPIN
        elif spin > _LONGEST_SPIN:
            spin = _LONGEST_SPIN
        data = None
        if self._is_close and not self._contention.is_felt(began):
            data = self.receive_awake(began + spin)
            now = time.perf_counter()
            self._contention.note(now, is_loss=now > began + spin + LATE)
        if data is None:
            data = self._asleep.receive()
        self._came_at = time.perf_counter()
        self._is_close = self._came_at - began < _CLOSE_BY * spin
        return data

    def receive_awake(self, until: float) -> bytes | None:
        """Wait awake until a time of the performance counter; return what has come by then, None for nothing."""
        while time.perf_counter() < until:
            if not self._poll.poll(0):  # to ask costs a third of the exception that a vain recv() raises
                os.sched_yield()  # let other threads of this core run first
                continue
            try:
                return self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return b""
        return None


_POLICIES: Final[dict[str, Callable[[socket.socket], Wakeup]]] = {
    "adaptive": Adaptive if _can_spin else Blocking,  # on one core, the parent would have to wait for this process
    "blocking": Blocking,
}


def wakeup_of(policy: Literal["adaptive", "blocking"], sock: socket.socket) -> Wakeup:
    """Make what waits on a socket under a policy of `Init`."""
    return _POLICIES[policy](sock)
