"""The access log: a line for each request when it is over.

Their lines are made many at a time. A thread writes them, because their reader may be slow.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from itertools import filterfalse
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Self

from geartrain.transport.access_lines import LOGGER, RequestWriter
from geartrain.transport.access_options import AccessLogOptions
from geartrain.transport.records import NoObserver, RequestRecord

MAX_WAITING: Final = 16_384  # requests that wait to be written; further ones are dropped and counted
_is_routine: Final = attrgetter("origin.is_routine")
_INTERVAL: Final = 0.05  # seconds in which lines are gathered
_FAULT: Final = "lines of the access log could not be written"
_LAST: Final = 5.0  # seconds that the last lines have at the end of the server


class NoAccessLog(NoObserver):
    """In place of the log, where no request has a line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


def open_access_log(options: AccessLogOptions) -> AccessLog | NoAccessLog:
    """Return the log that the options ask for."""
    return NoAccessLog() if options.mode == "off" else AccessLog(options)


class AccessLog:
    """Hears of requests (`RequestsObserver`), and has lines written for those that the options want.

    Used as a context: it ends with all lines written.
    """

    def __init__(self, options: AccessLogOptions) -> None:
        self._options = options
        self._writer = options.new_writer()
        self._count = 0  # of requests that may be left out
        self._lines = _Lines(self._writer)

    def __enter__(self) -> Self:
        self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lines.close()

    def add_all(self, requests: Sequence[RequestRecord]) -> None:
        """Have the lines of requests written."""
        wanted = self._wanted(requests)
        if not wanted:
            return
        if not self._lines.has_room(len(wanted)):
            self._lines.dropped += len(wanted)
            return
        try:
            prepared = self._writer.prepare(wanted)
        except Exception:  # noqa: BLE001 - it is logged, and the next lines are tried
            LOGGER.exception(_FAULT)
        else:
            self._lines.add(prepared, len(wanted))

    def _wanted(self, requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        """Return those that have a line."""
        has_routine, has_others = LOGGER.isEnabledFor(logging.DEBUG), LOGGER.isEnabledFor(logging.INFO)
        if self._options.mode == "on" and has_others:
            return requests if has_routine else list(filterfalse(_is_routine, requests))
        return [
            request
            for request in requests
            if (has_routine if _is_routine(request) else has_others and self._is_chosen(request))
        ]

    def _is_chosen(self, request: RequestRecord) -> bool:
        if request.has_failed:
            return True
        if self._options.mode == "errors":
            return False
        self._count += 1
        return self._count % self._options.each == 0


class _Lines:
    """Lines that have been prepared, and the thread that writes them."""

    def __init__(self, writer: RequestWriter[Any]) -> None:
        self._writer = writer
        self._waiting: deque[tuple[Any, int]] = deque()  # with the number of lines
        # Each is changed by one side alone.
        self._added = self._written = 0  # lines
        self.dropped = 0  # lines, in all
        self._told = 0  # of these
        self._is_awake = False  # the thread has been told that something waits
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def has_room(self, count: int) -> bool:
        """True if so many more lines may wait."""
        return self._added - self._written + count <= MAX_WAITING

    def add(self, prepared: Any, count: int) -> None:
        """Have something written that is so many lines."""
        self._added += count
        self._waiting.append((prepared, count))
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_LAST)  # the reader of the log may have stopped

    # in the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_INTERVAL)
            self._wake.clear()
            self._is_awake = False  # before the first look: what comes behind the last one wakes the thread again
            self._write_all()
        self._write_all()

    def _write_all(self) -> None:
        waiting = self._waiting
        while waiting:
            taken = [waiting.popleft() for _ in range(len(waiting))]
            try:
                self._writer.write([prepared for prepared, _ in taken])
            except Exception:  # noqa: BLE001 - it is logged, and the next lines are tried
                LOGGER.exception(_FAULT)
            self._written += sum([count for _, count in taken])
        dropped = self.dropped - self._told
        if dropped:
            self._told += dropped
            LOGGER.warning("lines of the access log were dropped: they are not read in time", extra={"count": dropped})
