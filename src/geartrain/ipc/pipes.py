"""The fill level of a pipe, which both of its ends can read."""

from __future__ import annotations

import fcntl
import struct
import termios
import time

_PAUSE = 0.0005  # seconds
_PATIENCE = 0.05  # seconds that a writer waits for a reader that is busy, or for others that write on


def unread(fd: int) -> int:
    """Return the number of bytes in a pipe."""
    size: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
    return size


def wait_until_read(*fds: int) -> None:
    """Wait until the reader has taken all bytes of these pipes, at most 50 ms. Other files are passed over."""
    latest = time.monotonic() + _PATIENCE
    for fd in fds:
        try:
            while unread(fd) and time.monotonic() < latest:
                time.sleep(_PAUSE)
        except OSError:  # closed, or replaced by what has no such level
            continue
