"""Requests within the limits that are costly to read: none of them holds the event loop for long."""

from __future__ import annotations

import asyncio
import functools
import gc
import http.server
import json
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from geartrain.server.memory import tune_collector
from geartrain.server.options import StoreOptions
from tests.support.far_clients import PATIENCE, ask_grpc, ask_http
from tests.support.loop_probe import LoopProbe, least_of_several
from tests.support.servers import LiveServer, Serve, ServeOnce

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL: Final = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, x: list[str]) -> int:
            return len(x)
"""
LONGEST_HOLD: Final = 0.05  # seconds
MEBIBYTE: Final = 1_048_576


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Have the garbage collector pass over what is there already, as in a server.

    What is frozen stays frozen: each test would otherwise look at all that was there before the first one.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    tune_collector()
    yield
    gc.set_threshold(*thresholds)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(serve_once: ServeOnce) -> LiveServer:
    live = await serve_once(MODEL)
    live.remember_nothing()
    await asyncio.to_thread(call, live, "ServerLive", b"")  # what answers gRPC is imported for the first call
    return live


def call(server: LiveServer, method: str, message: bytes, *, gzip: bool = False) -> bytes | tuple[str, str]:
    """Return the answer to a message, or the status and the text of an error."""
    return ask_grpc(server.url, method, message, gzip=gzip)


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


def members(count: int, value: bytes) -> bytes:
    """Return the members of a JSON object."""
    return b",".join(b'"%d":%b' % (each, value) for each in range(count))


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
@least_of_several
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
    probe.check(LONGEST_HOLD)


@pytest.mark.parametrize("method", ["ServerLive", "ModelMetadata", "ModelStatistics", "RepositoryModelLoad"])
@pytest.mark.parametrize("gzip", [False, True])
@least_of_several
async def test_s12_messages_of_other_methods_are_short(server: LiveServer, method: str, *, gzip: bool) -> None:
    with LoopProbe() as probe:
        answer = await asyncio.to_thread(call, server, method, message("names"), gzip=gzip)
    assert isinstance(answer, tuple)
    assert answer[0] == "RESOURCE_EXHAUSTED"
    assert "ModelInfer" in answer[1]
    probe.check(LONGEST_HOLD)


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


def post(server: LiveServer, path: str, body: bytes, accepted: str = "*/*") -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    return ask_http(server.url, "POST", path, body, accepted=accepted)


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
@least_of_several
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
    probe.check(LONGEST_HOLD)


ANSWERS: Final = """
    from collections.abc import Iterator
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, n: int, size: int) -> ANSWER:
            GIVE
"""
_ASKED: Final = b'{"name":"%b","datatype":"INT64","shape":[1],"data":[%d]}'


def asked(count: int, size: int) -> bytes:
    return b'{"inputs":[%b,%b]}' % (_ASKED % (b"n", count), _ASKED % (b"size", size))


def asked_of_grpc(count: int, size: int) -> bytes:
    contents = [count.to_bytes(8, "little"), size.to_bytes(8, "little")]
    heads = [field(5, field(1, name) + field(2, b"INT64") + field(3, varint(1))) for name in (b"n", b"size")]
    return infer(*heads, *[field(7, each) for each in contents])


@pytest.mark.parametrize("way", ["infer", "generate", "generate_stream", "ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize(
    ("answer", "give", "count", "size"),
    [
        ("list[str]", 'return ["a" * size] * n', 1_200_000, 1),
        ("str", 'return "a" * size * n', 1, 40_000_000),
        ("Iterator[str]", 'yield from ["a" * size] * n', 4, 10_000_000),
    ],
)
@least_of_several
async def test_s13_large_answers_do_not_hold_the_loop(
    serve_once: ServeOnce, way: str, answer: str, give: str, count: int, size: int
) -> None:
    async def ask(server: LiveServer, count: int, size: int) -> bytes:
        if way.startswith("Model"):
            found = await asyncio.to_thread(call, server, way, asked_of_grpc(count, size))
            assert isinstance(found, bytes), found
            return found
        body = asked(count, size) if way == "infer" else b'{"n":%d,"size":%d}' % (count, size)
        status, answered = await asyncio.to_thread(post, server, f"/v2/models/model/{way}", body)
        assert status == 200, answered[:500]
        return answered

    live = await serve_once(ANSWERS.replace("ANSWER", answer).replace("GIVE", give))
    await ask(live, 3, 100_000)  # what is imported, and started, once
    with LoopProbe() as probe:
        found = await ask(live, count, size)
    assert 0 <= found.count(b"a") - count * size < 100
    probe.check(LONGEST_HOLD)


STREAM: Final = """
    from typing import Iterator
    from geartrain import BaseRunner, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, n: int, size: int) -> Iterator[str]:
            yield from ["b" * size] * n
