"""A call as messages: what the worker reports of it, in which frames, and when its slot is idle again."""

# ruff: noqa: T201 - models print

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path as PlainPath
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from geartrain import CancelationException, File, ItemError, Path, batch_item, batched, concurrent, current_scope
from geartrain.domain.predictions.calls import ItemEnd, ItemEvent, Report, Succeeded
from geartrain.domain.predictions.events import Log, Metric
from geartrain.ipc import messages as m
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.shared_memory import MemoryRegion
from geartrain.worker.calls import reports
from geartrain.worker.loading.batched_signature import read_batched
from geartrain.worker.loading.signature import read_parameters, read_signature
from tests.support.batch_worker import Answers, Item, Worker, input_of, rows, tensor, texts


def worker_of(run: Callable[..., Any], **settings: Any) -> Worker:
    """A worker of a model that takes one prediction at a time."""
    names = {"owner_name": "run()"}
    return Worker(run, read=(read_parameters(run, **names), read_signature(run, **names), None), **settings)


def ask(run: Callable[..., Any], **values: Any) -> Answers:
    return worker_of(run).ask([Item(values)])


def told(answers: Answers) -> list[tuple[list[str], bool]]:
    """The names of the reports of each frame, and whether it says that the slot is idle."""
    return [([_kind(report) for report in frame.reports], frame.idle) for frame in answers.frames]


def _kind(report: Report) -> str:
    return type(report.event if isinstance(report, ItemEvent) else report.outcome).__name__


# one item


def shout(text: str, times: int = 1) -> str:
    return text.upper() * times


def test_a_small_output_is_one_frame_that_frees_the_slot() -> None:
    (frame,) = ask(shout, text="a", times=2).frames
    (done,) = frame.reports
    assert isinstance(done, ItemEnd)
    end = done.outcome
    assert isinstance(end, Succeeded)
    assert frame == m.Reports(0, 1, (ItemEnd(0, Succeeded(b'"AA"', end.predict_time)),), idle=True)
    assert 0 < end.predict_time < 60


def test_logs_and_metrics_are_of_the_item_and_come_at_once() -> None:
    def run(text: str) -> str:
        print("hello")
        current_scope().record_metric("size", len(text))
        return text

    answers = ask(run, text="abc")
    assert told(answers) == [(["Log"], False), (["Metric"], False), (["Succeeded"], True)]
    assert answers.reports[:2] == [ItemEvent(0, Log("stdout", "hello\n")), ItemEvent(0, Metric("size", 3, "replace"))]


def test_an_error_is_one_frame_with_its_traceback() -> None:
    def run(text: str) -> str:
        raise ValueError(text)

    answers = ask(run, text="no")
    assert told(answers) == [(["Log", "Failed"], True)]
    assert answers.errors == {0: "ValueError: no"}
    assert answers.logs[0].startswith("Traceback")
    assert "in run" in answers.logs[0]


def test_an_output_that_json_cannot_carry_is_an_error() -> None:
    def run(text: str):  # type: ignore[no-untyped-def] # noqa: ANN202 - any value
        return {"a": float("nan")} if text == "nan" else ValueError("returned, not raised")

    assert ask(run, text="nan").errors[0].startswith("OutputError: output.a is NaN")
    assert ask(run, text="error").errors[0].startswith("OutputError: output is of type ValueError")


def test_item_error_in_a_model_without_batches_is_any_error() -> None:
    def run(text: str) -> str:
        with batch_item(7):  # has no effect outside of a batch
            raise ItemError(0, text)

    answers = ask(run, text="no")
    assert answers.errors == {0: "ItemError: request 0: no"}
    assert told(answers) == [(["Log", "Failed"], True)]


def test_an_argument_that_cannot_be_made_fails_the_call() -> None:
    def run(file: File) -> str:
        return "never"

    answers = ask(run, file="/nowhere/at/all")
    assert answers.errors[0].startswith("ArgumentError: input.file")
    assert told(answers)[-1] == (["Log", "Failed"], True)


