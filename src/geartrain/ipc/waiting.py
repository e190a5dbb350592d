"""Waits of parent and worker for each other: contention for the processor of a wait, and unread bytes in pipes."""

from __future__ import annotations

import fcntl
import struct
import time
from typing import Final

LATE: Final = 500e-6  # a wait that takes so much more than it should have has lost the processor
_MANY: Final = 3  # losses
_MADE_UP: Final = 0.1  # of a loss, by a wait without one
_REST: Final = 1.0


class Contention:
    """Counts the waits that lost the processor: several of them close together, and none should follow for a second."""

    __slots__ = ("_losses", "_rests_until")

    def __init__(self) -> None:
        self._losses = 0.0
        self._rests_until = 0.0

    def is_felt(self, now: float) -> bool:
        """True if it is better to sleep."""
        return now <= self._rests_until

    def note(self, now: float, *, is_loss: bool) -> None:
        """Note that a wait is over, and whether it lost the processor."""
        if not is_loss:
            if self._losses > 0:
                self._losses -= _MADE_UP
            return
        self._losses += 1
        if self._losses >= _MANY:
            self._losses = 0.0
            self._rests_until = now + _REST


_PAUSE = 0.0005  # seconds
_PATIENCE = 1.0  # seconds that a writer waits for a reader that is busy


def unread(fd: int) -> int:
    """Return the number of bytes in a pipe."""
    import termios  # late: it is large, and few processes ask

    size: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
    return size


def wait_until_read(*fds: int) -> None:
    """Wait until the reader has taken what is in these pipes now, at most a second. Other files are passed over."""
    latest = time.monotonic() + _PATIENCE
    for fd in fds:
        try:
            left = before = unread(fd)
            while left > 0 and time.monotonic() < latest:
                time.sleep(_PAUSE)
                present = unread(fd)  # with what others have written since
                left = min(left - max(0, before - present), present)
                before = present
        except OSError:  # closed, or replaced by what has no such level
            continue
