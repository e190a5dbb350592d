"""Bodies of requests as attackers write them: said in a sentence that repeats little, and never believed twice."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from geartrain.outbound.policy import AddressRefusedError, UrlPolicy
from tests.support.attacks import (
    ECHO,
    MANY,
    answers_to,
    body,
    error_of,
    handled,
    peer,
    post,
    request,
    runs,
)
from tests.support.servers import LiveServer, Serve, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOWN = 200  # characters of a client's text that an answer repeats


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ECHO, cog_yaml=MANY) as server:
        yield server


async def status_and_text(server: LiveServer, data: bytes) -> tuple[int, str]:
    [answer] = await answers_to(server.url, data)
    return answer.status, answer.body.decode()


def predict(content: bytes) -> bytes:
    return request("POST", "/predictions", "Connection: close", content=content)


def infer(content: bytes, *fields: str) -> bytes:
    return request("POST", "/v2/models/model/infer", "Connection: close", *fields, content=content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"input":{},"\\u0069nput":{"s":"other"}}',
        b'{"\\u0069nput":{},"\\u0069nput":{}}',
        b'{"inpu\\u0074":{"s":"a"},"input":{"s":"b"}}',
        b'{"id":"a","i\\u0064":"b"}',
    ],
)
async def test_a11_a_field_given_twice_whatever_its_escapes(server: LiveServer, content: bytes) -> None:
    before = runs(server)
    status, text = await status_and_text(server, predict(content))
    assert status == 422
    assert "duplicate field" in text
    assert runs(server) == before


@pytest.mark.parametrize("value", ["+100", "1_0", "-1", "0x10", "1e1", "1 0", "", "\xb2", "99999999999999999999"])
async def test_a11_the_length_of_a_binary_header_is_a_number(server: LiveServer, value: str) -> None:
    content = b'{"inputs":[]}'.ljust(100)
    field = f"Inference-Header-Content-Length: {value}".encode("latin-1")
    data = request("POST", "/v2/models/model/infer", "Connection: close", field, content=content)
    status, text = await status_and_text(server, data)
    assert status == 400
    assert "error" in text


async def test_a11_an_empty_id_is_refused(server: LiveServer) -> None:
    """It could never be found again."""
    status, text = await status_and_text(server, predict(b'{"id":""}'))
    assert status == 422
    assert '"id"' in text


@pytest.mark.parametrize("escape", [b"\\ud800", b"\\udfff", b"\\ud800x", b"\\ud800\\ud800"])
async def test_a11_a_lone_surrogate_is_named_as_one(server: LiveServer, escape: bytes) -> None:
    for content in (b'{"input":{"s":"%b"}}' % escape, b'{"input":{"s":"%b"' % escape):
        status, text = await status_and_text(server, predict(content))
        assert status == 400
        if content.endswith(b"}}"):
            assert "truncated" not in text


@pytest.mark.parametrize(
    "data",
    [
        predict(b'{"input":{"s":' + b"1" * 1_000_000 + b"}}"),
        predict(b'{"input":{"' + b"z" * 1_000_000 + b'":1}}'),
        predict(b'{"input":{"size":"' + b"z" * 1_000_000 + b'"}}'),
        predict(b'{"webhook":"' + b"z" * 1_000_000 + b'"}'),
        predict(b'{"created_at":"' + b"z" * 1_000_000 + b'"}'),
        predict(b"z" * 1_000_000),
        infer(b'{"inputs":[{"name":"' + b"z" * 1_000_000 + b'","shape":[1],"datatype":"BYTES","data":["a"]}]}'),
        infer(b'{"inputs":[{"name":"s","shape":[1],"datatype":"' + b"z" * 1_000_000 + b'","data":["a"]}]}'),
        request("GET", "/" + "z" * 20_000, "Connection: close"),
        request("POST", "/v2/models/" + "z" * 20_000 + "/infer", "Connection: close", content=b"{}"),
        request("POST", "/predictions/" + "z" * 20_000 + "/cancel", "Connection: close"),
        request("PUT", "/predictions/" + "z" * 20_000, "Connection: close", content=b"{"),
    ],
)
async def test_a11_an_error_repeats_little(server: LiveServer, data: bytes) -> None:
    status, text = await status_and_text(server, data)
    assert 400 <= status < 500
    assert text
    assert "z" * (SHOWN + 1) not in text
    assert "1" * (SHOWN + 1) not in text
    assert len(text) < 5000


@pytest.mark.parametrize("address", ["192.88.99.0", "192.88.99.1", "192.88.99.255"])
async def test_a11_the_relays_of_6to4_are_not_public(address: str) -> None:
    with pytest.raises(AddressRefusedError):
        UrlPolicy().admit("relay.example", [address])


# what held: a test for each that had none


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
async def test_depth_is_bounded(server: LiveServer, opening: bytes) -> None:
    for content in (b'{"input":{"s":' + opening * 200_000, b'{"context":' + opening * 200_000, opening * 200_000):
        status, _ = await status_and_text(server, predict(content))
        assert status in {400, 422}
        status, _ = await status_and_text(server, infer(content))
        assert status == 400


@pytest.mark.parametrize(
    "number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"0x1", b"01", b"1_0", b"+1", b".5", b"1."]
)
async def test_numbers_that_json_does_not_have(server: LiveServer, number: bytes) -> None:
    status, _ = await status_and_text(server, predict(b'{"input":{"size":%b}}' % number))
    assert status == 400


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xf8\x88\x80\x80\x80"]
)
async def test_text_that_is_no_utf_8(server: LiveServer, text: bytes) -> None:
    status, _ = await status_and_text(server, predict(b'{"input":{"s":"%b"}}' % text))
    assert status == 400


@pytest.mark.parametrize(
    "shape", ["[4611686018427387904,4]", "[9223372036854775807,2]", "[-1]", "[4294967296,4294967296]", "[1e3]"]
)
async def test_shapes_that_overflow(server: LiveServer, shape: str) -> None:
    content = f'{{"inputs":[{{"name":"s","shape":{shape},"datatype":"BYTES","data":["a"]}}]}}'
    status, _ = await status_and_text(server, infer(content.encode()))
    assert status == 400


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "a%2f..%2f..%2fetc", "%00", "model%0d%0aX:y", "-", "con", "\u00e9".encode().hex()]
)
async def test_names_of_models_lead_nowhere(server: LiveServer, name: str) -> None:
    for data in (
        infer(b"{}").replace(b"models/model", f"models/{name}".encode()),
        request("POST", f"/v2/repository/models/{name}/load", "Connection: close", content=b"{}"),
        request("GET", f"/models/{name}", "Connection: close"),
    ):
        [answer] = await answers_to(server.url, data)
        assert 400 <= answer.status < 500
        assert "x" not in answer.headers


async def test_an_id_cannot_write_a_header(server: LiveServer) -> None:
    data = request("PUT", "/predictions/a%0d%0aSet-Cookie:%20x", "Connection: close", content=body())
    [answer] = await answers_to(server.url, data)
    assert answer.json()["id"] == "a\r\nSet-Cookie: x"
    assert "set-cookie" not in answer.headers


async def test_a_frozen_worker_holds_nobody_else(serve: Serve) -> None:
    """The server goes on answering; the prediction goes on when the worker does."""
    async with serve(ECHO, name="frozen") as server, peer(server.url) as client:
        await client.send(post("thawed", "Connection: close", gate="go"))
        await eventually(lambda: len(runs(server)) == len(["thawed"]))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for _ in range(20):
                await handled(server.url)
            [refused] = await answers_to(server.url, predict(body("other")))
            assert refused.status == 409
            assert error_of(refused)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        server.open_gate()
        [answer] = await client.answers()
        assert answer.json()["output"] == "thawed"
