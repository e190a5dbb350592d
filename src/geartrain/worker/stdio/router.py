"""Destination of a model's prints: the prediction that made them, else the log of setup or of the server.

Python-level writes are routed here by a context variable; output past Python (C libraries, subprocesses) is read by the
parent from the descriptors.
"""

from __future__ import annotations

import codecs
import io
import sys
import threading
import time
from _thread import RLock  # `threading.RLock` is a function that makes one
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.events import LogSource
from geartrain.domain.printed.text import is_plain
from geartrain.domain.printed.updates import INTERVAL, Updates


class _Releases:
    """The writers that are to be released, and a thread that waits for them, made for the first one."""

    def __init__(self) -> None:
        self._waiting: dict[int, LineWriter] = {}
        self._alarm = threading.Event()
        self._has_thread = False

    def add(self, writer: LineWriter) -> None:
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


Emit = Callable[[LogSource, str], None]

MAX_LINE: Final = 4 * 1024 * 1024  # characters; observed Cog, section 10
TRUNCATED: Final = "[**** LOG LINE TRUNCATED AT 4 MiB ****]"
_PIECE = 1024 * 1024  # characters, at most 4 MiB of UTF-8: below the limit of a frame
_MANY_THREADS = 256


class _Line:
    """The line that one thread is writing."""

    __slots__ = ("parts", "since", "size", "skipping", "source")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.since = 0.0  # when its first part was written, by `time.monotonic()`
        self.size = 0  # characters
        self.source: LogSource = "stdout"
        self.skipping: set[LogSource] = set()  # the streams within a line that has been cut


class LineWriter(msgspec.Struct, gc=False, eq=False):
    """Gathers each thread's writes into whole lines, and gives them to `emit`.

    A partial line is let out after 100 ms; earlier by a change of stream, a carriage return, a flush, the caller's own,
    and the end, everybody's. Of the updates of a progress bar few are given to `emit` (`domain.printed.updates`). The
    writer of one item of a call has the writer of the call as its `parent`. A writer is made for every call, hence a
    struct.
    """

    emit: Emit
    parent: LineWriter | None = None
    lock: RLock = msgspec.field(default_factory=RLock)
    lines: dict[int, _Line] = msgspec.field(default_factory=dict)
    updates: Updates[LogSource] | None = None  # made for the first progress bar

    @property
    def whole(self) -> LineWriter:
        """The writer of the call: the parent, or this one."""
        return self.parent or self

    def write(self, source: LogSource, text: str) -> None:
        """Take some text of one stream."""
        with self.lock:
            line = self._line()
            if source != line.source:
                self._let_out(line, "")
                line.source = source
            if source in line.skipping:
                _, newline, text = text.partition("\n")
                if newline:
                    line.skipping.discard(source)
            head, newline, tail = text.rpartition("\n")
            if newline:
                self._let_out(line, head + newline)
            if tail:
                if not line.parts:
                    line.since = time.monotonic()
                    release_later(self)
                line.parts.append(tail)
                line.size += len(tail)
                if line.size > MAX_LINE:
                    line.skipping.add(source)
                    self._let_out(line, "\n")
                elif "\r" in tail:
                    self._let_out(line, "")

    def flush(self) -> None:
        """Let out the caller's line that has no end yet."""
        with self.lock:
            line = self.lines.get(threading.get_ident())
            if line is not None:
                self._let_out(line, "")

    def end(self, then: Emit | None = None) -> None:
        """Let out every line that has no end yet; what is written later goes to `then`."""
        with self.lock:
            if self.lines:
                for line in self.lines.values():
                    self._let_out(line, "")
                self.lines.clear()
            if self.updates is not None:
                self.release()
            self.emit = then or self.emit

    def release(self) -> None:
        """Give out what is held of a progress bar."""
        with self.lock:
            if self.updates is not None:
                for piece in self.updates.take(time.monotonic()):
                    self.emit(*piece)

    def _line(self) -> _Line:
        line = self.lines.get(threading.get_ident())
        if line is None:
            if len(self.lines) >= _MANY_THREADS:
                self.end()  # most of them will have ended
            line = self.lines[threading.get_ident()] = _Line()
        return line

    def _let_out(self, line: _Line, end: str) -> None:
        text = "".join((*line.parts, end))
        line.parts.clear()
        line.size = 0
        if len(text) > MAX_LINE:
            text = "\n".join(map(_cut, text.split("\n")))
        for start in range(0, len(text), _PIECE):
            self._give(line.source, text[start : start + _PIECE])

    def release_due(self) -> None:
        """Give out partial lines, and what is held of a progress bar, once they are `INTERVAL` old."""
        with self.lock:
            now, is_early = time.monotonic(), False
            for line in self.lines.values():
                if line.parts and now - line.since >= INTERVAL:
                    self._let_out(line, "")
                elif line.parts:
                    is_early = True
            if self.updates is not None and self.updates.is_due(now):
                self.release()
            if is_early or (self.updates is not None and self.updates.holds):
                release_later(self)

    def _give(self, source: LogSource, text: str) -> None:
        if self.updates is None:
            if is_plain(text):
                self.emit(source, text)
                return
            self.updates = Updates()
        for piece in self.updates.add(source, text, time.monotonic()):
            self.emit(*piece)
        if self.updates.holds:
            release_later(self)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[:MAX_LINE] + TRUNCATED


