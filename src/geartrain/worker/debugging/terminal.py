"""The terminal of the person who has started the command. The parent lends it to this process while a debugger asks."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import os
import pdb
import queue
import signal
import sys
import threading
from bdb import BdbQuit
from collections import deque
from collections.abc import Callable, Iterable
from threading import get_ident
from types import FrameType
from typing import Any, Final, TextIO

from geartrain.ipc.messages import (
    ControlToParent,
    TerminalLent,
    TerminalRefused,
    TerminalReturned,
    TerminalWanted,
)
from geartrain.worker.channels import forks
from geartrain.worker.channels.cancellation import Shield
from geartrain.worker.debugging.no_terminal import NoTerminalError

_LOOK: Final = 0.1  # seconds until who waits for the terminal looks whether its run has been canceled
_NOBODY: Final = 0  # no thread
_MOST: Final = 1000  # texts of a debugger that wait for the next prompt


class Terminal:
    """Borrows the terminal for one thread at a time.

    Meanwhile the descriptors 0 and 1 are the terminal, as `input()` and readline need it, and so are `sys.stdin` and
    `sys.stdout`. SIGINT, which the parent passes on, ends what the debugger stands in: it raises `BdbQuit`.
    """

    def __init__(self, descriptor: int, send: Callable[[ControlToParent], None], shield: Shield) -> None:
        self._descriptor = descriptor
        self._send = send
        self._shield = shield
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[str]] = {}
        self._turn = threading.Lock()  # held by the thread that has the terminal
        self._owner = _NOBODY
        self._number = 0
        self._depth = 0
        self._streams = _Streams(descriptor)
        self._is_interruptible = False

    # a debugger

    def borrow(self) -> None:
        """Wait for the terminal and take it; nothing happens if this thread has it. Raises `NoTerminalError`."""
        if self._owner == get_ident():
            return
        if forks.in_fork:
            raise NoTerminalError("a debugger works in the model's own process, and this one is a forked copy of it")
        with self._shield:
            self._turn.acquire()
            number = next(self._numbers)
            reason = self._ask(number)
            if reason or self._shield.pending:
                self._send(TerminalReturned(number))
                self._turn.release()
            else:
                self._take(number)
        if reason:
            raise NoTerminalError(reason)

    def give_back(self) -> None:
        """Give the terminal back; nothing happens if this thread does not have it."""
        if self._owner != get_ident():
            return
        self._is_interruptible = False
        with self._shield:
            self._streams.restore()
            with contextlib.suppress(ValueError):  # not on the main thread
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._owner = _NOBODY
            self._depth = 0
            self._turn.release()
            self._send(TerminalReturned(self._number))

    def __enter__(self) -> None:
        """Have the terminal inside the block, which may be nested."""
        self.borrow()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """Give it back at the end of the outermost block."""
        self._depth -= 1
        if not self._depth:
            self.give_back()

    # the control thread

    def on_answer(self, message: TerminalLent | TerminalRefused) -> None:
        """Pass the parent's answer on to the thread that waits for it."""
        waiting = self._answers.pop(message.number, None)
        if waiting is not None:
            waiting.put(message.reason if isinstance(message, TerminalRefused) else "")

    # inside

    def _ask(self, number: int) -> str:
        """Wait for the terminal, or for the cancel of the run; return why it cannot be had, empty if it can."""
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers[number] = answers
        self._send(TerminalWanted(number))
        while not self._shield.pending:
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=_LOOK)
        self._answers.pop(number, None)
        return ""

    def _take(self, number: int) -> None:
        self._owner = get_ident()
        self._number = number
        self._streams.show(self._owner)
        with contextlib.suppress(ValueError):  # not on the main thread: `q` has to do
            signal.signal(signal.SIGINT, self._on_interrupt)
        self._is_interruptible = True

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_interruptible:
            os.write(self._descriptor, b"\n")  # the next output stands below the prompt
            raise BdbQuit


