"""Models on a real Ray Serve: three replicas behind HAProxy, asked by every protocol, reloaded, and replaced."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support import cluster as servers
from tests.support.modes import current
from tests.support.postgres import running_postgres
from tests.support.ray_serve import RayCluster, cluster, need_ray
from tests.support.receiver import receiving
from tests.support.servers import PATIENCE, write_model

REPLICAS: Final = 3
RUNS: Final = 6
ECHO: Final = """
import json, os
def run(text: str) -> str:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return json.dumps({{"pid": os.getpid(), "gpus": gpus, "text": text, "version": {version}}})
"""
WORDS: Final = """
import os
from collections.abc import Iterator
from geartrain import streaming
@streaming
def run(text: str) -> Iterator[str]:
    yield str(os.getpid())
    yield text
"""
GATE: Final = """
import pathlib, time
def run(gate: str) -> str:
    while not pathlib.Path(gate).exists():
        time.sleep(0.01)
    return "through"
"""
NESTED: Final = """
import json, os
import geartrain
def run(name: str) -> str:
    try:
        found = json.loads(geartrain.models[name](server=True))
    except geartrain.ModelError as error:
        return json.dumps({"pid": os.getpid(), "failed": [error.model, error.code]})
    return json.dumps({"pid": os.getpid(), "own": os.getppid(), "called": found})
"""
SERVER: Final = """
import os
def run(server: bool) -> str:
    return str(os.getppid())
