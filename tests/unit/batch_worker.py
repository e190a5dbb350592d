"""A worker's engine on one end of a socket, and on the other whoever sends it batches and keeps its answers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from geartrain.bridge import messages as m
from geartrain.bridge.arena import Arena
from geartrain.bridge.framing import FrameReader, frame
from geartrain.domain.tensors import Buffer, Tensor, split_bytes, stack, unpack
from geartrain.worker.arguments import ArgumentBinder
from geartrain.worker.arrays import NAMES, numpy_type
from geartrain.worker.async_engine import AsyncEngine
from geartrain.worker.batch import BatchTools
from geartrain.worker.batched_signature import read_batched
from geartrain.worker.cancellation import CancelRegion
from geartrain.worker.channel import Channel
from geartrain.worker.job import JobTools
from geartrain.worker.originals import TemporaryFiles
from geartrain.worker.outputs import OutputEncoder
from geartrain.worker.streams import Router
from geartrain.worker.sync_engine import SyncEngine

Run = Callable[..., Any]


def tensor(name: str, array: Any) -> Tensor:
    """A tensor with the numbers of an array."""
    array = np.ascontiguousarray(array)
    return Tensor(name, NAMES[array.dtype.name], array.shape, array.tobytes())


class Item(msgspec.Struct):
    """One request: JSON values, and tensors if it is a packed one."""

    values: dict[str, Any] = {}
    tensors: tuple[Tensor, ...] | None = None
    size: int = 1
    context: dict[str, str] | None = None
    parameters: dict[str, Any] | None = None

    def message(self, index: int) -> m.BatchItem:
        """As the parent writes it."""
        packed = self.tensors is not None
        return m.BatchItem(f"item-{index}", self.size, packed, self.context, self.parameters)


def texts(*values: str) -> list[Item]:
    """A request for each text."""
    return [Item({"texts": value}) for value in values]


def rows(*arrays: Any, name: str = "x") -> list[Item]:
    """A packed request for each array."""
    return [Item(tensors=(tensor(name, array),), size=len(array)) for array in arrays]


def nested(*arrays: Any, name: str = "x") -> list[Item]:
    """The same as nested lists."""
    return [Item({name: np.asarray(array).tolist()}, size=len(array)) for array in arrays]


def packed_input(items: Sequence[Item]) -> bytes:
    """The input of a batch."""
    json = msgspec.json.encode([item.values for item in items])
    return b"".join(stack(json, [item.tensors for item in items if item.tensors is not None]))


class Answers:
    """What came back, sorted by items; `frames` has all of it in order."""

    def __init__(self, frames: Sequence[Any], number: int, shared: Arena | None = None) -> None:
        self.frames = list(frames)
        self.ends: dict[int, m.ItemEnd] = {}
        self.outputs: dict[int, Any] = {}
        self.chunks: dict[int, list[Any]] = defaultdict(list)
        self.logs: dict[int, str] = dict.fromkeys(range(number), "")
        self.metrics: dict[int, dict[str, Any]] = {index: {} for index in range(number)}
        self.files: dict[int, list[m.FileOutput]] = defaultdict(list)
        self.lasts = [each.last for each in frames if isinstance(each, m.Ended)]
        self._waiting: list[m.FileOutput] = []
        for each in frames:
            self._take(each, shared)

    @property
    def errors(self) -> dict[int, str]:
        """Of those that failed."""
        return {item: end.error for item, end in self.ends.items() if end.error is not None}

    @property
    def canceled(self) -> set[int]:
        """Those that were canceled."""
        return {item for item, end in self.ends.items() if end.canceled}

    def _for(self, item: int) -> list[int]:
        return [item] if item != m.ALL else [each for each in self.logs if each not in self.ends]

    def _take(self, message: Any, shared: Arena | None) -> None:
        match message:
            case m.Log(_, data, item):
                for each in self._for(item):
                    self.logs[each] += data
            case m.Metric(name, value, mode, item):
                for each in self._for(item):
                    known = self.metrics[each]
                    known[name] = known.get(name, 0) + value if mode == "increment" else value
                    if mode == "delete":
                        del known[name]
            case m.FileOutput():
                self._waiting.append(message)
            case m.Output(output, size, item):
                assert item not in self.ends
                self.files[item] += self._waiting
                self._waiting = []
                self.chunks[item].append(decoded(shared.take(size) if shared is not None and size else output))
            case m.Ended():
                self._end(message, shared)

    def _end(self, message: m.Ended, shared: Arena | None) -> None:
        size = sum(end.shared for end in message.ends)
        memory = shared.take(size) if shared is not None and size else b""
        assert not self._waiting or len(message.ends) == 1
        for end in message.ends:
            assert end.item not in self.ends, "each item ends once"
            self.ends[end.item] = end
            self.files[end.item] += self._waiting
            self._waiting = []
            output: Buffer | None = end.output
            if end.shared:
                output, memory = memory[: end.shared], memory[end.shared :]
            elif output == b"" and any(file.kind == "oversized" for file in self.files[end.item]):
                output = Path(self.files[end.item][-1].filename).read_bytes()
            if output is not None:
                self.outputs[end.item] = decoded(output)


def decoded(output: Buffer) -> Any:
    """The value of JSON; of a packed piece that, with arrays by name."""
    try:
        return msgspec.json.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError):
        json, tensors = unpack(output)
        return {**msgspec.json.decode(json), **{each.name: _array(each) for each in tensors}}


def _array(each: Tensor) -> Any:
    """An array; a list of the elements of BYTES."""
    if each.datatype == "BYTES":
        return split_bytes(each.name, each.data)
    return np.frombuffer(each.data, numpy_type(each.datatype)).reshape(each.shape)


class Worker:
    """One engine for a batched `run`. `control` has what it said on its control channel."""

    def __init__(self, run: Run, *, temporary: Path | None = None, slots: int = 1) -> None:
        self.read = read_batched(run, owner_name="run()", settings={})
        self.control: list[Any] = []
        self.engine: Any = None
        self._run = run
        self._slots = slots
        self._temporary = temporary
        self._serial = 0
        self._router = Router(lambda *_: None)

    def ask(self, items: Sequence[Item], **message: Any) -> Answers:
        """Have one batch run to its end."""
        return self.ask_all([items], **message)[0]

    def ask_all(
        self, batches: Sequence[Sequence[Item]], *, shared: Arena | None = None, **message: Any
    ) -> list[Answers]:
        """Have batches run one after the other, each on a slot of its own if there are as many."""
        serials = []
        with self._sockets() as (ours, theirs), self._reader(ours) as read:
            for index, items in enumerate(batches):
                self._serial += 1
                serials.append(self._serial)
                ours[index % self._slots].sendall(frame(m.encode(self._message(items, **message))))
            for sock in ours[: self._slots]:
                sock.shutdown(socket.SHUT_WR)
            self._serve(theirs)
        found = read()
        self.control = found.pop()
        number = len(batches[0])
        if self._slots > 1 or len(batches) == 1:
            return [Answers(frames, number, shared) for frames in found]
        return [Answers(frames, number, shared) for frames in _apart(found[0])]

    def _message(self, items: Sequence[Item], **message: Any) -> m.PredictBatch:
        listed = tuple(item.message(index) for index, item in enumerate(items))
        given = {"input": packed_input(items), **message}
        return m.PredictBatch(f"batch-{self._serial}", self._serial, listed, **given)

    @contextlib.contextmanager
    def _sockets(self) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
        pairs = [socket.socketpair() for _ in range(self._slots + 1)]  # the last one is the control channel
        with contextlib.ExitStack() as stack:
            for pair in pairs:
                for sock in pair:
                    stack.enter_context(sock)
            yield [ours for ours, _ in pairs], [theirs for _, theirs in pairs]

    @contextlib.contextmanager
    def _reader(self, ours: Sequence[socket.socket]) -> Iterator[Callable[[], list[list[Any]]]]:
        found: list[list[Any]] = [[] for _ in ours]
        decoders = [m.decode_slot_to_parent] * self._slots + [m.decode_control_to_parent]

        def read(index: int) -> None:
            reader = FrameReader()
            while data := ours[index].recv(1 << 20):
                found[index] += map(decoders[index], reader.feed(data))

        threads = [threading.Thread(target=read, args=(index,)) for index in range(len(ours))]
        for thread in threads:
            thread.start()
        try:
            yield lambda: found
        finally:
            for thread in threads:
                thread.join()

    def _serve(self, theirs: Sequence[socket.socket]) -> None:
        control = Channel(theirs[-1])
        region = CancelRegion()
        channels = [Channel(sock, shield=region.shield) for sock in theirs[:-1]]
        parameters, signature, batching = self.read
        tools = JobTools(
            ArgumentBinder(parameters),
            OutputEncoder(signature.output),
            self._router,
            control=control,
            temporary=None if self._temporary is None else TemporaryFiles(str(self._temporary)),
            batch=BatchTools(parameters, signature, batching),
        )
        try:
            if inspect.iscoroutinefunction(self._run) or inspect.isasyncgenfunction(self._run):
                loop = asyncio.new_event_loop()
                self.engine = AsyncEngine(self._run, channels, control, loop=loop)
                self.engine.serve(tools, lambda: None)
                loop.close()
            else:
                region.install()  # for good: a signal that comes late must find a handler
                streams = signature.output.mode != "value"
                self.engine = SyncEngine(self._run, channels[0], region, streams=streams)
                self.engine.serve(tools, lambda: None)
        finally:
            for channel in channels:
                tools.memory_of(channel).close()  # as a worker does by ending
            for sock in theirs:
                sock.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def models_loaded() -> Iterator[None]:
    """Take back what the loading of models leaves in this process."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules.pop("run", None)


def _apart(frames: Sequence[Any]) -> list[list[Any]]:
    """The answers to batches that followed each other."""
    batches: list[list[Any]] = [[]]
    for each in frames:
        batches[-1].append(each)
        if isinstance(each, m.Ended) and each.last:
            batches.append([])
    return batches[:-1]
