"""Predictions belong to the key that made them: in memory, in a store, between servers and in an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from geartrain.server.options import StoreOptions
from geartrain.service.models.deployment import Limits
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.access.options import AccessOptions
from tests.support.cluster import ready
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import PATIENCE, Serve, ServerProcess, write_model

MODEL = """
    import os, time
    from collections.abc import Iterator
    from geartrain import BaseRunner, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, name: str) -> Iterator[str]:
            yield "one"
            while not os.path.exists(name):
                time.sleep(0.002)
            yield "two"
"""
TRAINER = """
    import os, time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, name: str) -> str:
            return name

    def train(gate: str) -> str:
        while not os.path.exists(gate):
            time.sleep(0.002)
        return gate
"""
ASYNC = {"prefer": "respond-async"}
EVENTS = {"accept": "text/event-stream"}
SCOPES = {"ada": ("predict", "read"), "bob": ("predict", "read"), "root": ("predict", "read", "admin")}


class Keyed:
    """The keys of three clients, and the folder of the model."""

    def __init__(self, folder: Path) -> None:
        self.model = write_model(folder / "model", MODEL)
        self.file = folder / "keys"
        self.secrets: dict[str, str] = {}
        for name, scopes in SCOPES.items():
            self.secrets[name] = new_key()
            add_key(self.file, Key(name, scopes, digest_of(self.secrets[name])))

    def client(self, url: str, name: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.secrets[name]}"}
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE)

    @contextlib.asynccontextmanager
    async def clients(self, url: str) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient, httpx.AsyncClient]]:
        """Ada, Bob, and the administrator."""
        async with self.client(url, "ada") as ada, self.client(url, "bob") as bob, self.client(url, "root") as root:
            yield ada, bob, root

    def open_gate(self, name: str) -> None:
        (self.model / name).touch()

    def serve(self, *options: str) -> ServerProcess:
        return ServerProcess(str(self.model), "--keys", str(self.file), "--queue", "20", *options)


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The options of a server for each place in which predictions are held."""
    if request.param == "memory":
        return ()
    url = request.getfixturevalue("postgres").emptied() if request.param == "postgres" else f"sqlite:///{tmp_path}/db"
    return ("--store", url)


