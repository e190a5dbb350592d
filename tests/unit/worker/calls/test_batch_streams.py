"""What a batched `run()` yields, prints and measures, and which of its requests hears of it."""

# ruff: noqa: F722, F821, TC002, UP037 - jaxtyping's shapes are strings that are no annotations
# ruff: noqa: T201 - models print

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path as PlainPath
from typing import Any, NamedTuple

import jaxtyping as jt
import numpy as np
import pytest

from geartrain import ConcatenateIterator, ItemError, Path, batch_item, batched, current_scope
from geartrain.domain.predictions.calls import Succeeded
from geartrain.ipc import messages as m
from geartrain.ipc.shared_memory import MemoryRegion
from tests.support.batch_worker import Answers, Item, Worker, nested, rows, texts

Nd = np.ndarray
X = np.array([[1], [2]], np.float32)
Y = np.array([[3]], np.float32)


def ask(run: Callable[..., Any], items: list[Item], **settings: Any) -> Answers:
    return Worker(batched(**settings)(run)).ask(items)


# streams


def count(texts: list[str]) -> Iterator[list[Any]]:
    for turn in range(4):
        yield [f"{text}{turn}" if turn < int(text) else None for text in texts]


def test_each_request_gets_its_part_of_every_yield() -> None:
    answers = ask(count, texts("2", "0", "4"))
    assert answers.chunks == {0: ["20", "21"], 2: ["40", "41", "42", "43"]}
    assert set(answers.ends) == {0, 1, 2}
    assert all(isinstance(end, Succeeded) and end.output is None for end in answers.ends.values())
    assert answers.lasts == [True]


def test_text_that_is_concatenated() -> None:
    def run(texts: list[str]) -> ConcatenateIterator[list[str]]:
        yield from ([text[index : index + 1] for text in texts] for index in range(3))

    answers = ask(run, texts("abc", "de"))
    assert answers.chunks == {0: ["a", "b", "c"], 1: ["d", "e", ""]}


def test_rows_of_yields() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> Iterator[jt.Float32[Nd, "batch 1"]]:
        yield x
        yield x * 2

    answers = ask(run, [*rows(X), *nested(Y)])
    assert [chunk["output"].tolist() for chunk in answers.chunks[0]] == [[[1], [2]], [[2], [4]]]
    assert answers.chunks[1] == [[[3]], [[6]]]


def test_rows_that_get_nothing_this_time() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> Iterator[list[str | None]]:
        yield None  # type: ignore[misc] # nobody gets anything
        yield [None, "b", None]
        yield [None, None, "c"]

    answers = ask(run, rows(X, Y))
    assert answers.chunks == {0: [[None, "b"]], 1: [["c"]]}


class Step(NamedTuple):
    token: list[str]
    score: jt.Float32[Nd, "batch"]


def test_records_in_a_stream() -> None:
    def run(texts: list[str]) -> Iterator[Step]:
        yield Step(texts, np.arange(len(texts), dtype=np.float32))

    answers = ask(run, [Item({"texts": "a"}), Item({"texts": "b"}, tensors=())])
    assert answers.chunks == {0: [{"token": "a", "score": 0}], 1: [{"token": "b", "score": np.float32(1)}]}


def test_large_tensors_in_a_stream() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> Iterator[jt.Float32[Nd, "batch 20000"]]:
        yield np.repeat(x, 20000, axis=1)

    up = MemoryRegion.create()
    memory = m.SlotMemory(up.path, (up.path,))
    answers = Worker(batched(run)).ask_all([rows(X, Y)], shared=up, memory=memory)[0]
    assert dict(answers.ways) == {0: ["memory"], 1: ["memory"]}
    assert [len(each.reports) for each in answers.frames] == [2, 2], "both chunks in one frame, and both ends"
    assert answers.chunks[0][0]["output"].shape == (2, 20000)
    assert answers.chunks[1][0]["output"].tolist() == [[3.0] * 20000]
    up.close()


def test_files_in_a_stream(tmp_path: PlainPath) -> None:
    def run(texts: list[str]) -> Iterator[list[Path | None]]:
        for text in texts:
            path = Path(tmp_path / text)
            path.write_text(text)
            yield [path if text == other else None for other in texts]

    answers = Worker(batched(run)).ask(texts("a", "b"), output_dir=str(tmp_path))
    for index in range(2):
        assert answers.chunks[index] == [file.token for file in answers.files[index]]


