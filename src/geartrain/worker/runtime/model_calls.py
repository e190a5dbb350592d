"""Calls of other models by the author's code, over the connection of the calls of this worker.

An event loop that serves the connection passes answers on. In a sync worker the thread that waits for an answer reads
the connection itself: no other thread has to be woken. Of several threads one reads, and passes on what is for others.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from geartrain.authoring.nested import ModelError, PendingCall, Record, Transport
from geartrain.authoring.scope import current_scope
from geartrain.domain.predictions.calls import ALL
from geartrain.domain.tensors.tensor import Buffer, Tensor, pack, unpack
from geartrain.ipc.memory import WORTHWHILE, OtherRegions
from geartrain.ipc.messages import (
    CallToWorker,
    Handle,
    Inline,
    ModelAnswer,
    ModelCall,
    ModelCallEnd,
    ModelRunEnd,
    Payload,
    Predict,
    decode_call,
)
from geartrain.ipc.payload import PayloadReader, PayloadWriter
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.mapped import MAPPED_FROM, MappedAnswers, Run
from geartrain.worker.values.output_files import FileCollector, is_file
from geartrain.worker.values.outputs import NO_MORE, Walk, to_json

if TYPE_CHECKING:
    import asyncio

    from geartrain.worker.channels.channel import Channel
    from geartrain.worker.channels.slot import Slot

_decode: Final = msgspec.json.Decoder().decode
_NOBODY: Final = 0  # reads the connection
_ENGINE: Final = -1  # reads the connection, between two calls
_SETUP: Final = (-1, 0, ALL)  # the place of a call in `setup()`: slot, serial number, item
_OVER: Final = "The prediction that called it is over."
_OUTSIDE: Final = "other models are called from setup() and run(), not from a thread that outlives them"


class ModelCalls(Transport):
    """The calls of other models of one worker: the transport of `geartrain.authoring.nested`."""

    def __init__(self, channel: Channel, new_file: Callable[[], Path]) -> None:
        """`new_file` gives the path of a file that does not exist yet, for an input that fits no message."""
        self.current: Predict | None = None  # the call of a sync worker
        self.slots: Sequence[Slot] = ()  # once the worker serves
        self.loop: asyncio.AbstractEventLoop | None = None  # that serves the connection
        self.in_setup = True
        self.others: deque[CallToWorker] = deque()  # read here, and meant for the engine
        self._channel = channel
        self._writer = PayloadWriter(tuple, new_file)
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Call] = {}
        self._thread = get_ident()  # that of the runs, or of their loop
        self._others = OtherRegions()
        self.answers = MappedAnswers()
        self._shared: set[Run] = set()  # runs that have had an answer in shared memory, which the server holds
        self._changed = threading.Condition()
        self._reader = _NOBODY  # the thread that reads the connection
        self._waiting = 0  # threads of an async worker

    # the transport

    def begin(self, model: str, version: str, inputs: dict[str, Any]) -> _Call:
        """Begin a call. Raises `TypeError` for an input that cannot be sent."""
        slot, serial, item = self._place()
        payload, packed, passed = self._payload(inputs, slot)
        number = next(self._numbers)
        call = self._pending[number] = _Call(self, number, (slot, serial))
        self._let_go()
        self._channel.send(ModelCall(number, slot, serial, item, model, version, payload, packed, passed))
        return call

    def is_async(self) -> bool:
        """True if the caller runs on an event loop."""
        asyncio = sys.modules.get("asyncio")
        return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - the other one raises

    def _place(self) -> tuple[int, int, int]:
        """Return slot, serial number and item of the call in which the caller runs."""
        if self.in_setup:
            return _SETUP
        place = current_scope().place or self.current
        if place is None:
            raise RuntimeError(_OUTSIDE)
        return place.slot, place.serial, 0 if len(place.items) == 1 else ALL

    def _payload(self, inputs: dict[str, Any], slot: int) -> tuple[Payload, bool, Handle | None]:
        """Return inputs as they travel, whether they are packed, and the place of a tensor that is only passed on."""
        rest: dict[str, Any] = {}
        tensors: list[Tensor] = []
        for name, value in inputs.items():
            tensor = _tensor_of(name, value)
            if tensor is None:
                rest[name] = value
            else:
                tensors.append(tensor)
        try:
            json = to_json(Walk({}, _LocalFiles()).convert(rest)) if rest else NO_MORE
        except OutputError as error:
            raise TypeError(f"an input of a model {error}") from None
        parts = pack(json, tensors) if tensors else [json]
        size = sum(map(len, parts))
        if size <= WORTHWHILE:
            return Inline(b"".join(parts)), bool(tensors), None
        if len(tensors) == 1 and len(tensors[0].data) >= MAPPED_FROM:
            passed = self.answers.place_of_contents(tensors[0].data)
            if passed is not None:
                return Inline(bytes(parts[0])), True, passed
        # The memory of a slot has one writer: the thread of its run. Other threads send the bytes, or a file.
        is_own = get_ident() == self._thread and 0 <= slot < len(self.slots)
        writer = self.slots[slot].writer if is_own else self._writer
        with self._channel.shield:
            payload = writer.place(parts, may_share=bool(tensors))
            return payload or writer.to_file(parts), bool(tensors), None

    # answers

    def on_answer(self, answer: ModelAnswer) -> None:
        """Pass a part of an answer to the call that waits for it."""
        call = self._pending.get(answer.number)
        if type(answer.output) is Handle:
            if call is None or call.is_late:  # it has ended while it was being canceled
                self._channel.send(ModelCallEnd(answer.number))
                answer = ModelAnswer(answer.number, error=_OVER, code="run_canceled")
            else:
                self._shared.add(call.run)
        if call is None:
            return
        if answer.mode or answer.error:
            del self._pending[answer.number]
        call.add(answer)
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def wait(self, call: _Call, seen: int) -> None:
        """Block until something has come for a call since it had `seen` news, or for another one."""
        if self.loop is not None and not self.in_setup:
            self._wait_for_loop(call, seen)
            return
        me = get_ident()
        with self._changed:
            if call.news != seen:  # another thread has read it meanwhile
                return
            if self._reader not in (_NOBODY, me):
                self._changed.wait_for(lambda: call.news != seen or self._reader == _NOBODY)
                return
            self._reader = me
        try:
            self._channel.wait()
            with self._channel.shield, self._changed:
                if self._reader == me:
                    self._read()
        finally:
            with self._changed:
                if self._reader == me:
                    self._reader = _NOBODY
                self._changed.notify_all()

    def _wait_for_loop(self, call: _Call, seen: int) -> None:
        """Block a thread of an async worker, whose loop reads the connection."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: call.news != seen)
            finally:
                self._waiting -= 1

    def _read(self) -> None:
        payloads = self._channel.receive_ready()
        if payloads is None:
            raise SystemExit("the server is gone")
        for payload in payloads:
            message = decode_call(payload)
            if type(message) is ModelAnswer:
                self.on_answer(message)
            else:
                self.others.append(message)

    def begin_run(self, message: Predict) -> None:
        """Note the call of a sync worker that runs from now on."""
        self.current = message
        if self._reader == _ENGINE:
            self._reader = _NOBODY

    def end_run(self) -> None:
        """Note that the engine of a sync worker reads the connection from now on."""
        message, self.current = self.current, None
        if message is not None and (self._shared or self._pending):
            self.let_go_of_run((message.slot, message.serial))
        if self._pending:
            with self._changed:
                self._reader = _ENGINE

    def let_go_of_run(self, run: Run) -> None:
        """Give back the answers in shared memory to calls that a run has made: it is over."""
        if not (self._shared or self._pending):
            return
        late = [call for call in list(self._pending.values()) if call.run == run]
        if run not in self._shared and not late:
            return
        for call in late:
            call.is_late = True
        self._shared.discard(run)
        kept = self.answers.end_run(run)
        self._let_go()
        self._channel.send(ModelRunEnd(*run, kept))

    def _let_go(self) -> None:
        """Tell the server which answers are no longer read."""
        for number in self.answers.take_over():
            self._channel.send(ModelCallEnd(number))

    def end(self, number: int, *, is_over: bool) -> None:
        """Tell the server that an answer is no longer needed."""
        if not is_over:
            self._pending.pop(number, None)
            with self._changed:  # a thread may wait for it
                self._changed.notify_all()
        self._channel.send(ModelCallEnd(number))

    # values

    def value_of(self, answer: ModelAnswer, run: Run) -> Any:
        """Return an output as Python has it, of a call that `run` has made."""
        payload = answer.output
        if payload is None:
            return None
        if answer.may_stay and type(payload) is Handle:
            mapped = self.answers.map(answer.number, payload, run)
            if mapped is not None:
                return _unpacked(mapped, answer, is_own=True)
        data = self._others.view(payload) if type(payload) is Handle else _reader.read(payload)
        try:
            return _unpacked(data, answer) if answer.packed else _python(_decode(data), answer.files)
        finally:
            if type(payload) is Handle:
                del data
                self.end(answer.number, is_over=True)


