"""Models served by `geartrain.asgi`, mounted in a FastAPI application, under other servers; the workers are real."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest
import pytest_asyncio

import geartrain
from tests.support import hosts
from tests.support.gates import Gates
from tests.support.servers import write_model
from tests.support.sse import EventStream
from tests.support.wire import connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
HELLO = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, name: str) -> str:
            return f"Hello, {name}!"
"""
COUNTER = """
    import time
    from collections.abc import Iterator
    from geartrain import BaseRunner, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, up_to: int = 3, began: str = "", stay: float = 0.0) -> Iterator[int]:
            if began:
                with open(began, "wb", buffering=0) as gate:
                    gate.write(b"x")
            for number in range(up_to):
                yield number
            time.sleep(stay)
"""


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "models"
    write_model(folder / "hello", HELLO)
    write_model(folder / "counter", COUNTER)
    return folder


@pytest_asyncio.fixture(params=hosts.NAMES, scope="module", loop_scope="module")
async def url(request: pytest.FixtureRequest, models: Path) -> AsyncIterator[str]:
    """Where the models are, in an application with a route of its own."""
    served = geartrain.asgi(models, wait_ready=True, queue=1)
    app = fastapi.FastAPI(lifespan=served.lifespan)
    app.mount("/ml", served)
    app.get("/own")(lambda: "mine")
    async with hosts.hosted(request.param, app) as url:
        yield f"{url}/ml"


@pytest_asyncio.fixture(loop_scope="module")
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


def post(path: str, values: dict[str, Any], *headers: str) -> bytes:
    body = json.dumps({"input": values}).encode()
    lines = [f"POST {path} HTTP/1.1", "host: test", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def test_predictions_are_made(client: httpx.AsyncClient) -> None:
    response = await client.post("/models/hello/predictions", json={"input": {"name": "Ada"}})
    assert (response.status_code, response.json()["output"]) == (200, "Hello, Ada!")
    response = await client.post("/models/hello/predictions", json={"input": {"name": 1}})
    assert response.status_code == 422
    response = await client.put("/models/counter/predictions/a%2Fb", json={"input": {}})
    assert (response.status_code, response.json()["id"]) == (200, "a/b")
    response = await client.get("/models/counter/predictions/a%2Fb")
    assert response.json()["output"] == [0, 1, 2]


async def test_routes_of_the_application_stay(client: httpx.AsyncClient) -> None:
    root = str(client.base_url).removesuffix("/ml/")
    assert (await client.get(f"{root}/own")).json() == "mine"
    assert (await client.get(f"{root}/nothing")).json() == {"detail": "Not Found"}
    assert (await client.get("/nothing")).status_code == 404


async def test_open_inference_protocol_is_served(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v2/health/ready")).status_code == 200
    tensor = {"name": "name", "datatype": "BYTES", "shape": [1], "data": ["Ada"]}
    response = await client.post("/v2/models/hello/infer", json={"inputs": [tensor]})
    assert response.status_code == 200, response.text
    assert response.json()["outputs"][0]["data"] == ["Hello, Ada!"]


async def test_pages_link_to_where_they_are_mounted(client: httpx.AsyncClient) -> None:
    links = (await client.get("/models/hello/")).json()
    assert links["openapi_url"] == "/ml/models/hello/openapi.json"
    document = client.base_url.join(links["openapi_url"])
    assert "/predictions" in (await client.get(document)).json()["paths"]
    page = await client.get(client.base_url.join(links["docs_url"]))
    sources = re.findall(r'(?:href|src)="([^"]+)"|url: "([^"]+)"', page.text)
    assert sources
    for source in map("".join, sources):
        assert (await client.get(page.url.join(source))).status_code == 200, source


async def test_body_is_bounded(models: Path) -> None:
    app = geartrain.asgi(models / "hello", max_body_size=100)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
    ):
        response = await client.post("/predictions", json={"input": {"name": "x" * 100}})
        assert response.status_code == 413


async def test_stream_of_events_comes_as_it_is_made(url: str) -> None:
    async with connection(url) as wire:
        await wire.send(post("/ml/models/counter/predictions", {"up_to": 2}, "accept: text/event-stream"))
        answer = await wire.head()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        events = await EventStream(wire, answer).rest()
        assert [data["chunk"] for name, data in events if name == "output"] == [0, 1]
        assert events[-1][0] == "completed"


async def canceled(client: httpx.AsyncClient, prediction_id: str) -> None:
    """The one slot is free again for the next prediction, long before the one that was left would have ended."""
    response = await client.post("/models/counter/predictions", json={"input": {}})
    assert response.json()["status"] == "succeeded"
    response = await client.get(f"/models/counter/predictions/{prediction_id}")
    assert response.json()["status"] == "canceled"


async def test_client_that_leaves_cancels_its_prediction(url: str, client: httpx.AsyncClient, gates: Gates) -> None:
    values = {"began": str(gates["began"].path), "stay": 600}
    async with connection(url) as wire:
        request = post("/ml/models/counter/predictions/left", values)
        await wire.send(request.replace(b"POST", b"PUT", 1))
        await asyncio.to_thread(gates["began"].wait)
    await canceled(client, "left")


async def test_stream_made_by_put_goes_on_without_its_client(url: str, client: httpx.AsyncClient) -> None:
    request = post("/ml/models/counter/predictions/streamed", {"stay": 600}, "accept: text/event-stream")
    for _ in range(2):
        async with connection(url) as wire:
            await wire.send(request.replace(b"POST", b"PUT", 1))
            await EventStream(wire, await wire.head()).until("output")
    assert (await client.get("/models/counter/predictions/streamed")).json()["status"] == "processing"
    assert (await client.post("/models/counter/predictions/streamed/cancel")).status_code == 200
    await canceled(client, "streamed")


async def test_host_alone_decides_when_the_server_ends(client: httpx.AsyncClient) -> None:
    assert (await client.post("/shutdown")).status_code == 404
    response = await client.post("/models/hello/predictions", json={"input": {"name": "Ada"}})
    assert response.json()["status"] == "succeeded"


async def test_predictions_of_a_store_outlive_the_application(models: Path, tmp_path: Path) -> None:
    served = geartrain.asgi(models, wait_ready=True, store=f"sqlite:///{tmp_path}/store.db")
    app = fastapi.FastAPI(lifespan=served.lifespan)
    app.mount("/ml", served)
    answers = []
    for _ in range(2):
        async with hosts.hosted("uvicorn", app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            answers.append(await client.put("/ml/models/hello/predictions/a", json={"input": {"name": "Ada"}}))
            listed = await client.get("/ml/models/hello/predictions")
            assert [entry["id"] for entry in listed.json()["results"]] == ["a"]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("name", hosts.NAMES)
async def test_example_serves_its_model_and_its_own_route(name: str) -> None:
    spec = importlib.util.spec_from_file_location("fastapi_app", ROOT / "examples/fastapi_app/app.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    async with hosts.hosted(name, example.app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/greetings/Ada")).json() == {"greeting": "Good day, Ada."}
        response = await client.post("/ml/predictions", json={"input": {"name": "Ada"}})
        assert response.json()["output"] == "Hello, Ada!"
