"""Servers that share a store in Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.durable import ASYNC, EVENTS, MODEL, Servers, follow_after_a_restart, get, has_output, put, until
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import PATIENCE, Serve, eventually, write_model


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def servers(serve: Serve, tmp_path: Path, postgres: Postgres) -> Servers:
    return Servers(serve, write_model(tmp_path / "model", MODEL), postgres.dropped())


async def test_another_server_answers_and_takes_over(servers: Servers) -> None:
    async with servers.serve() as other:
        async with servers.serve() as server:
            assert (await put(server, "a", ASYNC)).status_code == 202
            await until(server, "a", has_output)
            assert (await put(other, "a")).status_code == 202  # it runs, and not here
            assert (
                await other.client.post("/predictions", json={"id": "a", "input": {"name": "a"}})
            ).status_code == 409
        servers.open_gate()
        assert (await until(other, "a"))["status"] == "succeeded"
        again = await put(other, "a")
        assert (again.status_code, again.json()) == (200, await get(other, "a"))
    assert servers.runs() == ["a", "a"]


@pytest.mark.parametrize("headers", [{}, ASYNC, EVENTS], ids=["waiting", "accepted", "stream"])
async def test_retry_at_another_server_runs_nothing_twice(servers: Servers, headers: dict[str, str]) -> None:
    """The servers do not know where the other one is: there is no `--advertise`."""
    async with servers.serve() as server, servers.serve() as other:
        first = asyncio.ensure_future(put(server, "a", headers))
        await eventually(lambda: servers.runs() == ["a"])
        repeated = await put(other, "a")
        assert (repeated.status_code, repeated.json()["id"]) == (202, "a")
        assert repeated.json()["status"] in {"starting", "processing"}
        followed = await put(other, "a", EVENTS)
        assert (followed.status_code, followed.headers["retry-after"]) == (503, "2")
        assert "--advertise" in followed.json()["error"]
        servers.open_gate()
        assert (await first).status_code in {200, 202}
        ended = await until(other, "a")
        assert (ended["status"], ended["output"]) == ("succeeded", ["one", "two"])
        assert (await put(other, "a")).json() == ended == await get(server, "a")
        assert "event: completed" in (await put(other, "a", EVENTS)).text
    assert servers.runs() == ["a"]


async def test_what_was_accepted_is_followed_after_a_restart(servers: Servers) -> None:
    await follow_after_a_restart(servers)


async def test_many_servers_run_an_id_once(servers: Servers) -> None:
    servers.open_gate()
    async with servers.serve() as one, servers.serve() as other:
        answers = await asyncio.gather(*[put(server, "a") for server in (one, other) * 5])
        assert {answer.status_code for answer in answers} <= {200, 202}
        assert (await until(one, "a"))["status"] == (await until(other, "a"))["status"] == "succeeded"
    assert servers.runs() == ["a"]


async def test_a_database_that_is_away_comes_back(servers: Servers, postgres: Postgres) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        assert (await put(server, "a")).status_code == 200
        await asyncio.to_thread(postgres.stop)
        try:
            refused = await put(server, "b")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert (await server.predict({"name": "c"}))["status"] == "succeeded"
            assert (await server.health())["store"]["status"] == "unavailable"
        finally:
            await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(PATIENCE):
            while (await put(server, "b")).status_code == 503:  # noqa: ASYNC110 - it may have lost its lease
                await asyncio.sleep(0.05)
        assert (await put(server, "b")).json()["status"] == "succeeded"
