"""Calls of other models by the code of a worker, on the parent's side: their inputs, their bound, their end."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geartrain.bridge import model_calls
from geartrain.bridge.channels import CallSocket
from geartrain.bridge.model_calls import WorkerModelCall, WorkerModelCalls
from geartrain.domain.predictions.calls import ALL
from geartrain.ipc.framing import FrameReader
from geartrain.ipc.messages import Inline, ModelAnswer, ModelCall, decode_call


class Bench:
    """The calls of a worker that a test plays."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self.calls = CallSocket(ours, drain=lambda: None, on_garbage=lambda _: None, on_model_call=lambda _: None)
        self.models = WorkerModelCalls(self.calls, Path)
        self.told: list[WorkerModelCall] = []

    def begin(self, number: int) -> None:
        message = ModelCall(number, 0, 1, ALL, "other", "", Inline(b"{}"))
        self.models.begin(message, self.told.append, read=None, may_share=False)

    def answers(self) -> list[ModelAnswer]:
        reader = FrameReader()
        found = [decode_call(payload) for payload in reader.feed(self._theirs.recv(2**20))]
        return [answer for answer in found if isinstance(answer, ModelAnswer)]

    def close(self) -> None:
        self.calls.close()
        self._theirs.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.calls.open()
    yield bench
    bench.close()


async def test_calls_that_run_at_once_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "MOST", 3)
    for number in range(1, 5):
        bench.begin(number)
    assert len(bench.told) == 3
    (refused,) = bench.answers()
    assert (refused.number, refused.code, "at most 3" in refused.error) == (4, "internal", True)
    bench.told[0].end(b"1", "value")
    bench.begin(5)
    assert len(bench.told) == 4


async def test_a_call_that_the_worker_gives_up_is_ended_once(bench: Bench) -> None:
    ended: list[int] = []
    bench.begin(1)
    bench.told[0].on_end = lambda: ended.append(1)
    bench.models.end(1)
    bench.models.end(1)
    bench.models.close()
    assert ended == [1]


async def test_a_worker_that_is_gone_ends_all_calls(bench: Bench) -> None:
    ended: list[int] = []
    for number in (1, 2):
        bench.begin(number)
        bench.told[-1].on_end = lambda number=number: ended.append(number)  # type: ignore[misc]
    bench.models.close()
    assert ended == [1, 2]