"""


@pytest.mark.parametrize(("accepted", "copies"), [("text/event-stream", 2), ("application/json", 1)])
@pytest.mark.parametrize(("count", "size"), [(4, 30_000_000), (120, 1_000_000)])
@least_of_several
async def test_s13_large_streams_do_not_hold_the_loop(
    serve_once: ServeOnce, accepted: str, copies: int, count: int, size: int
) -> None:
    server = await serve_once(STREAM)
    body = b'{"input":{"n":%d,"size":%d}}' % (count, size)
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, "/predictions", body, accepted)
    assert status == 200
    assert 0 <= answer.count(b"b") - copies * count * size < 100
    assert answer.rstrip().endswith(b'"status":"succeeded"}')
    probe.check(LONGEST_HOLD)


def ask_for(
    server: LiveServer, method: str, body: bytes | None, accepted: str = "*/*", path: str = "long"
) -> tuple[int, bytes]:
    """Return the status and the body of an answer about one prediction."""
    return ask_http(server.url, method, f"/predictions/{path}", body, accepted=accepted)


@pytest.mark.parametrize(
    ("first", "method", "accepted"),
    [
        (False, "PUT", "application/json"),
        (False, "PUT", "text/event-stream"),
        (True, "PUT", "application/json"),
        (True, "GET", "application/json"),
    ],
    ids=["answer", "events", "again", "get"],
)
@least_of_several
async def test_s13_outputs_of_many_pieces_do_not_hold_the_loop(
    serve: Serve, method: str, accepted: str, *, first: bool
) -> None:
    body = b'{"input":{"n":1000000,"size":3}}'
    async with serve(STREAM) as server:
        server.remember_nothing()
        if first:
            await asyncio.to_thread(ask_for, server, "PUT", body)
        with LoopProbe() as probe:
            status, answer = await asyncio.to_thread(
                ask_for, server, method, body if method == "PUT" else None, accepted
            )
    assert status == 200, answer[:500]
    assert answer.endswith(b'"status":"succeeded"}') or accepted == "text/event-stream"
    assert answer[answer.index(b'"output":[') :].count(b'"bbb"') == 1_000_000
    probe.check(LONGEST_HOLD)


class _Hook(http.server.BaseHTTPRequestHandler):
    """A receiver of webhooks that notes their sizes."""

    server: _Receiver

    def do_POST(self) -> None:
        left = size = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, 65_536)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.server.sizes.put(size)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Receiver(http.server.HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.sizes: queue.SimpleQueue[int] = queue.SimpleQueue()


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    with _Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("count", "size", "stored", "is_told"),
    [
        (1_000_000, 3, False, True),
        (1_000_000, 3, True, True),
        (2, 30_000_000, False, True),
        (2, 30_000_000, True, True),
        (2, 30_000_000, True, False),
    ],
)
@least_of_several
async def test_s13_webhooks_and_rows_of_large_predictions_do_not_hold_the_loop(
    serve: Serve, receiver: _Receiver, tmp_path: Path, count: int, size: int, *, stored: bool, is_told: bool
) -> None:
    store = StoreOptions(url=f"sqlite:///{tmp_path}/{time.monotonic_ns()}.db") if stored else StoreOptions()
    told = b',"webhook":"http://127.0.0.1:%d/","webhook_events_filter":["completed"]' % receiver.server_port
    async with serve(STREAM, store=store) as server:
        server.remember_nothing()
        await asyncio.to_thread(ask_for, server, "PUT", b'{"input":{"n":1,"size":3}%b}' % told, path="short")
        await asyncio.to_thread(receiver.sizes.get, timeout=PATIENCE)  # what sends webhooks is imported for the first
        body = b'{"input":{"n":%d,"size":%d}%b}' % (count, size, told if is_told else b"")
        with LoopProbe() as probe:
            status, answer = await asyncio.to_thread(ask_for, server, "PUT", body)
            webhook = await asyncio.to_thread(receiver.sizes.get, timeout=PATIENCE) if is_told else len(answer)
            _, again = await asyncio.to_thread(ask_for, server, "GET", None)
    assert status == 200, answer[:500]
    assert len(answer) == webhook == len(again)
    assert answer == again
    assert answer[answer.index(b'"output":[') :].count(b"b") == count * size
    probe.check(LONGEST_HOLD)


@least_of_several
async def test_s13_long_context_is_refused(server: LiveServer) -> None:
    body = b'{"input":{"x":["a"]},"context":{%b}}' % members(400_000, b'"a"')
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, "/predictions", body)
    assert status == 422
    assert b"more than 10000 members" in answer
    probe.check(LONGEST_HOLD)


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        (lambda: b'"context":{%b}' % members(9000, b'"%b"' % (b"a" * 5000)), 422, b'"context"'),
        (lambda: b'"id":"%b"' % (b"a" * 60_000_000), 422, b'"id"'),
        (lambda: b'"webhook":"http://a/%b"' % (b"a" * 60_000_000), 422, b'"webhook"'),
        (lambda: b'"webhook_events_filter":[%b"start"]' % (b'"start",' * 4_000_000), 200, b'"succeeded"'),
    ],
    ids=["context", "id", "webhook", "webhook_events_filter"],
)
@least_of_several
async def test_s13_large_fields_beside_the_input_do_not_hold_the_loop(
    server: LiveServer, fields: Callable[[], bytes], status: int, text: bytes
) -> None:
    body = b'{"input":{"x":["a"]},%b}' % fields()
    with LoopProbe() as probe:
        found, answer = await asyncio.to_thread(post, server, "/predictions", body)
    assert found == status, answer[:500]
    assert text in answer
    probe.check(LONGEST_HOLD)


@pytest.mark.parametrize("way", ["infer", "generate"])
async def test_s13_large_parameters_are_refused(server: LiveServer, way: str) -> None:
    parameters = b'"parameters":{"a":"%b"}' % (b"a" * 9_000_000)
    tensor = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["a"]}],%b}' % parameters
    body = tensor if way == "infer" else b'{"x":["a"],%b}' % parameters
    status, answer = await asyncio.to_thread(post, server, f"/v2/models/model/{way}", body)
    assert (status, b"more than 1048576 characters" in answer) == (400, True), answer[:500]


async def test_s13_errors_of_long_names_are_short(server: LiveServer) -> None:
    names = b",".join(b'"%d%b":1' % (each, "é".encode() * 10_000) for each in range(1000))
    status, answer = await asyncio.to_thread(post, server, "/predictions", b'{"input":{%b}}' % names)
    assert status == 422
    assert len(answer) <= 4096
    assert b"1000 fields are unexpect" in answer


@least_of_several
async def test_s13_errors_name_the_first_ten_unknown_inputs_and_their_number(server: LiveServer) -> None:
    body = b'{"input":{%b}}' % b",".join(b'"%06d":1' % each for each in range(400_000))
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, "/predictions", body)
    assert status == 422
    assert len(answer) <= 4096
    assert all(b'Unexpected field \\"%06d\\"' % each in answer for each in range(10))
    assert b"000010" not in answer
    assert b"400000 fields are unexpected" in answer
    probe.check(LONGEST_HOLD)


# OpenAI's API

CHAT: Final = """
    from typing import Any, Iterator
    from geartrain import BaseRunner, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, messages: list[dict[str, Any]], n_pieces: int = 1, size: int = 1) -> Iterator[str]:
            yield from ["c" * size] * n_pieces
