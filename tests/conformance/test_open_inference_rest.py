"""The Open Inference Protocol over REST, on real servers: by hand, and with Triton's own client."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from geartrain import __version__
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.tensors.tensor import join_bytes
from tests.support import wire
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model
from tests.support.shared_memory import SharedObject, shared_object
from tests.support.triton import triton_http, triton_http_aio

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = """
    import os, pathlib, select, time
    from typing import Optional, TypedDict
    import numpy as np
    from jaxtyping import Bool, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64
    from geartrain import BaseRunner, current_scope

    A = np.ndarray

    class Out(TypedDict, total=False):
        BOOL: Bool[A, "n"]
        INT8: Int8[A, "n"]
        INT16: Int16[A, "n"]
        INT32: Int32[A, "n"]
        INT64: Int64[A, "n"]
        UINT8: UInt8[A, "n"]
        UINT16: UInt16[A, "n"]
        UINT32: UInt32[A, "n"]
        UINT64: UInt64[A, "n"]
        FP32: Float32[A, "_ _"]
        FP64: Float64[A, "n"]
        BYTES: list[bytes]
        texts: list[str]
        told: str

    class Runner(BaseRunner):
        def run(
            self,
            BOOL: Optional[Bool[A, "n"]] = None,
            INT8: Optional[Int8[A, "n"]] = None,
            INT16: Optional[Int16[A, "n"]] = None,
            INT32: Optional[Int32[A, "n"]] = None,
            INT64: Optional[Int64[A, "n"]] = None,
            UINT8: Optional[UInt8[A, "n"]] = None,
            UINT16: Optional[UInt16[A, "n"]] = None,
            UINT32: Optional[UInt32[A, "n"]] = None,
            UINT64: Optional[UInt64[A, "n"]] = None,
            FP16: Optional[Float16[A, "n"]] = None,
            FP32: Optional[Float32[A, "_ _"]] = None,
            FP64: Optional[Float64[A, "n"]] = None,
            BYTES: Optional[list[bytes]] = None,
            texts: list[str] = [],
            act: str = "",
        ) -> Out:
            given = {name: value for name, value in locals().items() if name in Out.__annotations__}
            given = {name: value for name, value in given.items() if value is not None}
            if act == "raise":
                raise ValueError("it went wrong")
            if act == "nothing":
                return None
            if act == "nan":
                given["FP64"] = np.array([np.nan])
            if act == "odd bytes":
                given["BYTES"] = [b"\\xff"]
            if act == "tell":
                scope = current_scope()
                given["told"] = repr(sorted(scope.parameters.items()))
                scope.record_metric("seconds", 0.5)
                scope.record_metric("words", "two")
            if act == "wait":
                print("waiting")
                select.select([], [], [], 60)
            if FP16 is not None:
                given["FP32"] = FP16.astype("f4")[None]
            return given
"""

TALK = """
    import pathlib, time
    from geartrain import BaseRunner, ConcatenateIterator, Input

    class Runner(BaseRunner):
        def run(self, prompt: str, words: int = Input(default=3, ge=0), fail: bool = False, hold: bool = False,
                temperature: float = 1.0) -> ConcatenateIterator[str]:
            for number in range(words):
                yield f"{prompt} {number}\\n"
                if hold:
                    print("holding")
                    while not pathlib.Path("go").exists():
                        time.sleep(0.005)
                    pathlib.Path("go").unlink()
            if fail:
                raise RuntimeError("the model is lost")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kinds(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(KINDS, name="kinds", shared_memory=True, max_body_bytes=2_000_000) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talk(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(TALK, name="talk") as server:
        yield server


INFER = "/v2/models/kinds/infer"
GENERATE = "/v2/models/talk/generate"
STREAM = "/v2/models/talk/generate_stream"


def given(name: str, data: Any, shape: list[int] | None = None, datatype: str | None = None) -> dict[str, Any]:
    shape = [len(data)] if shape is None else shape
    return {"name": name, "shape": shape, "datatype": datatype or name, "data": data}


def act(what: str) -> dict[str, Any]:
    return given("act", [what], datatype="BYTES")


async def infer(server: LiveServer, *inputs: dict[str, Any], path: str = INFER, **members: Any) -> dict[str, Any]:
    """The outputs by name of a request that goes well."""
    response = await server.client.post(path, json={"inputs": inputs, **members})
    assert response.status_code == 200, response.text
    return {output["name"]: output for output in response.json()["outputs"]}


async def error(server: LiveServer, path: str, **request: Any) -> tuple[int, str]:
    """The status and the text of a request that goes wrong."""
    response = await server.client.post(path, **request)
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    return response.status_code, body["error"]


# what there is


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2/models/kinds/ready", 200),
        ("/v2/models/kinds/versions/1/ready", 200),
        ("/v2/models/kinds/versions/01/ready", 200),
        ("/v2/models/k%69nds/ready", 200),
        ("/v2/models/kinds/versions/2/ready", 400),
        ("/v2/models/nope/ready", 400),
        ("/v2/models/KINDS/ready", 400),
    ],
)
async def test_health_is_a_status_without_a_body(kinds: LiveServer, path: str, status: int) -> None:
    response = await kinds.client.get(path)
    assert (response.status_code, response.content) == (status, b"")
    assert response.headers["content-length"] == "0"


async def test_health_before_setup_is_done(serve: Serve) -> None:
    source = """
        import pathlib, time
        class Runner:
            def setup(self):
                while not pathlib.Path("go").exists():
                    time.sleep(0.005)
            def run(self, prompt: str) -> str:
                return prompt
    """
    async with serve(source, ready=False) as server:
        async with asyncio.timeout(40):
            await server.deployment.loaded.wait()
        paths = ["/v2/health/live", "/v2/health/ready", "/v2/models/model/ready", "/v2/models/model"]
        assert [(await server.client.get(path)).status_code for path in paths] == [200, 400, 400, 200]
        bodies: list[Any] = [{"inputs": [given("prompt", ["a"], datatype="BYTES")]}, {"inputs": []}, {"nope": 1}]
        for body in bodies:
            assert (await error(server, "/v2/models/model/infer", json=body))[0] == 503
        for text in ({"prompt": "a"}, {"nope": "a"}):
            assert (await error(server, "/v2/models/model/generate", json=text))[0] == 503
            assert (await error(server, "/v2/models/model/generate_stream", json=text))[0] == 503
        server.open_gate()
        await eventually(lambda: server.workers.health == "READY")
        assert [(await server.client.get(path)).status_code for path in paths] == [200] * 4


