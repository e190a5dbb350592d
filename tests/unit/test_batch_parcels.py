"""Batches as they travel: what goes down to the worker in one piece, and what comes up of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.bridge import messages as m
from geartrain.bridge.arena import WORTHWHILE
from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.framing import INLINE_LIMIT, frame
from geartrain.bridge.parcels import Parcels, message_of, parts_of, spilled_message_of
from geartrain.bridge.slots import SlotChannel
from geartrain.domain.tensors import Tensor, join_bytes, unpack
from geartrain.domain.work import BatchJob, Canceled, Failed, ItemOutcome, Job, Succeeded
from geartrain.worker.parcels import SharedMemory


def batch(*jobs: Job) -> BatchJob:
    sizes = tuple(job.tensors[0].shape[0] if job.tensors else 1 for job in jobs)
    return BatchJob("batch-1", jobs, sizes)


def tensor(name: str, first: int, *shape: int) -> Tensor:
    size = 1
    for each in shape:
        size *= each
    return Tensor(name, "UINT8", shape, bytes((first + index) % 256 for index in range(size)))


def test_tensors_of_one_name_are_laid_behind_each_other() -> None:
    one = Job("1", b'{"a":1}', tensors=(tensor("x", 0, 2, 3), tensor("y", 50, 2)))
    two = Job("2", b"{}", tensors=(tensor("y", 80, 1), tensor("x", 6, 1, 3)))  # in any order
    values, tensors = unpack(b"".join(parts_of(batch(one, two))))
    assert json.loads(values) == [{"a": 1}, {}]
    assert [(each.name, each.shape) for each in tensors] == [("x", (3, 3)), ("y", (3,))]
    assert bytes(tensors[0].data) == bytes(range(9))
    assert bytes(tensors[1].data) == bytes([50, 51, 80])


def test_texts_are_laid_behind_each_other_too() -> None:
    jobs = [
        Job(text, b"{}", tensors=(Tensor("t", "BYTES", (1,), join_bytes([text.encode()])),)) for text in ("a", "bc")
    ]
    _, (texts,) = unpack(b"".join(parts_of(batch(*jobs))))
    assert texts.shape == (2,)
    assert bytes(texts.data) == join_bytes([b"a", b"bc"])


def test_jobs_of_json_have_no_part_in_the_tensors() -> None:
    packed = Job("1", b"{}", tensors=(tensor("x", 0, 1, 2),))
    plain = Job("2", b'{"x":[[7,8]]}')
    message = message_of(batch(packed, plain), 5, Parcels(), outputs="/out")
    assert isinstance(message, m.PredictBatch)
    assert message.input is not None
    values, (only,) = unpack(message.input)
    assert json.loads(values) == [{}, {"x": [[7, 8]]}]
    assert only.shape == (1, 2)
    assert [(item.id, item.size, item.packed) for item in message.items] == [("1", 1, True), ("2", 1, False)]
    assert (message.id, message.serial) == ("batch-1", 5)


@pytest.fixture
def parcels() -> Iterator[Parcels]:
    parcels = Parcels()
    parcels.is_possible = True
    yield parcels
    parcels.close()


def test_large_batches_travel_in_memory(parcels: Parcels) -> None:
    jobs = [Job(str(index), b"{}", tensors=(tensor("x", index, 1, WORTHWHILE),)) for index in range(3)]
    message = message_of(batch(*jobs), 1, parcels, outputs="/out")
    assert isinstance(message, m.PredictBatch)
    assert (message.input, message.input_file) == (None, None)
    assert message.memory is not None
    shared = SharedMemory()
    _, (whole,) = unpack(shared.view(message.memory))
    assert bytes(whole.data) == b"".join(bytes(job.tensors[0].data) for job in jobs if job.tensors)
    del whole
    shared.close()


def test_the_largest_travel_in_a_file(parcels: Parcels) -> None:
    jobs = [Job(str(index), b"[" + b" " * INLINE_LIMIT + b"]") for index in range(2)]
    assert message_of(batch(*jobs), 1, parcels, outputs="/out") is None
    message = spilled_message_of(batch(*jobs), 1, parcels, outputs="/out", path="/file")
    assert isinstance(message, m.PredictBatch)
    assert (message.input, message.input_file, message.memory) == (None, "/file", None)


class Listener:
    """Writes down what it hears, and of whom."""

    def __init__(self, heard: list[object], who: object = "all") -> None:
        self._heard = heard
        self._who = who

    def on_begin(self) -> None:
        self._heard.append("begin")

    def item(self, index: int) -> Listener:
        return Listener(self._heard, index)

    def on_item_ends(self, ends: list[ItemOutcome], *, idle: bool) -> None:
        self._heard.append((ends, idle))

    def on_output(self, chunk: bytes, files: tuple[object, ...]) -> None:
        self._heard.append((self._who, "output", chunk, len(files)))

    def on_log(self, source: str, data: str) -> None:
        self._heard.append((self._who, "log", source, data))

    def on_metric(self, name: str, value: object, mode: str) -> None:
        self._heard.append((self._who, "metric", name, value))

    def on_end(self, outcome: object, files: tuple[object, ...], *, idle: bool) -> None:
        self._heard.append((self._who, "end", outcome))

    def on_idle(self) -> None:
        self._heard.append((self._who, "idle"))


async def _channel(heard: list[object]) -> tuple[SlotChannel, WorkerFolder]:
    folder = WorkerFolder()
    channel = SlotChannel(folder, on_attach=lambda *_: True, before_end=lambda: None)
    channel.data_received(frame(m.encode(m.Attach(m.PROTOCOL_VERSION, 0))))
    channel.occupy("batch-1", Listener(heard))
    return channel, folder


def _tell(channel: SlotChannel, *messages: m.Message) -> None:
    channel.data_received(b"".join(frame(m.encode(message)) for message in messages))


async def test_messages_reach_the_item_that_they_are_for() -> None:
    heard: list[object] = []
    channel, folder = await _channel(heard)
    _tell(
        channel,
        m.Log("stdout", "to all\n"),
        m.Log("stderr", "to one\n", 1),
        m.Output(b'"chunk"', item=2),
        m.Metric("steps", 3, "replace"),
        m.Metric("tokens", 5, "replace", 0),
    )
    assert heard == [
        ("all", "log", "stdout", "to all\n"),
        (1, "log", "stderr", "to one\n"),
        (2, "output", b'"chunk"', 0),
        ("all", "metric", "steps", 3),
        (0, "metric", "tokens", 5),
    ]
    folder.close(now=True)


async def test_items_end_in_any_number_of_messages_and_the_last_one_frees_the_slot(tmp_path: Path) -> None:
    heard: list[object] = []
    channel, folder = await _channel(heard)
    _tell(channel, m.Ended("batch-1", (m.ItemEnd(1, error="ValueError: no"),), 0.5, is_stream=False, last=False))
    assert not channel.is_free()
    ends = (m.ItemEnd(0, b"7"), m.ItemEnd(2, canceled=True))
    _tell(channel, m.Ended("batch-1", ends, 0.5, is_stream=False, last=True))
    assert channel.is_free()
    assert heard == [
        ([ItemOutcome(1, Failed("ValueError: no"))], False),
        ([ItemOutcome(0, Succeeded(b"7", 0.5)), ItemOutcome(2, Canceled())], True),
    ]
    folder.close(now=True)


async def test_a_late_word_of_another_batch_changes_nothing() -> None:
    heard: list[object] = []
    channel, folder = await _channel(heard)
    _tell(channel, m.Ended("batch-0", (m.ItemEnd(0, b"7"),), 0.5, is_stream=False, last=True))
    assert heard == []
    assert not channel.is_free()
    folder.close(now=True)


async def test_outputs_in_memory_are_told_apart(parcels: Parcels) -> None:
    heard: list[object] = []
    channel, folder = await _channel(heard)
    channel.parcels = parcels
    memory = parcels.put(())
    assert memory is not None
    shared = SharedMemory()
    pieces = [b"a" * WORTHWHILE, b"b" * 10]
    assert shared.leave(memory, pieces) == WORTHWHILE + 10
    ends = (m.ItemEnd(0, b"", shared=WORTHWHILE), m.ItemEnd(1, b"inline"), m.ItemEnd(2, b"", shared=10))
    _tell(channel, m.Ended("batch-1", ends, 0.5, is_stream=False, last=True))
    outputs = [pieces[0], b"inline", pieces[1]]
    assert heard == [([ItemOutcome(index, Succeeded(output, 0.5)) for index, output in enumerate(outputs)], True)]
    assert shared.leave(memory, pieces) > 0, "the memory is free again"
    shared.close()
    folder.close(now=True)
