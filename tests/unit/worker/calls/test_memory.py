"""Batches that do not fit into memory: they are run again in parts, and the limit is remembered for a while."""

# ruff: noqa: F722, TC002 - jaxtyping's shapes are strings that are no annotations

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping as jt
import numpy as np
import pytest

from geartrain import batched
from geartrain.authoring.metrics import Registry
from geartrain.ipc.messages import WorkerLog
from geartrain.worker.calls import memory
from geartrain.worker.calls.memory import MemoryLimit, is_out_of_memory, parts_of
from tests.support.batch_worker import Worker, rows, texts

Nd = np.ndarray
CALLS: list[int] = []


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


class FailError(Exception):
    """As onnxruntime has it."""

    __module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


@pytest.fixture(autouse=True)
def calls() -> Iterator[None]:
    CALLS.clear()
    yield
    CALLS.clear()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("MPS backend out of memory"),
        FailError("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer of size 4096"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_errors_of_libraries(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [ValueError("out of memory"), RuntimeError("boom"), FailError("no such node"), OSError()]
)
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_parts() -> None:
    assert parts_of([0, 1, 2, 3], [1, 1, 1, 1], 2) == [[0, 1], [2, 3]]
    assert parts_of([4, 5, 6], [3, 9, 1], 4) == [[4], [5], [6]]
    assert parts_of([], [], 4) == []


def small(most: int, error: Callable[[], BaseException] = MemoryError) -> Callable[..., Any]:
    """A model whose memory has room for so many texts."""

    def run(texts: list[str]) -> list[str]:
        CALLS.append(len(texts))
        if len(texts) > most:
            raise error()
        return [text.upper() for text in texts]

    return run


def test_a_batch_without_room_is_run_again_in_halves_and_the_limit_is_remembered() -> None:
    worker = Worker(batched(small(2)))
    first, second, alone = worker.ask_all([texts(*"abcdefg"), texts(*"hijk"), texts("l")])
    assert first.outputs == dict(enumerate("ABCDEFG"))
    assert (first.errors, first.lasts[-1]) == ({}, True)
    assert second.outputs == dict(enumerate("HIJK"))
    assert alone.outputs == {0: "L"}
    assert CALLS == [7, 4, 3, 2, 2, 2, 1, 2, 2, 1]
    assert next(message.message for message in worker.control if isinstance(message, WorkerLog)).startswith(
        "a batch of 7 did not fit into memory, and is run again in parts of at most 4, as are others of the next 10"
    )


CONFINED = """
import resource
from geartrain.authoring.metrics import Registry
from geartrain.worker.calls.memory import MemoryLimit

before = resource.getrlimit(resource.RLIMIT_DATA)
memory = MemoryLimit(Registry())
try:
    with memory.confined(64 * 1024**2), memory.confined(1):
        small = bytearray(16 * 1024**2)
        bytearray(256 * 1024**2)
except MemoryError:
    print("no room")
print(len(bytearray(256 * 1024**2)), resource.getrlimit(resource.RLIMIT_DATA) == before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_probe_beyond_its_room_fails_in_place_of_being_killed() -> None:
    """In a process of its own, which has so many bytes more and no others."""
    done = subprocess.run([sys.executable, "-c", CONFINED], capture_output=True, text=True, check=True)
    assert done.stdout == f"no room\n{256 * 1024**2} True\n"


def test_a_probe_has_the_room_that_its_message_says() -> None:
    seen: list[tuple[int, int]] = []

    def run(texts: list[str]) -> list[str]:
        seen.append(resource.getrlimit(resource.RLIMIT_DATA))
        return texts

    before = resource.getrlimit(resource.RLIMIT_DATA)
    worker = Worker(batched(run))
    assert worker.ask(texts("a", "b"), probe=2**40).errors == {}
    assert worker.ask(texts("a", "b")).errors == {}
    (soft, _), after = seen
    assert 2**40 < soft < 2**42
    assert after == before == resource.getrlimit(resource.RLIMIT_DATA)


def test_a_probe_runs_whole_and_once() -> None:
    """Also after a batch that had no room, and though a batch that raised would be run again one by one."""
    worker = Worker(batched(retry_singly=True)(small(2)))
    assert worker.ask(texts(*"abcd"), probe=2**40).errors == dict.fromkeys(range(4), "MemoryError")
    assert (CALLS, worker.control) == ([4], [])
    _, probe = worker.ask_all([texts(*"abcd"), texts(*"abcd")], probe=0), worker.ask(texts(*"abcd"), probe=2**40)
    assert probe.errors == dict.fromkeys(range(4), "MemoryError")
    assert CALLS[-1] == 4
    alone = Worker(batched(small(0))).ask(texts("a", "b"), probe=2**40)
    assert alone.errors == {0: "MemoryError", 1: "MemoryError"}


def test_a_request_that_does_not_fit_alone_fails_alone() -> None:
    def run(texts: list[str]) -> list[str]:
        CALLS.append(len(texts))
        if "huge" in texts:
            raise OutOfMemoryError("CUDA out of memory")
        return texts

    answers = Worker(batched(run)).ask(texts("a", "huge", "c", "d"))
    assert answers.outputs == {0: "a", 2: "c", 3: "d"}
    assert answers.errors == {1: "OutOfMemoryError: CUDA out of memory"}
    assert sorted(CALLS) == [1, 1, 2, 2, 4] or CALLS == [4, 2, 2, 1, 1]


def test_rows_count_and_a_request_of_many_is_a_part_by_itself() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> jt.Float32[Nd, "batch 1"]:
        CALLS.append(len(x))
        if len(x) > 3:
            raise MemoryError
        return x * 2

    answers = Worker(batched(run)).ask(rows(*(np.full((count, 1), count, np.float32) for count in (3, 1, 2))))
    assert [answers.outputs[item]["output"].shape for item in range(3)] == [(3, 1), (1, 1), (2, 1)]
    assert CALLS == [6, 3, 3]


def test_filled_up_batches_go_to_the_next_smaller_size_and_no_further() -> None:
    def run(texts: list[str]) -> list[str]:
        CALLS.append(len(texts))
        if len(texts) > 4:
            raise MemoryError
        return texts

    answers = Worker(batched(pad_to=(4, 16), max_size=16)(run)).ask(texts(*"abcdefghij"))
    assert len(answers.outputs) == 10
    assert CALLS == [16, 4, 4, 4, 4]
    CALLS.clear()
    answers = Worker(batched(pad_to=(16,), max_size=16)(run)).ask(texts("a", "b"))
    assert set(answers.errors.values()) == {"MemoryError"}
    assert CALLS == [16]


def test_a_stream_that_has_begun_fails_and_the_others_are_run_again() -> None:
    def run(texts: list[str]) -> Iterator[list[Any]]:
        CALLS.append(len(texts))
        yield [text if text == "a" else None for text in texts]
        if len(texts) > 1:
            raise MemoryError
        yield ["end"]

    answers = Worker(batched(run)).ask(texts("a", "b"))
    assert answers.errors == {0: "MemoryError"}
    assert answers.chunks[1] == ["end"]
    assert CALLS == [2, 1]


def test_the_limit_is_told_and_forgotten_in_time() -> None:
    now = [0.0]
    registry = Registry()
    limit = MemoryLimit(registry, lambda: now[0])
    assert limit.rows == 0
    limit.fail(8)
    limit.fail(4)
    now[0] = memory.REMEMBERED - 1
    assert limit.rows == 4
    told = {definition.name: [change.value for change in changes] for definition, changes in registry.take()}
    assert told == {"geartrain_batches_out_of_memory": [2.0], "geartrain_batch_memory_limit_rows": [4.0]}
    now[0] = memory.REMEMBERED
    assert limit.rows == 0
    assert [(definition.name, changes[0].value) for definition, changes in registry.take()] == [
        ("geartrain_batch_memory_limit_rows", 0.0)
    ]
