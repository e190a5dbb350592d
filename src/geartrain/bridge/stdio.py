"""Output of a worker past Python: read from its pipes, then given to the setup, to a call, or to the server's log."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Final

from geartrain.bridge.slots import SlotChannel, SlotState
from geartrain.domain.predictions.calls import ALL, ItemEvent
from geartrain.domain.predictions.events import Log, LogSource
from geartrain.domain.printed.text import PrintedLines, is_plain
from geartrain.domain.printed.updates import INTERVAL, Updates
from geartrain.ipc.waiting import unread

_CHUNK = 65536  # bytes
_MAX_LINE = 4 * 1024 * 1024  # characters kept of a line that does not end


class _Pipe:
    """One pipe: bytes in, lines out, and the updates of progress bars at a bounded rate.

    A line without an end is delivered at most `INTERVAL` after it was read.
    """

    def __init__(self, source: LogSource, pipe: IO[bytes], deliver: Callable[[LogSource, str], None]) -> None:
        self.fd = pipe.fileno()
        os.set_blocking(self.fd, False)
        self._pipe = pipe  # keeps the descriptor open
        self._source = source
        self._deliver = deliver
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._is_in_bar = False  # within a line that has been returned to
        self._updates: Updates[LogSource] = Updates()
        self._has_bars = False  # true if there have been updates
        self._timers: list[asyncio.TimerHandle] = []  # one while an update, or a line without an end, is held
        self.dangles = False  # a line, or a character, that has no end yet; or an update is held
        self.closed = False

    def read(self, size: int = _CHUNK) -> int:
        """Take one piece of at most `size` bytes; return its size, 0 when there is nothing or never will be."""
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return 0
        self.closed = not data
        self.dangles = not data.endswith(b"\n")
        text = self._partial + self._decoder.decode(data)
        newline = text.rfind("\n") + 1
        self._is_in_bar = "\r" in text[newline:] or (self._is_in_bar and not newline)
        end = len(text) if len(text) > _MAX_LINE or self._is_in_bar else newline
        self._partial = text[end:]
        if end:
            self._give(text[:end])
        if self._partial:
            self._deliver_later()
        return len(data)

    def read_present(self) -> None:
        """Take what is there now, and nothing of what a flood adds meanwhile."""
        present = unread(self.fd)
        while present > 0 and (size := self.read(min(present, _CHUNK))):
            present -= size

    def flush(self) -> None:
        """Deliver a last line that has no end."""
        if self.dangles:
            self.dangles = False
            text, self._partial = self._partial + self._decoder.decode(b"", final=True), ""
            if text:
                self._give(text)
            self._release()
            self.dangles = False

    def close(self) -> None:
        """Close the descriptor."""
        self._pipe.close()

    def _give(self, text: str) -> None:
        if not self._has_bars and is_plain(text):
            self._deliver(self._source, text)
            return
        self._has_bars = True
        for piece in self._updates.add(self._source, text, time.monotonic()):
            self._deliver(*piece)
        self._wait()

    def _wait(self) -> None:
        """Deliver later what is held now."""
        if self._updates.holds:
            self.dangles = True
            self._deliver_later()

    def _deliver_later(self) -> None:
        if not self._timers:
            self._timers.append(asyncio.get_running_loop().call_later(INTERVAL, self._on_time))

    def _on_time(self) -> None:
        self._timers.clear()
        text, self._partial = self._partial, ""
        if text:
            self._give(text)
        if self._updates.is_due(time.monotonic()):
            self._release()
        self._wait()

    def _release(self) -> None:
        while self._timers:
            self._timers.pop().cancel()
        for piece in self._updates.take(time.monotonic()):
            self._deliver(*piece)


class OutputPipes:
    """Both pipes of a worker, read on the loop and, at the end of a prediction, to the last byte."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], deliver: Callable[[LogSource, str], None]) -> None:
        self._pipes = [_Pipe("stdout", stdout, deliver), _Pipe("stderr", stderr, deliver)]
        self._poll = select.poll()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Delivers the messages that were sent before the bytes of a pipe; see `_on_readable`.
        self.before_read: Callable[[], None] | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read whenever something comes."""
        self._loop = loop
        for pipe in self._pipes:
            self._poll.register(pipe.fd, select.POLLIN)
            loop.add_reader(pipe.fd, self._on_readable, pipe)

    def drain(self) -> None:
        """Deliver all that has been written so far. Costs one system call when there is nothing."""
        if self._poll.poll(0):
            for pipe in self._pipes:
                pipe.read_present()
        for pipe in self._pipes:
            if pipe.dangles:
                pipe.flush()

    def close(self) -> None:
        """Stop reading."""
        for pipe in tuple(self._pipes):
            self._forget(pipe)

    def flush(self) -> None:
        """Deliver the last lines that have no end yet."""
        for pipe in self._pipes:
            pipe.flush()

    def _on_readable(self, pipe: _Pipe) -> None:
        if self.before_read is None:
            pipe.read()
        else:  # of the bytes that are present now, everything sent earlier by the same process can be received now
            present = unread(pipe.fd)
            self.before_read()
            if pipe in self._pipes:
                pipe.read(min(present, _CHUNK) or _CHUNK)
        if pipe.closed:
            self._forget(pipe)

    def _forget(self, pipe: _Pipe) -> None:
        if self._loop is not None:
            self._loop.remove_reader(pipe.fd)
            self._poll.unregister(pipe.fd)
        self._pipes.remove(pipe)
        pipe.flush()
        pipe.close()


logger = logging.getLogger("geartrain.model")

_FIRST: Final = 16  # calls without such output, before a call is prefetched behind another one
_AFTER: Final = 256  # calls without such output, once there has been some
_PATIENCE: Final = 1.0  # seconds that a line may wait for its end


class ModelLog:
    """Prints outside of predictions as records of the server's log: one a line, of a progress bar its last state."""

    def __init__(self) -> None:
        self._lines = PrintedLines()
        self._timers: list[asyncio.TimerHandle] = []  # one while a line has no end
        self._fields: Mapping[str, object] = {}

    def add(self, text: str, **fields: object) -> None:
        """Take some text; `fields` are those of its records."""
        self._fields = fields
        self._log(self._lines.add(text))
        if self._lines.holds and not self._timers:
            self._timers.append(asyncio.get_running_loop().call_later(_PATIENCE, self.end))

    def end(self) -> None:
        """Log what has no end yet."""
        while self._timers:
            self._timers.pop().cancel()
        self._log(self._lines.end())

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            logger.info(line, extra=dict(self._fields))