def test_one_that_fails_leaves_the_stream_of_the_others() -> None:
    def run(texts: list[str]) -> Iterator[list[Any]]:
        yield texts
        yield [ValueError("enough") if text == "b" else text for text in texts]
        yield [object() if text == "c" else text for text in texts]

    answers = ask(run, texts("a", "b", "c"))
    assert answers.chunks == {0: ["a"] * 3, 1: ["b"], 2: ["c"] * 2}
    assert answers.errors[1] == "ValueError: enough"
    assert answers.errors[2].startswith("OutputError: output is of type object")
    assert answers.lasts == [False, False, True]


def test_a_stream_that_nobody_reads_any_more_is_closed() -> None:
    closed = []

    def run(texts: list[str]) -> Iterator[list[Any]]:
        try:
            yield [ValueError(text) for text in texts]
            yield texts
        finally:
            closed.append(texts)

    answers = ask(run, texts("a", "b"))
    assert answers.errors == {0: "ValueError: a", 1: "ValueError: b"}
    assert answers.chunks == {}
    assert closed == [["a", "b"]]
    assert answers.lasts == [False, True]


@pytest.mark.parametrize("retry", [True, False])
def test_those_that_have_got_a_part_are_not_run_again(retry: bool) -> None:
    calls = []

    def run(texts: list[str]) -> Iterator[list[Any]]:
        calls.append(list(texts))
        yield [text if text == "a" else None for text in texts]
        if len(texts) > 1:
            raise KeyError("late")

    answers = ask(run, texts("a", "b"), retry_singly=retry)
    assert answers.errors == dict.fromkeys([0] if retry else [0, 1], "KeyError: 'late'")
    assert calls == ([["a", "b"], ["b"]] if retry else [["a", "b"]])


def test_item_error_in_a_stream() -> None:
    calls = []

    def run(texts: list[str]) -> Iterator[list[Any]]:
        calls.append(list(texts))
        yield [text if text == "a" else None for text in texts]
        if "bad" in texts:
            raise ItemError(texts.index("bad"), "no")
        yield texts

    answers = ask(run, texts("a", "bad", "c"))
    assert answers.errors == {
        0: "another request of its batch failed when this one had got a part of its output",
        1: "no",
    }
    assert answers.chunks == {0: ["a"], 2: ["c"]}
    assert calls == [["a", "bad", "c"], ["c"]]


def test_a_yield_that_cannot_be_split_fails_all() -> None:
    def run(texts: list[str]) -> Iterator[list[str]]:
        yield texts
        yield texts[1:]

    answers = ask(run, texts("a", "b"), retry_singly=True)
    assert set(answers.errors) == {0, 1}
    assert answers.errors[0].startswith("OutputError: output has 1 result; for a batch of 2")


def test_cancel_of_a_stream_reaches_the_generator() -> None:
    worker: Worker
    caught = []

    def run(texts: list[str]) -> Iterator[list[str]]:
        try:
            yield texts
            worker.engine.cancel(0, 1)
            while True:
                yield texts
        except BaseException as error:
            caught.append(type(error).__name__)
            raise

    worker = Worker(batched(run))
    answers = worker.ask(texts("a", "b"))
    assert answers.canceled == {0, 1}
    assert caught == ["CancelationException"]


# logs and metrics


def talk(texts: list[str]) -> list[str]:
    print("all of", len(texts))
    print("begun, ", end="")
    for index, text in enumerate(texts):
        with batch_item(index) as scope:
            print("for", text)
            print("half of", text, end="")
            assert scope is current_scope()
            scope.record_metric("size", len(text))
    print("ended")
    current_scope().record_metric("n", len(texts))
    return texts


def test_logs_and_metrics_of_one_and_of_all() -> None:
    answers = ask(talk, texts("a", "bcd"))
    assert answers.logs == {
        0: "all of 2\nbegun, for a\nhalf of aended\n",
        1: "all of 2\nbegun, for bcd\nhalf of bcdended\n",
    }
    assert answers.metrics == {0: {"size": 1, "n": 2}, 1: {"size": 3, "n": 2}}


def test_a_row_is_of_the_request_that_brought_it_and_a_copy_of_nobody() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> jt.Float32[Nd, "batch 1"]:
        for index, row in enumerate(x):
            with batch_item(np.int64(index)):  # type: ignore[arg-type]
                print(int(row[0]))
                current_scope().record_metric("sum", int(row[0]), "incr")
        return x

    answers = ask(run, rows(X, X[:0], Y), pad_to=(8, 32))
    assert answers.logs == {0: "1\n2\n", 1: "", 2: "3\n"}
    assert answers.metrics == {0: {"sum": 3}, 1: {}, 2: {"sum": 3}}