"""
EMBEDDINGS: Final = """
    # ruff: noqa
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, texts: list[str]) -> KIND:
            return np.full((len(texts), 1536), 0.1, np.float32)GIVEN
"""


def chat(messages: Any = "hello", **fields: Any) -> bytes:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return json.dumps({"model": "model", "messages": messages, **fields}).encode()


@pytest.mark.parametrize(("count", "size"), [(1, 40_000_000), (1_000_000, 40), (40, 1_000_000)])
@least_of_several
async def test_s13_large_chat_answers_do_not_hold_the_loop(serve_once: ServeOnce, count: int, size: int) -> None:
    path = "/v1/chat/completions"
    server = await serve_once(CHAT)
    server.remember_nothing()
    assert (await asyncio.to_thread(post, server, path, chat()))[0] == 200  # what is imported once
    body = chat(n_pieces=count, size=size)
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == 200, answer[:500]
    assert json.loads(answer)["choices"][0]["message"]["content"] == "c" * size * count
    probe.check(LONGEST_HOLD)


def text_in(path: str, answer: bytes) -> str:
    """Return the text of a whole answer."""
    body = json.loads(answer)
    if path == "/v1/responses":
        return str(body["output"][0]["content"][0]["text"])
    return str(body["content"][0]["text"])


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("count", "size"), [(1, 40_000_000), (300_000, 40), (40, 1_000_000)])
@least_of_several
async def test_s13_large_answers_of_other_forms_do_not_hold_the_loop(
    serve_once: ServeOnce, path: str, count: int, size: int, *, is_stream: bool
) -> None:
    server = await serve_once(CHAT)
    server.remember_nothing()
    warm, body = (
        asked_of(path, "hello", n_pieces=pieces, size=long, stream=is_stream)
        for pieces, long in ((3, 400_000), (count, size))
    )
    assert (await asyncio.to_thread(post, server, path, warm))[0] == 200  # what is imported once
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == 200, answer[:500]
    if is_stream:
        assert answer.count(b"c") >= size * count
    else:
        assert text_in(path, answer) == "c" * size * count
    probe.check(LONGEST_HOLD)


@pytest.mark.parametrize(("count", "size"), [(1, 40_000_000), (40, 1_000_000)])
@least_of_several
async def test_s13_large_chat_streams_do_not_hold_the_loop(serve_once: ServeOnce, count: int, size: int) -> None:
    path = "/v1/chat/completions"
    server = await serve_once(CHAT)
    server.remember_nothing()
    assert (await asyncio.to_thread(post, server, path, chat(stream=True)))[0] == 200
    body = chat(n_pieces=count, size=size, stream=True)
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == 200, answer[:500]
    assert 0 <= answer.count(b"c") - size * count < 100 * (count + 3)
    probe.check(LONGEST_HOLD)


PROMPTS: Final = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, prompt: str) -> str:
            return str(len(prompt))
"""
LENGTHS: Final = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, texts: list[str]) -> list[list[float]]:
            return [[float(len(text))] for text in texts]
