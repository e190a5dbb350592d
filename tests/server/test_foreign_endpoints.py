"""The endpoints of other servers and platforms: paths, statuses and bodies as their documents have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.servers import LiveServer, Serve

if TYPE_CHECKING:
    import httpx
    import pytest

TEXT = """
    import geartrain
    def run(text: str, times: int = 1) -> str:
        if text == "bad":
            raise ValueError("wrong")
        return text * times
"""
ROWS = """
    import numpy as np
    import numpy.typing as npt
    import geartrain

    class Runner(geartrain.BaseRunner):
        @geartrain.batched
        def run(self, x: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> npt.NDArray[np.float64]:
            return x.sum(axis=1)
"""
ECHO = """
    import geartrain
    def run(request: geartrain.Request) -> geartrain.Response:
        return geartrain.Response(request.path.encode() + b" " + request.body, "text/x-own", status=202)
"""
ALL = "sagemaker,kserve,torchserve,huggingface,azure"
CSV = {"content-type": "text/csv"}


async def ask(server: LiveServer, path: str, body: Any, status: int = 200) -> Any:
    answer = await server.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_sagemaker_and_mlflow(serve: Serve) -> None:
    async with serve(TEXT, api="sagemaker") as server:
        assert (await server.client.get("/ping")).status_code == 200
        assert await ask(server, "/invocations", {"text": "a", "times": 2}) == "aa"
        assert await ask(server, "/invocations", {"instances": ["a", {"text": "b"}]}) == {"predictions": ["a", "b"]}
        assert "error" in await ask(server, "/invocations", {"nothing": 1}, 400)
        assert await ask(server, "/invocations", {"text": "bad"}, 500) == {"error": "ValueError: wrong"}
        answer = await server.client.post("/invocations", content=b"text\na\nb\n", headers=CSV)
        assert answer.json() == {"predictions": ["a", "b"]}
    async with serve(ROWS, api="mlflow") as server:
        rows = [[1, 2], [3, 4]]
        for body in (
            {"dataframe_split": {"columns": ["a", "b"], "data": rows}},
            {"dataframe_records": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]},
            {"instances": rows},
            {"inputs": rows},
        ):
            assert await ask(server, "/invocations", body) == {"predictions": [3, 7]}
        answer = await server.client.post("/invocations", content=b"1,2\n3,4\n", headers=CSV)
        assert answer.json() == {"predictions": [3, 7]}
        two = await ask(server, "/invocations", {"inputs": rows, "instances": rows}, 400)
        assert two["error_code"] == "BAD_REQUEST"
        assert (await server.client.get("/health")).status_code == 200


async def test_version_1_of_kserve(serve: Serve) -> None:
    async with serve(ROWS, api="kserve") as server:
        name, get = server.deployment.name, server.client.get
        assert (await get("/v1/models")).json() == {"models": [name]}
        assert (await get(f"/v1/models/{name}")).json() == {"name": name, "ready": True}
        assert (await get("/v1/models/none")).status_code == 404
        path = f"/v1/models/{name}:predict"
        assert await ask(server, path, {"instances": [[1, 2], [3, 4]]}) == {"predictions": [3, 7]}
        assert await ask(server, path, {"instances": [{"x": [1, 2]}]}) == {"predictions": [3]}
        assert "instances" in (await ask(server, path, {"instances": []}, 400))["error"]
        await ask(server, "/v1/models/none:predict", {"instances": [1]}, 404)
        await ask(server, f"/v1/models/{name}:explain", {"instances": [1]}, 501)
        assert (await get("/v2/models")).json() == {"models": [name]}  # the other protocols are there too


async def test_vertex(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    route = "/v1/endpoints/7/deployedModels/9:predict"
    monkeypatch.setenv("AIP_PREDICT_ROUTE", route)
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v1/endpoints/7/deployedModels/9")
    async with serve(TEXT, api="vertex") as server:
        assert (await server.client.get("/v1/endpoints/7/deployedModels/9")).status_code == 200
        body = {"instances": [{"text": "a"}, "b"], "parameters": {"times": 2}}
        assert await ask(server, route, body) == {"predictions": ["aa", "bb"]}


async def test_torchserve(serve: Serve) -> None:
    async with serve(TEXT, api="torchserve") as server:
        name = server.deployment.name
        assert (await server.client.get("/ping")).json() == {"status": "Healthy"}
        assert await ask(server, f"/predictions/{name}", {"text": "a"}) == "a"
        assert await ask(server, f"/predictions/{name}/{server.deployment.version}", {"text": "a"}) == "a"
        missing = await ask(server, "/predictions/none", {"text": "a"}, 404)
        assert (missing["code"], missing["type"]) == (404, "ModelNotFoundException")
        failed = await ask(server, f"/predictions/{name}", {"text": "bad"}, 503)
        assert failed["code"] == 503
        assert (await server.predict({"text": "a"}))["output"] == "a"  # Cog's paths are there too


async def test_hugging_face_litserve_and_azure(serve: Serve) -> None:
    async with serve(TEXT, api="huggingface,azure") as server:
        body = {"inputs": "a", "parameters": {"times": 3}}
        assert [await ask(server, path, body) for path in ("/", "/predict")] == ["aaa", "aaa"]
        assert "error" in await ask(server, "/", {"inputs": "bad"}, 400)
        assert await ask(server, "/score", {"text": "a"}) == "a"
        assert (await server.client.get("/", headers={"accept": "text/html"})).status_code == 200  # the playground
    async with serve(TEXT, api="litserve") as server:
        assert await ask(server, "/predict", {"text": "a"}) == "a"
        assert "detail" in await ask(server, "/predict", {"text": "bad"}, 500)
        assert (await server.client.get("/health")).status_code == 200


async def test_a_model_of_requests_gets_them_as_they_came(serve: Serve) -> None:
    async with serve(ECHO, api=ALL) as server:
        name = server.deployment.name
        paths = ["/invocations", f"/v1/models/{name}:predict", f"/predictions/{name}", "/", "/predict", "/score"]

        async def post(path: str) -> httpx.Response:
            return await server.client.post(path, content=b"any", headers={"content-type": "a/b"})

        for path in paths:
            answer = await post(path)
            assert (answer.status_code, answer.headers["content-type"]) == (202, "text/x-own")
            assert answer.text.removesuffix(" any").replace("%3A", ":") == path


async def test_bodies_as_large_as_the_platforms_send_them(serve: Serve) -> None:
    """25 MB are the most of SageMaker's endpoints, 1.5 MB those of Vertex AI."""
    async with serve(ECHO, api="sagemaker,vertex") as server:
        for path, size in (("/invocations", 25 * 1024**2), ("/predict", 1_500_000)):
            body = b"x" * size
            answer = await server.client.post(path, content=body, headers={"content-type": "a/b"})
            assert (answer.status_code, len(answer.content)) == (202, len(path) + 1 + size)


async def test_without_the_option_there_are_none(serve: Serve) -> None:
    async with serve(TEXT) as server:
        for path in ("/invocations", "/predict", "/score"):
            assert (await server.client.post(path, json={"text": "a"})).status_code == 404
