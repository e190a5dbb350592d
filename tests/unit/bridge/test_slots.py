"""The parent's end of a slot: what goes down to the worker, what comes up of it, and what a listener hears."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from geartrain.bridge.channels import CallSocket
from geartrain.bridge.payloads import LONG_TEXT, WorkerFolder, parts_of
from geartrain.bridge.slots import SLOT_STEPS, TO_SLOT_STATE, SlotChannel, SlotState
from geartrain.domain.predictions.calls import (
    ALL,
    CallInput,
    Canceled,
    Failed,
    FileRef,
    ItemEnd,
    ItemEvent,
    ItemInput,
    ModelCallPort,
    Report,
    Succeeded,
)
from geartrain.domain.predictions.events import Log, Metric, Output
from geartrain.domain.state_machine import IllegalStepError
from geartrain.domain.tensors.tensor import Tensor, join_bytes, unpack
from geartrain.ipc import messages as m
from geartrain.ipc.framing import INLINE_LIMIT, FrameReader, frame
from geartrain.ipc.memory import WORTHWHILE, Region
from geartrain.ipc.payload import PayloadReader, PayloadWriter


class Listener:
    """Writes down what it hears; raises instead if it is broken."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.heard: list[Any] = []
        self._is_broken = is_broken

    def _hear(self, *what: object) -> None:
        self.heard.append(what)
        if self._is_broken:
            msg = "a listener's own fault"
            raise RuntimeError(msg)

    def on_begin(self) -> None:
        self._hear("begin")

    def on_unstarted(self) -> None:
        self._hear("unstarted")

    def on_event(self, report: ItemEvent) -> None:
        match report:
            case ItemEvent(item, Output(chunk), files):
                self._hear("output", item, chunk, files)
            case ItemEvent(item, Log(_, data)):
                self._hear("log", item, data)
            case ItemEvent(item, Metric(name, value)):
                self._hear("metric", item, name, value)

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        self._hear("end", list(ends), idle)

    def on_idle(self) -> None:
        self._hear("idle")

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)


class Slot:
    """A slot of two that share a socket pair, whose other end is a worker that a test plays."""

    def __init__(self, channel: SlotChannel, calls: CallSocket, peer: socket.socket, *, number: int) -> None:
        self.channel = channel
        self.number = number
        self.calls = calls
        self._peer = peer

    def run(
        self, listener: Listener, *items: ItemInput, prefetch: bool = False, single_client: bool = True
    ) -> asyncio.Task[None] | None:
        call_id = items[0].id if len(items) == 1 else "batch-1"
        return self.channel.run(CallInput(call_id, items, prefetch, single_client), listener, alone=False)

    def is_in(self, state: SlotState) -> bool:
        return self.channel.state is state

    def sent(self) -> m.Predict:
        """The next message that the worker gets, which came by itself."""
        (message,) = self.all_sent()
        return message

    def all_sent(self) -> list[m.Predict]:
        """The next messages that the worker gets, which came together."""
        self._peer.settimeout(40)
        reader = FrameReader()
        frames: list[bytes] = []
        while not frames or reader.pending:
            frames += reader.feed(self._peer.recv(2**20))
        messages = [m.decode_call(payload) for payload in frames]
        return [message for message in messages if isinstance(message, m.Predict)]

    @property
    def has_sent(self) -> bool:
        """Whether the worker has something to read."""
        self._peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return bool(self._peer.recv(1, socket.MSG_PEEK))
        return False

    def receive_rest(self) -> bytes:
        """What is left for the worker to read; returns when this end is closed."""
        self._peer.settimeout(40)
        return self._peer.recv(2**20)

    def report(self, *reports: Report, serial: int = 1, idle: bool = False) -> None:
        self.calls.data_received(self.frame(*reports, serial=serial, idle=idle))

    def frame(
        self,
        *reports: Report,
        serial: int = 1,
        idle: bool = False,
        shared: tuple[tuple[int, m.Handle], ...] = (),
    ) -> bytes:
        return frame(m.encode(m.Reports(self.number, serial, reports, idle, shared)))


@pytest.fixture
async def drains() -> list[None]:
    """Has an item for each time that the worker's descriptors were read."""
    return []


