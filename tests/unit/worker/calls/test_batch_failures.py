"""Requests of a batch that fail, alone or together, calls that are made again, and the end of all by a cancel."""

# ruff: noqa: F722, F821, TC002, UP037 - jaxtyping's shapes are strings that are no annotations
# ruff: noqa: T201 - models print

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path as PlainPath
from typing import Any, NamedTuple

import jaxtyping as jt
import numpy as np
import pydantic
import pytest

from geartrain import CancelationException, File, ItemError, batch_item, batched, concurrent, current_scope
from geartrain.ipc import messages as m
from geartrain.ipc.framing import INLINE_LIMIT
from tests.support.batch_worker import Answers, Item, Worker, nested, rows, texts

Nd = np.ndarray
X = np.array([[1], [2]], np.float32)
Y = np.array([[3]], np.float32)

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def calls() -> Iterator[None]:
    CALLS.clear()
    yield
    CALLS.clear()


def ask(run: Callable[..., Any], items: list[Item], **settings: Any) -> Answers:
    decorated = run if hasattr(run, "__geartrain_batched__") else batched(**settings)(run)
    return Worker(decorated).ask(items)


# one request


def picky(texts: list[str]) -> list[str]:
    CALLS.append(list(texts))
    return [ValueError(f"no {text}") if "bad" in text else text.upper() for text in texts]  # type: ignore[misc]


def test_an_exception_in_the_list_fails_its_request() -> None:
    answers = ask(picky, texts("a", "bad", "c"))
    assert answers.outputs == {0: "A", 2: "C"}
    assert answers.errors == {1: "ValueError: no bad"}
    assert answers.logs == {0: "", 1: "ValueError: no bad\n", 2: ""}
    assert CALLS == [["a", "bad", "c"]]
    assert answers.lasts == [True]


class Result(NamedTuple):
    label: list[str]
    total: jt.Float32[Nd, "batch"]


def test_an_exception_in_a_field_and_among_rows() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> Result:
        labels: list[Any] = [ValueError("two") if row[0] == 2 else "ok" for row in x]
        return Result(labels, x.sum(axis=1))

    answers = ask(run, rows(X, Y))
    assert answers.errors == {0: "ValueError: two"}
    assert answers.outputs[1]["label"] == ["ok"]


def test_an_output_that_cannot_be_carried_fails_its_request() -> None:
    def run(texts: list[str]) -> list[Any]:
        return ["a", float("nan"), object(), {"x": 1}]

    answers = ask(run, texts(*"abcd"))
    assert set(answers.outputs) == {0, 3}
    assert answers.errors[1] == ("OutputError: output is NaN, which JSON cannot carry; return None or a string instead")
    assert answers.errors[2].startswith("OutputError: output is of type object")


def test_a_tensor_that_is_not_as_declared_fails_all() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> jt.Float32[Nd, "batch 3"]:
        return x

    answers = ask(run, [*rows(X), *nested(Y)])
    assert answers.errors == {
        0: "OutputError: output has the shape [2, 1], and [-1, 3] is declared",
        1: "OutputError: output has the shape [1, 1], and [-1, 3] is declared",
    }
    assert set(ask(run, rows(X, Y)).errors) == {0, 1}


def test_a_value_out_of_range_fails_its_request() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> jt.Int8[Nd, "batch"]:
        return np.array(x.sum(axis=1) * 100, np.int64)

    answers = ask(run, rows(Y, Y / 3))
    assert "not in the range of the declared INT8" in answers.errors[0]
    assert answers.outputs[1]["output"].tolist() == [100]


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError("is odd")
        return value


def evens(numbers: list[Even], files: list[File | None]) -> list[int]:
    CALLS.append([each.number for each in numbers])
    CALLS.extend(files)
    return [each.number for each in numbers]


