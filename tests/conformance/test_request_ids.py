"""`X-Request-Id`, `traceparent` and `X-Prediction-Id`: taken, made, echoed, and passed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support import modes
from tests.support.receiver import receiving
from tests.support.servers import LiveServer, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
    import json
    import geartrain

    def run(text: str) -> str:
        if text == "fail":
            raise ValueError("no")
        scope = geartrain.current_scope()
        return json.dumps([scope.request_id, scope.traceparent, scope.tracestate])
"""
FILES = """
    import pathlib
    import geartrain

    def run() -> geartrain.Path:
        path = pathlib.Path("a.txt")
        path.write_text("x")
        return geartrain.Path(path)
"""
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
IDS = {"x-request-id": "r-1", "traceparent": PARENT, "tracestate": "a=1"}
INFER = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
RUNS = [
    ("/predictions", {"input": {"text": "x"}}, lambda body: body["output"]),
    ("/v2/models/model/infer", INFER, lambda body: body["outputs"][0]["data"][0]),
    ("/v2/models/model/generate", {"text": "x"}, lambda body: body["text_output"]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as live:
        yield live


@pytest.mark.parametrize(("path", "body", "output"), RUNS, ids=["cog", "rest", "generate"])
async def test_ids_of_the_client_are_echoed_and_given_to_the_model(
    server: LiveServer, path: str, body: Any, output: Any
) -> None:
    for _ in range(2):
        answer = await server.client.post(path, json=body, headers=IDS)
        assert answer.status_code == 200, answer.text
        assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("r-1", PARENT)
        assert answer.headers["x-prediction-id"]
        assert json.loads(output(answer.json())) == ["r-1", PARENT, "a=1"]


@pytest.mark.parametrize(("path", "body", "output"), RUNS, ids=["cog", "rest", "generate"])
async def test_every_request_gets_ids_also_where_its_head_is_known(
    server: LiveServer, path: str, body: Any, output: Any
) -> None:
    seen = []
    for _ in range(3):
        answer = await server.client.post(path, json=body)
        ids = (answer.headers["x-request-id"], answer.headers["traceparent"])
        assert json.loads(output(answer.json())) == [*ids, ""]
        seen.append((*ids, answer.headers["x-prediction-id"]))
    assert [len(set(column)) for column in zip(*seen, strict=True)] == [3, 3, 3]


async def test_bad_ids_are_replaced(server: LiveServer) -> None:
    given = {"x-request-id": "x" * 129, "traceparent": "00-0-0-00", "tracestate": "a=1"}
    answer = await server.client.post("/predictions", json={"input": {"text": "x"}}, headers=given)
    made = (answer.headers["x-request-id"], answer.headers["traceparent"])
    assert (len(made[0]), len(made[1])) == (32, 55)
    assert json.loads(answer.json()["output"]) == [*made, ""]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health-check", None, 200),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/predictions", None, 405),
        ("POST", "/predictions", {"input": {}}, 422),
        ("POST", "/v2/models/none/infer", INFER, 404),
        ("POST", "/v2/models/model/generate", {}, 400),
    ],
)
async def test_answers_without_a_prediction_have_them_too(
    server: LiveServer, method: str, path: str, body: Any, status: int
) -> None:
    answer = await server.client.request(method, path, json=body, headers=IDS)
    assert answer.status_code == status
    assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("r-1", PARENT)
    assert "x-prediction-id" not in answer.headers


async def test_the_prediction_is_named_in_every_answer_about_it(server: LiveServer) -> None:
    client, body = server.client, {"input": {"text": "x"}}
    answers = [
        await client.post("/predictions", json={**body, "id": "one"}),
        await client.get("/predictions/one"),
        await client.put("/predictions/two", json=body),
        await client.post("/predictions", json={**body, "id": "three"}, headers={"prefer": "respond-async"}),
    ]
    assert [answer.headers["x-prediction-id"] for answer in answers] == ["one", "one", "two", "three"]
    failed = await client.post("/v2/models/model/generate", json={"text": "fail"})
    assert (failed.status_code, bool(failed.headers["x-prediction-id"])) == (500, True)


