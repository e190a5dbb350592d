"""Log records that a thread writes: where nobody reads stderr any more, the log stands still, and nothing else does."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator
from typing import Final

_MOST: Final = 16_384  # records that wait to be written; further ones are dropped and counted
_LAST: Final = 5.0  # seconds that the last records have at the end
_DROPPED: Final = "records of the log were dropped: they are not read in time"


class _Mark:
    """A place between two records."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()


class _Background(logging.Handler):
    """Has a thread give the records to other handlers."""

    def __init__(self, handlers: list[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self._records: queue.Queue[logging.LogRecord | _Mark] = queue.Queue(_MOST)
        self._dropped = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record wait, or drop it."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def settle(self, seconds: float) -> None:
        """Wait until what has been logged so far is written, at most so many seconds."""
        mark = _Mark()
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(mark)
            mark.is_reached.wait(seconds)

    def end(self) -> None:
        """Write what waits, but not for long if nobody reads. Nothing must be logged meanwhile."""
        self._is_over.set()
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(_record(logging.DEBUG, ""))  # so that the thread looks
        self._thread.join(_LAST)

    def _run(self) -> None:
        while not (self._is_over.is_set() and self._records.empty()):
            record = self._records.get()
            if isinstance(record, _Mark):
                record.is_reached.set()
                continue
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write(_record(logging.WARNING, _DROPPED, count=dropped))
            if record.msg:
                self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)


def _record(level: int, message: str, **fields: object) -> logging.LogRecord:
    named = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": message}
    return logging.makeLogRecord({**named, **fields})


def settle() -> None:
    """Wait until what has been logged so far is written, if a thread writes it; not long if nobody reads it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Background):
            handler.settle(_LAST)


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Inside the block a thread writes what is logged. At its end everything has been written, if somebody reads it."""
    root = logging.getLogger()
    before = root.handlers[:]
    background = _Background(before)
    root.handlers[:] = [background]
    try:
        yield
    finally:
        root.handlers[:] = before
        background.end()
