"""Keeps a forked copy of the worker from writing to its channels and from serving calls.

A model may fork (`os.fork`, `multiprocessing`). The copy has the same sockets, and a frame of its own between two of
the worker's would end the channel. It prints to the descriptors instead, which the parent reads as well.
"""

from __future__ import annotations

import os
import sys

in_fork = False
"""True in a forked copy of the worker. Read as `forks.in_fork`, for each frame."""


def guard() -> None:
    """Have every forked copy notice that it is one."""
    os.register_at_fork(after_in_child=_become_fork)


def end_fork() -> None:
    """End a copy that came back from the author's code as if it were the worker."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _become_fork() -> None:
    global in_fork  # noqa: PLW0603 - it is a fact about the process
    in_fork = True
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
