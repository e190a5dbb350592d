"""Large outputs are sent from where the worker has left them, whatever clients and workers do meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
import uvloop
from tritonclient.utils import np_to_triton_dtype

from geartrain.bridge import payloads
from geartrain.bridge.payloads import LentOutputs
from geartrain.domain.predictions.lifecycle import Health
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.wire import Answer, Connection, connection

pytestmark = pytest.mark.own_wire("a host takes the answers itself, and copies them")

PATH: Final = "/v2/models/model/infer"
MODEL: Final = """
    import numpy as np
    from jaxtyping import Int32
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, first: int, count: int, x: Int32[np.ndarray, "n"]) -> Int32[np.ndarray, "m"]:
            return np.arange(first, first + count, dtype=np.int32)
"""
SOME: Final = 150_000  # elements, 600 kB
MANY: Final = 7_000_000  # 28 MB: more than the sockets of a connection hold


Test = Callable[[LiveServer], Awaitable[None]]
Run = Callable[[Test], None]


class Seen:
    """How the outputs of all slots have travelled."""

    def __init__(self) -> None:
        self.lent = 0
        self.slots: list[LentOutputs] = []

    def is_returned(self) -> bool:
        """Whether workers may write to all memory."""
        return not any(slot._is_lent for slot in self.slots)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()

    class Watched(LentOutputs):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.slots.append(self)

        def _lend(self, *arguments: Any) -> memoryview:
            seen.lent += 1
            return super()._lend(*arguments)

    monkeypatch.setattr(payloads, "LentOutputs", Watched)
    return seen


@pytest.fixture
def run(serve: Serve, seen: Seen) -> Run:
    """Runs a test beside its server, on uvloop as servers do: asyncio's loop may copy what a socket does not take."""

    async def scenario(test: Test) -> None:
        async with serve(MODEL) as server:
            server.remember_nothing()
            await test(server)

    def start(test: Test) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario(test))

    return start


def request_of(first: int, count: int = SOME) -> bytes:
    numbers = [
        {"name": name, "shape": [1], "datatype": "INT64", "data": [value]}
        for name, value in (("first", first), ("count", count))
    ]
    inputs = [*numbers, {"name": "x", "shape": [1], "datatype": "INT32", "data": [0]}]
    body = json.dumps({"inputs": inputs, "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}).encode()
    return f"POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def check(answer: Answer, first: int, count: int = SOME) -> None:
    assert answer.status == 200, answer.body[:300]
    begin = int(answer.headers["inference-header-content-length"])
    assert np.array_equal(np.frombuffer(answer.body[begin:], np.int32), np.arange(first, first + count, dtype=np.int32))


async def ask(client: Connection, first: int) -> None:
    check(await client.ask(request_of(first)), first)


def test_one_client_gets_all_outputs_from_where_they_lie(run: Run, seen: Seen) -> None:
    async def test(server: LiveServer) -> None:
        async with connection(server.url) as client:
            for number in range(10):
                await ask(client, number)
        assert seen.lent == 10
        await eventually(seen.is_returned)

    run(test)


def test_many_clients_get_their_own(run: Run, seen: Seen) -> None:
    async def test(server: LiveServer) -> None:
        async def ask_often(number: int) -> None:
            async with connection(server.url) as client:
                for turn in range(6):
                    await ask(client, 1000 * number + turn)

        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(ask_often(number))
        assert seen.lent > 0
        await eventually(seen.is_returned)

    run(test)


def test_a_slow_reader_holds_up_nobody(run: Run, seen: Seen) -> None:
    async def test(server: LiveServer) -> None:
        async with connection(server.url) as slow, connection(server.url) as client:
            await slow.send(request_of(7, MANY))
            await eventually(lambda: seen.lent == 1)
            for number in range(5):
                await ask(client, number)
            assert (seen.lent, seen.is_returned()) == (1, False), "the others are copied"
            check(await slow.answer(), 7, MANY)
            await eventually(seen.is_returned)
            await ask(client, 8)
        assert seen.lent == 2

    run(test)


def test_a_client_that_hangs_up_in_an_answer_leaves_nothing(run: Run, seen: Seen) -> None:
    async def test(server: LiveServer) -> None:
        async with connection(server.url) as leaver:
            await leaver.send(request_of(0, MANY))
            assert (await leaver.head()).status == 200
            assert not seen.is_returned()
            leaver.hang_up()
        await eventually(seen.is_returned)
        async with connection(server.url) as client:
            await ask(client, 3)
        assert seen.lent == 2

    run(test)


def test_an_answer_outlives_its_worker(run: Run, seen: Seen) -> None:
    async def test(server: LiveServer) -> None:
        async with connection(server.url) as client:
            await client.send(request_of(9, MANY))
            head = await client.head()
            os.kill(server.pid, signal.SIGKILL)
            await eventually(lambda: server.workers.health is Health.DEFUNCT)
            check(await client.complete(head), 9, MANY)
        await eventually(seen.is_returned)

    run(test)


def test_outputs_over_grpc(run: Run, seen: Seen) -> None:
    async def test(server: LiveServer) -> None:
        async with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
            for first in range(5):
                values = {"first": np.array([first]), "count": np.array([SOME]), "x": np.array([0], np.int32)}
                inputs = []
                for name, value in values.items():
                    tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
                    tensor.set_data_from_numpy(value)
                    inputs.append(tensor)
                answer = await client.infer("model", inputs)
                assert np.array_equal(answer.as_numpy("output"), np.arange(first, first + SOME))
        assert seen.lent == 5
        await eventually(seen.is_returned)

    run(test)