class RawOutput:
    """Gives raw output to the call that it is of. What could be of several calls goes to the server's log.

    The pipes carry no mark between two calls. While a call is prefetched, the worker may have begun it without the
    parent's knowing, and what comes could be of either. So a worker that writes past Python gets no prefetched calls
    for a while, and its output finds its calls again.
    """

    __slots__ = ("_is_served", "_on_setup_log", "_quiet_from", "_slots", "calls", "log", "pipes")

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], on_setup_log: Callable[[LogSource, str], None]) -> None:
        self.log = ModelLog()
        self.pipes = OutputPipes(stdout, stderr, self.give)
        self._slots: Mapping[int, SlotChannel] = {}
        self._on_setup_log = on_setup_log
        self._is_served = False
        self.calls = 0  # that have begun
        self._quiet_from = _FIRST  # the number of calls from which on the worker is taken to write nothing

    def begin_service(self, slots: Mapping[int, SlotChannel]) -> None:
        """Note that setup is over, and which slots there are."""
        self._slots = slots
        self._is_served = True

    def close(self) -> None:
        """Read no more; what has no end yet goes to the log."""
        self.pipes.close()
        self.log.end()

    @property
    def is_quiet(self) -> bool:
        """True if none of the last calls has written anything."""
        return self.calls >= self._quiet_from

    def give(self, source: LogSource, data: str) -> None:
        """Take whole lines, or a last line that has no end."""
        if not self._is_served:
            self._on_setup_log(source, data)
            return
        self._quiet_from = self.calls + _AFTER
        running = [slot for slot in self._slots.values() if slot.state is SlotState.RUNNING]
        call = running[0].call if len(running) == 1 and not running[0].following else None
        if call is not None:
            call.listener.on_event(ItemEvent(ALL, Log(source, data)))
        else:
            self.log.add(data, source=source)