def test_a_value_that_the_authors_class_refuses_fails_its_request(tmp_path: PlainPath) -> None:
    (tmp_path / "file").touch()
    items = [Item({"numbers": {"number": number}, "files": str(tmp_path / "file")}) for number in (2, 3, 4)]
    answers = ask(evens, items)
    assert answers.outputs == {0: 2, 2: 4}
    assert answers.errors[1].startswith("ArgumentError: input.numbers: ValidationError")
    assert CALLS[0] == [2, 4]
    assert all(file.closed for file in CALLS[1:])
    assert answers.lasts == [False, True]
    answers = ask(evens, [Item({"numbers": {"number": 3}}), Item({"numbers": {"number": 5}})])
    assert set(answers.errors) == {0, 1}
    assert answers.lasts == [False, True]


# ItemError


def refuse(texts: list[str]) -> list[str]:
    CALLS.append(list(texts))
    print(f"{len(texts)} texts")
    current_scope().record_metric("seen", len(texts), "incr")
    for index, text in enumerate(texts):
        if "bad" in text:
            raise ItemError(index, f"no {text}")
    return texts


def test_item_error_fails_one_and_the_others_are_run_again() -> None:
    answers = ask(refuse, texts("a", "bad 1", "c", "bad 2"))
    assert CALLS == [["a", "bad 1", "c", "bad 2"], ["a", "c", "bad 2"], ["a", "c"]]
    assert answers.outputs == {0: "a", 2: "c"}
    assert answers.errors == {1: "no bad 1", 3: "no bad 2"}
    assert "ItemError: request 1: no bad 1" in answers.logs[1]
    assert "in refuse" in answers.logs[1]
    assert answers.logs[0] == answers.logs[2] == "4 texts\n3 texts\n2 texts\n"
    assert answers.metrics[0] == {"seen": 2}  # as if there had been one run
    assert answers.lasts == [False, False, True]


def test_item_error_of_several_with_exceptions_as_reasons() -> None:
    def run(texts: list[str]) -> list[str]:
        CALLS.append(list(texts))
        if len(texts) > 1:
            raise ItemError({0: KeyError("x"), np.int64(2): "why not"})
        return texts

    answers = ask(run, texts("a", "b", "c"))
    assert answers.errors == {0: "KeyError: 'x'", 2: "why not"}
    assert answers.outputs == {1: "b"}
    assert answers.logs[2].endswith("ItemError: request 2: why not\n")
    assert "'x'" not in answers.logs[2]  # what is wrong with others is nobody's business


def test_item_error_of_all() -> None:
    def run(texts: list[str]) -> list[str]:
        raise ItemError(dict.fromkeys(range(len(texts)), "no"))

    answers = ask(run, texts("a", "b"))
    assert answers.errors == {0: "no", 1: "no"}
    assert answers.lasts == [True]


@pytest.mark.parametrize("items", [rows(X, Y, X), nested(X, Y, X), [*rows(X), *nested(Y), *rows(X)]])
def test_item_error_of_a_row_fails_the_request_that_brought_it(items: list[Item]) -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> jt.Float32[Nd, "batch 1"]:
        CALLS.append(x[:, 0].tolist())
        for index, row in enumerate(x):
            if row[0] == 3:
                raise ItemError(index, "three")
        return x

    answers = ask(run, items, pad_to=(8, 32))
    assert CALLS == [[1, 2, 3, 1, 2, 2, 2, 2], [1, 2, 1, 2, 2, 2, 2, 2]]
    assert answers.errors == {1: "three"}
    assert set(answers.outputs) == {0, 2}
    # A copy that fills the call up is the last request's.
    CALLS.clear()
    answers = ask(lambda_of_last, rows(X, Y), pad_to=(8, 32))
    assert answers.errors == {1: "the last one"}


def lambda_of_last(x: jt.Float32[Nd, "batch 1"]) -> jt.Float32[Nd, "batch 1"]:
    if x[-1, 0] == 3:
        raise ItemError(len(x) - 1, "the last one")
    return x


