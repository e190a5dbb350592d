"""Servers that share a store in Postgres, and hand over to each other what one of them runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import ASYNC, EVENTS, Cluster, put, running_cluster, until
from tests.support.postgres import running_postgres
from tests.support.servers import PATIENCE

if TYPE_CHECKING:
    import httpx


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_postgres() as postgres, running_cluster(tmp_path_factory.mktemp("cluster"), postgres.url) as cluster:
        yield cluster


async def test_an_id_runs_once_and_is_found_everywhere(cluster: Cluster) -> None:
    """2,000 PUTs of 500 ids from 50 clients at once, each to the next server."""
    requests = iter([(number % 3, f"free{number // 4}") for number in range(2000)])
    answers: Counter[int] = Counter()

    async def ask(clients: list[httpx.AsyncClient]) -> None:
        for server, name in requests:
            answers[(await put(clients[server], name)).status_code] += 1

    async with cluster.clients() as clients:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(ask(clients))
        assert answers.total() == 2000
        assert answers.keys() <= {200, 202}
        for number in range(0, 500, 10):
            name = f"free{number}"
            ended = await until(clients[0], name)
            assert (ended["status"], ended["output"]) == ("succeeded", ["one", "two"])
            for client in clients[1:]:
                assert (await client.get(f"/predictions/{name}")).json() == ended
    assert Counter(cluster.runs("free")) == {f"free{number}": 1 for number in range(500)}


async def test_every_server_answers_for_what_one_runs(cluster: Cluster) -> None:
    async with cluster.clients() as clients:
        owner, *others = clients
        assert (await put(owner, "a", ASYNC)).status_code == 202
        await until(owner, "a", lambda body: "output" in body)
        for other in others:
            body = (await other.get("/predictions/a")).json()
            assert (body["status"], body["output"], body["logs"]) == ("processing", ["one"], "begun a\n")
            assert (await put(other, "a")).status_code == 202
            assert (await other.post("/predictions", json={"id": "a", "input": {"name": "a"}})).status_code == 409
        async with others[0].stream("PUT", "/predictions/a", headers=EVENTS) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            async with asyncio.timeout(PATIENCE):
                while await anext(lines) != "event: output":  # as it comes, while the run goes on
                    pass
            cluster.open_gate("a")
            rest = [line async for line in lines]
        assert "event: completed" in rest
        assert (await until(others[1], "a"))["output"] == ["one", "two"]
    assert cluster.runs("a") == ["a"]


async def test_a_cancel_reaches_the_server_that_runs_it(cluster: Cluster) -> None:
    async with cluster.clients() as clients:
        for number, other in enumerate(clients[1:]):
            name = f"c{number}"
            assert (await put(clients[0], name, ASYNC)).status_code == 202
            await until(clients[0], name, lambda body: "output" in body)
            assert (await other.post(f"/predictions/{name}/cancel")).status_code == 200
            assert (await until(other, name))["status"] == "canceled"
            assert (await other.post(f"/predictions/{name}/cancel")).status_code == 404
