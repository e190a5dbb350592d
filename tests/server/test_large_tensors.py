"""Large tensors over HTTP and gRPC are received where the worker reads them, whatever clients and workers do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import struct
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from geartrain.bridge import payloads
from geartrain.bridge.payloads import received_in_place
from geartrain.domain.predictions.calls import CallInput
from geartrain.ipc.memory import BodyMemory
from geartrain.ipc.messages import Handle
from geartrain.server import http
from tests.support.http2 import Http2Client, http2
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.wire import Answer, connection

pytestmark = pytest.mark.own_wire("a host receives the bodies itself, into memory of its own")

PATH: Final = "/v2/models/model/infer"
LINE: Final = len(f"POST {PATH} HTTP/1.1\r\n")
MODEL = """
    import asyncio, os, pathlib
    import numpy as np
    from jaxtyping import Int32
    from geartrain import BaseRunner, concurrent

    class Runner(BaseRunner):
        @concurrent(max=6)
        async def run(self, x: Int32[np.ndarray, "n"]) -> Int32[np.ndarray, "n"]:
            if x[0] == -1:
                os._exit(3)
            while x[0] == -2 and not pathlib.Path("go").exists():
                await asyncio.sleep(0.005)
            return x + 1
"""


class Seen:
    """How inputs have travelled, and the memory of the servers of a test."""

    def __init__(self) -> None:
        self.in_place = 0
        self.copied = 0
        self.memory: list[BodyMemory] = []

    def is_returned(self) -> bool:
        """Whether no body lies in the memory any more."""
        for memory in self.memory:
            memory.tidy()
        return all(not memory._lent for memory in self.memory)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()

    def look(call: CallInput) -> Handle | None:
        found = received_in_place(call)
        if found is None:
            seen.copied += 1
        else:
            seen.in_place += 1
        return found

    def memory() -> BodyMemory:
        seen.memory.append(BodyMemory())
        return seen.memory[-1]

    monkeypatch.setattr(payloads, "received_in_place", look)
    monkeypatch.setattr(http, "BodyMemory", memory)
    return seen


@pytest.fixture
async def server(serve: Serve, seen: Seen) -> AsyncIterator[LiveServer]:
    async with serve(MODEL) as server:
        yield server


def request_of(values: np.ndarray, *headers: str) -> bytes:
    size = {"binary_data_size": values.nbytes}
    tensor = {"name": "x", "shape": list(values.shape), "datatype": "INT32", "parameters": size}
    outputs = [{"name": "output", "parameters": {"binary_data": True}}]
    text = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    length = f"content-length: {len(text) + values.nbytes}"
    lines = [f"POST {PATH} HTTP/1.1", "host: test", length, f"inference-header-content-length: {len(text)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + text + values.tobytes()


def open_memory() -> set[int]:
    """The memory that this process has made, by its inodes: a descriptor's number is soon another file's."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names
        with contextlib.suppress(OSError):  # closed meanwhile
            if "memfd:geartrain" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115
                found.add(os.fstat(int(name)).st_ino)
    return found


def numbers(first: int, count: int = 150_000) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def check(answer: Answer, values: np.ndarray) -> None:
    assert answer.status == 200, answer.body[:300]
    begin = int(answer.headers["inference-header-content-length"])
    assert np.array_equal(np.frombuffer(answer.body[begin:], np.int32), values + 1)


async def test_each_client_gets_its_own(server: LiveServer, seen: Seen) -> None:
    async def ask(number: int) -> None:
        chance = random.Random(number)  # noqa: S311 - no secret
        async with connection(server.url) as client:
            for turn in range(8):
                values = numbers(1_000_000 * number + turn, chance.randrange(20_000, 200_000))
                data = request_of(values)
                cuts = sorted(chance.randrange(LINE, len(data)) for _ in range(chance.randrange(4)))
                for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                    await client.send(data[begin:end])
                check(await client.answer(), values)

    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(ask(number))
    assert (seen.in_place > 60, seen.in_place + seen.copied) == (True, 96)
    await eventually(seen.is_returned)


