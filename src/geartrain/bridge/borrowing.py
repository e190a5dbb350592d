"""The terminal of the person who has started the command, as one worker borrows it for a debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from geartrain.ipc.messages import ControlToWorker, TerminalLent, TerminalRefused, TerminalReturned, TerminalWanted


class Borrower(Protocol):
    """A worker that wants the terminal. Each of its prompts is another borrower."""

    pid: int

    def on_lent(self) -> None:
        """It has the terminal until it is given back."""

    def on_refused(self, reason: str) -> None:
        """It does not get it; `reason` is a sentence for the author."""


class Lender(Protocol):
    """Lender of a terminal."""

    @property
    def descriptor(self) -> int | None:
        """The terminal, to be inherited by workers; None where there is none."""

    @property
    def is_lent(self) -> bool:
        """True while a worker has the terminal."""

    def lend(self, borrower: Borrower) -> None:
        """Answer a borrower, now or when its turn has come."""

    def take_back(self, borrower: Borrower) -> None:
        """Note that a borrower has given the terminal back, or no longer waits for it."""

    def interrupt(self) -> bool:
        """Pass Ctrl-C on to the worker that has the terminal; return False if none has it."""

    def close(self) -> None:
        """Refuse it from now on: the command is about to end."""


class NoLender:
    """In place of a lender where there is no terminal."""

    @property
    def descriptor(self) -> int | None:
        """There is none."""
        return None

    @property
    def is_lent(self) -> bool:
        """False: there is none."""
        return False

    def lend(self, borrower: Borrower) -> None:
        """Refuse it."""
        borrower.on_refused("there is no terminal")

    def take_back(self, borrower: Borrower) -> None:
        """Do nothing: it is not lent."""

    def interrupt(self) -> bool:
        """Return False: it is not lent."""
        return False

    def close(self) -> None:
        """Do nothing: it is not lent."""


NO_LENDER: Final = NoLender()


class Borrowing:
    """The prompts of one worker."""

    def __init__(
        self, lender: Lender, pid: int, send: Callable[[ControlToWorker], None], *, has_editor: bool = False
    ) -> None:
        """Create it; `has_editor`: an editor may stop the worker as well, without a notice."""
        self._has_editor = has_editor
        self._lender = lender
        self._pid = pid
        self._send = send
        self._open: dict[int, _Prompt] = {}  # that wait for the terminal or have it, by their number

    @property
    def is_open(self) -> bool:
        """True if a debugger has the terminal, or waits for it."""
        return bool(self._open)

    @property
    def is_debugged(self) -> bool:
        """True if a debugger may have stopped the worker."""
        return self._has_editor or self.is_open

    def on_message(self, message: TerminalWanted | TerminalReturned) -> None:
        """Take what the worker says."""
        if isinstance(message, TerminalWanted):
            prompt = self._open[message.number] = _Prompt(message.number, self._pid, self._send)
            self._lender.lend(prompt)
        elif message.number in self._open:
            self._lender.take_back(self._open.pop(message.number))

    def end(self) -> None:
        """Take everything back: the worker is gone."""
        while self._open:
            self._lender.take_back(self._open.popitem()[1])


class _Prompt:
    """One prompt of a debugger."""

    def __init__(self, number: int, pid: int, send: Callable[[ControlToWorker], None]) -> None:
        self.pid = pid
        self._number = number
        self._send = send

    def on_lent(self) -> None:
        """Tell the worker that it has the terminal."""
        self._send(TerminalLent(self._number))

    def on_refused(self, reason: str) -> None:
        """Tell the worker why it does not get it."""
        self._send(TerminalRefused(self._number, reason))
