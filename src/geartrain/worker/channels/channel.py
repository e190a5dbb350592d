"""The child's ends of its channels: frames over Unix sockets, written whole by any thread."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, Protocol

from geartrain.domain.predictions.calls import Report
from geartrain.ipc.framing import FrameReader, frame
from geartrain.ipc.messages import Message, Reports, encode
from geartrain.ipc.waiting import LATE, Contention
from geartrain.worker.channels import forks
from geartrain.worker.channels.cancellation import Shield

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


MAY_WAIT: Final = 4096  # bytes of a payload that may wait: a frame has room for all that come within _BURST_DELAY
# When a message may wait for the next ones.
_BURST_BEGINS = 16  # messages with less than _BURST_GAP between each two
_BURST_GAP = 50e-6  # seconds
_BURST_DELAY = 100e-6  # seconds until the next write


class _Burst:
    """Messages that wait for the next ones: to send each by itself costs more than to make it.

    Only in the midst of many that follow each other within microseconds, as no model gives them that has something to
    compute; the first ones, and any one after a pause, do not wait. The next write takes along what waits; if the
    author's code gives no more, a thread writes it.

    The messages that may wait come from one thread, which takes no lock and keeps no cancel away, except for the alarm.
    """

    def __init__(self, flush: Callable[[], None], shield: Shield) -> None:
        self._flush = flush
        self._shield = shield
        self.held: deque[Report] = deque()  # both ends are safe for two threads
        self._place = (0, 0)  # the slot and the serial number of their call
        self._count = 0  # messages since the last pause
        self._last_at = 0.0
        self._written_at = 0.0
        self._alarm: threading.Semaphore | None = None
        self._is_set = False

    def holds(self, message: Reports) -> bool:
        """Keep the reports of a call for later, or not."""
        now = time.perf_counter()
        self._count = self._count + 1 if now - self._last_at < _BURST_GAP else 0
        if self._count < _BURST_BEGINS or now - self._written_at > _BURST_DELAY:
            return False
        self._last_at = now
        self._place = (message.slot, message.serial)  # first: a flush of another thread may come in between
        self.held.extend(message.reports)
        if not self._is_set:
            with self._shield:
                self._set_alarm()
        return True

    def take(self) -> bytes:
        """Give what waits, to be written, as one frame. To be called with the channel's lock, and so is `written`."""
        held = self.held
        if not held:
            return b""
        reports = tuple([held.popleft() for _ in range(len(held))])
        return frame(encode(Reports(*self._place, reports)))

    def written(self) -> None:
        """There has been a write; what it took is no pause of the author's code."""
        self._last_at = self._written_at = time.perf_counter()

    def _set_alarm(self) -> None:
        self._is_set = True
        if self._alarm is None:
            self._alarm = threading.Semaphore(0)
            threading.Thread(target=self._watch, args=(self._alarm,), name="geartrain-burst", daemon=True).start()
        self._alarm.release()

    def _watch(self, alarm: threading.Semaphore) -> None:
        while alarm.acquire():
            time.sleep(2 * _BURST_DELAY)
            self._is_set = False
            self._flush()


class Channel:
    """One socket, written by any thread, read by one."""

    def __init__(self, sock: socket.socket, *, shield: Shield | None = None, wakeup: Wakeup | None = None) -> None:
        """`shield` keeps a cancel away while a frame is being written: half a frame would end the channel.

        `wakeup` is how `receive` waits: by default asleep.
        """
        self._socket = sock
        self._wakeup = wakeup if wakeup is not None else Blocking(sock)
        self._asleep = Blocking(sock)
        self._reader = FrameReader()
        self._frames: list[bytes] = []
        self._lock = threading.Lock()
        self.shield = shield if shield is not None else Shield()
        self._burst = _Burst(self._flush, self.shield)
        self._poll: select.poll | None = None  # once somebody waits for more than a call

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    def send_soon(self, message: Reports) -> None:
        """Write what is reported of a call, or, in the midst of many, let them wait a moment for the next ones.

        All of those come from one thread. They are of `MAY_WAIT` bytes at most, and between two calls there is a
        message that does not wait: those that have waited become one.
        """
        if not forks.in_fork and not self._burst.holds(message):
            self.send(message)

    def send(self, message: Message) -> None:
        """Write one message; blocks while the parent does not read.

        A parent that is gone is ignored: the worker learns of it on the control channel.
        """
        if forks.in_fork:
            return
        data = frame(encode(message))
        if self.shield.is_armed:
            with self.shield, self._lock:
                self._write(data)
        else:
            with self._lock:
                self._write(data)

    def receive(self, *, asleep: bool = False) -> bytes | None:
        """Block until a frame is whole and return it; None when the parent has closed.

        `asleep`: what comes is not so near that a wait awake would pay.
        """
        while not self._frames:
            data = self._asleep.receive() if asleep else self._wakeup.receive()
            if not data:
                return None
            self._frames = self._reader.feed(data)
        return self._frames.pop(0)

    def wait(self) -> None:
        """Wait until something may have come, without reading it."""
        if self._frames:
            return
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        self._poll.poll()

    def receive_ready(self) -> list[bytes] | None:
        """Return the frames that have come, without blocking; None when the parent has closed and there are none."""
        frames, self._frames = self._frames, []
        while True:
            try:
                data = self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames
            except ConnectionResetError:
                return frames or None
            if not data:
                return frames or None
            frames += self._reader.feed(data)
            if len(data) < CHUNK:
                return frames

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _write(self, data: bytes) -> None:
        burst = self._burst
        if burst.held:
            data = burst.take() + data
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return
        burst.written()

    def _flush(self) -> None:
        with self._lock:
            data = self._burst.take()
            if data:
                with suppress(BrokenPipeError, ConnectionResetError):
                    self._socket.sendall(data)
