"""Servers that share a store in Postgres, and hand over to each other what one of them runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from geartrain.domain.predictions.ledger import LOST_ERROR, Claim, Key
from tests.support.cluster import ASYNC, EVENTS, LEASE, Cluster, PlainClient, put, running_cluster, until
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

    async def ask() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(PlainClient.of(replica.url)) for replica in cluster.replicas]
            for server, name in requests:
                answers[await clients[server].put(name)] += 1

    async with cluster.clients() as clients:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(ask())
        assert answers.total() == 2000
        assert answers.keys() <= {200, 202}
        for number in range(0, 500, 25):
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


async def test_a_server_that_cannot_be_reached_has_its_predictions_as_long_as_its_lease_runs(cluster: Cluster) -> None:
    ghost = "a server that is cut off"
    async with cluster.clients() as clients, cluster.store() as store:
        await store.replicas.renew(ghost, address="127.0.0.1:1", seconds=3600)
        for name in ("g1", "g2", "g3"):
            assert (await store.ledger.claim(Claim(Key("model", name), ghost))).is_granted
        for client in clients:
            answers = [await client.get("/predictions/g1"), await put(client, "g1"), await put(client, "g1", EVENTS)]
            for answer in answers:
                assert answer.status_code == 503
                assert 1 <= int(answer.headers["retry-after"]) <= LEASE
        assert (await clients[0].post("/predictions/g3/cancel")).status_code == 200  # it is written, and holds
        await store.replicas.leave(ghost)
        cluster.open_gate("g1")
        async with asyncio.timeout(PATIENCE):
            while (await put(clients[1], "g1")).status_code == 503:  # noqa: ASYNC110 - its lease has just ended
                await asyncio.sleep(0.01)
        # Run anew, by this server or by one that has taken it over meanwhile, or found lost before.
        assert (await until(clients[1], "g1"))["status"] in {"succeeded", "failed"}
        assert (await until(clients[2], "g2"))["error"] == LOST_ERROR
        assert (await until(clients[2], "g3"))["status"] == "canceled"


async def test_what_is_handed_over_is_in_the_metrics_of_the_server_that_was_asked(cluster: Cluster) -> None:
    answered, began = 'geartrain_relayed_requests_total{outcome="answered"}', "geartrain_relay_duration_seconds_count"

    async def counts(client: httpx.AsyncClient) -> tuple[float, float]:
        lines = (await client.get("/metrics")).text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return float(values[answered]), float(values[began])

    async with cluster.clients() as clients:
        owner, other, _ = clients
        assert (await put(owner, "m", ASYNC)).status_code == 202
        await until(owner, "m", lambda body: "output" in body)
        before = [await counts(client) for client in (owner, other)]
        for _ in range(3):
            assert (await other.get("/predictions/m")).json()["status"] == "processing"
        after = [await counts(client) for client in (owner, other)]
        cluster.open_gate("m")
        await until(other, "m")
    assert after[0] == before[0]
    assert after[1] == (before[1][0] + 3, before[1][1] + 3)


async def test_nobody_hands_a_request_over_without_the_token(cluster: Cluster) -> None:
    async with cluster.clients() as clients:
        assert (await put(clients[0], "free-token", ASYNC)).status_code == 202
        wrong = {"geartrain-cluster-token": "x" * 40}
        assert (await clients[0].get("/predictions/free-token", headers=wrong)).status_code == 401
        right = {"geartrain-cluster-token": cluster.token}
        assert (await clients[1].get("/predictions/free-none", headers=right)).status_code == 421
        assert (await clients[1].post("/shutdown", headers=right)).status_code == 403


async def test_a_model_that_one_server_unloads_and_loads_goes_and_comes_everywhere(cluster: Cluster) -> None:
    async with cluster.clients() as clients:
        for verb, status in (("unload", 400), ("load", 200)):
            answer = await clients[0].post(f"/v2/repository/models/model/{verb}")
            assert answer.status_code == 200, answer.text
            for client in clients:
                async with asyncio.timeout(PATIENCE):
                    while (await client.get("/v2/models/model/ready")).status_code != status:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)


async def test_what_a_killed_server_had_accepted_is_run_by_another(cluster: Cluster) -> None:
    """Last in this module: the server is gone then."""
    async with cluster.clients() as clients:
        assert (await put(clients[2], "k", ASYNC)).status_code == 202
        await until(clients[0], "k", lambda body: "output" in body)
        async with clients[0].stream("PUT", "/predictions/k", headers=EVENTS) as stream:
            assert stream.status_code == 200
            cluster.replicas[2].process.popen.kill()
            text = "".join([piece async for piece in stream.aiter_text()])
        assert "event: error" in text
        async with cluster.store() as store:
            address = cluster.replicas[2].address
            [owner] = [each.owner for each in await store.replicas.alive() if each.address == address]
            await store.replicas.leave(owner)
        cluster.open_gate("k")
        ended = [await until(client, "k") for client in clients[:2]]
        assert [body["status"] for body in ended] == ["succeeded"] * 2
    assert cluster.runs("k") == ["k", "k"]