@pytest.fixture
async def slots(drains: list[None]) -> AsyncIterator[tuple[Slot, Slot]]:
    folder = WorkerFolder()
    ours, theirs = socket.socketpair()

    def fail(reason: str) -> None:
        for channel in channels:
            channel.fail(reason)

    calls = CallSocket(ours, drain=lambda: drains.append(None), on_garbage=fail, on_model_call=lambda _: None)
    channels = [SlotChannel(number, calls, folder, has_others=True, shares_memory=True) for number in range(2)]
    await calls.open()
    with theirs:
        one, other = [Slot(channel, calls, theirs, number=number) for number, channel in enumerate(channels)]
        yield one, other
        for channel in channels:
            channel.close()
        await calls.wait_lost(10)
    folder.close(now=True)


@pytest.fixture
async def slot(slots: tuple[Slot, Slot]) -> Slot:
    return slots[0]


def item(name: str = "pred_1", text: bytes = b"{}", *tensors: Tensor) -> ItemInput:
    return ItemInput(name, text, tensors[0].shape[0] if tensors else 1, tensors=tensors or None)


def tensor(name: str, first: int, *shape: int) -> Tensor:
    size = 1
    for each in shape:
        size *= each
    return Tensor(name, "UINT8", shape, bytes((first + index) % 256 for index in range(size)))


# down


async def test_a_call_of_one_item_has_its_input_as_it_is(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, item(text=b'{"n":1}'))
    message = slot.sent()
    assert (message.id, message.serial, message.input) == ("pred_1", 1, m.Inline(b'{"n":1}'))
    assert [(each.id, each.rows, each.packed) for each in message.items] == [("pred_1", 1, False)]
    assert not message.regions
    assert listener.heard == [("begin",)]


def test_tensors_of_one_name_are_laid_behind_each_other() -> None:
    one = item("1", b'{"a":1}', tensor("x", 0, 2, 3), tensor("y", 50, 2))
    two = item("2", b"{}", tensor("y", 80, 1), tensor("x", 6, 1, 3))  # in any order
    values, tensors = unpack(b"".join(parts_of(CallInput("batch-1", (one, two)))))
    assert json.loads(values) == [{"a": 1}, {}]
    assert [(each.name, each.shape) for each in tensors] == [("x", (3, 3)), ("y", (3,))]
    assert bytes(tensors[0].data) == bytes(range(9))
    assert bytes(tensors[1].data) == bytes([50, 51, 80])


def test_texts_are_laid_behind_each_other_too() -> None:
    items = [item(text, b"{}", Tensor("t", "BYTES", (1,), join_bytes([text.encode()]))) for text in ("a", "bc")]
    _, (texts,) = unpack(b"".join(parts_of(CallInput("batch-1", tuple(items)))))
    assert texts.shape == (2,)
    assert bytes(texts.data) == join_bytes([b"a", b"bc"])


async def test_items_of_json_have_no_part_in_the_tensors(slot: Slot) -> None:
    slot.run(Listener(), item("1", b"{}", tensor("x", 0, 1, 2)), item("2", b'{"x":[[7,8]]}'))
    message = slot.sent()
    assert isinstance(message.input, m.Inline)
    values, (only,) = unpack(message.input.data)
    assert json.loads(values) == [{}, {"x": [[7, 8]]}]
    assert only.shape == (1, 2)
    assert [(each.id, each.rows, each.packed) for each in message.items] == [("1", 1, True), ("2", 1, False)]


async def test_large_tensors_travel_in_memory_call_after_call(slot: Slot) -> None:
    for serial in (1, 2):
        items = [item(str(index), b"{}", tensor("x", index + serial, 1, WORTHWHILE)) for index in range(3)]
        slot.run(Listener(), *items)
        message = slot.sent()
        assert isinstance(message.input, m.Handle)
        region = Region.open(message.input.path)
        raw = region.view(message.input.size)
        _, (whole,) = unpack(raw)
        assert bytes(whole.data) == b"".join(bytes(each.tensors[0].data) for each in items if each.tensors)
        del whole, raw
        region.close()
        slot.report(ItemEnd(0, Canceled()), ItemEnd(1, Canceled()), ItemEnd(2, Canceled()), serial=serial, idle=True)


async def test_a_long_text_travels_in_memory(slot: Slot) -> None:
    text = b'"' + b"x" * LONG_TEXT + b'"'
    slot.run(Listener(), item(text=text))
    message = slot.sent()
    assert isinstance(message.input, m.Handle)
    region = Region.open(message.input.path)
    assert bytes(PayloadReader(lambda _: region).read(message.input)) == text
    region.close()