class _Call(PendingCall):
    """A call that has begun: `PendingCall` of `geartrain.authoring.nested`."""

    __slots__ = ("_calls", "_end", "_number", "_parts", "_waiter", "is_late", "news", "run")

    def __init__(self, calls: ModelCalls, number: int, run: Run) -> None:
        self.run = run  # the one that has made it
        self.is_late = False  # that is over
        self._calls = calls
        self.news = 0  # number of parts and ends so far; read before them, and changed after them
        self._number = number
        self._parts: deque[ModelAnswer] = deque()
        self._end: ModelAnswer | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_news(self) -> bool:
        """True if there is an output to take, or the end."""
        return bool(self._parts) or self._end is not None

    def add(self, answer: ModelAnswer) -> None:
        """Take a part of the answer."""
        if answer.mode or answer.error:
            self._end = answer
        else:
            self._parts.append(answer)
        self.news += 1
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def result(self) -> Any:
        """See `PendingCall`."""
        while True:
            seen = self.news
            if self._end is not None:
                return self._whole(self._end)
            self._calls.wait(self, seen)

    async def wait(self) -> Any:
        """See `PendingCall`."""
        try:
            while True:
                seen = self.news
                if self._end is not None:
                    break
                await self._next_part(seen)
        except BaseException:
            self.cancel()
            raise
        return self._whole(self._end)

    def next(self) -> Any:
        """See `PendingCall`."""
        while True:
            seen = self.news
            if self.has_news:
                break
            self._calls.wait(self, seen)
        if not self._parts:
            self._check_end(StopIteration)
        return self._calls.value_of(self._parts.popleft(), self.run)

    async def anext(self) -> Any:
        """See `PendingCall`."""
        while True:
            seen = self.news
            if self.has_news:
                break
            await self._next_part(seen)
        if not self._parts:
            self._check_end(StopAsyncIteration)
        return self._calls.value_of(self._parts.popleft(), self.run)

    def cancel(self) -> None:
        """See `PendingCall`."""
        if self._end is None:
            self._end = ModelAnswer(self._number, error="The prediction was canceled.", code="run_canceled")
            self.news += 1
            self._calls.end(self._number, is_over=False)

    async def _next_part(self, seen: int) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        if loop is not self._calls.loop:  # nothing passes answers on to this one
            await loop.run_in_executor(None, self._calls.wait, self, seen)
            return
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check_end(self, over: type[StopIteration | StopAsyncIteration]) -> None:
        """Raise the end of a stream. The one output of a model that streams nothing comes before it."""
        end = self._end
        if end is None:
            return
        if end.error:
            raise ModelError(end.model, end.code, end.error)
        if end.mode == "value" and end.output is not None:
            self._end = msgspec.structs.replace(end, output=None)
            self._parts.append(end)
            return
        raise over

    def _whole(self, end: ModelAnswer) -> Any:
        if end.error:
            raise ModelError(end.model, end.code, end.error)
        if end.mode == "value":
            return self._calls.value_of(end, self.run)
        chunks = [self._calls.value_of(part, self.run) for part in self._parts]
        self._parts.clear()
        return "".join(chunks) if end.mode == "concatenate" else chunks