def test_a_stream_is_a_frame_for_each_value_and_one_for_the_end() -> None:
    def run(text: str) -> Iterator[str | None]:
        yield text
        yield None  # an output like any other where nobody else shares the call
        yield text

    answers = ask(run, text="a")
    assert answers.chunks[0] == ["a", None, "a"]
    assert told(answers) == [*[(["Output"], False)] * 3, (["Succeeded"], True)]
    (end,) = answers.ends.values()
    assert isinstance(end, Succeeded)
    assert end.output is None


def test_a_stream_that_fails_ends_after_its_generator() -> None:
    def run(text: str) -> Iterator[Any]:
        try:
            yield text
            yield object()
        finally:
            print("closed")

    answers = ask(run, text="a")
    assert told(answers) == [(["Output"], False), (["Log"], False), (["Log", "Failed"], True)]
    assert answers.logs[0].startswith("closed\n")
    assert answers.errors[0].startswith("OutputError: output is of type object")


def test_context_and_parameters_are_those_of_the_item() -> None:
    seen: list[Any] = []

    def run(text: str) -> str:
        scope = current_scope()
        seen.append((scope.prediction_id, scope.context, scope.parameters))
        return text

    item = Item({"text": "a"}, context={"user": "u"}, parameters={"seed": 7})
    worker_of(run).ask([item])
    assert seen == [("item-0", {"user": "u"}, {"seed": 7})]


def test_a_late_metric_is_not_one_of_the_next_call() -> None:
    kept: list[Any] = []

    def run(text: str) -> str:
        for scope in kept:
            scope.record_metric("late", 1)
        kept.append(current_scope())
        return text

    worker = worker_of(run)
    first, second = worker.ask_all([[Item({"text": "a"})], [Item({"text": "b"})]])
    assert [frame.serial for frame in first.frames] == [1]
    assert [(frame.serial, len(frame.reports)) for frame in second.frames] == [(1, 1), (2, 1)]


# payloads


def test_an_input_in_a_file_is_read_and_deleted(tmp_path: PlainPath) -> None:
    path = tmp_path / "input"
    items = [Item({"text": "a"})]
    path.write_bytes(input_of(items))
    assert worker_of(shout).ask(items, input=m.InFile(str(path))).outputs == {0: "A"}
    assert not path.exists()


def test_an_input_that_is_not_there_fails_the_call() -> None:
    answers = worker_of(shout).ask([Item({"text": "a"})], input=m.InFile("/nowhere/at/all"))
    assert answers.errors[0].startswith("FileNotFoundError")
    answers = worker_of(shout).ask([Item({"text": "a"})], input=m.InMemory(10))
    assert answers.errors[0].startswith("OSError: a payload is said to lie in shared memory")


def test_the_input_of_a_call_that_is_canceled_before_it_begins_is_let_go_of(tmp_path: PlainPath) -> None:
    worker: Worker

    def run(text: str) -> str:
        worker.engine.cancel(0, 2)
        return text

    worker = worker_of(run)
    path = tmp_path / "input"
    items = [Item({"text": "a"})]
    path.write_bytes(input_of(items))
    first, second = worker.ask_all([items, items], inputs=[m.Inline(input_of(items)), m.InFile(str(path))])
    assert (first.outputs, second.canceled) == ({0: "a"}, {0})
    assert not path.exists()


