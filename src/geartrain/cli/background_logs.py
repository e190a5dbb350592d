"""The writer thread of the log: records and lines of requests on stderr, in the order of their times.

Without a reader of stderr the log stands still, and nothing else does.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from geartrain.cli import logs
from geartrain.transport.access_log import RequestWriter, line_of
from geartrain.transport.records import RequestRecord

MAX_WAITING: Final = 16_384  # records that wait to be written; further ones are dropped and counted
MAX_CHARACTERS: Final = 64 * 1024**2  # in these records
_MAX_LINES: Final = 4096  # of requests, that wait here: then senders of further ones wait
_LAST: Final = 5.0  # seconds that the last records have at the end
_DROPPED: Final = "records of the log were dropped: they are not read in time"
_HELD: Final = 0.2  # seconds that a record waits for earlier lines: those of requests come 0.1 s late
_PLAIN: Final = logging.Formatter()
_STEPS: Final = "geartrain.server"  # logger of a server's steps; nothing comes before them at its start


class Lines(msgspec.Struct, frozen=True):
    """Whole lines, and the moment of each in seconds since the epoch."""

    moments: Sequence[float]
    text: str


class _Entry(msgspec.Struct, frozen=True):
    """A record, or lines in the order of their moments."""

    moments: Sequence[float]
    what: logging.LogRecord | str
    due: float = 0.0  # on the monotonic clock: then it is written


class _Mark:
    """A place between two records."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()


def _joined(lines: Sequence[Lines]) -> _Entry:
    moments = [moment for each in lines for moment in each.moments]
    text = "".join([each.text for each in lines])
    return _Entry(moments, text) if moments == sorted(moments) else _merged(_single(_Entry(moments, text)))


def _single(entry: _Entry) -> list[_Entry]:
    """Return an entry for each line."""
    if not isinstance(entry.what, str):
        return [entry]
    texts = entry.what.split("\n")[:-1]  # not `splitlines`: JSON may have other ends of lines in its strings
    return [_Entry((at,), f"{text}\n", entry.due) for at, text in zip(entry.moments, texts, strict=True)]


def _merged(entries: Sequence[_Entry]) -> _Entry:
    """Return single lines as one entry, sorted."""
    ordered = sorted(entries, key=_first)
    return _Entry([each.moments[0] for each in ordered], "".join([str(each.what) for each in ordered]))


def _first(entry: _Entry) -> float:
    return entry.moments[0]