async def put(client: httpx.AsyncClient, name: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return await client.put(f"/predictions/{name}", json={"input": {"name": name}}, headers=headers or {})


async def until_ended(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            body: dict[str, Any] = (await client.get(f"/predictions/{name}")).json()
            if "completed_at" in body:
                return body
            await asyncio.sleep(0.01)


async def check_stranger(client: httpx.AsyncClient, name: str) -> None:
    """Check that a client is told nothing of a prediction of another one, and cannot join or cancel it."""
    known, unknown = await client.get(f"/predictions/{name}"), await client.get("/predictions/none")
    assert (known.status_code, known.content) == (404, unknown.content)
    known, unknown = [await client.post(f"/predictions/{each}/cancel") for each in (name, "none")]
    assert (known.status_code, known.content) == (404, unknown.content)
    refusal = {"error": f"Prediction ID '{name}' cannot be used. Use another id.", "status": "failed"}
    for headers in ({}, ASYNC, EVENTS):
        refused = await put(client, name, headers)
        assert (refused.status_code, refused.json()) == (409, refusal), headers
        refused = await client.post("/predictions", json={"id": name, "input": {"name": name}}, headers=headers)
        assert (refused.status_code, refused.json()) == (409, refusal), headers
    form = await client.put(f"/predictions/{name}", files={"name": (None, name)})
    assert (form.status_code, form.json()) == (409, refusal)


async def listed(client: httpx.AsyncClient) -> list[str]:
    return [each["id"] for each in (await client.get("/predictions")).json()["results"]]


async def test_s5_prediction_belongs_to_its_key(keyed: Keyed, store: tuple[str, ...]) -> None:
    process = keyed.serve(*store)
    try:
        async with keyed.clients(ready(process)) as (ada, bob, root):
            assert (await put(ada, "a", ASYNC)).status_code == 202
            assert (await put(bob, "b", ASYNC)).status_code == 202
            await check_stranger(bob, "a")
            await check_stranger(ada, "b")
            assert (await put(root, "a")).status_code == 202
            assert (await root.get("/predictions/a")).status_code == 200
            assert (await root.post("/predictions/b/cancel")).status_code == 200
            assert (await put(ada, "a")).json()["status"] in {"starting", "processing"}
            async with ada.stream("PUT", "/predictions/a", headers=EVENTS) as joined:
                assert joined.status_code == 200
                keyed.open_gate("a")
                assert "event: completed" in [line async for line in joined.aiter_lines()]
            assert (await until_ended(ada, "a"))["output"] == ["one", "two"]
            assert (await until_ended(bob, "b"))["status"] == "canceled"
            await check_stranger(bob, "a")
            if store:
                assert (await listed(ada), await listed(bob), await listed(root)) == (["a"], ["b"], ["b", "a"])
    finally:
        process.end()


async def test_s5_id_that_the_server_makes_belongs_to_its_key(keyed: Keyed, store: tuple[str, ...]) -> None:
    process = keyed.serve(*store)
    try:
        async with keyed.clients(ready(process)) as (ada, bob, _):
            made = await ada.post("/predictions", json={"input": {"name": "a"}}, headers=ASYNC)
            name = made.json()["id"]
            assert len(name) == len("pred_") + 32
            await check_stranger(bob, name)
            assert (await ada.post(f"/predictions/{name}/cancel")).status_code == 200
            assert (await until_ended(ada, name))["status"] == "canceled"
    finally:
        process.end()


async def test_s5_prediction_belongs_to_its_key_after_a_restart(keyed: Keyed, tmp_path: Path) -> None:
    options = ("--store", f"sqlite:///{tmp_path}/db")
    process = keyed.serve(*options)
    try:
        async with keyed.clients(ready(process)) as (ada, _, _):
            keyed.open_gate("done")
            assert (await put(ada, "done")).status_code == 200
            assert (await put(ada, "a", ASYNC)).status_code == 202
    finally:
        process.end()
    process = keyed.serve(*options)
    try:
        async with keyed.clients(ready(process)) as (ada, bob, root):
            for name in ("a", "done"):
                await check_stranger(bob, name)
            keyed.open_gate("a")
            assert (await until_ended(ada, "a"))["status"] == "succeeded"
            await check_stranger(bob, "a")
            assert (await listed(ada), await listed(bob), await listed(root)) == (["a", "done"], [], ["a", "done"])
    finally:
        process.end()


async def test_s5_what_was_made_without_keys_belongs_to_everybody(keyed: Keyed, tmp_path: Path) -> None:
    options = ("--store", f"sqlite:///{tmp_path}/db")
    keyed.open_gate("a")
    process = ServerProcess(str(keyed.model), *options)
    try:
        async with httpx.AsyncClient(base_url=ready(process), timeout=PATIENCE) as client:
            assert (await put(client, "a")).json()["status"] == "succeeded"
    finally:
        process.end()
    process = keyed.serve(*options)
    try:
        async with keyed.clients(ready(process)) as (ada, bob, _):
            for client in (ada, bob):
                assert (await put(client, "a")).status_code == 200
                assert await listed(client) == ["a"]
    finally:
        process.end()


async def test_s5_servers_that_share_a_store_ask_whose_it_is(keyed: Keyed, postgres: Postgres, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{new_key()}\n")
    options = ("--store", postgres.emptied(), "--advertise", "127.0.0.1", "--cluster-token-file", str(token))
    processes = [keyed.serve(*options) for _ in range(2)]
    try:
        urls = [ready(process) for process in processes]
        async with keyed.clients(urls[0]) as (ada, _, _), keyed.clients(urls[1]) as (there, bob, root):
            assert (await put(ada, "a", ASYNC)).status_code == 202
            await check_stranger(bob, "a")
            assert (await there.get("/predictions/a")).status_code == 200
            assert (await put(there, "a")).status_code == 202
            assert (await root.get("/predictions/a")).status_code == 200
            # A server that relays for a client which may not see it, such as an older one, is told nothing either.
            relayed = {"geartrain-cluster-token": token.read_text().strip()}
            async with httpx.AsyncClient(base_url=urls[0], headers=relayed, timeout=PATIENCE) as server:
                for principal, status in (("key:bob", 421), ("", 421), ("key:ada", 200), ("*", 200)):
                    headers = {"geartrain-cluster-principal": principal}
                    answer = await server.get("/predictions/a", headers=headers)
                    assert answer.status_code == status, principal
                    answer = await server.put("/predictions/a", headers=headers)
                    assert answer.status_code == (202 if status == 200 else status), principal
                answer = await server.post("/predictions/a/cancel")
                assert answer.status_code == 421
            assert (await listed(bob), await listed(there)) == ([], ["a"])
            assert (await there.post("/predictions/a/cancel")).status_code == 200
            assert (await until_ended(ada, "a"))["status"] == "canceled"
    finally:
        for process in processes:
            process.end()


@pytest.mark.parametrize("is_stored", [False, True])
async def test_s5_prediction_belongs_to_its_key_on_each_wire(
    keyed: Keyed, serve: Serve, tmp_path: Path, *, is_stored: bool
) -> None:
    """In this process, so that `--wire uvicorn` serves it as an ASGI application."""
    store = StoreOptions(url=f"sqlite:///{tmp_path}/db") if is_stored else StoreOptions()
    options = {"access": AccessOptions(keys=keyed.file), "store": store, "limits": Limits(queue=5)}
    async with serve(keyed.model, **options) as server, keyed.clients(server.url) as (ada, bob, _):
        assert (await put(ada, "a", ASYNC)).status_code == 202
        await check_stranger(bob, "a")
        keyed.open_gate("a")
        assert (await until_ended(ada, "a"))["status"] == "succeeded"
        await check_stranger(bob, "a")


@pytest.mark.parametrize("is_stored", [False, True])
async def test_s5_training_belongs_to_its_key(keyed: Keyed, tmp_path: Path, *, is_stored: bool) -> None:
    folder = write_model(tmp_path / "trainer", TRAINER, "train: run.py:train\n")
    store = ("--store", f"sqlite:///{tmp_path}/db") if is_stored else ()
    process = ServerProcess(str(folder), "--keys", str(keyed.file), *store)
    try:
        async with keyed.clients(ready(process)) as (ada, bob, root):
            made = await ada.put("/trainings/t", json={"input": {"gate": "t"}}, headers=ASYNC)
            assert made.status_code == 202, made.text
            assert (await bob.get("/trainings/t")).status_code == 404
            assert (await bob.post("/trainings/t/cancel")).status_code == 404
            for headers in ({}, ASYNC):
                assert (
                    await bob.put("/trainings/t", json={"input": {"gate": "t"}}, headers=headers)
                ).status_code == 409
            assert (await root.get("/trainings/t")).status_code == 200
            assert (await ada.put("/trainings/t", json={"input": {"gate": "t"}})).status_code == 202
            if is_stored:
                lists = [(await client.get("/trainings")).json()["results"] for client in (ada, bob)]
                assert [len(each) for each in lists] == [1, 0]
            assert (await ada.post("/trainings/t/cancel")).status_code == 200
    finally:
        process.end()
