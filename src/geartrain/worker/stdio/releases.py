"""Timed release of partial lines and of progress bars: a bar that stands still shows its last state."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from geartrain.domain.printed.updates import INTERVAL


class Held(Protocol):
    """A writer that holds something."""

    def release(self) -> None:
        """Give it out, from any thread."""

    def release_due(self) -> None:
        """Give it out if its time has come; if not, ask again for a release."""


class _Releases:
    """The writers that are to be released, and a thread that waits for them, made for the first one."""

    def __init__(self) -> None:
        self._waiting: dict[int, Held] = {}
        self._alarm = threading.Event()
        self._has_thread = False

    def add(self, writer: Held) -> None:
        """Release a writer in `INTERVAL` seconds, once however often it is added until then."""
        if id(writer) in self._waiting:
            return
        if not self._has_thread:
            try:
                threading.Thread(target=self._watch, name="geartrain-updates", daemon=True).start()
            except RuntimeError:  # no further thread can be had
                writer.release()
                return
            self._has_thread = True
        self._waiting[id(writer)] = writer
        self._alarm.set()

    def _watch(self) -> None:
        while self._alarm.wait():
            time.sleep(INTERVAL)
            self._alarm.clear()  # before they are read: a later one sets it again
            for key in list(self._waiting):
                self._waiting.pop(key).release_due()


release_later = _Releases().add