"""
LONG: Final = 60_000_000  # characters


def asked_of(path: str, text: str, **fields: Any) -> bytes:
    """Return the body of a request for text."""
    given: dict[str, Any] = {"model": "model", **fields}
    if path == "/v1/responses":
        return json.dumps({**given, "input": text}).encode()
    if path == "/v1/completions":
        return json.dumps({**given, "prompt": text}).encode()
    if path == "/v1/embeddings":
        return json.dumps({**given, "input": [text[: len(text) // 2], text[len(text) // 2 :]]}).encode()
    messages = [{"role": "user", "content": text}]
    return json.dumps({**given, "messages": messages, "max_tokens": 9}).encode()


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (CHAT, "/v1/chat/completions"),
        (CHAT, "/v1/responses"),
        (CHAT, "/v1/messages"),
        (PROMPTS, "/v1/chat/completions"),
        (PROMPTS, "/v1/completions"),
        (LENGTHS, "/v1/embeddings"),
    ],
    ids=["chat", "responses", "messages", "chat of a prompt", "completions", "embeddings"],
)
@least_of_several
async def test_s13_bodies_of_60_mb_do_not_hold_the_loop(serve_once: ServeOnce, model: str, path: str) -> None:
    server = await serve_once(model)
    server.remember_nothing()
    warm = asked_of(path, "hello" * 200_000)
    assert (await asyncio.to_thread(post, server, path, warm))[0] == 200  # what is imported, and started, once
    body = asked_of(path, "d" * LONG)
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == 200, answer[:500]
    assert len(answer) < 4096
    probe.check(LONGEST_HOLD)


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize(
    ("kind", "given"),
    [('Float32[np.ndarray, "n 1536"]', ""), ("list[list[float]]", ".tolist()")],
    ids=["array", "list"],
)
@least_of_several
async def test_s13_embeddings_do_not_hold_the_loop(serve_once: ServeOnce, kind: str, given: str, encoding: str) -> None:
    path = "/v1/embeddings"
    server = await serve_once(EMBEDDINGS.replace("KIND", kind).replace("GIVEN", given))
    server.remember_nothing()
    few, many = (
        json.dumps({"model": "model", "input": ["text"] * count, "encoding_format": encoding}).encode()
        for count in (3, 2048)
    )
    assert (await asyncio.to_thread(post, server, path, few))[0] == 200
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, many)
    assert status == 200, answer[:500]
    data = json.loads(answer)["data"]
    assert [one["index"] for one in data] == [*range(2048)]
    assert all(one == {**data[0], "index": index} for index, one in enumerate(data))
    assert len(data[0]["embedding"]) == (1536 if encoding == "float" else 8192)
    probe.check(LONGEST_HOLD)


def image() -> str:
    url = "data:image/png;base64," + "A" * 5_000_000
    return json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])


# They are made by their tests: 270 MB of bodies would stay in each process that collects this module.
LARGE_CHATS: Final[dict[str, tuple[int, Callable[[], str | bytes]]]] = {
    "messages": (200, lambda: json.dumps([{"role": "user", "content": "hello"}] * 10_000)),
    "long messages": (200, lambda: json.dumps([{"role": "user", "content": "hello" * 200}] * 10_000)),
    "image": (200, image),
    "lists": (400, lambda: b"[" * 5_000_000 + b"]" * 5_000_000),
    "objects": (400, lambda: b'{"a":' * 3_000_000 + b"1" + b"}" * 3_000_000),
    "elements": (400, lambda: b"[" + b"[]," * 5_000_000 + b"1]"),
    "members": (400, lambda: b'[],%b,"a":1' % members(1_000_000, b"1")),
}


@pytest.mark.parametrize("name", LARGE_CHATS)
@least_of_several
async def test_s13_large_chats_do_not_hold_the_loop(serve_once: ServeOnce, name: str) -> None:
    path = "/v1/chat/completions"
    expected, make = LARGE_CHATS[name]
    made = make()
    text = made if isinstance(made, bytes) else made.encode()
    server = await serve_once(CHAT)
    warm = chat("hello" * 100_000)
    assert (await asyncio.to_thread(post, server, path, warm))[0] == 200  # what is imported, and started, once
    body = b'{"model":"model","messages":%b}' % text
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == expected, answer[:500]
    assert len(answer) < 4096
    probe.check(LONGEST_HOLD)


SEES: Final = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, prompt: str, images: list[Path] = []) -> str:
            return f"{prompt} {[image.stat().st_size for image in images]}"
"""


