"""Infer requests, from their heads to their answers, without a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import zlib
from typing import Any

import pytest

from geartrain.apis import tensor_json
from geartrain.domain.predictions.lifecycle import Status
from geartrain.transport.wire.exchange import Answer
from tests.support.responders import FakeResponder, accept, ask, body_of, head_of, send
from tests.unit.transport.open_inference.conftest import MAX_BODY, Zoo

INFER = "/v2/models/numbers/infer"
JSON_SIZE = b"inference-header-content-length"


def given(name: str, value: Any, datatype: str = "INT64") -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": datatype, "data": [value]}


def counting(times: int, **members: Any) -> bytes:
    return json.dumps({"inputs": [given("times", times)], **members}).encode()


async def infer(zoo: Zoo, body: bytes, *headers: tuple[bytes, bytes], path: str = INFER) -> Answer:
    return await ask(zoo.router, "POST", path, body=body, headers=headers)


def error_of(answer: Answer) -> tuple[int, str]:
    assert dict(answer.headers)[b"content-type"] == b"application/json"
    return answer.status, json.loads(body_of(answer))["error"]


async def test_answer_is_json(zoo: Zoo) -> None:
    answer = await infer(zoo, counting(3, id="7"))
    assert answer.status == 200
    assert dict(answer.headers) == {b"content-type": b"application/json"}
    assert json.loads(body_of(answer)) == {
        "id": "7",
        "model_name": "numbers",
        "model_version": "1",
        "outputs": [{"name": "output", "datatype": "INT64", "shape": [3], "data": [0, 1, 2]}],
    }


async def test_small_request_is_admitted_and_answered_without_a_task(zoo: Zoo) -> None:
    tasks = asyncio.all_tasks()
    sent = send(zoo.router, "POST", INFER, body=counting(1))
    assert len(zoo.live("numbers")) == 1
    (new,) = asyncio.all_tasks() - tasks
    assert new.get_coro().__qualname__ == "FakeWorker._serve"  # type: ignore[union-attr]
    assert (await sent.responder.answer()).status == 200


@pytest.mark.parametrize("version", ["1", "01", "0001"])
async def test_version_without_its_leading_zeros(zoo: Zoo, version: str) -> None:
    answer = await infer(zoo, counting(1), path=f"/v2/models/numbers/versions/{version}/infer")
    assert json.loads(body_of(answer))["model_version"] == "1"


async def test_one_head_serves_many_requests(zoo: Zoo) -> None:
    accepted = accept(zoo.router, head_of("POST", INFER, counting(1)))
    assert accepted.is_reusable
    responders = [FakeResponder() for _ in range(3)]
    for times, responder in enumerate(responders):
        accepted.new_exchange(responder).receive(counting(times))
    for times, responder in enumerate(responders):
        assert json.loads(body_of(await responder.answer()))["outputs"][0]["shape"] == [times]


async def test_binary_tensors(zoo: Zoo) -> None:
    one = {"name": "times", "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
    answer = await infer(zoo, text + struct.pack("<q", 2), (JSON_SIZE, b"%d" % len(text)))
    headers = dict(answer.headers)
    assert headers[b"content-type"] == b"application/octet-stream"
    assert body_of(answer)[int(headers[JSON_SIZE]) :] == struct.pack("<2q", 0, 1)


@pytest.mark.parametrize("value", [b"+100", b"1_0", b"", b" ", b"1 0", b"-1", b"0x10", b"1e3", b"\xb2", b"\xff" * 300])
async def test_length_of_the_json_is_digits_alone(zoo: Zoo, value: bytes) -> None:
    status, text = error_of(await infer(zoo, counting(1), (JSON_SIZE, value)))
    assert status == 400
    start = "Inference-Header-Content-Length must be the number of bytes of the JSON header, got: '"
    assert text.startswith(start)
    assert len(text) <= len(start) + 201


@pytest.mark.parametrize("value", [b"9" * 18, b"9" * 19, b"9" * 5000])
async def test_length_of_the_json_beyond_the_body(zoo: Zoo, value: bytes) -> None:
    status, text = error_of(await infer(zoo, counting(1), (JSON_SIZE, value)))
    assert (status, "inference header size should be in range" in text) == (400, True)


# refusals


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (INFER, b"{", 400, "failed to parse the request JSON"),
        (INFER, b"", 400, "failed to parse the request JSON"),
        ("/v2/models/nope/infer", b"{", 404, "'nope' is not found"),
        ("/v2/models/numbers/versions/007/infer", b"{", 404, "'numbers' version 7 is not found"),
        (INFER, counting(-1), 500, "ValueError: there are no such numbers"),
        (INFER, b'{"inputs":[]}' + b" " * MAX_BODY, 413, f"larger than the limit of {MAX_BODY} bytes"),
    ],
)
async def test_refused(zoo: Zoo, path: str, body: bytes, status: int, text: str) -> None:
    found, message = error_of(await infer(zoo, body, path=path))
    assert (found, text in message) == (status, True)


async def test_model_that_is_not_ready(zoo: Zoo) -> None:
    worker: Any = zoo.catalogue.find("numbers").workers.replicas[0].worker
    worker.die("gone")
    answer = await infer(zoo, b"{")
    assert error_of(answer)[0] == 503
    assert b"retry-after" in dict(answer.headers)


async def test_bug_is_a_500(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("geartrain.service.models.inference.create_bound", lambda *_, **__: 1 // 0)
    assert error_of(await infer(zoo, counting(1))) == (500, "Internal server error")
    assert "ZeroDivisionError" in caplog.text


NAME = "n" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [given(NAME, 1)]},
        {"inputs": [given(NAME, "x")]},
        {"inputs": [given(NAME, 1, NAME)]},
        {"inputs": [{**given(NAME, 1), "shape": [10**300] * 60}]},
        {"inputs": [{**given("times", 1), "shape": [1] * 30, "data": [1]}]},
        {"inputs": [{**given(NAME, 1), "parameters": {"binary_data_size": 8}}]},
        {"inputs": [{"name": NAME, "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 10**1000}}]},
        {"inputs": [{"name": NAME, "shape": [1], "datatype": "INT64"}]},
        {"inputs": [{**given(NAME, 1), "data": None, "parameters": {"shared_memory_region": NAME}}]},
        {
            "inputs": [
                {
                    **given("times", 1),
                    "data": None,
                    "parameters": {"shared_memory_region": NAME, "shared_memory_byte_size": 8},
                }
            ]
        },
        {"inputs": [], "outputs": [{"name": NAME}]},
        {"inputs": [], "outputs": [{"name": NAME, "parameters": {"classification": 1}}]},
        {"inputs": [], "parameters": {NAME: [1]}},
        {"inputs": [], "parameters": {f"triton_{NAME}": 1}},
    ],
)
async def test_errors_quote_little(zoo: Zoo, body: dict[str, Any]) -> None:
    status, text = error_of(await infer(zoo, json.dumps(body).encode()))
    assert status in {400, 404}
    assert len(text) < 700


async def test_error_of_a_long_path_quotes_little(zoo: Zoo) -> None:
    for path in (f"/v2/models/{NAME}/infer", f"/v2/models/numbers/versions/{'1' * 10_000}/infer"):
        status, text = error_of(await infer(zoo, b"{}", path=path))
        assert (status, len(text) < 300) == (404, True)


# clients that leave


async def test_client_that_leaves_cancels_its_run(zoo: Zoo) -> None:
    sent = send(zoo.router, "POST", "/v2/models/gate/infer", body=b'{"inputs":[]}')
    await zoo.gate.began.wait()
    (prediction,) = zoo.live("gate")
    ended = asyncio.Event()
    prediction.log.listen_for_end(ended.set)
    sent.exchange.abandon()
    await ended.wait()
    assert prediction.status is Status.CANCELED
    assert not sent.responder.answers


async def test_nothing_is_started_for_a_client_that_left_while_its_body_was_read(zoo: Zoo) -> None:
    body = b'{"inputs":[],"x":"' + b"x" * 100_000 + b'"}'
    sent = send(zoo.router, "POST", "/v2/models/gate/infer", body=body)
    sent.exchange.abandon()
    other = send(zoo.router, "POST", INFER, body=body)  # behind it
    assert (await other.responder.answer()).status == 200
    assert not zoo.live("gate")
    assert not sent.responder.answers


# compression


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(counting(2), mtime=0)),
        (b"x-gzip", gzip.compress(counting(2), mtime=0)),
        (b"Deflate", zlib.compress(counting(2))),
        (b"identity", counting(2)),
        (b"gzip", gzip.compress(counting(2, x=" " * 500_000), mtime=0)),
    ],
)
async def test_compressed_request(zoo: Zoo, encoding: bytes, body: bytes) -> None:
    answer = await infer(zoo, body, (b"content-encoding", encoding))
    assert json.loads(body_of(answer))["outputs"][0]["data"] == [0, 1]


async def test_request_that_is_too_large_when_it_is_decompressed(zoo: Zoo) -> None:
    bomb = gzip.compress(b" " * (MAX_BODY + 1))
    status, text = error_of(await infer(zoo, bomb, (b"content-encoding", b"gzip")))
    assert (status, "--max-body-size" in text) == (413, True)


async def test_corrupt_request(zoo: Zoo) -> None:
    status, text = error_of(await infer(zoo, counting(1), (b"content-encoding", b"gzip")))
    assert (status, "not valid gzip" in text) == (400, True)


def test_unknown_encoding_is_refused_by_the_head_alone(zoo: Zoo) -> None:
    answer = zoo.router.begin(head_of("POST", INFER, b"x", headers=((b"content-encoding", b"br"),)))
    assert isinstance(answer, Answer)
    assert error_of(answer)[0] == 501
    assert dict(answer.headers)[b"accept-encoding"] == b"gzip, deflate"


@pytest.mark.parametrize("times", [1, 20_000])
@pytest.mark.parametrize(
    ("accept_encodings", "encoding", "decompress"),
    [
        ([b"gzip"], b"gzip", gzip.decompress),
        ([b"deflate, gzip"], b"gzip", gzip.decompress),
        ([b"br", b"deflate"], b"deflate", zlib.decompress),
        ([b"gzip;q=0"], None, bytes),
        ([b"br"], None, bytes),
    ],
)
async def test_compressed_answer(
    zoo: Zoo, accept_encodings: list[bytes], encoding: bytes | None, decompress: Any, times: int
) -> None:
    headers = [(b"accept-encoding", each) for each in accept_encodings]
    answer = await infer(zoo, counting(times), *headers)
    found = dict(answer.headers)
    assert found.get(b"content-encoding") == encoding
    assert found.get(b"vary") == (None if encoding is None else b"accept-encoding")
    assert json.loads(decompress(body_of(answer)))["outputs"][0]["data"] == list(range(times))


async def test_errors_are_not_compressed(zoo: Zoo) -> None:
    answer = await infer(zoo, b"{", (b"accept-encoding", b"gzip"))
    assert error_of(answer)[0] == 400


# large tensors


async def test_large_answer_loads_what_it_is_written_with(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_json._Arrays, "module", None)
    assert json.loads(body_of(await infer(zoo, counting(1))))["outputs"][0]["data"] == [0]
    assert tensor_json.arrays() is None
    assert json.loads(body_of(await infer(zoo, counting(10_000))))["outputs"][0]["data"] == list(range(10_000))
    assert tensor_json.arrays() is not None


async def test_large_request_loads_what_it_is_read_with(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_json._Arrays, "module", None)
    assert (await infer(zoo, counting(1) + b" " * 100_000)).status == 200
    assert tensor_json.arrays() is not None