"""
ARGUMENTS: Final = (
    *("--name", "tests", "--replicas", f"1:{REPLICAS}", "--upscale-delay", "0", "--cpus", "0.1", "--gpus", "1"),
    *("--option", "queue=100", "--option", "allow_private_urls=true", "--option", "shutdown_grace=120"),
)
JSON: Final = "application/json"

Answers = dict[int, str]
pytestmark = pytest.mark.timeout(300)  # of which the first test needs most: it waits for the cluster


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "echo", ECHO.format(version=1))
    write_model(folder / "words", WORDS)
    write_model(folder / "gate", GATE)
    write_model(folder / "nested", NESTED)
    write_model(folder / "server", SERVER)
    return folder


@pytest.fixture(scope="module")
def ray(models: Path) -> Iterator[RayCluster]:
    """An application with three replicas, of which it began with one: the queue has made them."""
    need_ray()
    if current().is_hosted or current().arguments:
        pytest.skip("the wire is Ray's")
    with cluster() as found:
        found.deploy(str(models), *ARGUMENTS, "--revision", "1")
        gate = models / "gates" / "first"

        async def fill() -> None:
            async with httpx.AsyncClient(base_url=found.url, timeout=PATIENCE) as client:
                for _ in range(RUNS):
                    await begin(client, gate)
            assert len(await found.until_replicas(REPLICAS)) == REPLICAS

        asyncio.run(fill())
        gate.parent.mkdir()
        gate.touch()
        yield found


async def begin(client: httpx.AsyncClient, gate: Path, **fields: object) -> str:
    """Have a prediction accepted that waits for a file; return its id."""
    headers = {"prefer": "respond-async"}
    answer = await client.post(
        "/models/gate/predictions", json={"input": {"gate": str(gate)}, **fields}, headers=headers
    )
    assert answer.status_code == 202, answer.text
    identity: str = answer.json()["id"]
    return identity


async def by_cog(client: httpx.AsyncClient) -> Answers:
    answer = await client.post("/models/echo/predictions", json={"input": {"text": "cog"}})
    output = json.loads(answer.json()["output"])
    return {output["pid"]: output["text"]}


async def by_events(client: httpx.AsyncClient) -> Answers:
    body, headers = {"input": {"text": "events"}}, {"accept": "text/event-stream"}
    answer = await client.post("/models/words/predictions", json=body, headers=headers)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    ends = [event for event in map(json.loads, lines) if isinstance(event, dict) and event.get("status") == "succeeded"]
    pid, text = ends[-1]["output"]
    return {int(pid): text}


async def by_infer(client: httpx.AsyncClient) -> Answers:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["infer"]}
    answer = await client.post("/v2/models/echo/infer", json={"inputs": [tensor]})
    output = json.loads(answer.json()["outputs"][0]["data"][0])
    return {output["pid"]: output["text"]}


async def by_generate(client: httpx.AsyncClient) -> Answers:
    answer = await client.post("/v2/models/echo/generate", json={"text_input": "generate"})
    output = json.loads(answer.json()["text_output"])
    return {output["pid"]: output["text"]}


async def by_generate_stream(client: httpx.AsyncClient) -> Answers:
    answer = await client.post("/v2/models/words/generate_stream", json={"text_input": "tokens"})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    pid, text = (json.loads(line)["text_output"] for line in lines)
    return {int(pid): text}


HTTP: Final[dict[str, Callable[[httpx.AsyncClient], Awaitable[Answers]]]] = {
    "cog": by_cog,
    "events": by_events,
    "infer": by_infer,
    "generate": by_generate,
    "tokens": by_generate_stream,
}


async def of_each_replica(ask: Callable[[], Awaitable[Answers]], wanted: int = REPLICAS) -> Answers:
    """Ask until so many workers have answered."""
    found: Answers = {}
    async with asyncio.timeout(PATIENCE):
        while len(found) < wanted:
            for answer in await asyncio.gather(*(ask() for _ in range(2 * wanted))):
                found.update(answer)
    return found


@pytest.mark.parametrize("protocol", HTTP)
async def test_every_replica_answers_each_protocol_of_http(ray: RayCluster, protocol: str) -> None:
    async with httpx.AsyncClient(base_url=ray.url, timeout=PATIENCE) as client:
        answers = await of_each_replica(lambda: HTTP[protocol](client))
    assert set(answers.values()) == {protocol}
    assert len(answers) == REPLICAS


def infer_request(model: str, text: str) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    return request


def text_of(response: Any) -> str:
    raw: bytes = response.raw_output_contents[0]
    return raw[4:].decode()


async def test_every_replica_answers_grpc(ray: RayCluster) -> None:
    async def unary() -> Answers:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{ray.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
        ) as to:
            stub: Any = GRPCInferenceServiceStub(to)
            output = json.loads(text_of(await stub.ModelInfer(infer_request("echo", "unary"), timeout=PATIENCE)))
        return {output["pid"]: output["text"]}

    async def stream() -> Answers:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{ray.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
        ) as to:
            stub: Any = GRPCInferenceServiceStub(to)
            call = stub.ModelStreamInfer(timeout=PATIENCE)
            await call.write(infer_request("words", "stream"))
            texts = [text_of((await call.read()).infer_response) for _ in range(2)]
            await call.done_writing()
            assert await call.read() == grpc.aio.EOF
        return {int(texts[0]): texts[1]}

    for ask, text in ((unary, "unary"), (stream, "stream")):
        answers = await of_each_replica(ask)
        assert list(answers.values()) == [text] * REPLICAS


async def test_administration_is_refused_with_a_sentence(ray: RayCluster) -> None:
    async with httpx.AsyncClient(base_url=ray.url, timeout=PATIENCE) as client:
        for path in ("/v2/repository/models/echo/unload", "/v2/systemsharedmemory/unregister", "/shutdown"):
            answer = await client.post(path)
            assert answer.status_code == 501
            assert "user_config" in answer.json()["error"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ray.grpc_port}") as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="user_config") as caught:
            await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="echo"), timeout=PATIENCE)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def outputs_of(client: httpx.AsyncClient) -> dict[int, dict[str, Any]]:
    """What each replica's worker says of itself."""

    async def ask() -> Answers:
        answer = await client.post("/models/echo/predictions", json={"input": {"text": ""}})
        output: str = answer.json()["output"]
        return {json.loads(output)["pid"]: output}

    return {pid: json.loads(output) for pid, output in (await of_each_replica(ask)).items()}


async def test_each_replica_has_a_gpu_of_its_own(ray: RayCluster) -> None:
    async with httpx.AsyncClient(base_url=ray.url, timeout=PATIENCE) as client:
        outputs = await outputs_of(client)
    gpus = [each["gpus"] for each in outputs.values()]
    assert len(set(gpus)) == REPLICAS
    assert all(each.isdecimal() for each in gpus), gpus


async def test_model_of_a_name_is_that_of_the_same_replica(ray: RayCluster) -> None:
    """One that the replica does not have is a `ModelError`: no other replica, and no other application, is asked."""
    async with httpx.AsyncClient(base_url=ray.url, timeout=PATIENCE) as client:

        async def ask(name: str) -> Answers:
            answer = await client.post("/models/nested/predictions", json={"input": {"name": name}})
            output: str = answer.json()["output"]
            return {json.loads(output)["pid"]: output}

        found = [json.loads(output) for output in (await of_each_replica(lambda: ask("server"))).values()]
        absent = [json.loads(output) for output in (await of_each_replica(lambda: ask("elsewhere"))).values()]
    assert all(each["called"] == each["own"] for each in found)
    assert len({each["own"] for each in found}) == REPLICAS
    assert [each["failed"] for each in absent] == [["elsewhere", "not_found"]] * REPLICAS