async def test_a_body_byte_by_byte_and_what_comes_behind_it(server: LiveServer, seen: Seen) -> None:
    first, second = numbers(1), numbers(2, 40_000)
    data = request_of(first)
    async with connection(server.url) as client:
        for _ in range(2):  # the second time its head is known
            await client.send(data[:LINE])
            for at in range(LINE, 300):
                await client.send(data[at : at + 1])
            await client.send(data[300:] + request_of(second) + b"GET /health-check HTTP/1.1\r\nhost: test\r\n\r\n")
            check(await client.answer(), first)
            check(await client.answer(), second)
            assert (await client.answer()).json()["status"] == "READY"
    assert seen.in_place >= 2
    await eventually(seen.is_returned)


async def test_clients_that_hang_up_leave_nothing(server: LiveServer, seen: Seen) -> None:
    whole = request_of(numbers(5))
    for size in (1000, 100_000, 500_000, len(whole) - 1, len(whole)):
        async with connection(server.url) as client:
            await client.send(whole[:size])
            client.hang_up()
    async with connection(server.url) as client:
        check(await client.ask(whole), numbers(5))
    await eventually(seen.is_returned)


async def test_memory_stays_while_a_worker_may_read_it(server: LiveServer, seen: Seen) -> None:
    values = numbers(0)
    values[0] = -2  # the run waits
    async with connection(server.url) as leaver:
        await leaver.send(request_of(values))
        await eventually(lambda: seen.in_place == 1)
        leaver.hang_up()
    async with connection(server.url) as client:
        check(await client.ask(request_of(numbers(3))), numbers(3))
    server.open_gate()
    await eventually(seen.is_returned)


async def test_a_worker_that_dies_leaves_nothing(server: LiveServer, seen: Seen) -> None:
    values = numbers(0)
    values[0] = -1
    async with connection(server.url) as client:
        assert (await client.ask(request_of(values))).status >= 500
    await eventually(seen.is_returned)


async def test_a_body_that_takes_too_long_is_refused(serve: Serve, seen: Seen) -> None:
    from geartrain.transport.wire.limits import WireLimits

    async with serve(MODEL, wire=WireLimits(body_timeout=1)) as server, connection(server.url) as client:
        await client.send(request_of(numbers(5))[:300_000])
        answer = await client.answer()
        assert answer.status == 408
        assert await client.at_end()
        await eventually(seen.is_returned)