@pytest.mark.one_server(reason="it names shared memory, which replicas do not have with clients")
async def test_server_metadata(kinds: LiveServer, talk: LiveServer) -> None:
    body = (await kinds.client.get("/v2")).json()
    assert list(body) == ["name", "version", "extensions"]
    assert (body["name"], body["version"]) == ("geartrain", __version__)
    assert {"binary_tensor_data", "statistics", "system_shared_memory"} <= set(body["extensions"])
    assert "system_shared_memory" not in (await talk.client.get("/v2")).json()["extensions"]


async def test_model_metadata(talk: LiveServer) -> None:
    expected = {
        "name": "talk",
        "versions": ["1"],
        "platform": "python",
        "inputs": [
            {"name": "prompt", "datatype": "BYTES", "shape": [1]},
            {"name": "words", "datatype": "INT64", "shape": [1]},
            {"name": "fail", "datatype": "BOOL", "shape": [1]},
            {"name": "hold", "datatype": "BOOL", "shape": [1]},
            {"name": "temperature", "datatype": "FP64", "shape": [1]},
        ],
        "outputs": [{"name": "output", "datatype": "BYTES", "shape": [1]}],
        "properties": {"kind": "code", "streaming": "true"},
    }
    for path in ("/v2/models/talk", "/v2/models/talk/versions/1"):
        assert (await talk.client.get(path)).json() == expected


async def test_o6_properties_of_a_model_with_batches(serve: Serve) -> None:
    source = """
        from geartrain import BaseRunner, batched

        class Runner(BaseRunner):
            @batched(max_size=7)
            def run(self, text: list[str]) -> list[str]:
                return [each.upper() for each in text]
    """
    async with serve(source, name="shout") as server:
        properties = (await server.client.get("/v2/models/shout")).json()["properties"]
        expected = {"kind": "code", "streaming": "false", "batch_max_size": "7"}
        assert properties == expected


async def test_o6_list_of_models_and_a_slash_after_v2(kinds: LiveServer) -> None:
    response = await kinds.client.get("/v2/models")
    assert (response.status_code, response.text) == (200, '{"models":["kinds"]}')
    with_slash, without = [await kinds.client.get(path) for path in ("/v2/", "/v2")]
    assert (with_slash.status_code, with_slash.content) == (200, without.content)


async def test_o5_health_bodies_where_they_are_wanted(
    serve: Serve, setup_ends: Callable[[LiveServer], Awaitable[None]]
) -> None:
    source = """
        import pathlib, time
        class Runner:
            def setup(self):
                while not pathlib.Path("go").exists():
                    time.sleep(0.005)
            def run(self, prompt: str) -> str:
                return prompt
    """
    async with serve(source, ready=False, health_body=True) as server:

        async def get(path: str) -> tuple[int, Any]:
            response = await server.client.get(path)
            assert response.headers["content-type"] == "application/json"
            return response.status_code, response.json()

        assert await get("/v2/health/live") == (200, {"live": True})
        assert await get("/v2/health/ready") == (400, {"ready": False})
        assert await get("/v2/models/model/ready") == (400, {"name": "model", "ready": False})
        assert await get("/v2/models/nope/ready") == (400, {"name": "nope", "ready": False})
        server.open_gate()
        await setup_ends(server)
        assert await get("/v2/health/ready") == (200, {"ready": True})
        assert await get("/v2/models/model/versions/1/ready") == (200, {"name": "model", "ready": True})


@pytest.mark.parametrize("what", ["", "/config"])
async def test_model_that_is_not_there(kinds: LiveServer, what: str) -> None:
    response = await kinds.client.get(f"/v2/models/nope{what}")
    assert response.status_code == 404
    assert response.json() == {"error": "Request for unknown model: 'nope' is not found"}
    response = await kinds.client.get(f"/v2/models/kinds/versions/7{what}")
    assert response.status_code == 404
    assert "'kinds' version 7 is not found" in response.json()["error"]


async def test_config(kinds: LiveServer, talk: LiveServer) -> None:
    config = (await kinds.client.get("/v2/models/kinds/config")).json()
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("kinds", "python", 0)
    fp32, texts = (next(one for one in config["input"] if one["name"] == name) for name in ("FP32", "texts"))
    assert (fp32["data_type"], fp32["dims"], fp32["optional"]) == ("TYPE_FP32", [-1, -1], True)
    assert (texts["data_type"], texts["dims"]) == ("TYPE_STRING", [-1])
    assert config["instance_group"] == [{"name": "kinds", "kind": "KIND_CPU", "count": 1, "gpus": []}]
    assert config["model_transaction_policy"] == {"decoupled": False}
    talks = (await talk.client.get("/v2/models/talk/versions/1/config")).json()
    assert talks["model_transaction_policy"] == {"decoupled": True}
    assert [one["optional"] for one in talks["input"]] == [False, True, True, True, True]


async def test_statistics(kinds: LiveServer) -> None:
    for path in ("/v2/models/stats", "/v2/models/kinds/stats", "/v2/models/kinds/versions/1/stats"):
        response = await kinds.client.get(path)
        assert response.status_code == 200
        (stats,) = response.json()["model_stats"]
        assert (stats["name"], stats["version"]) == ("kinds", "1")
        names = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output"]
        assert list(stats["inference_stats"]) == [*names, "cache_hit", "cache_miss"]
        assert all(set(each) == {"count", "ns"} for each in stats["inference_stats"].values())
    response = await kinds.client.get("/v2/models/nope/stats")
    assert (response.status_code, response.json()["error"]) == (400, "requested model 'nope' is not available")
    response = await kinds.client.get("/v2/models/kinds/versions/7/stats")
    text = "requested model version is not available for model 'kinds'"
    assert (response.status_code, response.json()["error"]) == (400, text)


async def test_index(kinds: LiveServer) -> None:
    for path in ("/v2/repository/index", "/v2/repository/mine/index"):
        for body in (b"", b"{}", b'{"ready":true}'):
            response = await kinds.client.post(path, content=body)
            assert (response.status_code, response.json()) == (
                200,
                [{"name": "kinds", "version": "1", "state": "READY"}],
            )
    for bad in (b"{", b"[]", b'{"ready":1}', b"\xff"):
        assert (await error(kinds, "/v2/repository/index", content=bad))[0] == 400