async def test_another_revision_reloads_all_replicas_in_place(ray: RayCluster, models: Path) -> None:
    before = await ray.until_replicas(REPLICAS)
    write_model(models / "echo", ECHO.format(version=2))
    await asyncio.to_thread(ray.deploy, str(models), *ARGUMENTS, "--revision", "2")
    async with httpx.AsyncClient(base_url=ray.url, timeout=PATIENCE) as client:
        outputs = await outputs_of(client)
    assert {each["version"] for each in outputs.values()} == {2}
    assert await ray.until_replicas(REPLICAS) == before


async def test_what_was_accepted_survives_that_its_replica_is_replaced(
    ray: RayCluster, models: Path, tmp_path: Path
) -> None:
    before = await ray.until_replicas(REPLICAS)
    gate = tmp_path / "go"
    async with receiving() as receiver, httpx.AsyncClient(base_url=ray.url, timeout=PATIENCE) as client:
        hook = {"webhook": receiver.url(), "webhook_events_filter": ["completed"]}
        begun = [await begin(client, gate, **hook) for _ in range(RUNS)]
        deploying = asyncio.create_task(
            asyncio.to_thread(ray.deploy, str(models), *ARGUMENTS, "--revision", "2", "--option", "keep=301")
        )
        await ray.until_replicas(1, before)
        gate.touch()
        await deploying
        calls = await receiver.ended(RUNS)
    assert sorted(call.prediction["id"] for call in calls) == sorted(begun)
    assert {call.status for call in calls} == {"succeeded"}


class Shared:
    """Another application, whose replicas share a store and hand requests over; and the folder of its model."""

    def __init__(self, ray: RayCluster, folder: Path) -> None:
        self.url = f"{ray.url}/{folder.name}"
        self.folder = folder

    def runs(self) -> list[str]:
        """The predictions that were begun, in their order."""
        return (self.folder / "runs").read_text().splitlines()


@pytest.fixture(scope="module")
def shared(ray: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = write_model(tmp_path_factory.mktemp("store") / "shared", servers.MODEL)
    token = folder.parent / "token"
    token.write_text(secrets.token_urlsafe(32))
    with running_postgres() as postgres:
        ray.deploy(
            *(str(folder), "--route-prefix", "/shared", "--replicas", str(REPLICAS), "--cpus", "0.1"),
            *("--store", postgres.url, "--cluster-token-file", str(token)),
        )
        asyncio.run(ray.until_replicas(REPLICAS, prefix="/shared"))
        yield Shared(ray, folder)


async def test_every_replica_answers_for_what_one_of_them_runs(shared: Shared) -> None:
    """Each request goes to whichever replica HAProxy has for it, and there are more of them than replicas."""
    many = 4 * REPLICAS
    async with httpx.AsyncClient(base_url=shared.url, timeout=PATIENCE) as client:
        assert (await servers.put(client, "a", servers.ASYNC)).status_code == 202
        await servers.until(client, "a", lambda body: body.get("output") == ["one"])
        for answer in await asyncio.gather(*(client.get("/predictions/a") for _ in range(many))):
            body = answer.json()
            assert (body["status"], body["output"], body["logs"]) == ("processing", ["one"], "begun a\n")
        for answer in await asyncio.gather(*(servers.put(client, "a", servers.ASYNC) for _ in range(many))):
            assert answer.status_code == 202, answer.text
        streams = [asyncio.create_task(servers.put(client, "a", servers.EVENTS)) for _ in range(many)]
        (shared.folder / "a").touch()
        for answer in await asyncio.gather(*streams):
            ended = answer.json()["status"] if answer.headers["content-type"] == JSON else answer.text
            assert "succeeded" in ended
        assert (await servers.until(client, "a"))["output"] == ["one", "two"]
    assert shared.runs().count("a") == 1


async def test_a_cancel_that_reaches_any_replica_ends_the_prediction(shared: Shared) -> None:
    names = [f"cancel{number}" for number in range(3 * REPLICAS)]
    async with httpx.AsyncClient(base_url=shared.url, timeout=PATIENCE) as client:
        await asyncio.gather(*(servers.put(client, name, servers.ASYNC) for name in names))
        for name in names:
            await servers.until(client, name, lambda body: body.get("output") == ["one"])
        for answer in await asyncio.gather(*(client.post(f"/predictions/{name}/cancel") for name in names)):
            assert answer.status_code == 200, answer.text
        assert {(await servers.until(client, name))["status"] for name in names} == {"canceled"}