async def test_the_largest_inputs_travel_in_a_file_where_no_memory_is_shared(slot: Slot) -> None:
    slot.channel.memory.is_possible = False
    listener = Listener()
    task = slot.run(listener, item(text=b'"' + b"x" * INLINE_LIMIT + b'"'))
    assert task is not None
    assert (slot.channel.state, listener.heard) == (SlotState.LOADING, [])
    await task
    message = slot.sent()
    assert isinstance(message.input, m.InFile)
    assert os.stat(message.input.path).st_size == INLINE_LIMIT + 2  # noqa: PTH116 - of a moment
    assert (slot.channel.state, listener.heard) == (SlotState.RUNNING, [("begin",)])


async def test_an_input_that_cannot_be_written_fails_its_call_and_frees_the_slot(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PayloadWriter, "to_file", no_space)
    slot.channel.memory.is_possible = False
    listener = Listener()
    task = slot.run(listener, item(text=b'"' + b"x" * INLINE_LIMIT + b'"'))
    assert task is not None
    await task
    ((what, ends, idle),) = listener.heard
    assert (what, ends[0].item, idle) == ("end", ALL, True)
    assert "the input could not be handed to the worker: [Errno 28]" in ends[0].outcome.error
    assert slot.is_in(SlotState.FREE)


async def test_a_call_that_cannot_be_encoded_leaves_the_slot_free(slot: Slot) -> None:
    listener = Listener()
    wrong: Any = {"no": object()}
    with pytest.raises(TypeError):
        slot.run(listener, ItemInput("pred_1", b"{}", context=wrong))
    assert slot.is_in(SlotState.FREE)
    assert listener.heard == []
    slot.run(listener, item("pred_2"))
    assert slot.is_in(SlotState.RUNNING)
    with pytest.raises(TypeError):
        slot.run(listener, ItemInput("pred_3", b"{}", context=wrong), prefetch=True)
    slot.report(ItemEnd(0, Succeeded(b"1", 0.1)), serial=2, idle=True)
    assert slot.is_in(SlotState.FREE)


async def test_a_worker_that_dies_before_the_input_is_written_has_not_begun(slot: Slot) -> None:
    slot.channel.memory.is_possible = False
    listener = Listener()
    task = slot.run(listener, item(text=b'"' + b"x" * INLINE_LIMIT + b'"'))
    assert task is not None
    slot.channel.fail("gone")
    await task
    assert listener.heard == [("unstarted",)]


# up


async def test_reports_reach_the_item_that_they_are_of(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, item("1"), item("2"), item("3"))
    slot.report(
        ItemEvent(ALL, Log("stdout", "to all\n")),
        ItemEvent(1, Log("stderr", "to one\n")),
        ItemEvent(2, Output(b'"chunk"', 0)),
        ItemEvent(ALL, Metric("steps", 3, "replace")),
        ItemEvent(0, Metric("tokens", 5, "replace")),
    )
    assert listener.heard == [
        ("begin",),
        ("log", ALL, "to all\n"),
        ("log", 1, "to one\n"),
        ("output", 2, b'"chunk"', ()),
        ("metric", ALL, "steps", 3),
        ("metric", 0, "tokens", 5),
    ]


async def test_items_end_in_any_number_of_frames_and_the_slot_is_free_when_one_says_so(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, item("1"), item("2"), item("3"))
    slot.report(ItemEnd(1, Failed("ValueError: no")))
    assert slot.is_in(SlotState.RUNNING)
    slot.report(ItemEnd(0, Succeeded(b"7", 0.5)), ItemEnd(2, Canceled()))
    assert slot.is_in(SlotState.RUNNING), "its run goes on"
    slot.report(idle=True)
    assert slot.is_in(SlotState.FREE)
    assert listener.heard[1:] == [
        ("end", [ItemEnd(1, Failed("ValueError: no"))], False),
        ("end", [ItemEnd(0, Succeeded(b"7", 0.5)), ItemEnd(2, Canceled())], False),
        ("end", [], True),
    ]


async def test_files_come_with_their_outputs(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, item("1"), item("2"))
    slot.report(
        ItemEnd(0, Succeeded(b'"t2"', 0.5), (FileRef("t2", "/none/b", "text/plain"),)),
        ItemEnd(1, Succeeded(b'"t1"', 0.5), (FileRef("t1", "/none/a", "text/plain"),)),
        idle=True,
    )
    ((_, ends, _),) = listener.heard[1:]
    assert [(end.item, [file.token for file in end.files]) for end in ends] == [(0, ["t2"]), (1, ["t1"])]


