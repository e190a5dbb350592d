"""Inputs that a worker reads where the server has received them, and how long they stay there."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from geartrain.bridge.channels import CallSocket
from geartrain.bridge.payloads import SlotFiles, SlotMemory, WorkerFolder
from geartrain.bridge.slots import SlotChannel
from geartrain.domain.predictions.calls import (
    CallInput,
    Canceled,
    ItemEnd,
    ItemEvent,
    ItemInput,
    ModelCallPort,
    Succeeded,
)
from geartrain.domain.tensors.tensor import Tensor, pack, unpack
from geartrain.ipc import messages as m
from geartrain.ipc.framing import FrameReader, frame
from geartrain.ipc.memory import BodyMemory, Region
from geartrain.ipc.payload import PayloadWriter

SIZE = 100_000
JSON = 100  # bytes in front of it


class Listener:
    """Has no use for the reports of a call."""

    def on_begin(self) -> None: ...

    on_unstarted = on_idle = on_begin

    def on_event(self, report: ItemEvent) -> None: ...

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None: ...

    def on_model_call(self, call: ModelCallPort) -> None: ...


class Worker:
    """A slot with a worker that a test plays."""

    def __init__(self, *, shares_memory: bool) -> None:
        self.folder = WorkerFolder()
        ours, self._theirs = socket.socketpair()
        self.calls = CallSocket(ours, drain=lambda: None, on_garbage=self._fail, on_model_call=lambda _: None)
        self.slot = SlotChannel(0, self.calls, self.folder, has_others=False, shares_memory=shares_memory)

    def run(self, *items: ItemInput, prefetch: bool = False) -> m.Payload:
        """Run a call, and return where its input is."""
        self.slot.run(CallInput("call", items, prefetch), Listener(), alone=False)
        self._theirs.settimeout(40)
        reader = FrameReader()
        frames: list[bytes] = []
        while not frames or reader.pending:
            frames += reader.feed(self._theirs.recv(2**20))
        message = m.decode_call(frames[-1])
        assert isinstance(message, m.Predict)
        return message.input

    def end(self, serial: int) -> None:
        """Report the end of a call."""
        done = ItemEnd(0, Succeeded(b"1", 0.1))
        self.calls.data_received(frame(m.encode(m.Reports(0, serial, (done,), idle=True))))

    def _fail(self, reason: str) -> None:
        self.slot.fail(reason)

    async def close(self) -> None:
        self.slot.close()
        await self.calls.wait_lost(10)
        self._theirs.close()
        self.folder.close(now=True)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Each test closes the memory that it opens: others count what their process has open."""
    before = open_memory()
    yield
    assert open_memory() <= before  # what other tests have left may go meanwhile