class _Streams:
    """Puts the terminal in the place of the standard streams, and takes it away again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept: list[int] = []  # the original descriptors 0 and 1
        self._before: tuple[TextIO, TextIO] = (sys.stdin, sys.stdout)
        self._stdin: list[TextIO] = []  # made for the first prompt
        self._stdout = _Output()

    def show(self, thread: int) -> None:
        """Show the terminal to a thread."""
        self._kept = [os.dup(number) for number in (0, 1)]
        for number in (0, 1):
            os.dup2(self._descriptor, number)
        if not self._stdin:
            self._stdin.append(open(0, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115 - for good
        self._before = (sys.stdin, sys.stdout)
        self._stdout.begin(thread, sys.stdout)
        sys.stdin, sys.stdout = self._stdin[0], self._stdout

    def restore(self) -> None:
        """Put back what was there before."""
        self._stdout.end()
        sys.stdin, sys.stdout = self._before
        for number, kept in enumerate(self._kept):
            os.dup2(kept, number)
            os.close(kept)
        self._kept = []


class _Output(io.TextIOBase):
    """The terminal as `sys.stdout` of the thread that has it. What other threads print goes where it always goes.

    What a debugger writes between two prompts waits for the next one.
    """

    errors = "backslashreplace"
    mode = "w"
    name = "<terminal>"

    def __init__(self) -> None:
        self._thread = _NOBODY
        self._others: TextIO = sys.stdout
        self._waiting: deque[str] = deque(maxlen=_MOST)
        self._file = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - for good

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the text."""
        return "utf-8"

    @property
    def buffer(self) -> Any:
        """The bytes of the terminal, for libraries that draw on it, in threads of their own."""
        return self._file.buffer

    def begin(self, thread: int, others: TextIO) -> None:
        """The terminal is there, for a thread; `others` is what all other threads print to."""
        self._thread, self._others = thread, others
        while self._waiting:
            self.write(self._waiting.popleft())

    def end(self) -> None:
        """The terminal is about to go."""
        self._file.flush()
        self._thread = _NOBODY

    def write(self, text: str, /) -> int:
        """Write text to the terminal."""
        if self._thread == get_ident():
            self._file.write(text)
            self._file.flush()
        elif self._thread == _NOBODY:
            self._waiting.append(text)
        else:
            self._others.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        """Write lines to the terminal."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: each write is complete."""
        self._file.flush()

    def fileno(self) -> int:
        """The descriptor 1, which `input()` compares."""
        return 1

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """True if the terminal is there."""
        return self._thread != _NOBODY


_NOT_THE_AUTHORS: Final = frozenset({"geartrain.*", "asyncio.*"})  # modules that are not stepped into
_RESUMED: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _debugger_at(terminal: Terminal) -> type[pdb.Pdb]:
    class Debugger(pdb.Pdb):
        """In the place of `pdb.Pdb`, also for debuggers that inherit from it, such as ipdb."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.skip = {*(self.skip or ()), *_NOT_THE_AUTHORS}
            self._asking: FrameType | None = None  # until the prompt has been shown there

        def set_trace(self, frame: FrameType | None = None, *arguments: Any, **options: Any) -> None:
            frame = frame or sys._getframe().f_back  # noqa: SLF001 - as pdb does
            while frame is not None and _module(frame).startswith(__package__):
                frame = frame.f_back  # from our `breakpoint()` to who has called it
            self._asking = frame
            super().set_trace(frame, *arguments, **options)

        def stop_here(self, frame: FrameType) -> bool:
            # A finalizer may run before the next line: `q` would end it, and not the run.
            return self._asking in (None, frame) and super().stop_here(frame)

        def interaction(self, *arguments: Any, **options: Any) -> None:
            self._asking = None
            with terminal:
                self.stdin, self.stdout = sys.stdin, sys.stdout
                super().interaction(*arguments, **options)

        def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
            trace = super().dispatch_return(frame, arg)
            if _ends_call(frame):
                self.set_continue()  # the steps end with the run; breakpoints stay
            return trace

    return Debugger


def ask_at(terminal: Terminal) -> None:
    """Have `breakpoint()` and `pdb.set_trace()` ask at the terminal. Other debuggers by `PYTHONBREAKPOINT`."""

    def breakpoint_(*arguments: Any, **options: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT") == "0":
            return None
        terminal.borrow()  # some debuggers look for it when they are made
        try:
            return sys.__breakpointhook__(*arguments, **options)
        finally:
            if sys.gettrace() is None:  # no debugger is at a prompt, or one has been
                terminal.give_back()

    setattr(pdb, "Pdb", _debugger_at(terminal))  # noqa: B010 - mypy takes an assignment for a redefinition
    sys.breakpointhook = breakpoint_


def _ends_call(frame: FrameType) -> bool:
    """True if the author's code goes back to ours with the return of a frame, for good."""
    caller = frame.f_back
    if caller is None or frame.f_code.co_flags & _RESUMED:
        return False
    return _module(caller).startswith("geartrain.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