async def test_outputs_in_memory_are_told_apart_and_the_memory_is_free_again(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, *[item(str(index), b"{}", tensor("x", 0, 1, 1)) for index in range(3)])
    region = Region.open(slot.sent().regions[0])
    writer = PayloadWriter(lambda: [region], Path)
    pieces = [b"a" * WORTHWHILE, b"b" * 10]
    first, second = writer.share([[piece] for piece in pieces])
    assert first is not None
    assert second is not None
    ends = [ItemEnd(index, Succeeded(output, 0.5)) for index, output in enumerate((b"", b"inline", b""))]
    slot.calls.data_received(slot.frame(*ends, idle=True, shared=((0, first), (2, second))))
    outputs = [pieces[0], b"inline", pieces[1]]
    assert listener.heard[1:] == [
        ("end", [ItemEnd(index, Succeeded(output, 0.5)) for index, output in enumerate(outputs)], True)
    ]
    assert region.is_free()
    region.close()


async def test_a_late_word_of_another_call_changes_nothing(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, item())
    slot.report(ItemEnd(0, Succeeded(b"7", 0.5)), serial=7, idle=True)
    assert listener.heard == [("begin",)]
    assert slot.is_in(SlotState.RUNNING)


async def test_nonsense_fails_the_call_and_closes_the_slot(slot: Slot, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    slot.run(listener, item())
    slot.calls.data_received(frame(b"nonsense"))
    assert listener.heard[1:] == [("end", [ItemEnd(ALL, Failed("the worker's report could not be read"))], False)]
    assert slot.is_in(SlotState.CLOSED)
    assert "no message" in caplog.text


# together


async def test_calls_that_meet_in_a_turn_of_the_loop_travel_together(slots: tuple[Slot, Slot]) -> None:
    one, other = slots
    one.run(Listener(), item("1"), single_client=False)
    other.run(Listener(), item("2"), single_client=False)
    assert not one.has_sent
    await asyncio.sleep(0)
    assert [(message.slot, message.id) for message in one.all_sent()] == [(0, "1"), (1, "2")]


async def test_the_call_of_a_single_client_does_not_wait_for_others(slot: Slot) -> None:
    slot.run(Listener(), item("1"))
    assert slot.has_sent


async def test_reports_that_come_together_reach_the_slots_that_they_are_of(
    slots: tuple[Slot, Slot], drains: list[None]
) -> None:
    heard = []
    for each in slots:
        listener = Listener()
        each.run(listener, item())
        heard.append(listener.heard)
    ends = [each.frame(ItemEnd(0, Succeeded(b"%d" % each.number, 0.5)), idle=True) for each in slots]
    slots[0].calls.data_received(b"".join(reversed(ends)))
    for number in range(2):
        assert heard[number] == [("begin",), ("end", [ItemEnd(0, Succeeded(b"%d" % number, 0.5))], True)]
    assert len(drains) == 1, "what was written to the descriptors before both is read once"


async def test_what_is_written_before_each_end_is_read(slots: tuple[Slot, Slot], drains: list[None]) -> None:
    for count, each in enumerate(slots, start=1):
        each.run(Listener(), item())
        each.report(ItemEnd(0, Succeeded(b"1", 0.5)), idle=True)
        assert len(drains) == count


async def test_the_connection_is_closed_with_the_last_slot(slots: tuple[Slot, Slot]) -> None:
    one, other = slots
    listener = Listener()
    one.run(listener, item())
    for each in slots:
        each.channel.shut_down()
    assert other.is_in(SlotState.CLOSED)
    one.report(ItemEnd(0, Succeeded(b"1", 0.5)), idle=True)
    assert [what for what, *_ in listener.heard] == ["begin", "end"]
    assert one.is_in(SlotState.CLOSED)
    one.sent()
    assert await asyncio.to_thread(one.receive_rest) == b""


async def test_nonsense_fails_the_calls_of_all_slots(slots: tuple[Slot, Slot]) -> None:
    listeners = [Listener(), Listener()]
    for each, listener in zip(slots, listeners, strict=True):
        each.run(listener, item())
    slots[0].calls.data_received(frame(m.encode(m.Reports(2, 1, ()))))  # there is no such slot
    for each, listener in zip(slots, listeners, strict=True):
        assert [what for what, *_ in listener.heard] == ["begin", "end"]
        assert each.is_in(SlotState.CLOSED)


# one behind the other


class Ordered(Listener):
    """Writes what it hears into an order that it shares with others."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__()
        self._name = name
        self._order = order

    def _hear(self, *what: object) -> None:
        self._order.append(f"{self._name} {what[0]}")


def _call_of(slot: Slot) -> str:
    return "" if slot.channel.call is None else slot.channel.call.call_id


async def test_a_prefetched_call_begins_before_anybody_hears_of_the_end_of_the_last_one(slot: Slot) -> None:
    order: list[str] = []
    slot.run(Ordered("first", order), item("1"))
    slot.run(Ordered("second", order), item("2"), prefetch=True)
    assert _call_of(slot) == "1"
    slot.report(ItemEnd(0, Succeeded(b"1", 0.5)), idle=True)
    assert _call_of(slot) == "2"
    slot.report(ItemEnd(0, Succeeded(b"2", 0.5)), serial=2, idle=True)
    assert order == ["first begin", "second begin", "first end", "second end"]
    assert slot.is_in(SlotState.FREE)


async def test_a_prefetched_call_whose_worker_dies_has_not_begun(slot: Slot) -> None:
    first, second = Listener(), Listener()
    slot.run(first, item("1"))
    slot.run(second, item("2"), prefetch=True)
    slot.channel.fail("Worker crashed: gone")
    assert first.heard[1:] == [("end", [ItemEnd(ALL, Failed("Worker crashed: gone"))], False)]
    assert second.heard == [("unstarted",)]


async def test_several_prefetched_calls_begin_one_after_the_other(slot: Slot) -> None:
    listeners = [Listener() for _ in range(4)]
    slot.run(listeners[0], item("1"))
    for number, listener in enumerate(listeners[1:], 2):
        slot.run(listener, item(f"{number}"), prefetch=True)
    for number, listener in enumerate(listeners, 1):
        assert _call_of(slot) == f"{number}"
        assert [bool(each.heard) for each in listeners] == [place < number for place in range(4)]
        slot.report(ItemEnd(0, Succeeded(b"1", 0.5)), serial=number, idle=True)
        assert [what for what, *_ in listener.heard] == ["begin", "end"]
    assert slot.is_in(SlotState.FREE)


async def test_prefetched_calls_of_one_turn_are_written_together_behind_the_first(slot: Slot) -> None:
    slot.run(Listener(), item("1"))
    assert slot.sent().id == "1"
    for number in range(2, 6):
        slot.run(Listener(), item(f"{number}"), prefetch=True)
    assert slot.sent().id == "2"
    assert not slot.has_sent
    await asyncio.sleep(0)
    assert [message.id for message in slot.all_sent()] == ["3", "4", "5"]


async def test_several_prefetched_calls_whose_worker_dies_go_back_the_last_one_first(slot: Slot) -> None:
    order: list[str] = []
    for name in "1234":
        slot.run(Ordered(name, order), item(name), prefetch=name != "1")
    slot.channel.fail("Worker crashed: gone")
    assert order == ["1 begin", "1 end", "4 unstarted", "3 unstarted", "2 unstarted"]


async def test_a_call_that_is_ended_from_outside_keeps_its_slot_until_the_worker_is_idle(slot: Slot) -> None:
    listener = Listener()
    slot.run(listener, item())
    slot.channel.detach(Canceled())
    slot.report(ItemEnd(0, Succeeded(b"7", 0.5)))
    assert slot.is_in(SlotState.DETACHED)
    slot.channel.on_idle()
    assert slot.is_in(SlotState.FREE)
    assert listener.heard[1:] == [("end", [ItemEnd(ALL, Canceled())], False), ("idle",)]


# what a listener raises


async def test_what_a_listener_raises_reaches_neither_the_slot_nor_anybody_else(
    slot: Slot, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    broken, good = Listener(is_broken=True), Listener()
    slot.run(broken, item("1"), item("2"))
    slot.run(good, item("3"), prefetch=True)
    slot.report(
        ItemEvent(ALL, Log("stdout", "a\n")),
        ItemEvent(0, Metric("n", 1, "replace")),
        ItemEvent(0, Output(b"1", 0)),
        ItemEnd(0, Succeeded(b"1", 0.5)),
        ItemEnd(1, Succeeded(b"2", 0.5)),
        idle=True,
    )
    assert [what for what, *_ in broken.heard] == ["begin", "log", "metric", "output", "end"]
    slot.report(ItemEnd(0, Succeeded(b"3", 0.5)), serial=2, idle=True)
    assert [what for what, *_ in good.heard] == ["begin", "end"]
    assert slot.is_in(SlotState.FREE)
    assert len([record for record in caplog.records if "listener of a call has failed" in record.message]) == 5


# the table


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(SlotState, SlotState)))
def test_steps_of_a_slot(current: SlotState, wanted: SlotState) -> None:
    if wanted in SLOT_STEPS[current]:
        assert TO_SLOT_STATE[wanted](current) is wanted
    else:
        with pytest.raises(IllegalStepError, match=f"a slot cannot go from {current} to {wanted}"):
            TO_SLOT_STATE[wanted](current)