def test_logs_when_calls_are_made_again_are_of_the_request_that_is_run() -> None:
    def run(texts: list[str]) -> list[str]:
        with batch_item(0):
            print("first", texts[0])
        if len(texts) > 1:
            current_scope().record_metric("tries", 1, "incr")
            with batch_item(1):
                current_scope().record_metric("own", 1, "incr")
            raise ValueError
        print("alone", texts[0])
        return texts

    answers = ask(run, texts("a", "b"), retry_singly=True)
    assert answers.logs == {0: "first a\nfirst a\nalone a\n", 1: "first b\nalone b\n"}
    assert answers.metrics == {0: {}, 1: {}}


def test_the_scope_of_a_batch_and_of_its_requests() -> None:
    seen: list[Any] = []

    def run(texts: list[str]) -> list[str]:
        def look() -> tuple[Any, ...]:
            scope = current_scope()
            return scope.prediction_id, scope.context, scope.parameters

        seen.append(look())
        for index in range(len(texts)):
            with batch_item(index):
                seen.append(look())
                with batch_item(0):
                    seen.append(look()[0])
        seen.append(look()[0])
        return texts

    items = texts("a", "b")
    items[0].context, items[0].parameters = {"user": "u"}, {"seed": 1}
    items[1].context, items[1].parameters = {"user": "u"}, {"seed": 2}
    ask(run, items)
    first, second = ("item-0", {"user": "u"}, {"seed": 1}), ("item-1", {"user": "u"}, {"seed": 2})
    assert seen == [("batch-1", {"user": "u"}, {}), first, "item-0", second, "item-0", "batch-1"]
    seen.clear()
    ask(run, items[:1])
    assert seen == [first, first, "item-0", "item-0"]


@pytest.mark.parametrize("index", [2, -1])
def test_a_request_that_is_not_there(index: int) -> None:
    def run(texts: list[str]) -> list[str]:
        with batch_item(index):
            return texts

    assert ask(run, texts("a", "b")).errors[0] == f"IndexError: there is no request {index} in a batch of 2"


def test_threads_write_for_the_whole_batch_unless_they_have_the_context() -> None:
    def run(texts: list[str]) -> list[str]:
        with batch_item(1):
            context = contextvars.copy_context()
            for target in (lambda: print("all"), lambda: context.run(print, "one")):
                thread = threading.Thread(target=target)
                thread.start()
                thread.join()
        return texts

    assert ask(run, texts("a", "b")).logs == {0: "all\n", 1: "all\none\n"}


def test_what_is_written_when_the_batch_has_ended_is_nobodys() -> None:
    kept: list[contextvars.Context] = []

    def run(texts: list[str]) -> list[str]:
        if kept:
            kept.pop().run(print, "too late")
        else:
            with batch_item(0):
                kept.append(contextvars.copy_context())
        return texts

    first, second = Worker(batched(run)).ask_all([texts("a", "b"), texts("c", "d")])
    assert first.logs == {0: "", 1: ""}
    assert "too late" not in second.logs[0] or second.logs[0] == second.logs[1]


def test_async_tasks_write_for_their_own_request() -> None:
    async def say(index: int, text: str) -> None:
        with batch_item(index):
            for turn in range(2):
                print(text, turn)
                await asyncio.sleep(0)

    async def run(texts: list[str]) -> list[str]:
        await asyncio.gather(*[say(index, text) for index, text in enumerate(texts)])
        return texts

    answers = Worker(batched(run)).ask(texts("a", "b"))
    assert answers.logs == {0: "a 0\na 1\n", 1: "b 0\nb 1\n"}


def test_each_request_has_its_limit_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain.worker.calls.reports.MAX_LOGS", 100)

    def run(texts: list[str]) -> list[str]:
        with batch_item(1):
            for _ in range(20):
                print("123456789")
        sys.stderr.write("all\n")
        return texts

    worker = Worker(batched(run))
    answers = worker.ask(texts("a", "b"))
    assert answers.logs[0] == "all\n"
    assert answers.logs[1].startswith("123456789\n" * 10 + "all\n[geartrain: 10 more lines were dropped")
    assert [type(message) for message in worker.control] == [m.DroppedLogs]
