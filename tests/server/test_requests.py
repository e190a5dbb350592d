"""Models that take whole requests or any tensors, over every protocol of the server."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from tritonclient.utils import InferenceServerException

from geartrain.service.models.deployment import Limits
from tests.support.servers import LiveServer, Serve, eventually

ECHO = """
    import geartrain
    from geartrain import Request, Response

    class Runner(geartrain.BaseRunner):
        def run(self, request: Request) -> Response:
            match request.parameters.get("do", ""):
                case "stream":
                    return Response((b"%d;" % number for number in range(3)), "text/x-count", headers={"x-kind": "s"})
                case "fail":
                    return Response({"why": "no"}, status=418)
                case "broken":
                    return Response(b"", headers={"x-a": "1\\r\\nx-b: 2"})
                case "hop":
                    return Response(b"", headers={"Transfer-Encoding": "gzip"})
                case "raise":
                    raise ValueError("wrong")
                case "midway":
                    return Response(pieces(), "text/plain")
                case "json":
                    return Response({"method": request.method, "path": request.path, "accept": request.accept,
                                     "headers": request.headers, "query": request.query})
                case "text":
                    return request.text + "!"
                case "nothing":
                    return Response(status=204)
            return Response(bytes(reversed(request.body)), request.content_type)

    def pieces():
        yield b"begin"
        raise RuntimeError("broken off")
"""
EITHER = """
    import geartrain
    from geartrain import Request, Response, Tensors

    class Runner(geartrain.BaseRunner):
        def run(self, request: Request | Tensors) -> Response | Tensors:
            if isinstance(request, Tensors):
                return Tensors({f"{name}_doubled": array * 2 for name, array in request.items()})
            return Response(b"body " + request.body, request.content_type, headers={"x-kind": "body"})
"""
BATCHED = """
    import geartrain
    from geartrain import ItemError, Request, Response, batch_item, batched

    class Runner(geartrain.BaseRunner):
        @batched(max_size=4, max_delay=20, preferred_sizes=[4])
        def run(self, requests: list[Request]) -> list[Response | Exception]:
            answers = []
            for index, request in enumerate(requests):
                with batch_item(index):
                    print(f"{request.text} of {len(requests)}")
                if request.body == b"bad":
                    answers.append(ValueError("this one is bad"))
                else:
                    answers.append(Response(f"{request.text} of {len(requests)}", status=200 + index))
            return answers
"""
TENSORS = """
    import geartrain
    import numpy as np
    from geartrain import Tensors

    class Runner(geartrain.BaseRunner):
        def run(self, tensors: Tensors) -> Tensors:
            found = {f"{name}_back": array[::-1].copy() for name, array in tensors.items()}
            if tensors.requested is not None:
                found["asked"] = np.array([name.encode() for name in tensors.requested], object)
            if "scale" in tensors.parameters:
                found["scale"] = np.array([tensors.parameters["scale"]], np.int32)
            return Tensors(found)
"""
APART = """
    import geartrain
    import numpy as np
    from geartrain import Tensors, batched

    class Runner(geartrain.BaseRunner):
        @batched(max_size=3, max_delay=20, preferred_sizes=[3])
        def run(self, requests: list[Tensors]) -> list[Tensors]:
            size = np.array([len(requests)], np.int64)
            return [Tensors({**request, "size": size}) for request in requests]
