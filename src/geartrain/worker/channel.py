"""The child's ends of its channels: frames over Unix sockets, written whole whoever writes."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from geartrain.bridge.framing import FrameReader, frame
from geartrain.bridge.messages import Message, encode
from geartrain.worker.forks import is_fork

_CHUNK = 65536  # bytes
# After a job the next one is awaited awake for so long, if the jobs have been following each other that closely: to be
# woken by the kernel costs more than a small prediction does. An idle worker never spins.
_SPIN = 400e-6  # seconds
_LONGEST_SPIN = 1.5e-3  # seconds
_PART = 0.2  # of the time that the last job took, where that is more
_CLOSE_BY = 2.5  # of the time that would have been waited awake
# When a frame may wait for the next ones.
_BURST_BEGINS = 16  # frames, each of which has come within _BURST_GAP of the one before
_BURST_GAP = 50e-6  # seconds
_BURST_DELAY = 100e-6  # seconds until the next write
_can_spin = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1


class _Burst:
    """Frames that wait for the next ones: to write each by itself costs more than to make it.

    Only in the midst of many that follow each other within microseconds, as no model gives them that has something to
    compute; the first ones, and any one after a pause, do not wait. Whoever sends next takes along what waits; should
    the author's code stop giving, a thread does.

    The frames that may wait come from one thread, which takes no lock and keeps no cancel away, except for the alarm.
    """

    def __init__(self, flush: Callable[[], None], shield: AbstractContextManager[object]) -> None:
        self._flush = flush
        self._shield = shield
        self._held: deque[bytes] = deque()  # whose ends are safe to work on from two threads
        self._count = 0  # frames since the last pause
        self._last_at = 0.0
        self._written_at = 0.0
        self._alarm: threading.Semaphore | None = None
        self._is_set = False

    def holds(self, data: bytes) -> bool:
        """Keep a frame for later, or not."""
        now = time.perf_counter()
        self._count = self._count + 1 if now - self._last_at < _BURST_GAP else 0
        if self._count < _BURST_BEGINS or now - self._written_at > _BURST_DELAY:
            return False
        self._last_at = now
        self._held.append(data)
        if not self._is_set:
            with self._shield:
                self._set_alarm()
        return True

    def take(self) -> bytes:
        """Give what waits, to be written. To be called with the channel's lock, and so is `written`."""
        held = self._held
        return b"".join([held.popleft() for _ in range(len(held))]) if held else b""

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

    def __init__(self, sock: socket.socket, *, shield: AbstractContextManager[object] | None = None) -> None:
        """`shield` keeps a cancel away while a frame is being written: half a frame would end the channel."""
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._reader = FrameReader()
        self._frames: list[bytes] = []
        self._lock = threading.Lock()
        self.shield: AbstractContextManager[object] = shield if shield is not None else nullcontext()
        self._burst = _Burst(self._flush, self.shield)
        self._spinning = False
        self._came_at = 0.0  # when something was read last

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: Message, *, may_wait: bool = False) -> None:
        """Write one message; blocks while the parent does not read.

        `may_wait`: in the midst of many that follow each other closely, it may wait a moment for the next ones. All of
        those come from one thread.
        A parent that is gone is ignored: the worker learns of it on the control channel.
        """
        if not is_fork():
            self._send(frame(encode(message)), may_wait=may_wait)

    def send_all(self, messages: Iterable[Message], *, may_wait: bool = False) -> None:
        """Write several messages at once, as `send` does one."""
        if not is_fork():
            self._send(b"".join([frame(encode(message)) for message in messages]), may_wait=may_wait)

    def receive(self) -> bytes | None:
        """Block until a frame is whole and return it; None when the parent has closed."""
        while not self._frames:
            data = self._read()
            if not data:
                return None
            self._frames = self._reader.feed(data)
        return self._frames.pop(0)

    def receive_ready(self) -> list[bytes] | None:
        """Return the frames that have come, without blocking; None when the parent has closed."""
        try:
            data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        return self._reader.feed(data) if data else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _send(self, data: bytes, *, may_wait: bool) -> None:
        if may_wait and self._burst.holds(data):
            return
        with self.shield, self._lock:
            self._write(self._burst.take() + data)
            self._burst.written()

    def _flush(self) -> None:
        with self._lock:
            data = self._burst.take()
            if data:
                self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def _read(self) -> bytes:
        began = time.perf_counter()
        # In proportion to what there was to do since the last one: so little of the time is spent in waiting awake.
        spin = max(_SPIN, min(_PART * (began - self._came_at), _LONGEST_SPIN))
        data = self._spin(began + spin) if self._spinning else None
        if data is None:
            try:
                data = self._socket.recv(_CHUNK)
            except ConnectionResetError:
                data = b""
        self._came_at = time.perf_counter()
        self._spinning = _can_spin and self._came_at - began < _CLOSE_BY * spin
        return data

    def _spin(self, until: float) -> bytes | None:
        """Wait awake; return what has come by then, None for nothing."""
        while time.perf_counter() < until:
            if not self._poll.poll(0):  # to ask costs a third of the exception that a vain recv() raises
                os.sched_yield()  # whoever else has something to do on this core goes first
                continue
            try:
                return self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return b""
        return None