@pytest.mark.one_server(reason="replicas refuse administration")
@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("body", [b"{", b'{"parameters":5}', b'{"parameters":{"bogus":1}}'])
async def test_t5_bad_body_of_load_and_unload(kinds: LiveServer, verb: str, body: bytes) -> None:
    status, _ = await error(kinds, f"/v2/repository/models/kinds/{verb}", content=body)
    assert status == 400


@pytest.mark.one_server(reason="replicas refuse administration")
async def test_t14_connection_is_closed_after_a_load(
    server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    write_model(tmp_path / "zoo" / "echo", "def run(text: str) -> str:\n    return text\n")
    process = server_process(str(tmp_path / "zoo"))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    async with wire.connection(url) as one:
        assert (await one.post("/v2/repository/models/echo/unload", b"")).status == 200
        answer = await one.post("/v2/repository/models/echo/load", b"", "connection: close")
        assert (answer.status, answer.body) == (200, b"")
        assert await one.at_end()


# routes


@pytest.mark.parametrize(
    "path",
    [
        "/v2//",
        "/v2/nope",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/",
        "/v2/models/kinds/",
        "/v2/models/kinds/nope",
        "/v2/models/kinds/versions",
        "/v2/models/kinds/versions/",
        "/v2/models/kinds/versions/abc",
        "/v2/models/kinds/versions/-1",
        "/v2/models/kinds/versions/1/",
        "/v2/models/kinds/versions/1/nope",
        "/v2/models/kinds/versions/1/ready/x",
        "/v2/models/kinds/infer/",
        "/v2/models//ready",
        "/v2/repository",
        "/v2/repository//index",
        "/v2/repository/models/x/y",
        "/v2/systemsharedmemory",
        "/v2/systemsharedmemory/region//status",
        "/v2/models/kinds/versions/%C2%B2/ready",
    ],
)
async def test_unknown_path(kinds: LiveServer, path: str) -> None:
    for method in ("GET", "POST"):
        response = await kinds.client.request(method, path)
        assert (response.status_code, response.json()) == (404, {"error": "Not Found"})
        assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v2", "GET"),
        ("/v2/", "GET"),
        ("/v2/models", "GET"),
        ("/v2/health/live", "GET"),
        ("/v2/models/kinds", "GET"),
        ("/v2/models/stats", "GET"),
        ("/v2/models/kinds/infer", "POST"),
        ("/v2/models/kinds/generate", "POST"),
        ("/v2/models/kinds/versions/1/generate_stream", "POST"),
        ("/v2/repository/index", "POST"),
        ("/v2/systemsharedmemory/status", "GET"),
    ],
)
async def test_wrong_method(kinds: LiveServer, path: str, allowed: str) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"} - {allowed}:
        response = await kinds.client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
        assert response.headers["content-type"] == "application/json"
        assert method == "HEAD" or response.json() == {"error": "Method Not Allowed"}


async def test_query_is_passed_over(kinds: LiveServer) -> None:
    assert "texts" in await infer(kinds, path=f"{INFER}?a=b")
    assert (await kinds.client.get("/v2/health/live?a=b")).status_code == 200


# tensors of every datatype


