"""Lends the terminal of the command to one debugger in a worker at a time; the server is silent there meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
from collections import deque
from typing import Any, Final, Protocol

from geartrain.bridge.borrowing import Lender, Prompt

_TERMINAL: Final = "/dev/tty"
_TURNS: Final = 3  # of the loop, in which what the worker has printed before comes in
_SETTINGS_CC: Final = 6  # the place of the control characters in what `tcgetattr` returns
_OFF: Final = b"\0"  # in the place of a control character
_ENDING: Final = "a debugger cannot ask: the command is about to end"
_IN_BACKGROUND: Final = (
    "a debugger cannot ask: the command runs in the background. Bring it to the foreground, and run the model again"
)


class Screen(Protocol):
    """The command's own display at the terminal."""

    def settle(self) -> None:
        """Show what is on its way. Called in a thread; may block for a moment."""

    def hold(self) -> None:
        """Show nothing from now on, and keep it."""

    def release(self) -> None:
        """Show what was kept, and go on."""


def lender_of_terminal(screen: Screen) -> Lender | None:
    """Create the lender of the terminal that the process was started in, if there is one."""
    try:
        return TerminalLender(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC), screen)
    except OSError:
        return None


class TerminalLender:
    """See `bridge.borrowing.Lender`. Borrowers have the terminal in the order in which they have asked for it.

    The worker is in another session, so the kernel sends what Ctrl-C means to this process: hence `interrupt`. Ctrl-Z
    is off meanwhile: it would stop this process alone, and leave two readers at the terminal.
    """

    def __init__(self, descriptor: int, screen: Screen) -> None:
        """`descriptor`: of the terminal; it is kept open."""
        self._descriptor = descriptor
        self._screen = screen
        self._borrowers: deque[Prompt] = deque()  # the first has the terminal, or is about to get it
        self._is_lent = False
        self._is_closed = False
        self._settings: list[Any] = []  # of the terminal, before it was lent
        self._handing: set[asyncio.Task[None]] = set()

    @property
    def descriptor(self) -> int:
        """The terminal, for workers to inherit."""
        return self._descriptor

    def lend(self, borrower: Prompt) -> None:
        """Answer a borrower, now or when its turn has come."""
        self._borrowers.append(borrower)
        if len(self._borrowers) == 1:
            self._hand_over(borrower)

    def take_back(self, borrower: Prompt) -> None:
        """Take the terminal back, or forget a borrower that waits."""
        if borrower not in self._borrowers:
            return
        was_first = borrower is self._borrowers[0]
        self._borrowers.remove(borrower)
        if was_first and self._is_lent:
            self._is_lent = False
            self._restore()
            self._screen.release()
        if was_first and self._borrowers:
            self._hand_over(self._borrowers[0])

    @property
    def is_lent(self) -> bool:
        """True while a worker has the terminal."""
        return self._is_lent

    def interrupt(self) -> bool:
        """Pass Ctrl-C on to the worker that has the terminal; return False if none has it."""
        if not self._is_lent:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._borrowers[0].pid, signal.SIGINT)
        return True

    def close(self) -> None:
        """Refuse it from now on, also to those that wait."""
        self._is_closed = True

    def _hand_over(self, borrower: Prompt) -> None:
        task = asyncio.ensure_future(self._hand_over_in_order(borrower))
        self._handing.add(task)
        task.add_done_callback(self._handing.discard)

    async def _hand_over_in_order(self, borrower: Prompt) -> None:
        """Lend the terminal when all has been shown that was printed before."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await asyncio.to_thread(self._screen.settle)
        if not self._borrowers or self._borrowers[0] is not borrower:
            return
        if self._is_closed or not self._is_in_foreground():
            self.take_back(borrower)
            borrower.on_refused(_ENDING if self._is_closed else _IN_BACKGROUND)
            return
        self._screen.hold()
        self._is_lent = True
        self._prepare()
        borrower.on_lent()

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # it has been closed
            return False

    def _prepare(self) -> None:
        with contextlib.suppress(termios.error):
            self._settings = termios.tcgetattr(self._descriptor)
            changed = [*self._settings[:_SETTINGS_CC], list(self._settings[_SETTINGS_CC])]
            changed[_SETTINGS_CC][termios.VSUSP] = _OFF
            termios.tcsetattr(self._descriptor, termios.TCSANOW, changed)

    def _restore(self) -> None:
        """Undo what a debugger may have left behind, such as a terminal that does not echo."""
        if self._settings and self._is_in_foreground():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._settings)