@pytest.mark.parametrize("place", [3, -1])
def test_item_error_of_a_request_that_is_not_there_is_any_error(place: int) -> None:
    def run(texts: list[str]) -> list[str]:
        CALLS.append(texts)
        raise ItemError(place, "who?")

    answers = ask(run, texts("a", "b", "c"))
    assert set(answers.errors.values()) == {f"ItemError: request {place}: who?"}
    assert len(CALLS) == 1


def test_a_call_that_is_made_again_sees_nothing_of_the_first_one(tmp_path: PlainPath) -> None:
    (tmp_path / "file").write_text("contents")

    def run(records: list[dict], files: list[File]) -> list[str]:  # type: ignore[type-arg]
        found = [record.pop("a") + file.read().decode() for record, file in zip(records, files, strict=True)]
        if len(found) == 3:
            raise ItemError(1)
        return found

    items = [Item({"records": {"a": str(index)}, "files": str(tmp_path / "file")}) for index in range(3)]
    assert ask(run, items).outputs == {0: "0contents", 2: "2contents"}


# any other error


def boom(texts: list[str]) -> list[str]:
    CALLS.append(list(texts))
    print("running", *texts)
    if "bad" in texts:
        raise ValueError("boom")
    return texts


def test_an_error_fails_all() -> None:
    answers = ask(boom, texts("a", "bad", "c"))
    assert answers.errors == dict.fromkeys(range(3), "ValueError: boom")
    for log in answers.logs.values():
        assert log.startswith("running a bad c\nTraceback")
        assert log.endswith("ValueError: boom\n")
    assert CALLS == [["a", "bad", "c"]]
    assert answers.lasts == [True]


def test_retry_singly() -> None:
    worker = Worker(batched(retry_singly=True)(boom))
    answers = worker.ask(texts("a", "bad", "c"))
    assert CALLS == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert answers.outputs == {0: "a", 2: "c"}
    assert answers.errors == {1: "ValueError: boom"}
    assert answers.logs[0] == "running a bad c\nrunning a\n"
    assert answers.logs[1].startswith("running a bad c\nrunning bad\nTraceback")
    assert worker.control == [
        m.WorkerLog("geartrain.worker", "warning", "a batch of 3 failed, and is run again one by one: ValueError: boom")
    ]
    assert answers.lasts == [False, False, True]
    CALLS.clear()
    assert worker.ask(texts("bad")).errors == {0: "ValueError: boom"}
    assert CALLS == [["bad"]]


def test_retry_singly_with_item_error_in_the_second_try() -> None:
    def run(texts: list[str]) -> list[str]:
        if len(texts) > 1:
            raise RuntimeError
        if texts == ["bad"]:
            raise ItemError(0, "bad indeed")
        return texts

    answers = ask(run, texts("a", "bad"), retry_singly=True)
    assert (answers.outputs, answers.errors) == ({0: "a"}, {1: "bad indeed"})


WRONG: list[tuple[Any, str]] = [
    (["a", "b"], "output has 2 results; for a batch of 3, return a list or a tensor with 3 results"),
    (["a"], "output has 1 result; for a batch of 3"),
    ([], "output has 0 results"),
    (None, "output is of type NoneType; for a batch of 3"),
    ("abc", "output is of type str; for a batch of 3"),
    (7, "output is of type int"),
    ({1, 2, 3}, "output is of type set"),
    (np.float32(1), "output is of type float32"),
    (np.zeros((2, 3)), "output has 2 results"),
    ({"a": ["x"]}, "output.a has 1 result"),
    ({"a": {"b": "xyz"}}, "output.a.b is of type str"),
]