class _LocalFiles(FileCollector):
    """Files among inputs: the other model reads them where they lie."""

    def __init__(self) -> None:
        super().__init__(Path, lambda _: ())

    def add(self, value: Any) -> str:
        """Return the path of a file. Raises `OutputError`."""
        name = value if isinstance(value, (str, Path)) else getattr(value, "name", value)
        try:
            path = Path(name).absolute()
        except TypeError:
            path = None
        if path is None or not path.is_file():
            raise OutputError(f"is {value!r}, and there is no such file on disk")
        if not isinstance(value, Path) and hasattr(value, "flush") and not getattr(value, "closed", False):
            value.flush()
        return str(path)


def _tensor_of(name: str, value: Any) -> Tensor | None:
    """Return the tensor of an array of numpy or torch; None for any other value."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.shape:  # the common case: 5 µs less
        return cast("Tensor", _arrays().any_tensor(name, value))
    if type(value) in (str, int, float, bool, list, dict) or not hasattr(value, "dtype") or is_file(value):
        return None
    if not hasattr(value, "shape") or not hasattr(value, "ndim") or not value.shape:
        return None
    return cast("Tensor", _arrays().any_tensor(name, value))


@cache
def _arrays() -> Any:
    """Load the module of arrays, with numpy, which an array of either library comes with."""
    from geartrain.worker import arrays

    return arrays


def _unpacked(data: Buffer, answer: ModelAnswer, *, is_own: bool = False) -> Any:
    """Return the arrays of a packed output, in a record if it is one; `is_own`: its memory is the author's."""
    array_from = _arrays().array_from
    json, tensors = unpack(data)
    values = {tensor.name: array_from(tensor, is_own=is_own) for tensor in tensors}
    if not answer.record:
        return next(iter(values.values()), None)
    return Record(values if json == NO_MORE else {**_python(_decode(json), answer.files), **values})


def _python(value: Any, files: Sequence[str]) -> Any:
    """Return a decoded output with paths for files, and records for objects."""
    if files:
        value = _with_paths(value, frozenset(files))
    return Record(value) if type(value) is dict else value


def _with_paths(value: Any, files: frozenset[str]) -> Any:
    if type(value) is str:
        return Path(value) if value in files else value
    if type(value) is list:
        return [_with_paths(each, files) for each in value]
    if type(value) is dict:
        return {name: _with_paths(each, files) for name, each in value.items()}
    return value


def _no_region(path: str) -> Any:
    msg = f"there is no memory {path}"
    raise OSError(msg)


_reader: Final = PayloadReader(_no_region)