NUMBERS: list[tuple[str, list[Any]]] = [
    ("BOOL", [True, False, True]),
    *[(f"INT{bits}", [-(2 ** (bits - 1)), 0, 2 ** (bits - 1) - 1]) for bits in (8, 16, 32, 64)],
    *[(f"UINT{bits}", [0, 1, 2**bits - 1]) for bits in (8, 16, 32, 64)],
    ("FP64", [0.1, -2.5, 1e300]),
]
DTYPES = {
    "BOOL": "?",
    "FP32": "f4",
    "FP64": "f8",
    **{f"INT{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
}


@pytest.mark.parametrize(("datatype", "values"), NUMBERS)
async def test_datatype_as_json(kinds: LiveServer, datatype: str, values: list[Any]) -> None:
    outputs = await infer(kinds, given(datatype, values))
    assert outputs[datatype] == {"name": datatype, "datatype": datatype, "shape": [3], "data": values}


@pytest.mark.parametrize(("datatype", "values"), NUMBERS)
async def test_datatype_as_binary(kinds: LiveServer, datatype: str, values: list[Any]) -> None:
    data = np.array(values, DTYPES[datatype]).tobytes()
    one = {"name": datatype, "shape": [3], "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [one], "outputs": [{"name": datatype, "parameters": {"binary_data": True}}]}).encode()
    response = await kinds.client.post(
        INFER, content=head + data, headers={"Inference-Header-Content-Length": str(len(head))}
    )
    assert response.headers["content-type"] == "application/octet-stream"
    size = int(response.headers["inference-header-content-length"])
    assert json.loads(response.content[:size])["outputs"] == [
        {"name": datatype, "datatype": datatype, "shape": [3], "parameters": {"binary_data_size": len(data)}}
    ]
    assert response.content[size:] == data


async def test_texts_and_bytes(kinds: LiveServer) -> None:
    texts = ["", "ü\0\n", "a" * 1000]
    outputs = await infer(kinds, given("texts", texts, datatype="BYTES"), given("BYTES", ["a", "ü"]))
    assert (outputs["texts"]["data"], outputs["BYTES"]["data"]) == (texts, ["a", "ü"])


async def test_floats_are_written_as_the_value_they_are(kinds: LiveServer) -> None:
    body = {"inputs": [given("FP32", [[0.1, 1]], [1, 2])], "outputs": [{"name": "FP32"}]}
    text = (await kinds.client.post(INFER, json=body)).text
    assert text == (
        '{"model_name":"kinds","model_version":"1","outputs":'
        '[{"name":"FP32","datatype":"FP32","shape":[1,2],"data":[0.10000000149011612,1.0]}]}'
    )


@pytest.mark.parametrize("count", [100, 5_000, 100_000])
async def test_tensors_of_every_size(kinds: LiveServer, count: int) -> None:
    values = [float(number) / 8 for number in range(count)]
    outputs = await infer(kinds, given("FP32", values, [1, count]), given("FP64", values))
    assert outputs["FP32"]["data"] == outputs["FP64"]["data"] == values


async def test_outputs_come_in_the_models_order(kinds: LiveServer) -> None:
    inputs = [given("texts", ["a"], datatype="BYTES"), given("INT32", [1]), given("BOOL", [True])]
    assert list(await infer(kinds, *inputs)) == ["BOOL", "INT32", "texts"]
    wanted = [{"name": "texts"}, {"name": "BOOL"}, {"name": "texts"}, {"name": "FP64"}]
    assert list(await infer(kinds, *inputs, outputs=wanted)) == ["BOOL", "texts"]
    assert await infer(kinds, *inputs, outputs=[{"name": "FP64"}]) == {}


async def test_id_comes_back_and_many_may_have_it(kinds: LiveServer) -> None:
    body = {"id": "42", "inputs": [given("INT32", [1])]}
    answers = await asyncio.gather(*(kinds.client.post(INFER, json=body) for _ in range(5)))
    assert [answer.json()["id"] for answer in answers] == ["42"] * 5
    response = await kinds.client.post(INFER, json={**body, "id": ""})
    assert "id" not in response.json()


async def test_parameters_of_request_and_response(kinds: LiveServer) -> None:
    parameters = {"s": "t", "n": -1, "f": 0.5, "b": True, "priority": 1, "timeout": 10_000_000}
    response = await kinds.client.post(INFER, json={"inputs": [act("tell")], "parameters": parameters})
    body = response.json()
    assert body["outputs"][-1]["data"] == [repr([("b", True), ("f", 0.5), ("n", -1), ("s", "t")])]
    assert body["parameters"] == {"seconds": 0.5, "words": "two"}


async def test_raw_request(talk: LiveServer, serve: Serve) -> None:
    status, text = await error(
        talk, "/v2/models/talk/infer", content=b"hello", headers={"inference-header-content-length": "0"}
    )
    assert (status, "must only have 1 input" in text) == (400, True)
    async with serve("def run(s: str) -> str:\n    return s.upper()\n", cog_yaml="run: run.py:run\n") as server:
        response = await server.client.post(
            "/v2/models/model/infer", content=b"hello", headers={"inference-header-content-length": "0"}
        )
        size = int(response.headers["inference-header-content-length"])
        assert response.content[size:] == join_bytes([b"HELLO"])


# what goes wrong


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"inputs":5}',
        json.dumps({"inputs": [given("INT8", [300])]}).encode(),
        json.dumps({"inputs": [given("INT32", [1, 2], [3])]}).encode(),
        json.dumps({"inputs": [given("FP32", [[1]], [1])]}).encode(),
        json.dumps({"inputs": [given("zz", [1], datatype="INT32")]}).encode(),
        json.dumps({"inputs": [], "outputs": [{"name": "zz"}]}).encode(),
        json.dumps({"inputs": [], "parameters": {"triton_x": 1}}).encode(),
        b'{"inputs":[],"id":"\xff"}',
    ],
)
async def test_t5_t12_mistakes_of_clients_are_400_and_json(kinds: LiveServer, body: bytes) -> None:
    assert (await error(kinds, INFER, content=body))[0] == 400
    headers = {"content-encoding": "identity"}  # which takes the other path
    assert (await error(kinds, INFER, content=body, headers=headers))[0] == 400


@pytest.mark.parametrize("path", ["/v2/models/nope/infer", "/v2/models/kinds/versions/7/infer"])
async def test_t12_infer_of_an_unknown_model(kinds: LiveServer, path: str) -> None:
    status, text = await error(kinds, path, json={"inputs": []})
    assert (status, "is not found" in text) == (404, True)


@pytest.mark.parametrize("value", ["x", "1e3", "", "-1", "99999999999999999999", "0x10"])
async def test_bad_header_length(kinds: LiveServer, value: str) -> None:
    status, text = await error(
        kinds, INFER, content=b'{"inputs":[]}', headers={"inference-header-content-length": value}
    )
    assert status == 400
    assert "header" in text.lower()


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":"FP64","shape":[1],"datatype":"FP64","data":%b}]}' % (b"[" * 200_000 + b"]" * 200_000),
        json.dumps({"inputs": [given("FP64", [1], [2**40, 2**40])]}).encode(),
        json.dumps({"inputs": [given("FP32", [], [2**62, 0])]}).encode(),
        json.dumps({"inputs": [], "outputs": [{"name": "BYTES", "parameters": {"classification": 1}}]}).encode(),
    ],
)
async def test_t1_t3_no_request_ends_the_server_or_the_worker(kinds: LiveServer, body: bytes) -> None:
    pid = kinds.pid
    assert (await error(kinds, INFER, content=body))[0] == 400
    assert "INT32" in await infer(kinds, given("INT32", [1]))
    assert kinds.pid == pid


@pytest.mark.parametrize("what", ["nan", "odd bytes"])
async def test_t6_output_that_json_cannot_carry(kinds: LiveServer, what: str) -> None:
    status, text = await error(kinds, INFER, json={"inputs": [act(what)]})
    assert (status, "as binary" in text) == (400, True)
    response = await kinds.client.post(INFER, json={"inputs": [act(what)], "parameters": {"binary_data_output": True}})
    assert response.status_code == 200


async def test_t13_binary_data_output_covers_listed_outputs(kinds: LiveServer) -> None:
    body = {
        "inputs": [given("INT8", [1, 2])],
        "outputs": [{"name": "INT8"}],
        "parameters": {"binary_data_output": True},
    }
    response = await kinds.client.post(INFER, json=body)
    assert response.content.endswith(b"}\1\2")
    assert response.headers["content-type"] == "application/octet-stream"


async def test_t19_error_of_the_model_tells_no_paths(kinds: LiveServer) -> None:
    assert await error(kinds, INFER, json={"inputs": [act("raise")]}) == (500, "ValueError: it went wrong")


async def test_t8_model_that_gives_nothing_is_an_error(kinds: LiveServer) -> None:
    status, text = await error(kinds, INFER, json={"inputs": [act("nothing")]})
    assert (status, "None" in text) == (500, True)
    assert "INT32" in await infer(kinds, given("INT32", [1]))


async def test_16_bit_floats(kinds: LiveServer) -> None:
    status, text = await error(kinds, INFER, json={"inputs": [given("FP16", [1.0])]})
    assert (status, "receiving FP16 data via JSON is not supported" in text) == (400, True)