def double(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return x * 2


def test_tensors_of_a_single_call_travel_as_its_item_says() -> None:
    worker = worker_of(double)
    packed = Item(tensors=(tensor("x", np.array([1, 2], np.float32)),))
    first, second = worker.ask_all([[packed], [Item({"x": [1, 2]})]])
    assert first.outputs[0]["output"].tolist() == [2, 4]
    assert second.outputs[0] == [2, 4]
    assert told(first) == told(second) == [(["Succeeded"], True)]


@pytest.fixture
def regions() -> Iterator[tuple[MemoryRegion, MemoryRegion]]:
    down, up = MemoryRegion.create(), MemoryRegion.create()
    yield down, up
    down.close()
    up.close()


def test_large_tensors_of_a_single_call_lie_in_memory_both_ways(regions: tuple[MemoryRegion, MemoryRegion]) -> None:
    down, up = regions
    items = [Item(tensors=(tensor("x", np.ones(50_000, np.float32)),))]
    raw = input_of(items)
    down.write([raw])
    memory = m.SlotMemory(down.path, (up.path,))
    worker = worker_of(double)
    answers = worker.ask_all([items], shared=up, input=m.InMemory(len(raw)), memory=memory)[0]
    assert answers.ways[0] == ["memory"]
    assert answers.outputs[0]["output"].sum() == 100_000
    assert down.is_free(), "the parent may write the next input"


def test_memory_that_the_parent_has_not_read_yet_is_left_alone(regions: tuple[MemoryRegion, MemoryRegion]) -> None:
    down, up = regions

    def run(x: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[np.float32]]:
        yield x
        yield x * 2

    items = [Item(tensors=(tensor("x", np.ones(50_000, np.float32)),))]
    memory = m.SlotMemory(down.path, (up.path,))
    answers = worker_of(run).ask_all([items], memory=memory)[0]  # who reads only afterwards
    assert [len(frame.shared) for frame in answers.frames] == [1, 0, 0]
    assert bytes(up.view(100)[50:100])  # the first one is still there
    assert not up.is_free()


@pytest.mark.parametrize("streams", [False, True])
def test_a_huge_output_is_in_a_file(streams: bool, tmp_path: PlainPath) -> None:
    def returning(text: str) -> str:
        return text * (INLINE_LIMIT // 2 + 1)

    def yielding(text: str) -> Iterator[str]:
        yield text * (INLINE_LIMIT // 2 + 1)
        yield "small"

    run = yielding if streams else returning
    answers = worker_of(run).ask([Item({"text": "ab"})], output_dir=str(tmp_path))
    found = answers.chunks[0][0] if streams else answers.outputs[0]
    assert found == "ab" * (INLINE_LIMIT // 2 + 1)
    assert answers.ways[0][0] == "file"
    assert told(answers)[-1] == (["Succeeded"], True)


@pytest.mark.parametrize("streams", [False, True])
def test_a_file_that_cannot_be_written_fails_the_item(streams: bool, tmp_path: PlainPath) -> None:
    closed: list[str] = []

    def returning(text: str) -> str:
        return text * (INLINE_LIMIT + 1)

    def yielding(text: str) -> Iterator[str]:
        try:
            yield text * (INLINE_LIMIT + 1)
        finally:
            closed.append(text)

    run = yielding if streams else returning
    answers = worker_of(run).ask([Item({"text": "a"})], output_dir=str(tmp_path / "nowhere"))
    assert answers.errors[0].startswith("FileNotFoundError")
    assert answers.lasts.count(True) == 1
    assert answers.lasts[-1]
    assert closed == ["a"] * streams


# files


def save(folder: PlainPath, count: int = 1) -> Callable[..., Any]:
    def run(text: str) -> list[Path]:
        paths = [Path(folder / f"{text}{index}.txt") for index in range(count)]
        for path in paths:
            path.write_text(path.name)
        return paths

    return run


def test_files_are_in_the_frame_of_their_output(tmp_path: PlainPath) -> None:
    answers = worker_of(save(tmp_path, 2)).ask([Item({"text": "a"})], output_dir=str(tmp_path))
    assert told(answers) == [(["Succeeded"], True)]
    assert answers.outputs[0] == [file.token for file in answers.files[0]]
    for index, file in enumerate(answers.files[0]):
        assert file.mime_type == "text/plain"
        assert PlainPath(file.filename).read_text() == f"a{index}.txt"


def test_files_of_a_stream_are_in_the_frame_of_their_chunk(tmp_path: PlainPath) -> None:
    def run(text: str) -> Iterator[Path]:
        for index in range(2):
            path = Path(tmp_path / f"{text}{index}")
            path.write_text(path.name)
            yield path

    answers = worker_of(run).ask([Item({"text": "a"})], output_dir=str(tmp_path))
    assert told(answers) == [*[(["Output"], False)] * 2, (["Succeeded"], True)]
    assert answers.chunks[0] == [file.token for file in answers.files[0]]


def test_the_authors_temporary_files_are_gone_before_the_end_is_told(tmp_path: PlainPath) -> None:
    made, outputs, model = (tmp_path / name for name in ("made", "outputs", "model"))
    for folder in (made, outputs, model):
        folder.mkdir()
    answers = worker_of(save(made), temporary=model).ask([Item({"text": "a"})], output_dir=str(outputs))
    (file,) = answers.files[0]
    assert file.temporary_files[0] == str(made / "a0.txt")
    assert not (made / "a0.txt").exists()
    assert PlainPath(file.filename).read_text() == "a0.txt"


def test_copies_that_are_not_told_of_are_removed(tmp_path: PlainPath) -> None:
    def run(text: str) -> list[Any]:
        path = Path(tmp_path / "file")
        path.write_text(text)
        return [path, object()]

    outputs = tmp_path / "outputs"
    outputs.mkdir()
    answers = worker_of(run).ask([Item({"text": "a"})], output_dir=str(outputs))
    assert answers.errors[0].startswith("OutputError: output[1]")
    assert list(outputs.iterdir()) == []


def test_more_files_than_a_message_can_name_are_an_error(tmp_path: PlainPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "INLINE_LIMIT", 2000)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    answers = worker_of(save(tmp_path, 20)).ask([Item({"text": "a"})], output_dir=str(outputs))
    assert "refers to 20 files, too many for one message" in answers.errors[0]
    assert list(outputs.iterdir()) == []


# items of a batched model


def test_a_call_of_one_item_has_an_object_as_its_input() -> None:
    seen: list[Any] = []

    @batched
    def run(texts: list[str]) -> list[str]:
        with batch_item(0):
            seen.append((list(texts), current_scope().prediction_id))
        return [text.upper() for text in texts]

    worker = Worker(run)
    one, several = worker.ask_all([texts("a"), texts("b", "c")])
    assert (one.outputs, several.outputs) == ({0: "A"}, {0: "B", 1: "C"})
    assert seen == [(["a"], "item-0"), (["b", "c"], "item-0")]
    assert told(one) == [(["Succeeded"], True)]
    assert told(several) == [(["Succeeded", "Succeeded"], True)]


@pytest.mark.parametrize("takes_singles", [True, False])
def test_a_call_of_one_item_of_rows(takes_singles: bool) -> None:
    shapes: list[tuple[int, ...]] = []

    @batched
    def run(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        shapes.append(x.shape)
        return x + 1

    parameters, signature, batching = read_batched(run, owner_name="run()", settings={})
    batching = msgspec.structs.replace(batching, by_rows=True, takes_singles=takes_singles)
    worker = Worker(run, read=(parameters, signature, batching))
    array = np.zeros((2, 3), np.float32)
    packed, nested, both = worker.ask_all([rows(array), [Item({"x": array.tolist()}, rows=2)], rows(array, array[:1])])
    assert packed.outputs[0]["output"].tolist() == nested.outputs[0] == [[1.0] * 3] * 2
    assert both.outputs[1]["output"].tolist() == [[1.0] * 3]
    assert shapes == [(2, 3), (2, 3), (3, 3)]


def test_ends_of_all_kinds_share_a_frame() -> None:
    @batched
    def run(texts: list[str]) -> list[Any]:
        return [ValueError(text) if text == "bad" else text for text in texts]

    answers = Worker(run).ask(texts("a", "bad", "c"))
    assert told(answers) == [(["Succeeded", "Succeeded", "Log", "Failed"], True)]


def test_a_call_whose_items_have_all_failed_frees_its_slot_when_run_is_over() -> None:
    @batched
    def run(texts: list[str]) -> Iterator[list[Any]]:
        try:
            yield [ValueError(text) for text in texts]
        finally:
            print("closing")

    answers = Worker(run).ask(texts("a", "b"))
    assert told(answers) == [(["Log", "Failed", "Log", "Failed"], False), (["Log"], False), ([], True)]
    assert answers.frames[-1] == m.Reports(0, 1, (), idle=True)


def test_only_the_last_of_several_invocations_frees_the_slot() -> None:
    @batched(retry_singly=True)
    def run(texts: list[str]) -> list[str]:
        if len(texts) > 1:
            raise ValueError("together")
        return texts

    answers = Worker(run).ask(texts("a", "b", "c"))
    assert told(answers) == [(["Succeeded"], False), (["Succeeded"], False), (["Succeeded"], True)]


def test_a_call_of_several_items_of_a_model_without_batches_fails() -> None:
    error = "RuntimeError: a call of 2 items came to a model that takes one at a time"
    answers = worker_of(shout).ask(texts("a", "b"))
    assert answers.errors == {0: error, 1: error}
    assert told(answers) == [(["Log", "Failed", "Failed"], True)]


# cancels


def test_a_cancel_is_for_one_call() -> None:
    worker: Worker

    def run(text: str) -> str:
        if text == "now":
            try:
                threading.Thread(target=worker.engine.cancel, args=(0, 1)).start()
                threading.Event().wait(20)
            except CancelationException:
                print("interrupted")
                raise
        return text

    worker = worker_of(run)
    first, second = worker.ask_all([[Item({"text": "now"})], [Item({"text": "next"})]])
    assert told(first) == [(["Log"], False), (["Canceled"], True)]
    assert first.logs[0] == "interrupted\n"
    assert second.outputs == {0: "next"}


def test_a_cancel_that_comes_first_is_remembered() -> None:
    worker: Worker
    calls: list[str] = []

    def run(text: str) -> str:
        calls.append(text)
        worker.engine.cancel(0, 2)
        return text

    worker = worker_of(run)
    first, second, third = worker.ask_all([[Item({"text": text})] for text in "abc"])
    assert (first.outputs, second.canceled, third.outputs) == ({0: "a"}, {0}, {0: "c"})
    assert calls == ["a", "c"]


@concurrent(max=2)
async def slow(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


def test_async_calls_are_reported_on_their_own_slots() -> None:
    first, second = worker_of(slow, slots=2).ask_all([[Item({"text": "a"})], [Item({"text": "b"})]])
    assert (first.outputs, second.outputs) == ({0: "A"}, {0: "B"})
    assert (first.frames[0].serial, second.frames[0].serial) == (1, 2)
    assert told(first) == told(second) == [(["Succeeded"], True)]


def test_async_stream_and_its_cancel() -> None:
    worker: Worker

    async def run(text: str) -> AsyncIterator[str]:
        yield text
        worker.engine.cancel(0, 1)
        await asyncio.Event().wait()

    worker = worker_of(run)
    answers = worker.ask([Item({"text": "a"})])
    assert told(answers) == [(["Output"], False), (["Canceled"], True)]


def test_async_call_whose_cleanup_takes_long_is_ended_on_the_control_channel() -> None:
    worker: Worker
    released: list[bool] = []

    async def run(x: npt.NDArray[np.float32]) -> str:
        told_early = asyncio.Event()
        detach = worker.engine._detach

        def detach_and_tell(*args: Any) -> None:
            detach(*args)
            told_early.set()

        worker.engine._detach = detach_and_tell
        worker.engine.cancel(0, 1)
        try:
            await asyncio.Event().wait()
        finally:
            await told_early.wait()
            released.append(down.is_free())
        return "late"

    down = MemoryRegion.create()
    items = [Item(tensors=(tensor("x", np.ones(50_000, np.float32)),))]
    raw = input_of(items)
    down.write([raw])
    worker = worker_of(run)
    answers = worker.ask(items, input=m.InMemory(len(raw)), memory=m.SlotMemory(down.path, (down.path,)))
    assert answers.frames == []
    assert worker.control == [m.SlotCancelled(0, "batch-1"), m.Idle(0)]
    assert released == [False]
    assert down.is_free(), "its input is let go of before the slot is idle"
    down.close()
