"""The few things that only the kernel or the C library can do."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LINE_BUFFERED = 1


def die_with_parent(alarm: int) -> None:
    """Have the kernel kill this process group when the parent ends, even while C code holds the interpreter.

    `alarm` is a pipe whose other end the parent alone holds, and that is never written to: when that end is closed, the
    owner of the pipe gets the signal set for it, and the owner is the group. A death signal (`PR_SET_PDEATHSIG`) would
    reach this process alone, and before that: processes that the model has started would be left. It is for where a
    sandbox has no other. Linux only; elsewhere the end of the control channel has to do.
    """
    os.set_inheritable(alarm, False)
    if sys.platform == "linux":
        try:
            fcntl.fcntl(alarm, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(alarm, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(alarm, fcntl.F_SETFL, fcntl.fcntl(alarm, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def line_buffer_c_stdout() -> Callable[[], None]:
    """Have C's `stdout` written line by line, though it is a pipe; return a function that writes out the rest."""
    libc = ctypes.CDLL(None)
    try:
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    except ValueError:  # a C library that names it otherwise
        return lambda: None
    libc.setvbuf(stdout, None, _LINE_BUFFERED, 0)
    fflush = libc.fflush
    return lambda: fflush(stdout)