async def test_t12_headers_are_those_of_every_answer(kinds: LiveServer) -> None:
    for response in (
        await kinds.client.post(INFER, json={"inputs": []}),
        await kinds.client.post(INFER, json={"inputs": []}, headers={"expect": "100-continue"}),
        await kinds.client.post(INFER, content=b"{"),
        await kinds.client.get("/v2"),
        await kinds.client.get("/v2/nope"),
    ):
        assert "date" in response.headers
        assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("headers", [{}, {"expect": "100-continue"}])
async def test_body_size_limit(kinds: LiveServer, headers: dict[str, str]) -> None:
    status, text = await error(kinds, INFER, content=b"x" * 2_000_001, headers=headers)
    assert (status, "--max-body-size" in text) == (413, True)
    bomb = gzip.compress(b" " * 50_000_000)
    status, text = await error(kinds, INFER, content=bomb, headers={"content-encoding": "gzip"})
    assert (status, "--max-body-size" in text) == (413, True)


# on the wire


async def test_connection_stays_open_and_requests_may_wait_in_it(kinds: LiveServer) -> None:
    body = json.dumps({"inputs": [given("INT32", [7])], "outputs": [{"name": "INT32"}]}).encode()
    async with wire.connection(kinds.url) as one:
        for _ in range(2):
            assert (await one.post(INFER, body)).json()["outputs"][0]["data"] == [7]
            assert (await one.post(INFER, b"{")).status == 400
        request = b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (INFER.encode(), len(body), body)
        await one.send(request + b"GET /v2 HTTP/1.1\r\nhost: h\r\n\r\n" + request)
        answers = [(await one.answer()).json() for _ in range(3)]
        assert [next(iter(answer)) for answer in answers] == ["model_name", "name", "model_name"]
        await one.send(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (INFER.encode(), len(body), body))
        assert (await one.answer()).json()["outputs"][0]["data"] == [7]
        assert await one.at_end()


async def test_content_type_of_a_request_is_passed_over(kinds: LiveServer) -> None:
    body = json.dumps({"inputs": [given("INT32", [7])]}).encode()
    async with wire.connection(kinds.url) as one:
        assert (await one.post(INFER, body)).status == 200
        assert (await one.post(INFER, body, "content-type: text/plain")).status == 200


@pytest.mark.parametrize("header", [(), ("content-encoding: identity",)])
async def test_client_that_hangs_up_cancels_its_run(kinds: LiveServer, header: tuple[str, ...]) -> None:
    """On either path."""
    body = json.dumps({"inputs": [act("wait")]}).encode()
    seen = kinds.newest() if kinds._admitted else None
    async with wire.connection(kinds.url) as one:
        lines = [f"POST {INFER} HTTP/1.1", "host: h", f"content-length: {len(body)}", *header, "", ""]
        await one.send("\r\n".join(lines).encode() + body)
        await eventually(lambda: bool(kinds._admitted) and kinds.newest() is not seen)
        prediction = kinds.newest()
        await kinds.said(prediction.id, "waiting")
        one.hang_up()
    await kinds.ended(prediction.id)
    assert prediction.status is Status.CANCELED
    assert "INT32" in await infer(kinds, given("INT32", [1]))


# compression


BODY = json.dumps({"inputs": [given("INT32", [7])], "outputs": [{"name": "INT32"}]}).encode()


GZIPPED = gzip.compress(BODY, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", GZIPPED), ("deflate", zlib.compress(BODY)), ("identity", BODY)]
)
async def test_compressed_request(kinds: LiveServer, encoding: str, body: bytes) -> None:
    response = await kinds.client.post(INFER, content=body, headers={"content-encoding": encoding})
    assert response.json()["outputs"][0]["data"] == [7]


async def test_compressed_binary_request(kinds: LiveServer) -> None:
    data = struct.pack("<2i", 1, 2)
    one = {"name": "INT32", "shape": [2], "datatype": "INT32", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [one], "outputs": [{"name": "INT32", "parameters": {"binary_data": True}}]}).encode()
    response = await kinds.client.post(
        INFER,
        content=gzip.compress(head + data),
        headers={"content-encoding": "gzip", "inference-header-content-length": str(len(head))},
    )
    assert response.headers["content-encoding"] == "gzip"
    size = int(response.headers["inference-header-content-length"])  # of what it was before
    assert response.content[size:] == data


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", BODY), ("gzip", GZIPPED[:-3]), ("deflate", zlib.compress(BODY)[2:-4]), ("gzip", b"")],
)
async def test_t11_corrupt_body_says_that_it_is(kinds: LiveServer, encoding: str, body: bytes) -> None:
    status, text = await error(kinds, INFER, content=body, headers={"content-encoding": encoding})
    assert (status, f"the body is not valid {encoding}" in text) == (400, True)


async def test_unknown_encoding_is_501(kinds: LiveServer) -> None:
    response = await kinds.client.post(INFER, content=BODY, headers={"content-encoding": "br"})
    assert (response.status_code, response.headers["accept-encoding"]) == (501, "gzip, deflate")
    assert "Unsupported compression type" in response.json()["error"]


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0", None),
        ("br", None),
        ("*", None),
    ],
)
@pytest.mark.parametrize("count", [1, 100_000])
async def test_compressed_response(kinds: LiveServer, accept: str, encoding: str | None, count: int) -> None:
    body = json.dumps({"inputs": [given("INT32", [7] * count)], "outputs": [{"name": "INT32"}]}).encode()
    response = await kinds.client.post(INFER, content=body, headers={"accept-encoding": accept})
    assert response.headers.get("content-encoding") == encoding
    assert response.json()["outputs"][0]["data"] == [7] * count


async def test_errors_and_metadata_are_not_compressed(kinds: LiveServer, talk: LiveServer) -> None:
    headers = {"accept-encoding": "gzip"}
    for response in (
        await kinds.client.post(INFER, content=b"{", headers=headers),
        await kinds.client.get("/v2", headers=headers),
        await talk.client.post(GENERATE, json={"text_input": "a"}, headers=headers),
    ):
        assert "content-encoding" not in response.headers


# shared memory


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(4096) as made:
        yield made