async def test_many_large_bodies_at_once_are_bounded(serve: Serve, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain.ipc.memory.LIMIT", 2 * 1024**2)  # there is room for two or three
    async with serve(MODEL) as server:

        async def ask(number: int) -> None:
            values = numbers(number)
            async with connection(server.url) as client:
                check(await client.ask(request_of(values)), values)

        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(ask(number))
        assert (seen.in_place > 0, seen.in_place + seen.copied) == (True, 10)
        assert sum(region.size for memory in seen.memory for region in memory._free) <= 3 * 1024**2
        await eventually(seen.is_returned)


async def test_the_memory_is_closed_with_the_server(serve: Serve, seen: Seen) -> None:
    before = open_memory()
    async with serve(MODEL) as server, connection(server.url) as client:
        server.remember_nothing()
        check(await client.ask(request_of(numbers(1))), numbers(1))
        opened = open_memory() - before  # what other tests have left may go meanwhile
        assert opened
    assert seen.memory[0].take(100_000, 0) is None
    await eventually(lambda: not open_memory() & opened)


def message_of(values: np.ndarray, **fields: Any) -> bytes:
    """A body of gRPC. The client's own library writes its fields in this order, too."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=values.shape)
    request = pb.ModelInferRequest(model_name="model", inputs=[tensor], raw_input_contents=[values.tobytes()], **fields)
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


async def call(client: Http2Client, body: bytes, *, cut: int = 0, size: int = 16_384) -> tuple[str, bytes]:
    """Send a call in two pieces, in frames of `size`; return its status, and the contents of its answer."""
    fields = [("content-type", "application/grpc"), ("te", "trailers")]
    stream = await client.begin("POST", "/inference.GRPCInferenceService/ModelInfer", *fields)
    if cut:
        await client.upload(stream, body[:cut], end=False, size=size)
    await client.upload(stream, body[cut:], size=size)
    answer = await client.answer(stream)
    status: str = {**answer.headers, **answer.trailers}["grpc-status"]
    if status != "0":
        return status, b""
    return status, bytes(pb.ModelInferResponse.FromString(answer.body[5:]).raw_output_contents[0])


@pytest.mark.parametrize("fields", [{}, {"id": "seven", "parameters": {"a": pb.InferParameter(int64_param=1)}}])
async def test_contents_of_grpc_are_received_in_place(server: LiveServer, seen: Seen, fields: Any) -> None:
    async with http2(server.url) as client:
        for number, size in enumerate((16_384, 16_384, 1000, 16_001)):
            values = numbers(number)
            status, contents = await call(client, message_of(values, **fields), cut=5_000, size=size)
            assert (status, np.array_equal(np.frombuffer(contents, np.int32), values + 1)) == ("0", True)
    assert (seen.in_place, seen.copied) == (4, 0)
    await eventually(seen.is_returned)


async def test_calls_of_grpc_at_once_get_their_own(server: LiveServer, seen: Seen) -> None:
    async def ask(number: int) -> None:
        async with http2(server.url) as client:
            for turn in range(6):
                values = numbers(100 * number + turn, 60_000 + 1000 * number)
                status, contents = await call(client, message_of(values))
                assert (status, np.array_equal(np.frombuffer(contents, np.int32), values + 1)) == ("0", True)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(ask(number))
    assert seen.in_place > 20
    await eventually(seen.is_returned)


@pytest.mark.parametrize("cut", [0, 100_000])
async def test_bodies_of_grpc_of_another_length_than_announced(server: LiveServer, seen: Seen, cut: int) -> None:
    whole = message_of(numbers(1))
    async with http2(server.url) as client:
        assert await call(client, whole + b"more", cut=cut) == ("12", b"")
        assert await call(client, whole + whole, cut=cut) == ("12", b"")
        assert await call(client, whole[:-1], cut=cut) == ("13", b"")
        assert await call(client, whole[:5] + bytes(len(whole) - 5), cut=cut) == ("3", b"")
        assert (await call(client, whole, cut=cut))[0] == "0"
    await eventually(seen.is_returned)


async def test_contents_of_grpc_before_their_description_and_typed_ones(server: LiveServer, seen: Seen) -> None:
    values = numbers(1)
    raw = pb.ModelInferRequest(raw_input_contents=[values.tobytes()]).SerializeToString()
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=values.shape)
    head = pb.ModelInferRequest(model_name="model", inputs=[tensor]).SerializeToString()
    typed = pb.InferTensorContents(int_contents=values.tolist())
    by_type = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=values.shape, contents=typed)
    messages = [
        raw + head,
        pb.ModelInferRequest(model_name="model", inputs=[by_type]).SerializeToString(),
    ]
    async with http2(server.url) as client:
        found = [await call(client, struct.pack(">BI", 0, len(each)) + each) for each in messages]
    assert [status for status, _ in found] == ["0", "0"]
    assert all(np.array_equal(np.frombuffer(contents, np.int32), values + 1) for _, contents in found)
    assert seen.in_place == 1
    await eventually(seen.is_returned)


async def test_clients_of_grpc_that_hang_up_leave_nothing(server: LiveServer, seen: Seen) -> None:
    whole = message_of(numbers(5))
    fields = [("content-type", "application/grpc"), ("te", "trailers")]
    for size in (1000, 100_000, 500_000, len(whole)):
        async with http2(server.url) as client:
            stream = await client.begin("POST", "/inference.GRPCInferenceService/ModelInfer", *fields)
            await client.upload(stream, whole[:size], end=False)
    async with http2(server.url) as client:
        assert (await call(client, whole))[0] == "0"
    await eventually(seen.is_returned)


async def test_binary_tensors_over_http2_are_received_in_place(server: LiveServer, seen: Seen) -> None:
    head, _, body = request_of(numbers(7)).partition(b"\r\n\r\n")
    lines = [line.decode().partition(": ") for line in head.splitlines()[2:]]
    async with http2(server.url) as client:
        stream = await client.begin("POST", PATH, *((name, value) for name, _, value in lines))
        await client.upload(stream, body)
        answer = await client.answer(stream)
        begin = int(answer.headers["inference-header-content-length"])
        assert np.array_equal(np.frombuffer(answer.body[begin:], np.int32), numbers(7) + 1)
    assert (seen.in_place, seen.copied) == (1, 0)
    await eventually(seen.is_returned)
