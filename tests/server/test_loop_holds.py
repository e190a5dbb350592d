"""Requests within the limits that are costly to read: none of them holds the event loop for long."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import struct
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import grpc
import pytest

from tests.support.loop_probe import LoopProbe
from tests.support.servers import LiveServer, Serve

MODEL: Final = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, x: list[str]) -> int:
            return len(x)
"""
LONGEST_HOLD: Final = 0.05  # seconds
SERVICE: Final = "/inference.GRPCInferenceService/"
MEBIBYTE: Final = 1_048_576
PATIENCE: Final = 60.0


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[LiveServer]:
    async with serve(MODEL) as live:
        await asyncio.to_thread(call, live, "ServerLive", b"")  # what answers gRPC is imported for the first call
        yield live


def call(server: LiveServer, method: str, message: bytes, *, gzip: bool = False) -> bytes | tuple[str, str]:
    """Return the answer to a message, or the status and the text of an error."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
    opened: Any = cast("Any", grpc.insecure_channel(server.url.removeprefix("http://"), options=options))
    with opened as channel:
        try:
            if method == "ModelStreamInfer":
                answers = channel.stream_stream(SERVICE + method)(
                    iter([message]), timeout=PATIENCE, compression=compression
                )
                return b"".join(answers)
            answer: bytes = channel.unary_unary(SERVICE + method)(message, timeout=PATIENCE, compression=compression)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code().name, failed.details()
        return answer


def varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes((*written, number))


def field(number: int, contents: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(contents)) + contents


def head(datatype: bytes, count: int) -> bytes:
    return field(1, b"x") + field(2, datatype) + field(3, varint(count))


def infer(*fields: bytes) -> bytes:
    return field(1, b"model") + b"".join(fields)


@functools.cache
def message(name: str) -> bytes:
    """Return a message that has, or is within, the limits of size."""
    if name == "inputs":
        return infer(b"\x2a\x00" * 500_000)
    if name == "many inputs":
        return infer(b"\x2a\x00" * (4 * MEBIBYTE))
    if name == "raw contents":
        return infer(b"\x3a\x00" * 2_000_000)
    if name == "names":
        return b"\x0a\x00" * (4 * MEBIBYTE)
    if name == "unknown fields":
        return infer(b"\x78\x00" * (4 * MEBIBYTE))
    if name == "unknown fields in an input":
        return infer(field(5, b"\x78\x00" * (4 * MEBIBYTE)))
    if name == "parameters":
        return infer(b"".join(field(4, field(1, b"%06d" % each)) for each in range(300_000)))
    if name == "texts":
        return infer(field(5, head(b"BYTES", 1_200_000) + field(5, field(8, b"a") * 1_200_000)))
    if name == "raw texts":
        return infer(field(5, head(b"BYTES", 1_200_000)), field(7, (struct.pack("<I", 1) + b"a") * 1_200_000))
    assert name == "integers"
    return infer(field(5, head(b"INT32", 16_000_000) + field(5, field(2, b"\x01" * 16_000_000))))


REFUSALS: Final = {
    "inputs": "a request has at most",
    "many inputs": "a request has at most 200000 fields",
    "raw contents": "a request has at most 200000 fields",
    "names": "a request has at most 200000 fields",
    "unknown fields": "a request has at most 200000 fields",
    "unknown fields in an input": "a request has at most 200000 fields",
    "parameters": "a request has at most",
    "integers": "x",
}


@pytest.mark.parametrize(("method", "gzip"), [("ModelInfer", False), ("ModelInfer", True), ("ModelStreamInfer", False)])
@pytest.mark.parametrize("name", [*REFUSALS, "texts", "raw texts"])
async def test_s12_messages_of_many_fields_do_not_hold_the_loop(
    server: LiveServer, name: str, method: str, *, gzip: bool
) -> None:
    sent = message(name)
    with LoopProbe() as probe:
        answer = await asyncio.to_thread(call, server, method, sent, gzip=gzip)
    if name in REFUSALS:
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer[1]
        assert REFUSALS[name] in text
    else:
        assert isinstance(answer, bytes)
        assert (1_200_000).to_bytes(8, "little") in answer
    assert probe.longest < LONGEST_HOLD


@pytest.mark.parametrize("method", ["ServerLive", "ModelMetadata", "ModelStatistics", "RepositoryModelLoad"])
@pytest.mark.parametrize("gzip", [False, True])
async def test_s12_messages_of_other_methods_are_short(server: LiveServer, method: str, *, gzip: bool) -> None:
    with LoopProbe() as probe:
        answer = await asyncio.to_thread(call, server, method, message("names"), gzip=gzip)
    assert isinstance(answer, tuple)
    assert answer[0] == "RESOURCE_EXHAUSTED"
    assert "ModelInfer" in answer[1]
    assert probe.longest < LONGEST_HOLD


# JSON

ECHO: Final = """
    # ruff: noqa
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, x: KIND) -> KIND:
            return x
"""


def post(server: LiveServer, path: str, body: bytes) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def tensor(datatype: bytes, count: int, element: bytes) -> bytes:
    data = b",".join([element] * count)
    return b'{"inputs":[{"name":"x","datatype":"%b","shape":[%d],"data":[%b]}]}' % (datatype, count, data)


@pytest.mark.parametrize(
    ("kind", "datatype", "count", "element"),
    [
        ('Float32[np.ndarray, "n"]', b"FP32", 3_000_000, b"0.25"),
        ("list[str]", b"BYTES", 400_000, b'"a"'),
    ],
)
async def test_s13_large_tensors_in_json_do_not_hold_the_loop(
    serve: Serve, kind: str, datatype: bytes, count: int, element: bytes
) -> None:
    path = "/v2/models/model/infer"
    async with serve(ECHO.replace("KIND", kind)) as server:
        assert (await asyncio.to_thread(post, server, path, tensor(datatype, 70_000, element)))[0] == 200
        body = tensor(datatype, count, element)
        with LoopProbe() as probe:
            status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == 200, answer[:500]
    assert answer.count(element) == count
    assert probe.longest < LONGEST_HOLD


async def test_s13_long_context_is_refused(server: LiveServer) -> None:
    members = b",".join(b'"%d":"a"' % each for each in range(400_000))
    body = b'{"input":{"x":["a"]},"context":{%b}}' % members
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, "/predictions", body)
    assert status == 422
    assert b"more than 10000 members" in answer
    assert probe.longest < LONGEST_HOLD


async def test_s13_errors_name_the_first_ten_unknown_inputs_and_their_number(server: LiveServer) -> None:
    body = b'{"input":{%b}}' % b",".join(b'"%06d":1' % each for each in range(400_000))
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, "/predictions", body)
    assert status == 422
    assert len(answer) <= 4096
    assert all(b'Unexpected field \\"%06d\\"' % each in answer for each in range(10))
    assert b"000010" not in answer
    assert b"400000 fields are unexpected" in answer
    assert probe.longest < LONGEST_HOLD