@pytest.mark.one_server(reason="replicas have no shared memory with clients")
async def test_t9_tensors_in_shared_memory(kinds: LiveServer, memory: SharedObject) -> None:
    memory.buf[3:11] = struct.pack("<2i", 5, 6)
    region = "/v2/systemsharedmemory/region"
    for name, offset, size in (("in", 3, 8), ("out", 16, 16)):
        body = {"key": memory.name, "offset": offset, "byte_size": size}
        response = await kinds.client.post(f"{region}/{name}/register", json=body)
        assert (response.status_code, response.content) == (200, b"")
    expected = [
        {"name": "in", "key": memory.name, "offset": 3, "byte_size": 8},
        {"name": "out", "key": memory.name, "offset": 16, "byte_size": 16},
    ]
    assert (await kinds.client.get("/v2/systemsharedmemory/status")).json() == expected
    assert (await kinds.client.get(f"{region}/in/status")).json() == expected[:1]
    one = {
        "name": "INT32",
        "shape": [2],
        "datatype": "INT32",
        "parameters": {"shared_memory_region": "in", "shared_memory_byte_size": 8},
    }
    place = {"shared_memory_region": "out", "shared_memory_byte_size": 8, "shared_memory_offset": 4}
    outputs = await infer(kinds, one, outputs=[{"name": "INT32", "parameters": place}])
    assert outputs == {"INT32": {"name": "INT32", "datatype": "INT32", "shape": [2]}}
    assert struct.unpack("<2i", memory.buf[20:28]) == (5, 6)
    small = {**place, "shared_memory_byte_size": 4}
    body = {"inputs": [one], "outputs": [{"name": "INT32", "parameters": small}]}
    status, text = await error(kinds, INFER, json=body)
    assert (status, "output 'INT32' (4 bytes) should be at least 8 bytes" in text) == (400, True)
    for path in (f"{region}/in/unregister", f"{region}/in/unregister", "/v2/systemsharedmemory/unregister"):
        assert (await kinds.client.post(path)).status_code == 200
    assert (await kinds.client.get("/v2/systemsharedmemory/status")).json() == []
    assert (await error(kinds, INFER, json={"inputs": [one]})) == (404, "Unable to find shared memory region: 'in'")
    assert (await kinds.client.get(f"{region}/in/status")).status_code == 404


@pytest.mark.one_server(reason="replicas have no shared memory with clients")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"byte_size": 8}, "Unable to parse 'key': the field is missing"),
        ({"key": "/k"}, "Unable to parse 'byte_size': the field is missing"),
        ({"key": "/k", "byte_size": "8"}, "Unable to parse 'byte_size'"),
        ({"key": "/geartrain-nothing", "byte_size": 8}, "Unable to open shared memory region: '/geartrain-nothing'"),
        ({"key": "/../etc/passwd", "byte_size": 8}, "is no key of a shared memory object"),
        ({"key": "/k", "byte_size": 2**80}, "Unable to open shared memory region"),
    ],
)
async def test_t5_registration_that_cannot_be(kinds: LiveServer, body: dict[str, Any], text: str) -> None:
    status, found = await error(kinds, "/v2/systemsharedmemory/region/r/register", json=body)
    assert (status, text in found) == (400, True)


@pytest.mark.one_server(reason="replicas have no shared memory with clients")
async def test_region_that_is_taken_is_400(kinds: LiveServer, memory: SharedObject) -> None:
    path, body = "/v2/systemsharedmemory/region/twice", {"key": memory.name, "byte_size": 8}
    assert (await kinds.client.post(f"{path}/register", json=body)).status_code == 200
    assert (await error(kinds, f"{path}/register", json=body))[0] == 400
    await kinds.client.post(f"{path}/unregister")


@pytest.mark.one_server(reason="replicas name another option in their refusal")
async def test_shared_memory_is_off_by_default(talk: LiveServer) -> None:
    body = {"key": "/k", "byte_size": 8}
    status, text = await error(talk, "/v2/systemsharedmemory/region/r/register", json=body)
    assert (status, "--shared-memory" in text) == (501, True)


# generate


async def test_generate_gives_one_response(talk: LiveServer) -> None:
    body = {"id": "42", "text_input": "hi", "parameters": {"words": 2, "temperature": 0}}
    response = await talk.client.post(GENERATE, json=body)
    assert response.headers["content-type"] == "application/json"
    assert response.text == '{"id":"42","model_name":"talk","model_version":"1","text_output":"hi 0\\nhi 1\\n"}'
    response = await talk.client.post("/v2/models/talk/versions/1/generate", json={"prompt": "a", "words": 1})
    assert response.json() == {"model_name": "talk", "model_version": "1", "text_output": "a 0\n"}


async def test_generate_stream_gives_one_event_for_each_yield(talk: LiveServer) -> None:
    response = await talk.client.post(STREAM, json={"text_input": "a", "words": 2})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text == (
        'data: {"model_name":"talk","model_version":"1","text_output":"a 0\\n"}\n\n'
        'data: {"model_name":"talk","model_version":"1","text_output":"a 1\\n"}\n\n'
    )


async def test_generate_works_with_any_model(kinds: LiveServer) -> None:
    body = {"FP32": "a", "INT32": [1, 2], "INT8": 5, "texts": ["a"]}
    status, text = await error(kinds, "/v2/models/kinds/generate", json=body)
    assert (status, "FP32 takes a number" in text) == (400, True)
    body["FP32"] = None
    for what in ("generate", "generate_stream"):
        response = await kinds.client.post(f"/v2/models/kinds/{what}", json=body)
        found = json.loads(response.text.removeprefix("data: "))
        assert found == {"model_name": "kinds", "model_version": "1", "INT8": 5, "INT32": [1, 2], "texts": ["a"]}


async def test_o1_null_is_absent(kinds: LiveServer, talk: LiveServer) -> None:
    one = {**given("INT32", [1, 2]), "parameters": None}
    members: dict[str, Any] = {"id": None, "parameters": None, "outputs": None}
    assert (await infer(kinds, one, **members))["INT32"]["data"] == [1, 2]
    body = {"id": None, "text_input": "a", "parameters": None, "words": 1, "temperature": None}
    assert (await talk.client.post(GENERATE, json=body)).json()["text_output"] == "a 0\n"