class Router:
    """Finds the writer of each write."""

    def __init__(self, ambient: Emit) -> None:
        """`ambient` takes what belongs to no prediction."""
        self._ambient = LineWriter(ambient)
        self._current: ContextVar[LineWriter | None] = ContextVar("geartrain_log_writer", default=None)
        self._active: list[LineWriter] = []
        self.stdout = RoutedStream(self, "stdout", 1)
        self.stderr = RoutedStream(self, "stderr", 2)

    def install(self) -> None:
        """Install the routed streams where Python looks for them; a model may replace them, for one prediction only."""
        sys.stdout = self.stdout
        sys.stderr = self.stderr

    def set_ambient(self, ambient: Emit) -> None:
        """From now on what belongs to no prediction goes here."""
        self._ambient.end()
        self._ambient = LineWriter(ambient)

    def begin(self, emit: Emit) -> LineWriter:
        """Route the writes of the current context to a new prediction."""
        writer = LineWriter(emit)
        self._active.append(writer)
        self._current.set(writer)
        return writer

    def enter(self, writer: LineWriter) -> Token[LineWriter | None]:
        """Route the writes of the current context to one prediction of a running batch, until `leave`."""
        self.target().flush()  # earlier output comes first
        return self._current.set(writer)

    def leave(self, token: Token[LineWriter | None]) -> None:
        """Undo the `enter` that gave this token."""
        self.target().flush()
        self._current.reset(token)

    def end(self, writer: LineWriter) -> None:
        """Let the last partial lines out.

        What the prediction's leftover threads and tasks write from here on belongs to no prediction.
        """
        if writer in self._active:
            self._active.remove(writer)
        writer.end(then=self._ambient.write)

    def target(self) -> LineWriter:
        """Return the writer of the current context; a thread without one writes for the only running prediction."""
        writer = self._current.get()
        active = self._active
        if writer is not None and writer.whole in active:
            return writer
        if len(active) == 1:
            return active[0]
        return self._ambient

    def flush_ambient(self) -> None:
        """Let out the partial lines of setup."""
        self._ambient.end()


class RoutedStream(io.TextIOBase):
    """A text stream in the place of `sys.stdout` or `sys.stderr`."""

    errors = "backslashreplace"
    line_buffering = True
    mode = "w"

    def __init__(self, router: Router, source: LogSource, fd: int) -> None:
        self._router = router
        self._source = source
        self._fd = fd
        self.buffer = _RoutedBytes(self)

    def target(self) -> LineWriter:
        """The writer of the next write."""
        return self._router.target()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the text."""
        return "utf-8"

    @property
    def name(self) -> str:
        """The name that the interpreter's own stream has."""
        return f"<{self._source}>"

    def write(self, text: Any, /) -> int:
        """Write text to the current target."""
        if not isinstance(text, str):
            msg = f"write() argument must be str, not {type(text).__name__}"
            raise TypeError(msg)
        # A lone surrogate would not pass the border between the processes.
        safe = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
        self._router.target().write(self._source, safe)
        return len(text)

    def flush(self) -> None:
        """Flush the current target."""
        self._router.target().flush()

    def reconfigure(self, **_options: Any) -> None:
        """Nothing can be set here, but a model that asks for what it needs elsewhere does no harm."""

    def fileno(self) -> int:
        """Return the descriptor of the original stream."""
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False."""
        return False


class _RoutedBytes(io.BufferedIOBase):
    """The `.buffer` of a routed stream: invalid UTF-8 becomes the replacement character."""

    def __init__(self, stream: RoutedStream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._target: LineWriter | None = None

    def write(self, data: object, /) -> int:
        """Write bytes to the current target."""
        view = bytes(data)  # type: ignore[call-overload]
        target = self._stream.target()
        if target is not self._target:
            self._decoder.reset()  # half a character is nothing to another prediction
            self._target = target
        self._stream.write(self._decoder.decode(view))
        return len(view)

    def flush(self) -> None:
        """Flush the current target."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor of the original stream."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True