async def test_an_id_that_no_header_may_hold_is_escaped(server: LiveServer) -> None:
    answer = await server.client.post("/predictions", json={"input": {"text": "x"}, "id": "a\r\nset-cookie: ä=1"})
    assert answer.json()["id"] == "a\r\nset-cookie: ä=1"
    assert answer.headers["x-prediction-id"] == "a%0D%0Aset-cookie: %C3%A4=1"
    assert "set-cookie" not in answer.headers


async def test_webhooks_carry_them(server: LiveServer) -> None:
    async with receiving() as receiver:
        body = {"input": {"text": "x"}, "webhook": receiver.url()}
        await server.client.post("/predictions", json=body, headers=IDS)
        for call in await receiver.ended():
            assert {name: call.headers[name] for name in IDS} == IDS


async def test_uploads_carry_them(serve: Serve) -> None:
    async with receiving() as receiver, serve(FILES, upload_url=receiver.url("/up")) as live:
        answer = await live.client.post("/predictions", json={"input": {}}, headers=IDS)
        assert answer.json()["status"] == "succeeded"
        (own,) = receiver.calls
        assert {name: own.headers[name] for name in IDS} == IDS
        form = {"input": {}, "output_file_prefix": receiver.url("/mine")}
        await live.client.post("/predictions", json=form, headers=IDS)
        assert {name: receiver.calls[-1].headers[name] for name in IDS} == IDS


@pytest.mark.own_wire(reason="a host inside which the application runs has its own HTTP/2")
@pytest.mark.parametrize("given", [True, False])
async def test_grpc_has_them_in_its_initial_metadata(server: LiveServer, *, given: bool) -> None:
    async with _channel(server) as channel:
        ask = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        seen = set()
        for _ in range(3):
            call = ask(_request("x"), metadata=[*_key(), *(IDS.items() if given else ())])
            found = {str(name): str(value) for name, value in await call.initial_metadata()}
            (raw,) = (await call).raw_output_contents
            expected = [found["x-request-id"], found["traceparent"], "a=1" if given else ""]
            assert json.loads(raw[4:]) == expected
            assert found["x-prediction-id"]
            seen.add(found["x-request-id"])
        assert seen == {"r-1"} if given else len(seen) == 3
        refused = ask(_request("x", model="none"), metadata=[*_key(), *IDS.items()])
        assert await refused.code() is grpc.StatusCode.NOT_FOUND
        everything = [*(await refused.initial_metadata()), *(await refused.trailing_metadata())]
        assert ("x-request-id", "r-1") in [(str(name), str(value)) for name, value in everything]


@pytest.mark.own_wire(reason="a host inside which the application runs answers what is no HTTP itself")
async def test_an_answer_to_what_is_no_request_has_them(server: LiveServer) -> None:
    reader, writer = await _connect(server)
    writer.write(b"GET  / HTTP/1.1\r\n\r\n")
    answer = (await reader.read()).decode().lower()
    writer.close()
    assert answer.startswith("http/1.1 400 ")
    assert "\r\nx-request-id: " in answer
    assert "\r\ntraceparent: 00-" in answer


async def test_a_prediction_keeps_the_request_that_it_comes_from(server: LiveServer) -> None:
    for path, body, protocol in (
        ("/predictions", {"input": {"text": "x"}}, "cog"),
        ("/v2/models/model/infer", INFER, "rest"),
        ("/v2/models/model/generate", {"text": "x"}, "generate"),
    ):
        await server.client.post(path, json=body, headers=IDS)
        prediction = server.newest()
        record = prediction.record
        request = record.request
        assert (request.request_id, request.traceparent, request.protocol) == ("r-1", PARENT, protocol)
        assert (record.model, record.version) == ("model", "1")


def _request(text: str, model: str = "model") -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    return pb.ModelInferRequest(model_name=model, inputs=[tensor])


def _channel(server: LiveServer) -> grpc.aio.Channel:
    address = urlsplit(server.url).netloc
    credentials = modes.current().credentials
    if credentials is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(credentials.authority.read_bytes()))


def _key() -> list[tuple[str, str]]:
    return list(modes.current().headers.items())


async def _connect(server: LiveServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(server.url)
    return await asyncio.open_connection(parts.hostname, parts.port, ssl=modes.current().trust(server.url))