@pytest.mark.parametrize("what", ["generate", "generate_stream"])
async def test_o2_what_is_no_input_reaches_the_model_as_a_parameter(kinds: LiveServer, what: str) -> None:
    body = {"act": "tell", "top_k": 5, "parameters": {"greedy": False, "stop": "x", "top_p": 0.5}}
    response = await kinds.client.post(f"/v2/models/kinds/{what}", json=body)
    told = "[('greedy', False), ('stop', 'x'), ('top_k', 5), ('top_p', 0.5)]"
    assert json.loads(response.text.removeprefix("data: "))["told"] == told
    status, text = await error(kinds, f"/v2/models/kinds/{what}", json={"stop": ["x"]})
    assert (status, "unexpected 'stop'" in text) == (400, True)


async def test_o3_list_of_one_is_its_element(talk: LiveServer) -> None:
    response = await talk.client.post(GENERATE, json={"text_input": ["a"], "words": [1]})
    assert response.json() == {"model_name": "talk", "model_version": "1", "text_output": "a 0\n"}
    status, text = await error(talk, GENERATE, json={"text_input": ["a", "b"]})
    assert (status, "input 'prompt'" in text and "exactly one element" in text) == (400, True)


async def test_o4_list_of_texts_is_one_text(serve: Serve) -> None:
    source = "def run(prompt: str) -> list[str]:\n    return prompt.split()\n"
    async with serve(source, name="split") as server:
        for text, expected in {"a b c": "abc", "": ""}.items():
            for what in ("generate", "generate_stream"):
                response = await server.client.post(f"/v2/models/split/{what}", json={"text_input": text})
                assert json.loads(response.text.removeprefix("data: "))["text_output"] == expected


async def events(lines: AsyncIterator[str]) -> AsyncIterator[Any]:
    async for line in lines:
        if line:
            assert line.startswith("data: ")
            yield json.loads(line.removeprefix("data: "))


async def test_each_event_is_sent_at_once(talk: LiveServer) -> None:
    async with talk.client.stream("POST", STREAM, json={"text_input": "a", "words": 2, "hold": True}) as response:
        seen = events(response.aiter_lines())
        assert (await anext(seen))["text_output"] == "a 0\n"  # while the model waits
        assert not talk.newest().is_terminal
        talk.open_gate()
        assert (await anext(seen))["text_output"] == "a 1\n"
        talk.open_gate()
        assert [event async for event in seen] == []


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, 'missing required input "prompt"'),
        ({"text_input": 5}, 400, "prompt: "),
        ({"text_input": "a", "words": -1}, 400, "words: "),
        ({"text_input": "a", "zz": [], "parameters": {"yy": {}}}, 400, "unexpected 'zz', 'yy'"),
        ({"text_input": "a", "words": 0, "fail": True}, 500, "RuntimeError: the model is lost"),
    ],
)
async def test_t7_error_before_the_first_response_has_its_status(
    talk: LiveServer, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    found, message = await error(talk, path, json=body)
    assert (found, text in message) == (status, True)


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_t5_malformed_generate_requests(talk: LiveServer, path: str) -> None:
    for body in (b"", b"{", b"[]", b'{"text_input":"a","text_input":"b"}', b'{"text_input":"\xff"}'):
        assert (await error(talk, path, content=body))[0] == 400
    assert (await error(talk, path.replace("talk", "nope"), json={}))[0] == 404


async def test_t7_error_after_a_response(talk: LiveServer) -> None:
    body = {"text_input": "a", "words": 1, "fail": True}
    assert await error(talk, GENERATE, json=body) == (500, "RuntimeError: the model is lost")
    response = await talk.client.post(STREAM, json=body)
    assert response.status_code == 200
    assert response.text == (
        'data: {"model_name":"talk","model_version":"1","text_output":"a 0\\n"}\n\n'
        'data: {"error":"RuntimeError: the model is lost"}\n\n'
    )


async def test_t7_no_response_at_all(talk: LiveServer) -> None:
    body = {"text_input": "a", "words": 0}
    assert (await talk.client.post(GENERATE, json=body)).json()["text_output"] == ""
    response = await talk.client.post(STREAM, json=body)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_t17_client_that_hangs_up_cancels_its_run(talk: LiveServer, path: str) -> None:
    body = json.dumps({"text_input": "a", "hold": True}).encode()
    seen = talk.newest() if talk._admitted else None
    async with wire.connection(talk.url) as one:
        await one.send(
            b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
        )
        await eventually(lambda: bool(talk._admitted) and talk.newest() is not seen)
        prediction = talk.newest()
        await talk.said(prediction.id, "holding")
        one.hang_up()
    await talk.ended(prediction.id)
    assert prediction.status is Status.CANCELED
    assert (await talk.client.post(GENERATE, json={"text_input": "a", "words": 1})).status_code == 200


async def test_o7_variadic_shapes_are_checked_in_and_out(serve: Serve) -> None:
    source = """
        import numpy as np
        from jaxtyping import Float32
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, x: Float32[np.ndarray, "... 3"], cut: int = 0) -> Float32[np.ndarray, "batch ... 3"]:
                return x[..., : 3 - cut]
    """
    async with serve(source, name="points") as server:
        path = "/v2/models/points/infer"
        for shape in ([1, 3], [2, 1, 3]):
            data = [1.0] * math.prod(shape)
            assert (await infer(server, given("x", data, shape, "FP32"), path=path))["output"]["shape"] == shape
        body = {"inputs": [given("x", [1, 2], [1, 2], "FP32")]}
        text = "unexpected shape for input 'x'. Expected [..., 3], got [1, 2]"
        assert await error(server, path, json=body) == (400, text)
        body = {"inputs": [given("x", [1, 2, 3], [1, 3], "FP32"), given("cut", [1], datatype="INT64")]}
        text = "OutputError: output has the shape [1, 2], and [-1, ..., 3] is declared"
        assert await error(server, path, json=body) == (500, text)
        response = await server.client.post("/predictions", json={"input": {"x": [[1, 2]]}})
        assert (response.status_code, "2 elements in an array that must have 3" in response.text) == (422, True)


# Triton's client


def in_thread(server: LiveServer, use: Callable[[Any], Any]) -> Any:
    """Run what uses the blocking client aside: this thread's loop is the server's."""

    def run() -> Any:
        with triton_http(tritonclient.http.InferenceServerClient, server.url) as client:
            return use(client)

    return asyncio.to_thread(run)


def triton_input(name: str, array: np.ndarray[Any, Any], datatype: str, *, binary: bool) -> Any:
    one = tritonclient.http.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array, binary_data=binary)
    return one


