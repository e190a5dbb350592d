"""Failures of a store."""

from __future__ import annotations

from typing import Final

from geartrain.domain.errors import Code, GeartrainError

RETRY_AFTER: Final = 2  # seconds until a store may have come back


class StoreOptionError(Exception):
    """A store cannot be used as it was asked for; the message names the option and says what to do."""


class StoreFaultError(GeartrainError):
    """The store has not done an operation.

    `may_be_done`: it is unknown whether it has, as the connection was lost meanwhile.
    """

    def __init__(self, code: Code, message: str, *, may_be_done: bool = False) -> None:
        super().__init__(code, message, retry_after=RETRY_AFTER)
        self.may_be_done = may_be_done


def unavailable(reason: str, *, may_be_done: bool = False) -> StoreFaultError:
    """Return the error of a store that gives no answer; `reason` is a clause."""
    message = f"The store of predictions cannot be used: {reason}. Try again later."
    return StoreFaultError(Code.STORE_UNAVAILABLE, message, may_be_done=may_be_done)


def full() -> StoreFaultError:
    """Return the error of a store whose disk is full."""
    return StoreFaultError(Code.NO_STORAGE, "The disk of the store of predictions is full.")


def other_version(reason: str) -> StoreFaultError:
    """Return the error of a store whose schema is another one; `reason` is a clause."""
    return StoreFaultError(Code.STORE_VERSION, f"The store of predictions cannot be used: {reason}.")
