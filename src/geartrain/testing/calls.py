"""A worker's call whose reports stay in the test's process."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TextIO

from geartrain.domain.predictions.calls import Failed, ItemEnd, ItemEvent, Report
from geartrain.domain.predictions.events import Log, LogSource
from geartrain.ipc.messages import Message, Predict, Reports, WorkerLog
from geartrain.worker.calls.batch_codec import BatchCodec, BatchInvocation
from geartrain.worker.calls.call import Call, CallTools
from geartrain.worker.channels.cancellation import Shield
from geartrain.worker.channels.channel import Channel
from geartrain.worker.channels.slot import Slot
from geartrain.worker.stdio.router import Router


class Prints:
    """Printed text of a run: kept as its logs, and passed on to the test's own output."""

    def __init__(self, home: Callable[[], AbstractContextManager[None]]) -> None:
        """`home` enters the model's folder."""
        self._home = home
        self.router = Router(self.write)
        self.logs: list[str] = []
        self.echoes = True
        self._streams: dict[LogSource, TextIO] = {}

    def write(self, source: LogSource, text: str) -> None:
        """Take what the model has written."""
        self.logs.append(text)
        if self.echoes:
            self._streams.get(source, sys.__stderr__ or sys.stderr).write(text)

    @contextlib.contextmanager
    def routed(self) -> Iterator[None]:
        """Take what the author's code prints in a `with` block, in the model's folder.

        The streams are left as they were, as pytest has set them.
        """
        before = sys.stdout, sys.stderr
        self._streams = {"stdout": before[0], "stderr": before[1]}
        self.router.install()
        try:
            with self._home():
                yield
        finally:
            sys.stdout, sys.stderr = before


class LocalChannel(Channel):
    """A channel without a parent: it keeps the reports that a test looks at."""

    def __init__(self, prints: Prints, shield: Shield) -> None:  # no socket, so nothing of the base class
        self.shield = shield
        self._prints = prints
        self.failures: dict[int, str] = {}

    def send(self, message: Message) -> None:
        """Take a message."""
        match message:
            case Reports(_, _, reports):
                self._take(reports)
            case WorkerLog(_, "warning", text):
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            case _:
                pass

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Keep tracebacks in the logs alone: the test gets the exception."""
        self._prints.echoes = False
        try:
            yield
        finally:
            self._prints.echoes = True

    def warn(self, text: str) -> None:
        """Take a warning of the worker's."""
        self.send(WorkerLog("geartrain.worker", "warning", text))

    def send_soon(self, message: Reports) -> None:
        """Take reports."""
        self._take(message.reports)

    def _take(self, reports: tuple[Report, ...]) -> None:
        for report in reports:
            match report:
                case ItemEvent(_, Log(source, text)):
                    self._prints.write(source, text)
                case ItemEnd(item, Failed(error)):
                    self.failures[item] = error
                case _:
                    pass


class LocalCall(Call):
    """A call that remembers what its `run()` has given, for each of its items, and what it has raised.

    `values` has what was returned and `chunks` what was yielded, by the index of an item. `error` was raised for all of
    them, `raised` for single ones; `failures` are the words that their clients would get.
    """

    def __init__(self, message: Predict, slot: Slot, tools: CallTools, *, channel: LocalChannel) -> None:
        super().__init__(message, slot, tools)
        self.chunks: dict[int, list[Any]] = {item: [] for item in range(len(message.items))}
        self.values: dict[int, Any] = {}
        self.error: BaseException | None = None
        self.raised: dict[int, BaseException] = {}
        self.is_canceled = False
        self.is_stream = False
        self._rows = [item.rows for item in message.items]
        codec = tools.of_one if len(message.items) == 1 else tools.of_several
        self._codec = codec if isinstance(codec, BatchCodec) else None
        self._channel = channel

    @property
    def failures(self) -> dict[int, str]:
        """The items that have failed, and why."""
        return self._channel.failures

    def keep(self, value: Any, items: tuple[int, ...]) -> None:
        """Remember the value that an invocation for these items has returned and that is no fault."""
        self.values.update(self._parts(value, items))

    def keep_chunk(self, value: Any, items: tuple[int, ...]) -> None:
        """Remember a value that an invocation for these items has yielded."""
        for item, part in self._parts(value, items).items():
            if self._codec is None or not self._codec.splitter.is_nothing(part):
                self.chunks[item].append(part)

    def fail(self, error: BaseException) -> None:
        """Remember what was raised, and go on as any call does."""
        self.error = error
        with self._channel.silenced():
            super().fail(error)

    def cancelled(self) -> None:
        """Remember that it was canceled."""
        self.is_canceled = True
        super().cancelled()

    def _drop(self, failures: Mapping[int, BaseException]) -> None:
        self.raised.update(failures)
        with self._channel.silenced():
            super()._drop(failures)

    def _parts(self, value: Any, items: tuple[int, ...]) -> dict[int, Any]:
        """The part of each item, of what `run()` has given for all of them."""
        if self._codec is None:
            return {items[0]: value}
        if value is None:
            return {}
        sizes = [self._rows[item] for item in items]
        size = self._codec.binder.padded(sum(sizes))
        parts = dict(zip(items, self._codec.splitter.split(value, sizes, size), strict=True))
        invocation = self._invocation
        return invocation.cut(parts) if isinstance(invocation, BatchInvocation) else parts