@pytest.mark.parametrize("binary", [True, False])
async def test_triton_client_infers(kinds: LiveServer, binary: bool) -> None:
    arrays = {datatype: np.array(values, DTYPES[datatype]) for datatype, values in NUMBERS}
    arrays["FP32"] = np.random.default_rng(0).random((30, 1000), "f4")
    inputs = [triton_input(name, array, name, binary=binary) for name, array in arrays.items()]
    inputs.append(triton_input("BYTES", np.array([b"a", "ü".encode()], object), "BYTES", binary=binary))
    wanted = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in [*arrays, "BYTES"]]

    def use(client: Any) -> Any:
        result = client.infer("kinds", inputs, outputs=wanted, request_id="7", parameters={"own": 1}, timeout=5_000_000)
        assert result.get_response()["id"] == "7"
        for name, array in arrays.items():
            assert np.array_equal(result.as_numpy(name), array)
        assert [b if isinstance(b, bytes) else b.encode() for b in result.as_numpy("BYTES")] == [b"a", "ü".encode()]
        for compression in ("gzip", "deflate"):
            result = client.infer(
                "kinds", inputs, request_compression_algorithm=compression, response_compression_algorithm=compression
            )
            assert np.array_equal(result.as_numpy("FP32"), arrays["FP32"])

    await in_thread(kinds, use)


async def test_triton_client_sends_16_bit_floats(kinds: LiveServer) -> None:
    half = triton_input("FP16", np.array([0.5, 2], "f2"), "FP16", binary=True)
    result = await in_thread(kinds, lambda client: client.infer("kinds", [half]))
    assert result.as_numpy("FP32").tolist() == [[0.5, 2.0]]


@pytest.mark.one_server(reason="replicas refuse administration")
async def test_triton_client_asks_for_everything_else(kinds: LiveServer) -> None:
    def use(client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("kinds")
        assert not client.is_model_ready("nope")
        assert client.get_server_metadata()["name"] == "geartrain"
        assert client.get_model_metadata("kinds")["versions"] == ["1"]
        assert client.get_model_config("kinds", "1")["max_batch_size"] == 0
        assert client.get_model_repository_index()[0]["state"] == "READY"
        assert client.get_inference_statistics("kinds")["model_stats"][0]["name"] == "kinds"
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="unexpected inference input"):
            client.infer("kinds", [triton_input("zz", np.array([1], "i4"), "INT32", binary=True)])
        with pytest.raises(InferenceServerException, match="ValueError: it went wrong") as caught:
            client.infer("kinds", [triton_input("act", np.array([b"raise"], object), "BYTES", binary=True)])
        assert caught.value.status() == "500"

    await in_thread(kinds, use)


@pytest.mark.one_server(reason="replicas have no shared memory with clients")
async def test_triton_client_uses_shared_memory(kinds: LiveServer, memory: SharedObject) -> None:
    memory.buf[:8] = struct.pack("<2i", 5, 6)

    def use(client: Any) -> None:
        client.register_system_shared_memory("both", memory.name, 64)
        one = tritonclient.http.InferInput("INT32", [2], "INT32")
        one.set_shared_memory("both", 8)
        wanted = tritonclient.http.InferRequestedOutput("INT32")
        wanted.set_shared_memory("both", 8, offset=8)
        result = client.infer("kinds", [one], outputs=[wanted])
        assert result.get_output("INT32")["shape"] == [2]
        client.unregister_system_shared_memory()

    await in_thread(kinds, use)
    assert struct.unpack("<2i", memory.buf[8:16]) == (5, 6)


async def test_triton_client_of_asyncio(kinds: LiveServer) -> None:
    async with triton_http_aio(tritonclient.http.aio.InferenceServerClient, kinds.url) as client:
        assert await client.is_server_ready()
        result = await client.infer("kinds", [triton_input("INT32", np.array([1, 2], "i4"), "INT32", binary=True)])
        assert result.as_numpy("INT32").tolist() == [1, 2]


async def test_m1_sequence_parameters_reach_the_model(kinds: LiveServer) -> None:
    parameters = {"sequence_id": "s", "sequence_start": True, "sequence_end": False}
    response = await kinds.client.post(INFER, json={"inputs": [act("tell")], "parameters": parameters})
    assert response.json()["outputs"][-1]["data"] == [repr(sorted(parameters.items()))]


async def test_m2_schedule_policy_is_announced(kinds: LiveServer) -> None:
    assert "schedule_policy" in (await kinds.client.get("/v2")).json()["extensions"]


async def test_b3_inputs_are_checked_before_the_form_of_outputs(serve: Serve) -> None:
    source = """
        # ruff: noqa
        import numpy as np
        from jaxtyping import Float16, Float32
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, x: Float32[np.ndarray, "n"]) -> Float16[np.ndarray, "n"]:
                return x.astype("f2")
    """
    async with serve(source, name="half") as server:
        path = "/v2/models/half/infer"
        status, text = await error(server, path, json={"inputs": [given("y", [1.0], datatype="FP32")]})
        assert (status, "unexpected inference input 'y'" in text) == (400, True)
        status, text = await error(server, path, json={"inputs": [given("x", [1.0], datatype="FP32")]})
        assert (status, "sending FP16 data via JSON is not supported" in text) == (400, True)


@pytest.mark.parametrize("padding", [0, 20_000])
@pytest.mark.parametrize(
    "body",
    [
        '{"inputs":[%s],"\\u0069nputs":[]}',
        '{"inputs":[%s],"inputs":[]}',
        '{"inputs":[%s],"id":"a","id":"b"}',
        '{"inputs":[%s],"parameters":{"a":1,"\\u0061":2}}',
    ],
)
async def test_s16_doubled_members_of_a_request_are_refused(kinds: LiveServer, body: str, padding: int) -> None:
    one = json.dumps(given("INT32", [1])) + " " * padding
    status, text = await error(kinds, INFER, content=body.replace("%s", one).encode())
    assert (status, "duplicate field" in text) == (400, True)
    twice = '{"name":"INT32","name":"INT8","shape":[1],"datatype":"INT32","data":[1]}' + " " * padding
    status, text = await error(kinds, INFER, content=b'{"inputs":[%b]}' % twice.encode())
    assert (status, "duplicate field 'name'" in text) == (400, True)
