"""Failures of fetching. Messages are sentences for an operator, and have no secrets."""

from __future__ import annotations

import errno
import re
from typing import Final

_QUERY: Final = re.compile(r"(https?://[^\s?\"')]*)\?[^\s\"')]*")
_USER: Final = re.compile(r"(https?://)[^\s/@\"')]*@")
_LONGEST: Final = 400  # characters of what a service or a library says

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class RemoteError(Exception):
    """It cannot be fetched; the message says what, why, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnreachableError(RemoteError):
    """The service cannot be reached, breaks off, or has a fault of its own: another try may succeed."""


def is_unreachable(error: Exception) -> bool:
    """True if another try may succeed."""
    return isinstance(error, UnreachableError)


class ChangedError(RemoteError):
    """The file is another one than at the beginning of its download."""


class MissingExtraError(RemoteError):
    """A library is not installed."""

    def __init__(self, shown: str, module: str) -> None:
        super().__init__(f"{shown}: {module} is not installed; install it with: pip install 'geartrain[remote]'")


def without_secrets(text: str) -> str:
    """Return a library's message in one line, without signatures of URLs, users and passwords."""
    line = " ".join(text.partition("\n\nDebug source")[0].split())
    line = _USER.sub(r"\1", _QUERY.sub(r"\1", line))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def is_full(error: OSError) -> bool:
    """True if a disk is full, or no more may be written to it."""
    return error.errno in _FULL
