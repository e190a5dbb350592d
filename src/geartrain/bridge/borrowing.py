"""The terminal of the person who has started the command, as one worker borrows it for a debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from geartrain.ipc.messages import ControlToWorker, TerminalLent, TerminalRefused, TerminalReturned, TerminalWanted


class Prompt:
    """One prompt of a debugger, which borrows the terminal."""

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


class Lender(Protocol):
    """Lender of the terminal that the command was started in."""

    @property
    def descriptor(self) -> int:
        """The terminal, to be inherited by workers."""

    @property
    def is_lent(self) -> bool:
        """True while a worker has the terminal."""

    def lend(self, borrower: Prompt) -> None:
        """Answer a borrower, now or when its turn has come."""

    def take_back(self, borrower: Prompt) -> None:
        """Note that a borrower has given the terminal back, or no longer waits for it."""

    def interrupt(self) -> bool:
        """Pass Ctrl-C on to the worker that has the terminal; return False if none has it."""

    def close(self) -> None:
        """Refuse it from now on: the command is about to end."""


class Borrowing:
    """The prompts of one worker."""

    def __init__(
        self, lender: Lender | None, pid: int, send: Callable[[ControlToWorker], None], *, has_editor: bool = False
    ) -> None:
        """`lender` is None where there is no terminal. `has_editor`: an editor may stop the worker without a notice."""
        self._has_editor = has_editor
        self._lender = lender
        self._pid = pid
        self._send = send
        self._open: dict[int, Prompt] = {}  # that wait for the terminal or have it, by their number

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
        if self._lender is None:  # the worker has no terminal to ask for
            return
        if isinstance(message, TerminalWanted):
            prompt = self._open[message.number] = Prompt(message.number, self._pid, self._send)
            self._lender.lend(prompt)
        elif message.number in self._open:
            self._lender.take_back(self._open.pop(message.number))

    def end(self) -> None:
        """Take everything back: the worker is gone."""
        while self._lender is not None and self._open:
            self._lender.take_back(self._open.popitem()[1])
