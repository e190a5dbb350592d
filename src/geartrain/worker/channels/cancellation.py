"""Cancellation of a sync `run()`: a signal to the main thread, whose handler raises in the author's code only."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final

from geartrain.authoring import CancelationException

_Handler = Callable[[int, FrameType | None], Any] | int | None
_Hook = Callable[["sys.UnraisableHookArgs"], Any]

CANCEL_SIGNAL = signal.SIGUSR1
_AGAIN = (0.001, 0.01, 0.05, 0.2)  # seconds between one signal and the next


class CancelRegion:
    """The span in which the author's code runs on the main thread.

    A cancel is for one call by its serial number: one that comes late, or early, cannot hit another. It is raised once.
    Inside the region `shield` holds it back while the runtime itself works; it is raised when the shield is left. A
    finalizer, or a callback of a C library, cannot pass it on: Python would print it and go on. It comes again then.
    """

    def __init__(self) -> None:
        self._running: int | None = None
        self._requested: set[int] = set()  # of a call that runs, and of those that are still to begin
        self._noticed: int | None = None
        self._raised: int | None = None
        self._is_lost = False  # while `_on_unraisable` runs, which cannot pass it on either
        self._main = threading.main_thread().ident or 0
        self._before: tuple[_Handler, _Hook] | None = None
        self.shield: Final = Shield(self._main, self._raise)

    def install(self) -> None:
        """Take the signal, and exceptions that cannot be passed on. Main thread only."""
        self._before = signal.signal(CANCEL_SIGNAL, self._on_signal), sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def uninstall(self) -> None:
        """Give back what `install` has taken. Main thread only."""
        if self._before is not None:
            handler, sys.unraisablehook = self._before
            signal.signal(CANCEL_SIGNAL, handler)
            self._before = None

    def withdraw(self, serial: int) -> None:
        """Cancel a call that has not begun. Main thread only."""
        self._requested.add(serial)

    def request(self, serial: int) -> None:
        """Cancel a call, now or as soon as it begins. Any thread."""
        self._requested.add(serial)
        # One that comes just before a blocking call does not interrupt it: the interpreter has looked already. So it
        # is sent again, for a while: C code that does not come back must not hold up the control channel.
        for pause in _AGAIN:
            if self._running != serial or self._noticed == serial:
                return
            signal.pthread_kill(self._main, CANCEL_SIGNAL)
            time.sleep(pause)

    def enter(self, serial: int) -> bool:
        """Open the region; return False, with the region closed, if the call has been canceled already."""
        self.shield.pending = False
        self.shield.is_armed = True
        self._running = serial
        requested = self._requested
        if not requested:
            return True
        for earlier in [each for each in tuple(requested) if each < serial]:
            requested.discard(earlier)
        if serial not in requested:
            return True
        self._running = None
        return False

    def leave(self) -> None:
        """Close the region: nothing is raised from here on."""
        self._running = None
        self.shield.is_armed = False

    def was_requested(self, serial: int) -> bool:
        """Tell whether a cancel of this call has come."""
        return serial in self._requested

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._running is None or self._running not in self._requested or self._is_lost:
            return
        self._noticed = self._running
        if self.shield.depth:
            self.shield.pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        if self._running is not None and self._raised != self._running:
            self._raised = self._running
            raise CancelationException

    def _on_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        running = self._running
        if lost.exc_type is CancelationException and running is not None and get_ident() == self._main:
            self._is_lost = True
            try:
                threading.Thread(target=self._repeat, args=(running,), name="geartrain-cancel", daemon=True).start()
            finally:  # a process may have no room for a thread
                self._is_lost = False
        elif self._before is not None:
            self._before[1](lost)

    def _repeat(self, serial: int) -> None:
        """Cancel a call that has lost its cancel."""
        if self._raised == serial:
            self._raised = self._noticed = None
        self.request(serial)


class Shield:
    """`with region.shield:` around the runtime's own work; it may be nested.

    It counts only on the thread `main`, where signals arrive; by default on none. It goes around every frame: hence no
    call but the one.
    """

    __slots__ = ("_main", "_raise", "depth", "is_armed", "pending")

    def __init__(self, main: int = 0, when_left: Callable[[], None] = lambda: None) -> None:
        self._main = main
        self._raise = when_left
        self.depth = 0
        self.is_armed = False  # true while the author's code runs on the main thread, and needs a shield
        self.pending = False  # a cancel that came meanwhile

    def __enter__(self) -> None:
        if get_ident() == self._main:
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        if get_ident() == self._main:
            self.depth -= 1
            if self.pending and not self.depth:
                self.pending = False
                self._raise()