@pytest.mark.parametrize(("value", "text"), WRONG, ids=str)
@pytest.mark.parametrize("retry", [False, True])
def test_a_wrong_number_of_results_fails_all(value: Any, text: str, retry: bool) -> None:
    def run(texts: list[str]):  # type: ignore[no-untyped-def] # noqa: ANN202 - any value
        CALLS.append(1)
        return value

    answers = ask(run, texts("a", "b", "c"), retry_singly=retry)
    assert set(answers.errors) == {0, 1, 2}
    for error in answers.errors.values():
        assert error.startswith(f"OutputError: {text}")
    assert len(CALLS) == 1


def test_results_for_a_call_that_was_filled_up() -> None:
    def run(texts: list[str]) -> list[str]:
        return texts[:3]

    answers = ask(run, texts("a", "b", "c"), max_size=4, pad_to=(4,))
    assert answers.errors[0].startswith("OutputError: output has 3 results; for a batch of 4")


def test_an_output_that_cannot_be_written_fails_its_request(tmp_path: PlainPath) -> None:
    def run(texts: list[str]) -> list[str]:
        return ["a", "x" * (INLINE_LIMIT + 1), "x" * (INLINE_LIMIT + 1)]

    answers = Worker(batched(run)).ask(texts("a", "b", "c"), output_dir=str(tmp_path / "nowhere"))
    assert answers.outputs == {0: "a"}
    assert {error.partition(":")[0] for error in answers.errors.values()} == {"FileNotFoundError"}
    assert answers.lasts == [True]


def test_an_error_that_is_too_long_is_cut_and_many_of_them_take_several_frames() -> None:
    def run(texts: list[str]) -> list[Any]:
        return [ValueError("x" * 2**21) for _ in texts]

    answers = ask(run, texts(*"abcdefghijkl"))
    assert len(answers.errors) == 12
    assert max(map(len, answers.errors.values())) < 2**19
    assert answers.lasts.count(True) == 1
    assert answers.lasts[-1]
    assert len(answers.lasts) > 1


# cancels


def test_cancel_of_the_whole() -> None:
    worker: Worker

    def run(texts: list[str]) -> list[str]:
        CALLS.append(texts)
        worker.engine.cancel(0, 1)
        return texts

    worker = Worker(batched(run))
    answers = worker.ask(texts("a", "b"))
    assert answers.canceled == {0, 1}
    assert answers.lasts == [True]


def test_cancel_interrupts_the_authors_code() -> None:
    worker: Worker

    def run(texts: list[str]) -> list[str]:
        try:
            threading.Thread(target=worker.engine.cancel, args=(0, 1)).start()
            threading.Event().wait(20)
        except CancelationException:
            CALLS.append("interrupted")
            raise
        return texts

    worker = Worker(batched(run))
    assert worker.ask(texts("a", "b")).canceled == {0, 1}
    assert CALLS == ["interrupted"]


def test_cancel_in_the_midst_of_calls_that_are_made_again() -> None:
    worker: Worker

    def run(texts: list[str]) -> list[str]:
        CALLS.append(list(texts))
        if len(texts) > 1:
            raise ValueError
        if texts == ["b"]:
            threading.Thread(target=worker.engine.cancel, args=(0, 1)).start()
            threading.Event().wait(20)
        return texts

    worker = Worker(batched(retry_singly=True)(run))
    answers = worker.ask(texts("a", "b", "c"))
    assert answers.outputs == {0: "a"}
    assert answers.canceled == {1, 2}
    assert CALLS == [["a", "b", "c"], ["a"], ["b"]]
    assert answers.lasts == [False, True]


def test_cancel_between_two_calls() -> None:
    class CancelingError(Exception):
        is_raised = False

        def __str__(self) -> str:
            if self.is_raised:  # after the call
                worker.engine.cancel(0, 1)
            return "later"

    def run(texts: list[str]) -> list[str]:
        CALLS.append(list(texts))
        reason = CancelingError()
        error = ItemError(0, reason)
        reason.is_raised = True
        raise error

    worker = Worker(batched(run))
    answers = worker.ask(texts("a", "b"))
    assert answers.errors == {0: "CancelingError: later"}
    assert answers.canceled == {1}
    assert CALLS == [["a", "b"]]