def open_memory() -> int:
    gc.collect()
    return sum("memfd:" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


@pytest.fixture
def memory(_closed: None) -> Iterator[BodyMemory]:
    memory = BodyMemory()
    yield memory
    memory.close()


@pytest.fixture
async def worker(_closed: None) -> AsyncIterator[Worker]:
    worker = Worker(shares_memory=True)
    await worker.calls.open()
    yield worker
    await worker.close()


def item(memory: BodyMemory, byte: bytes = b"x") -> ItemInput:
    view = memory.take(JSON + SIZE, JSON)
    assert view is not None
    view[JSON:] = byte * SIZE
    return ItemInput("pred_1", b"{}", tensors=(Tensor("x", "UINT8", (SIZE,), view[JSON:]),))


def is_lent(memory: BodyMemory) -> bool:
    memory.tidy()
    return bool(memory._lent)


def contents(payload: m.Payload) -> bytes:
    assert isinstance(payload, m.Handle)
    region = Region.open(payload.path)
    try:
        _, (tensor,) = unpack(region.view(payload.offset + payload.size)[payload.offset :])
        return bytes(tensor.data)
    finally:
        del tensor
        region.close()


async def test_it_is_read_where_it_lies_until_the_call_is_over(worker: Worker, memory: BodyMemory) -> None:
    payload = worker.run(item(memory))
    assert contents(payload) == b"x" * SIZE
    assert is_lent(memory)
    worker.end(1)
    assert not is_lent(memory)


async def test_it_stays_while_the_worker_is_busy_with_a_call_that_was_canceled(
    worker: Worker, memory: BodyMemory
) -> None:
    payload = worker.run(item(memory))
    worker.slot.detach(Canceled())
    other = item(memory, b"y")
    assert contents(payload) == b"x" * SIZE
    assert is_lent(memory)
    del other
    worker.slot.on_idle()
    assert not is_lent(memory)


async def test_that_of_a_prefetched_call_stays_until_its_own_end(worker: Worker, memory: BodyMemory) -> None:
    first = worker.run(item(memory, b"x"))
    second = worker.run(item(memory, b"y"), prefetch=True)
    assert (contents(first), contents(second)) == (b"x" * SIZE, b"y" * SIZE)
    worker.end(1)
    assert len(memory._lent) == 2
    memory.tidy()
    assert len(memory._lent) == 1
    assert contents(second) == b"y" * SIZE
    worker.end(2)
    assert not is_lent(memory)


async def test_a_worker_that_dies_leaves_it(worker: Worker, memory: BodyMemory) -> None:
    worker.run(item(memory))
    worker.slot.fail("it is dead")
    assert not is_lent(memory)


async def test_a_worker_that_cannot_open_it_gets_a_copy(memory: BodyMemory) -> None:
    worker = Worker(shares_memory=False)
    await worker.calls.open()
    payload = worker.run(item(memory))
    assert isinstance(payload, m.Inline)
    assert bytes(unpack(payload.data)[1][0].data) == b"x" * SIZE
    assert not is_lent(memory)
    await worker.close()


async def test_several_tensors_and_several_items_are_copied(worker: Worker, memory: BodyMemory) -> None:
    one, other = item(memory), item(memory, b"y")
    assert place_of(worker.run(one, other)) == worker.slot.memory.inputs()[0].path
    worker.end(1)
    tensors = one.tensors or ()
    payload = worker.run(ItemInput("pred_2", b"{}", tensors=(*tensors, Tensor("z", "UINT8", (1,), b"z"))))
    assert place_of(payload) == worker.slot.memory.inputs()[0].path


def place_of(payload: m.Payload) -> str:
    assert isinstance(payload, m.Handle)
    return payload.path


async def test_two_workers_with_different_inputs_do_not_share_what_stands_in_front(memory: BodyMemory) -> None:
    """As two steps of a pipeline that take the same tensor, each by a name of its own."""
    workers = [Worker(shares_memory=True) for _ in range(3)]
    for worker in workers:
        await worker.calls.open()
    first = item(memory)
    (tensor,) = first.tensors or ()
    renamed = ItemInput("pred_2", b"{}", tensors=(Tensor("another_name", "UINT8", (SIZE,), tensor.data),))
    same = ItemInput("pred_3", b"{}", tensors=(tensor,))
    payloads = [worker.run(each) for worker, each in zip(workers, (first, renamed, same), strict=True)]
    assert [name_and_contents(each) for each in payloads] == [
        ("x", b"x" * SIZE),
        ("another_name", b"x" * SIZE),
        ("x", b"x" * SIZE),
    ]
    assert place_of(payloads[0]) == place_of(payloads[2]) != place_of(payloads[1])
    del first, tensor, renamed, same
    for worker in workers:
        worker.end(1)
    assert not is_lent(memory)
    for worker in workers:
        await worker.close()


def name_and_contents(payload: m.Payload) -> tuple[str, bytes]:
    assert isinstance(payload, m.Handle)
    region = Region.open(payload.path)
    try:
        _, (tensor,) = unpack(region.view(payload.offset + payload.size)[payload.offset :])
        return tensor.name, bytes(tensor.data)
    finally:
        del tensor
        region.close()


# inputs that the worker of another model has left


def left_by_a_worker(files: SlotFiles, memory: SlotMemory, *tensors: Tensor) -> list[Tensor]:
    """Leave a packed input in memory as a worker does; return its tensors as the server reads them."""
    memory.inputs()
    regions = [Region.open(path) for path in memory.paths]
    writer = PayloadWriter(lambda: regions, lambda: pytest.fail("it fits into memory"))
    place = writer.place(pack(b"{}", tensors), may_share=True)
    assert isinstance(place, m.Handle)
    for region in regions:
        region.close()
    return unpack(files.read_input(place))[1]


@pytest.fixture
def slot_memory(_closed: None) -> Iterator[SlotMemory]:
    memory = SlotMemory(is_possible=True)
    yield memory
    memory.close()


@pytest.fixture
def files(slot_memory: SlotMemory) -> Iterator[SlotFiles]:
    folder = WorkerFolder()
    yield SlotFiles(0, folder, slot_memory)
    folder.close(now=True)


async def test_the_input_of_a_nested_call_is_read_where_its_caller_left_it(
    worker: Worker, files: SlotFiles, slot_memory: SlotMemory
) -> None:
    (tensor,) = left_by_a_worker(files, slot_memory, Tensor("x", "UINT8", (SIZE,), b"x" * SIZE))
    payload = worker.run(ItemInput("pred_1", b"{}", tensors=(tensor,)))
    assert place_of(payload) in slot_memory.paths
    slot_memory.close()  # its caller has died; the worker may be about to open it
    assert contents(payload) == b"x" * SIZE
    del tensor
    worker.end(1)


async def test_only_the_first_of_several_is_read_there(
    worker: Worker, files: SlotFiles, slot_memory: SlotMemory
) -> None:
    tensors = left_by_a_worker(
        files, slot_memory, Tensor("a", "UINT8", (SIZE,), b"a" * SIZE), Tensor("b", "UINT8", (SIZE,), b"b" * SIZE)
    )
    payload = worker.run(ItemInput("pred_1", b"{}", tensors=(tensors[1],)))
    assert place_of(payload) == worker.slot.memory.inputs()[0].path
    assert contents(payload) == b"b" * SIZE
    worker.end(1)
    payload = worker.run(ItemInput("pred_2", b"{}", tensors=(tensors[0],)))
    assert place_of(payload) in slot_memory.paths
    assert (contents(payload), bytes(tensors[1].data)) == (b"a" * SIZE, b"b" * SIZE)
    del tensors
    worker.end(2)


async def test_an_input_that_leaves_no_room_for_a_longer_head_is_copied(
    worker: Worker, files: SlotFiles, slot_memory: SlotMemory
) -> None:
    (tensor,) = left_by_a_worker(files, slot_memory, Tensor("x", "UINT8", (SIZE,), b"x" * SIZE))
    payload = worker.run(ItemInput("pred_1", b'{"text": "%b"}' % (b"t" * 500), tensors=(tensor,)))
    assert place_of(payload) == worker.slot.memory.inputs()[0].path
    assert contents(payload) == b"x" * SIZE
    del tensor
    worker.end(1)
