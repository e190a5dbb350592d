"""The server of a Ray replica, without Ray: its health, its work, its reloads, its end, and who may do what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.ray.handler import Probe
from geartrain.ray.options import serve_options
from geartrain.ray.server import ReplicaLostError, ReplicaServer
from geartrain.service.workers.pool import ModelSetupError
from geartrain.transport.wire.exchange import Answer, Head
from tests.support.receiver import receiving
from tests.support.servers import PATIENCE, eventually, write_model

LABELS: Final = {"serve_replica": "one"}
PID: Final = """
import os
def run(text: str) -> str:
    return f"{{os.getpid()}} {version} {{text}}"
"""
GATE: Final = """
import asyncio, pathlib
async def run(gate: str) -> str:
    while not pathlib.Path(gate).exists():
        await asyncio.sleep(0.005)
    return "through"
"""


@contextlib.asynccontextmanager
async def serving(models: Path, **options: Any) -> AsyncIterator[tuple[ReplicaServer, httpx.AsyncClient]]:
    """A replica on a port of its own, until the end of the block, which may have stopped it."""
    server = ReplicaServer(serve_options(str(models), options, LABELS, node="127.0.0.1"))
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    await server.start()
    try:
        server.listen(listener)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield server, client
    finally:
        await server.stop()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_model(tmp_path / "models" / "pid", PID.format(version=1))
    write_model(tmp_path / "models" / "gate", GATE, "concurrency: {max: 2}")
    return tmp_path / "models"


async def ask(client: httpx.AsyncClient, root: str = "") -> list[str]:
    answer = await client.post(f"{root}/models/pid/predictions", json={"input": {"text": "x"}})
    assert answer.status_code == 200, answer.text
    output: str = answer.json()["output"]
    return output.split()


class Platform:
    """Says of a replica what Ray would."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.is_draining = False

    def prefix(self) -> str:
        return self._prefix

    def probe(self, head: Head) -> Probe | None:
        return self._answer if head.path == b"/-/healthz" else None

    async def _answer(self) -> Answer:
        if self.is_draining:
            raise RuntimeError
        return Answer(HTTPStatus.OK, (b"success",))


async def test_a_replica_is_unhealthy_when_a_model_is_lost_and_not_before(models: Path) -> None:
    write_model(models / "broken", "raise ImportError('no')")
    async with serving(models) as (server, client):
        server.models.check_health()
        pid, _, _ = await ask(client)
        os.kill(int(pid), signal.SIGKILL)

        def is_lost() -> bool:
            with contextlib.suppress(ReplicaLostError):
                server.models.check_health()
                return False
            return True

        await eventually(is_lost)
        with pytest.raises(ReplicaLostError, match="'pid'"):
            server.models.check_health()


async def test_a_model_alone_that_cannot_be_set_up_fails_the_start(tmp_path: Path) -> None:
    write_model(tmp_path / "broken", f"{PID.format(version=1)}raise ImportError('no')")
    server = ReplicaServer(serve_options(str(tmp_path / "broken"), {}, LABELS, node="127.0.0.1"))
    with pytest.raises(ModelSetupError):
        await server.start()
    await server.stop()


async def test_the_load_counts_what_runs_and_what_waits(models: Path, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    async with serving(models, queue=10) as (server, client):
        assert server.models.load() == 0
        for _ in range(5):
            body = {"input": {"gate": str(gate)}}
            answer = await client.post("/models/gate/predictions", json=body, headers={"prefer": "respond-async"})
            assert answer.status_code == 202
        assert server.models.load() == 2.5  # five, and two slots
        gate.touch()
        await eventually(lambda: server.models.load() == 0)


async def test_a_reload_loads_every_model_anew(models: Path) -> None:
    async with serving(models) as (server, client):
        before = await ask(client)
        write_model(models / "pid", PID.format(version=2))
        await server.models.reload()
        after = await ask(client)
        assert [before[1], after[1]] == ["1", "2"]
        write_model(models / "pid", "raise ImportError('no')")
        await server.models.reload()
        assert await ask(client) == after


async def test_the_models_that_are_named_are_had_and_no_others(models: Path) -> None:
    async with serving(models) as (server, client):
        await server.models.have({"gate"})
        answer = await client.post("/models/pid/predictions", json={"input": {"text": "x"}})
        assert answer.status_code == 503
        await server.models.have({"gate", "pid", "unknown"})
        await ask(client)


async def test_what_was_accepted_finishes_before_the_end(models: Path, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    async with receiving() as receiver, serving(models, allow_private_urls=True) as (server, client):
        hook = {"webhook": receiver.url(), "webhook_events_filter": ["completed"]}
        body = {"input": {"gate": str(gate)}, **hook}
        answer = await client.post("/models/gate/predictions", json=body, headers={"prefer": "respond-async"})
        assert answer.status_code == 202
        ending = asyncio.create_task(server.stop())
        await server.closed()
        with pytest.raises(httpx.TransportError):
            await ask(client)
        assert not ending.done()
        gate.touch()
        await ending
        [call] = await receiver.ended()
        assert call.status == "succeeded"


async def test_the_routes_are_below_the_prefix_and_probes_are_of_the_platform(models: Path) -> None:
    async with serving(models, default_model="pid") as (server, client):
        platform = server.handler.platform = Platform("/some/where")
        assert (await ask(client, "/some/where"))[1] == "1"
        assert "/some/where/" in (await client.get("/some/where")).text  # links
        assert (await client.get("/some/wherever/v2")).status_code == 404
        for is_draining, status in ((False, 200), (True, 503)):
            platform.is_draining = is_draining
            assert (await client.get("/-/healthz")).status_code == status


async def test_nobody_administers_one_replica(models: Path) -> None:
    async with serving(models) as (_, client):
        for path in ("/v2/repository/models/pid/load", "/v2/repository/models/pid/unload", "/shutdown"):
            answer = await client.post(path)
            assert answer.status_code == 501
            assert "user_config" in answer.json()["error"]
        assert (await client.get("/v2/systemsharedmemory/status")).status_code == 501
        async with grpc.aio.insecure_channel(client.base_url.netloc.decode()) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            for call, request in (
                (stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name="pid")),
                (stub.SystemSharedMemoryUnregister, pb.SystemSharedMemoryUnregisterRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="user_config") as caught:
                    await call(request, timeout=PATIENCE)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await ask(client)


async def test_every_metric_tells_its_replica(models: Path) -> None:
    async with serving(models) as (_, client):
        for accept in ("text/plain", "application/openmetrics-text"):
            text = (await client.get("/metrics", headers={"accept": accept})).text
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            assert lines
            assert all('serve_replica="one"' in line for line in lines)


async def test_a_replica_has_a_store_where_it_is_given_one(models: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/predictions.db"
    async with serving(models, store=store, store_keep=60.0) as (_, client):
        answer = await client.put("/models/pid/predictions/known", json={"input": {"text": "x"}})
        assert answer.status_code == 200
    async with serving(models, store=store) as (_, client):
        assert (await client.get("/models/pid/predictions/known")).json()["output"] == answer.json()["output"]


async def test_rays_own_proxy_is_answered_by_the_same_models(models: Path) -> None:
    async with serving(models) as (server, client):
        transport = httpx.ASGITransport(server.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://serve") as proxy:
            assert await ask(proxy) == await ask(client)
            assert (await proxy.post("/shutdown")).status_code == 501