class _Background(logging.Handler):
    """Writes records and lines in a thread, each `_HELD` seconds after its moment, so that they can be sorted."""

    def __init__(self, handlers: list[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self._arrived: queue.Queue[tuple[logging.LogRecord | _Entry | _Mark, int]] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._added = self._taken = 0  # characters, each changed by one side alone
        self._is_over = threading.Event()
        self._lines = 0  # of requests, that wait
        self._has_room = threading.Condition()  # for lines
        # In the thread alone:
        self._waiting: list[_Entry] = []  # in the order of their first moments
        self._has_lines = False  # of requests, now or earlier
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record wait, or drop it."""
        _detach(record)
        size = _size(record)
        if self._added - self._taken + size > MAX_CHARACTERS:
            self._dropped += 1
            return
        try:
            self._arrived.put_nowait((record, size))
        except queue.Full:
            self._dropped += 1
        else:
            self._added += size

    def write(self, lines: Sequence[Lines]) -> None:
        """Queue lines of requests. Blocks while too many wait."""
        entry = _joined(lines)
        with self._has_room:
            self._has_room.wait_for(lambda: self._lines < _MAX_LINES)
            self._lines += len(entry.moments)
        self._arrived.put((entry, 0))

    def settle(self, seconds: float) -> None:
        """Wait until what has been logged so far is written, at most so many seconds."""
        mark = _Mark()
        with contextlib.suppress(queue.Full):
            self._arrived.put_nowait((mark, 0))
            mark.is_reached.wait(seconds)

    def end(self) -> None:
        """Write the waiting lines, but give up soon without a reader. Nothing must be logged meanwhile."""
        self._is_over.set()
        with contextlib.suppress(queue.Full):
            self._arrived.put_nowait((_Mark(), 0))  # so that the thread looks
        self._thread.join(_LAST)

    # in the thread

    def _run(self) -> None:
        while not (self._is_over.is_set() and self._arrived.empty()):
            with contextlib.suppress(queue.Empty):
                arrived, size = self._arrived.get(timeout=self._seconds_left())
                self._taken += size
                self._take(arrived)
            self._write_due(time.monotonic())
        self._write_due(float("inf"))

    def _seconds_left(self) -> float | None:
        return max(0.0, self._waiting[0].due - time.monotonic()) if self._waiting else None

    def _take(self, arrived: logging.LogRecord | _Entry | _Mark) -> None:
        if isinstance(arrived, logging.LogRecord):
            self._tell_dropped()
            is_held = self._has_lines or arrived.name != _STEPS
            self._add(_Entry((arrived.created,), arrived), _HELD if is_held else 0.0)
        elif isinstance(arrived, _Entry):
            self._has_lines = True
            self._add(arrived, _HELD)
        else:
            self._write_due(float("inf"))
            arrived.is_reached.set()

    def _add(self, entry: _Entry, held: float) -> None:
        """Sort an entry in. It waits no longer than `held` seconds from now, whatever becomes of the clock."""
        left = min(held, max(0.0, entry.moments[-1] + held - time.time()))
        added = _Entry(entry.moments, entry.what, time.monotonic() + left)
        waiting = self._waiting
        at = bisect.bisect_right(waiting, _first(added), key=_first)
        is_between = (at and waiting[at - 1].moments[-1] > _first(added)) or (
            at < len(waiting) and added.moments[-1] > _first(waiting[at])
        )
        waiting.insert(at, added)
        if is_between:  # some lines come before others of an entry
            waiting[:] = sorted([single for each in waiting for single in _single(each)], key=_first)

    def _write_due(self, now: float) -> None:
        waiting = self._waiting
        count = next((at for at, entry in enumerate(waiting) if entry.due > now), len(waiting))
        lines: list[str] = []
        for entry in waiting[:count]:
            if isinstance(entry.what, str):
                lines.append(entry.what)
            else:
                self._write_lines(lines)
                self._write(entry.what)
        self._write_lines(lines)
        written = sum([len(entry.moments) for entry in waiting[:count] if isinstance(entry.what, str)])
        del waiting[:count]
        if written:
            with self._has_room:
                self._lines -= written
                self._has_room.notify_all()

    def _write_lines(self, lines: list[str]) -> None:
        """Write lines, many at once, and forget them."""
        if lines:
            logs.write_lines("".join(lines))
            lines.clear()

    def _tell_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._write(_record(logging.WARNING, _DROPPED, count=dropped))

    def _write(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)


def _detach(record: logging.LogRecord) -> None:
    """Make texts of the message and the traceback: frames keep the values of their functions, such as a whole body."""
    if record.args:
        record.msg, record.args = record.getMessage(), None
    if record.exc_info:
        record.exc_text = record.exc_text or _PLAIN.formatException(record.exc_info)
        record.exc_info = None


def _size(record: logging.LogRecord) -> int:
    """Return the number of characters in a record's message and fields."""
    return sum([len(value) for value in vars(record).values() if type(value) is str])


def _record(level: int, message: str, **fields: object) -> logging.LogRecord:
    named = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": message}
    return logging.makeLogRecord({**named, **fields})


def write(lines: Sequence[Lines]) -> None:
    """Write lines of requests between the records, in the order of their moments if a thread writes the records."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Background):
            handler.write(lines)
            return
    logs.write_lines("".join([each.text for each in lines]))


def settle() -> None:
    """Wait until earlier lines are written, if a thread writes them; not long without a reader."""
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


_moment_of = operator.attrgetter("ended")


class _Prepared(NamedTuple):
    moments: tuple[float, ...]
    text: bytes


class JsonWriter(RequestWriter[_Prepared]):
    """Makes the lines on the loop, which has the records at hand: a thread on another core takes twice as long."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode_lines

    def prepare(self, requests: Sequence[RequestRecord]) -> _Prepared:
        """Return the lines."""
        moments = tuple(map(_moment_of, requests))
        return _Prepared(moments, self._encode([line_of(request) for request in requests]))

    def write(self, prepared: Sequence[_Prepared]) -> None:
        """Write them."""
        write([Lines(each.moments, each.text.decode()) for each in prepared])
