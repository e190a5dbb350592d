"""A worker's engine on one end of a socket, and on the other whoever sends it calls and keeps its answers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from geartrain.domain.predictions.batching import Batching
from geartrain.domain.predictions.calls import ALL, Canceled, Failed, FileRef, ItemEnd, ItemEvent, Report, Succeeded
from geartrain.domain.predictions.events import Log, Metric, Output
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Tensor, pack, split_bytes, stack, unpack
from geartrain.ipc import messages as m
from geartrain.ipc.framing import FrameReader, frame
from geartrain.ipc.memory import Region
from geartrain.ipc.payload import PayloadReader
from geartrain.worker.arrays import NAMES, numpy_type
from geartrain.worker.calls.call import tools_of_model
from geartrain.worker.channels.cancellation import CancelRegion
from geartrain.worker.channels.channel import Channel
from geartrain.worker.channels.slot import OpenedMemory, Slot
from geartrain.worker.loading.batched_signature import read_batched
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.runtime.async_engine import AsyncEngine
from geartrain.worker.runtime.model_calls import ModelCalls
from geartrain.worker.runtime.sync_engine import SyncEngine
from geartrain.worker.stdio.router import Router
from geartrain.worker.values.call_files import CallFiles, CleanedCallFiles, TemporaryFiles
from geartrain.worker.values.outputs import OutputEncoder

Run = Callable[..., Any]
Read = tuple[Sequence[Parameter], Signature, Batching | None]


def tensor(name: str, array: Any) -> Tensor:
    """A tensor with the numbers of an array."""
    array = np.ascontiguousarray(array)
    return Tensor(name, NAMES[array.dtype.name], array.shape, array.tobytes())


class Item(msgspec.Struct):
    """One request: JSON values, and tensors if it is a packed one."""

    values: dict[str, Any] = {}
    tensors: tuple[Tensor, ...] | None = None
    rows: int = 1
    context: dict[str, str] | None = None
    parameters: dict[str, Any] | None = None

    def message(self, index: int) -> m.CallItem:
        """As the parent writes it."""
        packed = self.tensors is not None
        return m.CallItem(f"item-{index}", self.rows, packed, self.context, self.parameters)


def texts(*values: str) -> list[Item]:
    """A request for each text."""
    return [Item({"texts": value}) for value in values]


def rows(*arrays: Any, name: str = "x") -> list[Item]:
    """A packed request for each array."""
    return [Item(tensors=(tensor(name, array),), rows=len(array)) for array in arrays]


def nested(*arrays: Any, name: str = "x") -> list[Item]:
    """The same as nested lists."""
    return [Item({name: np.asarray(array).tolist()}, rows=len(array)) for array in arrays]


def input_of(items: Sequence[Item]) -> bytes:
    """The input of a call, as the parent writes it."""
    if len(items) > 1:
        json = msgspec.json.encode([item.values for item in items])
        return b"".join(stack(json, [item.tensors for item in items if item.tensors is not None]))
    (item,) = items
    json = msgspec.json.encode(item.values)
    return json if item.tensors is None else b"".join(pack(json, item.tensors))


End = Succeeded | Failed | Canceled


class Answers:
    """What came back of one call, sorted by items; `frames` has all of it in order, and `idle` what each frame said.

    `lasts` are the frames that ended items, or the call, each with whether it was the last. `ways` tells of each output
    of an item whether it came in a "message", in "memory" or in a "file"; `texts` are the outputs as they came.
    """

    def __init__(self, frames: Sequence[m.Reports], number: int, shared: Region | None = None) -> None:
        self.frames = list(frames)
        self.ends: dict[int, End] = {}
        self.outputs: dict[int, Any] = {}
        self.chunks: dict[int, list[Any]] = defaultdict(list)
        self.logs: dict[int, str] = dict.fromkeys(range(number), "")
        self.metrics: dict[int, dict[str, Any]] = {index: {} for index in range(number)}
        self.files: dict[int, list[FileRef]] = defaultdict(list)
        self.ways: dict[int, list[str]] = defaultdict(list)
        self.texts: dict[int, list[bytes]] = defaultdict(list)
        self.lasts = [
            each.idle for each in frames if each.idle or any(isinstance(one, ItemEnd) for one in each.reports)
        ]
        self._reader = PayloadReader(Region.open if shared is None else lambda _: shared)
        self._shared = shared
        for each in frames:
            self._take(each)

    @property
    def reports(self) -> list[Report]:
        """All reports of all frames."""
        return [report for frame in self.frames for report in frame.reports]

    @property
    def errors(self) -> dict[int, str]:
        """Of those that failed."""
        return {item: end.error for item, end in self.ends.items() if isinstance(end, Failed)}

    @property
    def canceled(self) -> set[int]:
        """Those that were canceled."""
        return {item for item, end in self.ends.items() if isinstance(end, Canceled)}

    def _for(self, item: int) -> list[int]:
        return [item] if item != ALL else [each for each in self.logs if each not in self.ends]

    def _take(self, frame: m.Reports) -> None:
        places = dict(frame.shared)
        for index, report in enumerate(frame.reports):
            match report:
                case ItemEvent(item, Output(output, position)):
                    assert item not in self.ends, "nothing comes after the end"
                    assert position == len(self.ways[item])
                    self._keep(report, bytes(output), places.get(index), self.chunks[item].append)
                case ItemEnd(item, Succeeded(bytes() as output)):
                    self._keep(report, output, places.get(index), partial(self.outputs.__setitem__, item))
                case ItemEvent():
                    self._tell(report)
            if isinstance(report, ItemEnd):
                for item in self._for(report.item):
                    assert item not in self.ends, "each item ends once"
                    self.ends[item] = report.outcome
        if self._shared is not None:
            self._shared.free()

    def _keep(self, report: Report, output: bytes, place: m.Handle | None, keep: Callable[[Any], None]) -> None:
        """Keep an output; one in memory that the test has not given stays there."""
        item = report.item
        self.files[item] += [file for file in report.files if not file.is_output]
        whole = [file for file in report.files if file.is_output]
        self.ways[item].append("memory" if place is not None else "file" if whole else "message")
        if place is not None:
            if self._shared is None:
                return
            output = bytes(self._reader.read(place))
        for file in whole:
            assert not output
            output = bytes(self._reader.read(m.InFile(file.filename)))
        self.texts[item].append(output)
        keep(decoded(output))

    def _tell(self, report: ItemEvent) -> None:
        match report:
            case ItemEvent(item, Log(_, data)):
                for each in self._for(item):
                    self.logs[each] += data
            case ItemEvent(item, Metric(name, value, mode)):
                for each in self._for(item):
                    known = self.metrics[each]
                    known[name] = known.get(name, 0) + value if mode == "increment" else value
                    if mode == "delete":
                        del known[name]


def decoded(output: bytes) -> Any:
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
    """One engine for a `run`. `control` has what it said on its control channel."""

    def __init__(self, run: Run, *, temporary: Path | None = None, slots: int = 1, read: Read | None = None) -> None:
        """`read` is what is known of `run`, by default of a batched one."""
        self.read = read or read_batched(run, owner_name="run()", settings={})
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
        self,
        batches: Sequence[Sequence[Item]],
        *,
        shared: Region | None = None,
        inputs: Sequence[m.Payload] | None = None,
        **message: Any,
    ) -> list[Answers]:
        """Have calls run one after the other, each on a slot of its own if there are as many.

        `inputs` are those of each call, where they do not come in its message.
        """
        serials = []
        with self._sockets() as (ours, theirs), self._reader(ours) as read:
            for index, items in enumerate(batches):
                self._serial += 1
                if inputs is not None:
                    message["input"] = inputs[index]
                serials.append(self._serial)
                call = self._message(items, slot=index % self._slots, **message)
                ours[0].sendall(frame(m.encode(call)))
            ours[0].shutdown(socket.SHUT_WR)
            self._serve(*theirs)
        found, self.control = read()
        number = len(batches[0])
        if self._slots > 1 or len(batches) == 1:
            slots = [[each for each in found if each.slot == slot] for slot in range(self._slots)]
            return [Answers(frames, number, shared) for frames in slots]
        return [Answers(frames, number, shared) for frames in _apart(found)]

    def _message(self, items: Sequence[Item], *, slot: int, **message: Any) -> m.Predict:
        listed = tuple(item.message(index) for index, item in enumerate(items))
        given = {"input": m.Inline(input_of(items)), **message}
        return m.Predict(f"batch-{self._serial}", slot, self._serial, listed, **given)

    @contextlib.contextmanager
    def _sockets(self) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
        pairs = [socket.socketpair() for _ in ("calls", "control")]
        with contextlib.ExitStack() as stack:
            for pair in pairs:
                for sock in pair:
                    stack.enter_context(sock)
            yield [ours for ours, _ in pairs], [theirs for _, theirs in pairs]

    @contextlib.contextmanager
    def _reader(self, ours: Sequence[socket.socket]) -> Iterator[Callable[[], list[list[Any]]]]:
        found: list[list[Any]] = [[] for _ in ours]
        decoders: list[Callable[[bytes], Any]] = [m.decode_call_to_parent, m.decode_control_to_parent]

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

    def _files(self) -> CallFiles:
        return CallFiles() if self._temporary is None else CleanedCallFiles(TemporaryFiles(str(self._temporary)))

    def _serve(self, calls: socket.socket, theirs: socket.socket) -> None:
        control = Channel(theirs)
        region = CancelRegion()
        channel = Channel(calls, shield=region.shield)
        parameters, signature, batching = self.read
        encoder = OutputEncoder(signature.output)
        tools = tools_of_model(parameters, signature, batching, encoder=encoder, router=self._router, control=control)
        memory = OpenedMemory()
        slots = [Slot(channel, self._files(), memory) for _ in range(self._slots)]
        models = ModelCalls(channel, Path)
        try:
            if inspect.iscoroutinefunction(self._run) or inspect.isasyncgenfunction(self._run):
                loop = asyncio.new_event_loop()
                self.engine = AsyncEngine(self._run, slots, control, models=models, loop=loop)
                self.engine.serve(tools, lambda: None)
                loop.close()
            else:
                region.install()  # for good: a signal that comes late must find a handler
                streams = signature.output.mode != "value"
                self.engine = SyncEngine(self._run, slots[0], region, models=models, streams=streams)
                self.engine.serve(tools, lambda: None)
        finally:
            memory.close()  # as a worker does by ending
            for sock in (calls, theirs):
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


def _apart(frames: Sequence[m.Reports]) -> list[list[m.Reports]]:
    """The answers to calls that followed each other."""
    calls: list[list[m.Reports]] = [[]]
    for each in frames:
        calls[-1].append(each)
        if each.idle:
            calls.append([])
    return calls[:-1]