"""


async def test_a_body_of_any_type_comes_and_goes_as_it_is(serve: Serve) -> None:
    content = bytes(range(256)) * 400
    async with serve(ECHO) as server:
        for path in ("/invoke", f"/models/{server.deployment.name}/invoke"):
            answer = await server.client.post(path, content=content, headers={"content-type": "image/x-any"})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "image/x-any")
            assert answer.content == content[::-1]
            assert answer.headers["x-prediction-id"].startswith("pred_")


async def test_the_head_is_the_models_to_read_without_secrets(serve: Serve) -> None:
    async with serve(ECHO) as server:
        headers = {"accept": "a/b", "x-own": "1", "authorization": "Bearer secret", "cookie": "a=b"}
        answer = await server.client.post("/invoke?do=json&x=%20", headers=headers)
        found = answer.json()
        assert answer.headers["content-type"] == "application/json"
        assert (found["method"], found["path"], found["accept"]) == ("POST", "/invoke", "a/b")
        assert found["query"] == "do=json&x=%20"
        assert found["headers"]["x-own"] == "1"
        assert not {"authorization", "cookie", "host", "connection"} & set(found["headers"])


async def test_statuses_and_errors(serve: Serve) -> None:
    async with serve(ECHO) as server:
        post = server.client.post
        answer = await post("/invoke?do=fail")
        assert (answer.status_code, answer.json()) == (418, {"why": "no"})
        answer = await post("/invoke?do=nothing")
        assert (answer.status_code, answer.content) == (204, b"")
        answer = await post("/invoke?do=text", content=b"hey", headers={"content-type": "text/plain"})
        assert (answer.text, answer.headers["content-type"]) == ("hey!", "text/plain; charset=utf-8")
        answer = await post("/invoke?do=raise")
        assert (answer.status_code, answer.json()) == (500, {"error": "ValueError: wrong"})
        for do, name in (("broken", "x-a"), ("hop", "transfer-encoding")):
            answer = await post(f"/invoke?do={do}")
            assert answer.status_code == 500
            assert name in answer.json()["error"]
        answer = await post("/models/none/invoke")
        assert (answer.status_code, "none" in answer.json()["error"]) == (404, True)
        assert (await server.client.get("/invoke")).status_code == 405


async def test_a_streamed_response_comes_in_pieces(serve: Serve) -> None:
    async with serve(ECHO) as server:
        async with server.client.stream("POST", "/invoke?do=stream") as answer:
            assert answer.headers["transfer-encoding"] == "chunked"
            assert (answer.headers["content-type"], answer.headers["x-kind"]) == ("text/x-count", "s")
            assert b"".join([piece async for piece in answer.aiter_raw()]) == b"0;1;2;"
        with pytest.raises(httpx.RemoteProtocolError):
            await server.client.post("/invoke?do=midway")
        assert (await server.client.post("/invoke?do=text")).text == "!"  # the worker goes on


async def test_requests_over_the_api_of_cog(serve: Serve) -> None:
    async with serve(ECHO) as server:
        assert (await server.predict({"body": "abc", "content_type": "text/plain"}))["output"] == "cba"
        assert (await server.predict({"body": [1, 2], "query": "do=text"}))["output"] == "[1, 2]!"
        url = f"data:text/plain;base64,{base64.b64encode(b'file').decode()}"
        assert (await server.predict({"file": url, "content_type": "text/plain"}))["output"] == "elif"
        assert (await server.predict({"body": url}))["output"] == "elif"
        assert (await server.predict({"query": "do=stream"}))["output"] == "0;1;2;"
        found = (await server.predict({"body": url, "content_type": "image/png"}))["output"]
        assert found.startswith("data:image/png;base64,")
        assert base64.b64decode(found.partition(",")[2]) == b"elif"
        failed = await server.predict({"query": "do=fail"})
        assert (failed["status"], failed["error"]) == ("failed", '{"why":"no"}')
        refused = await server.client.post("/predictions", json={"input": {"bode": "abc"}})
        assert (refused.status_code, "body" in refused.text) == (422, True)


async def test_requests_over_the_open_inference_protocol(serve: Serve) -> None:
    async with serve(ECHO) as server, triton_http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        body = triton_http.InferInput("body", [1], "BYTES")
        body.set_data_from_numpy(np.array([b"\x00\xff!"], object))
        answer = await client.infer(server.deployment.name, [body])
        assert answer.as_numpy("body").tolist() == [b"!\xff\x00"]
        assert answer.as_numpy("status").tolist() == [200]


async def test_a_client_that_leaves_cancels_its_run(serve: Serve) -> None:
    source = """
        import time
        import geartrain
        def run(request: geartrain.Request) -> geartrain.Response:
            return geartrain.Response(pieces(), "text/plain")
        def pieces():
            while True:
                yield b"x"
                time.sleep(0.01)
    """
    async with serve(source) as server:
        async with server.client.stream("POST", "/invoke") as answer:
            await anext(answer.aiter_raw())
        await eventually(lambda: server.newest().is_terminal)
        assert server.newest().status.value == "canceled"


async def together(server: LiveServer, bodies: list[bytes]) -> list[httpx.Response]:
    return await asyncio.gather(*[server.client.post("/invoke", content=body) for body in bodies])


async def test_batched_requests_stay_apart(serve: Serve) -> None:
    async with serve(BATCHED, limits=Limits(queue=9)) as server:
        answers = await together(server, [b"a", b"bad", b"cc", b"ddd"])
        assert [answer.text for answer in answers if answer.status_code < 300] == ["a of 4", "cc of 4", "ddd of 4"]
        assert (
            sorted(answer.status_code for answer in answers) == [200, 202, 203, 500]
            or len({answer.status_code for answer in answers}) == 4
        )
        (failed,) = [answer for answer in answers if answer.status_code == 500]
        assert failed.json() == {"error": "ValueError: this one is bad"}
        one = (await asyncio.gather(*[server.predict({"body": text}) for text in "wxyz"]))[2]
        assert (one["output"], one["logs"]) == ("y of 4", "y of 4\n")


@pytest.mark.parametrize("binary", [False, True])
async def test_any_tensors_over_rest(serve: Serve, binary: bool) -> None:
    async with (
        serve(TENSORS) as server,
        triton_http.InferenceServerClient(server.url.removeprefix("http://")) as client,
    ):
        numbers = triton_http.InferInput("any", [3], "FP32")
        numbers.set_data_from_numpy(np.array([1, 2, 3], np.float32), binary_data=binary)
        texts = triton_http.InferInput("texts", [2, 1], "BYTES")
        texts.set_data_from_numpy(np.array([[b"a"], [b"b"]], object), binary_data=binary)
        name = server.deployment.name
        answer = await client.infer(name, [numbers, texts], parameters={"scale": 7})
        assert answer.as_numpy("any_back").tolist() == [3, 2, 1]
        assert answer.as_numpy("texts_back").tolist() == [[b"b"], [b"a"]]
        assert answer.as_numpy("scale").tolist() == [7]
        wanted = [triton_http.InferRequestedOutput(each, binary_data=binary) for each in ("asked", "any_back")]
        answer = await client.infer(name, [numbers], outputs=wanted)
        assert answer.as_numpy("asked").astype(bytes).tolist() == [b"asked", b"any_back"]
        with pytest.raises(InferenceServerException, match="already exists"):
            await client.infer(name, [numbers, numbers])
        assert (await client.get_model_metadata(name))["inputs"] == []


async def test_any_tensors_over_grpc_and_cog(serve: Serve) -> None:
    async with (
        serve(TENSORS) as server,
        triton_grpc.InferenceServerClient(server.url.removeprefix("http://")) as client,
    ):
        numbers = triton_grpc.InferInput("n", [2, 2], "INT16")
        numbers.set_data_from_numpy(np.array([[1, 2], [3, 4]], np.int16))
        wanted = [triton_grpc.InferRequestedOutput("asked"), triton_grpc.InferRequestedOutput("n_back")]
        answer = await client.infer(server.deployment.name, [numbers], outputs=wanted)
        assert answer.as_numpy("n_back").tolist() == [[3, 4], [1, 2]]
        assert answer.as_numpy("asked").tolist() == [b"asked", b"n_back"]
        values: dict[str, Any] = {
            "tensors": {"a": [1.5, 2.5], "b": {"datatype": "UINT8", "shape": [2, 1], "data": [3, 4]}, "c": ["x"]},
            "parameters": {"scale": 2},
        }
        output = (await server.predict(values))["output"]
        assert output["a_back"] == {"datatype": "FP64", "shape": [2], "data": [2.5, 1.5]}
        assert output["b_back"] == {"datatype": "UINT8", "shape": [2, 1], "data": [[4], [3]]}
        assert output["c_back"] == {"datatype": "BYTES", "shape": [1], "data": ["x"]}
        assert output["scale"]["data"] == [2]
        accepted = {"UINT64": [1, 2**63 + 1], "INT64": [-(2**63), 5], "FP64": [1, 2**70], "INT8": []}
        for datatype, data in accepted.items():
            output = (await server.predict({"tensors": {"n": {"datatype": datatype, "data": data}}}))["output"]
            assert output["n_back"]["data"] == data[::-1], datatype
        refused: list[tuple[str, list[Any]]] = [
            ("UINT64", [1, 2**64]),
            ("UINT64", [-1, 2**63]),
            ("INT64", [1, 2**63]),
            ("INT8", [300]),
            ("INT8", [0.5]),
            ("UINT64", [0.5, 2**63]),
            ("FP32", [True, "a"]),
            ("BOOL", [2]),
        ]
        for datatype, data in refused:
            failed = await server.predict({"tensors": {"n": {"datatype": datatype, "data": data}}})
            assert (failed["status"], "tensors.n: it is no tensor" in failed["error"]) == ("failed", True), data
        failed = await server.predict({"tensors": {"a": {"datatype": "FP99", "data": []}}})
        assert (failed["status"], "tensors.a.datatype" in failed["error"]) == ("failed", True)


async def test_batched_tensors_are_not_joined(serve: Serve) -> None:
    async with (
        serve(APART, limits=Limits(queue=9)) as server,
        triton_http.InferenceServerClient(server.url.removeprefix("http://"), conn_limit=9) as client,
    ):

        async def ask(number: int) -> dict[str, Any]:
            given = triton_http.InferInput(f"x{number}", [number], "FP32")
            given.set_data_from_numpy(np.full([number], number, np.float32))
            answer = await client.infer(server.deployment.name, [given])
            return {name: answer.as_numpy(name).tolist() for name in (f"x{number}", "size")}

        found = await asyncio.gather(*map(ask, (1, 2, 3)))
        assert found == [{f"x{number}": [number] * number, "size": [3]} for number in (1, 2, 3)]


async def test_ordinary_models_take_bodies_too(serve: Serve) -> None:
    source = """
        import geartrain
        def run(text: str, times: int = 1) -> str:
            return text * times
    """
    async with serve(source) as server:
        post = server.client.post
        assert (await post("/invoke", json={"text": "a", "times": 3})).json() == "aaa"
        assert (await post("/invoke", json="b")).json() == "b"
        plain = {"content-type": "text/plain", "accept": "text/plain"}
        assert (await post("/invoke", content=b"c", headers=plain)).text == "c"
        assert (await post("/invoke", content=b"c", headers={"content-type": "image/png"})).status_code == 415
        assert (await post("/invoke", json={"texts": "a"})).status_code == 422
        assert (await post("/invoke", content=b"{", headers={"content-type": "application/json"})).status_code == 400
        large = "x" * 300_000
        assert (await post("/invoke", json={"text": large})).json() == large


async def test_requests_and_tensors_in_one_model(serve: Serve) -> None:
    async with serve(EITHER) as server:
        answer = await server.client.post("/invoke", content=b"abc", headers={"content-type": "text/x-own"})
        assert (answer.text, answer.headers["content-type"], answer.headers["x-kind"]) == (
            "body abc",
            "text/x-own",
            "body",
        )
        path = f"/v2/models/{server.deployment.name}/infer"
        for name in ("x", "body", "path"):  # parts of a request are names of tensors, too
            tensor = {"name": name, "datatype": "INT64", "shape": [2], "data": [1, 2]}
            answer = await server.client.post(path, json={"inputs": [tensor], "id": "7"})
            assert answer.json()["outputs"] == [{**tensor, "name": f"{name}_doubled", "data": [2, 4]}]
        output = (await server.predict({"tensors": {"x": [1.5]}}))["output"]
        assert output == {"x_doubled": {"datatype": "FP64", "shape": [1], "data": [3.0]}}
        assert (await server.predict({"body": "abc"}))["output"] == "body abc"
        metadata = (await server.client.get(f"/v2/models/{server.deployment.name}")).json()
        assert metadata["inputs"] == metadata["outputs"] == []
