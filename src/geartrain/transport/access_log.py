"""The access log: a line for each request when it is over.

The loop does no more than append to a list; a thread chooses, formats and writes, many lines at a time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

from geartrain.transport.access_lines import LOGGER
from geartrain.transport.access_options import AccessLogOptions
from geartrain.transport.records import NoObserver, RequestRecord

_MOST: Final = 16_384  # requests that wait to be written; further ones are dropped and counted
_TOGETHER: Final = 128  # lines of one write: the loop has to wait while they are formatted
_INTERVAL: Final = 0.1  # seconds in which lines are gathered
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
    """Hears of requests (`RequestObserver`), and has lines written for those that the options want.

    Used as a context: it ends with all lines written.
    """

    def __init__(self, options: AccessLogOptions) -> None:
        self._options = options
        self._write = options.new_writer()
        self._waiting: deque[RequestRecord] = deque()
        self._is_awake = False  # the thread has been told that something waits
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._dropped = 0
        self._count = 0  # of requests that may be left out
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join(_LAST)  # whoever reads the log may have stopped reading

    def add(self, request: RequestRecord) -> None:
        """Take a request that is over."""
        waiting = self._waiting
        if len(waiting) >= _MOST:
            self._dropped += 1
            return
        waiting.append(request)
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

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
            wanted = self._wanted([waiting.popleft() for _ in range(min(len(waiting), _TOGETHER))])
            if wanted:
                self._write_some(wanted)
        dropped, self._dropped = self._dropped, 0
        if dropped:
            LOGGER.warning("lines of the access log were dropped: they are not read in time", extra={"count": dropped})

    def _write_some(self, wanted: list[RequestRecord]) -> None:
        try:
            self._write(wanted)
        except Exception:  # noqa: BLE001 - it is logged, and the next lines are tried
            LOGGER.exception("lines of the access log could not be written")

    def _wanted(self, requests: list[RequestRecord]) -> list[RequestRecord]:
        """Return those that have a line."""
        has_routine, has_others = LOGGER.isEnabledFor(logging.DEBUG), LOGGER.isEnabledFor(logging.INFO)
        takes_all = self._options.mode == "on"
        return [
            request
            for request in requests
            if (has_routine if request.origin.is_routine else has_others and (takes_all or self._is_chosen(request)))
        ]

    def _is_chosen(self, request: RequestRecord) -> bool:
        if request.has_failed:
            return True
        if self._options.mode == "errors":
            return False
        self._count += 1
        return self._count % self._options.each == 0