@least_of_several
async def test_s13_large_pictures_of_chats_do_not_hold_the_loop(serve_once: ServeOnce) -> None:
    server = await serve_once(SEES)
    path = "/v1/chat/completions"
    warm = b'{"model":"model","messages":%b}' % image().replace("A" * 4_000_000, "").encode()
    assert (await asyncio.to_thread(post, server, path, warm))[0] == 200  # what is imported, and started, once
    body = b'{"model":"model","messages":%b}' % image().encode()
    with LoopProbe() as probe:
        status, answer = await asyncio.to_thread(post, server, path, body)
    assert status == 200, answer[:500]
    assert b"[3750000]" in answer
    probe.check(LONGEST_HOLD)


CALLS_ITSELF: Final = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        @geartrain.concurrent(max=2)
        async def run(self, x: list[KIND], count: int = 0) -> str:
            if not count:
                return f"{len(x)} {x[0]}"
            try:
                return await geartrain.models["model"](x=ELEMENTS * count)
            except geartrain.ModelError as error:
                return error.message
"""


@pytest.mark.parametrize(
    ("kind", "elements", "said"),
    [("str", '["word"]', "2400000 word"), ("float", "[0.25]", "2400000 0.25"), ("int", '["word"]', "x")],
)
@least_of_several
async def test_large_inputs_of_calls_do_not_hold_the_loop(serve: Serve, kind: str, elements: str, said: str) -> None:
    def body(count: int) -> bytes:
        return b'{"input":{"x":[],"count":%d}}' % count

    async with serve(CALLS_ITSELF.replace("KIND", kind).replace("ELEMENTS", elements)) as server:
        await asyncio.to_thread(post, server, "/predictions", body(70_000))  # what is imported, and started, once
        with LoopProbe() as probe:
            status, answer = await asyncio.to_thread(post, server, "/predictions", body(2_400_000))
    assert status in {200, 201}, answer[:500]
    output = json.loads(answer)["output"]
    assert output is not None, answer[:500]
    assert output.startswith(said), output[:500]
    probe.check(LONGEST_HOLD)