def test_cancel_of_one_batch_is_not_one_of_the_next() -> None:
    worker: Worker

    def run(texts: list[str]) -> list[str]:
        if texts[0] == "a":
            worker.engine.cancel(0, 1)
        return texts

    worker = Worker(batched(run))
    first, second = worker.ask_all([texts("a"), texts("b")])
    assert (first.canceled, second.outputs) == ({0}, {0: "b"})


# async


@batched
@concurrent(max=2)
async def slow(texts: list[str]) -> list[str]:
    CALLS.append(list(texts))
    for index, text in enumerate(texts):
        with batch_item(index):
            await asyncio.sleep(0)
            print(f"{text} is here")
            if "bad" in text:
                raise ItemError(index, f"no {text}")
    return texts


def test_async_batches_share_the_loop() -> None:
    first, second = Worker(slow, slots=2).ask_all([texts("a", "bad"), texts("c", "d")])
    assert (first.outputs, first.errors) == ({0: "a"}, {1: "no bad"})
    assert second.outputs == {0: "c", 1: "d"}
    assert second.logs == {0: "c is here\n", 1: "d is here\n"}
    assert first.logs[0] == "a is here\na is here\n"
    assert CALLS == [["a", "bad"], ["c", "d"], ["a"]]


def test_async_cancel_in_the_midst_of_calls_that_are_made_again() -> None:
    worker: Worker

    async def run(texts: list[str]) -> list[str]:
        CALLS.append(list(texts))
        if len(texts) > 1:
            raise ValueError
        if texts == ["b"]:
            worker.engine.cancel(0, 1)
            await asyncio.Event().wait()
        return texts

    worker = Worker(batched(retry_singly=True)(run))
    answers = worker.ask(texts("a", "b", "c"))
    assert answers.outputs == {0: "a"}
    assert answers.canceled == {1, 2}
    assert CALLS == [["a", "b", "c"], ["a"], ["b"]]


def test_async_batch_whose_cleanup_takes_long_is_told_of_before() -> None:
    worker: Worker

    async def run(texts: list[str]) -> list[str]:
        told = asyncio.Event()
        detach = worker.engine._detach

        def detach_and_tell(*args: Any) -> None:
            detach(*args)
            told.set()

        worker.engine._detach = detach_and_tell
        worker.engine.cancel(0, 1)
        try:
            await asyncio.Event().wait()
        finally:
            await told.wait()
        return texts

    worker = Worker(batched(run))
    answers = worker.ask(texts("a", "b"))
    assert answers.ends == {}
    assert worker.control == [m.SlotCancelled(0, "batch-1"), m.Idle(0)]


@batched
async def words(texts: list[str]) -> AsyncIterator[list[Any]]:
    for turn in range(3):
        yield [ValueError("stop") if text == "bad" and turn == 1 else f"{text}{turn}" for text in texts]


def test_async_streams() -> None:
    answers = Worker(words).ask(texts("a", "bad", "c"))
    assert answers.chunks == {0: ["a0", "a1", "a2"], 1: ["bad0"], 2: ["c0", "c1", "c2"]}
    assert answers.errors == {1: "ValueError: stop"}
    answers = Worker(words).ask(texts("bad"))
    assert answers.chunks == {0: ["bad0"]}
    assert answers.errors == {0: "ValueError: stop"}
    assert answers.lasts == [False, True]


def test_an_async_stream_that_nobody_reads_any_more_is_closed() -> None:
    async def run(texts: list[str]) -> AsyncIterator[list[Any]]:
        try:
            yield [ValueError(text) for text in texts]
            yield texts
        finally:
            await asyncio.sleep(0)
            CALLS.append("closed")

    assert set(Worker(batched(run)).ask(texts("a", "b")).errors) == {0, 1}
    assert CALLS == ["closed"]
