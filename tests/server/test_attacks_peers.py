"""A server of a cluster whose peer lies: garbage, endless heads, broken framing. Needs Postgres."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import pytest

from geartrain.domain.predictions.ledger import Claim, Key
from geartrain.transport.relay.relay import MOST_WAITING
from tests.support import modes
from tests.support.cluster import EVENTS, Cluster, put, running_cluster
from tests.support.postgres import running_postgres
from tests.support.servers import PATIENCE

if TYPE_CHECKING:
    import httpx

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.one_server(reason="a cluster of its own"),
    pytest.mark.without_store(reason="it has its own store"),
    pytest.mark.own_wire(reason="it starts its own servers"),
]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
MIB = 2**20
LIES = {
    "garbage": [b"\x16\x03\x01\x00\xff" * 100],
    "nothing": [b""],
    "endless head": [b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 60_000 + b"\r\n"] * 400],
    "endless field": [b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 60_000] * 400],
    "endless trailer": [OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", *[b"y" * 60_000] * 400],
    "endless extension": [OK + b"transfer-encoding: chunked\r\n\r\n5;x=", *[b"y" * 60_000] * 400],
    "two lengths": [OK + b"content-length: 5\r\ncontent-length: 7\r\n\r\n{}{}{}{}"],
    "broken chunk": [OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"],
    "body cut off": [OK + b'content-length: 100\r\n\r\n{"id":'],
    "informational flood": [b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_postgres() as server, running_cluster(tmp_path_factory.mktemp("c"), server.emptied(), 1) as cluster:
        yield cluster


@pytest.mark.parametrize("lie", LIES)
async def test_peer_that_lies_is_no_answer_and_takes_no_memory(cluster: Cluster, lie: str) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in LIES[lie]:
                writer.write(piece)
                await writer.drain()
        writer.close()

    liar = await asyncio.start_server(behave, "127.0.0.1", 0)
    address = f"127.0.0.1:{liar.sockets[0].getsockname()[1]}"
    process = psutil.Process(cluster.replicas[0].process.popen.pid)
    async with liar, cluster.clients() as clients, cluster.store() as store:
        name = lie.replace(" ", "-")
        await store.replicas.renew(lie, address=address, seconds=3600)
        assert (await store.ledger.claim(Claim(Key("model", name), lie))).is_granted
        before = process.memory_info().rss
        async with asyncio.timeout(PATIENCE):
            answer = await clients[0].get(f"/predictions/{name}")
        assert answer.status_code == 503, answer.text
        assert process.memory_info().rss < before + 8 * MIB
        assert (await clients[0].get("/livez")).status_code == 200
        await store.replicas.leave(lie)


async def test_peer_that_hangs_takes_no_descriptors_of_clients_that_have_left(cluster: Cluster) -> None:
    held: list[asyncio.StreamWriter] = []

    is_full = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        if len(held) == MOST_WAITING:
            is_full.set()

    liar = await asyncio.start_server(hang, "127.0.0.1", 0, backlog=1000)
    address = f"127.0.0.1:{liar.sockets[0].getsockname()[1]}"
    url = urlsplit(cluster.replicas[0].url)
    question = modes.current().authorize(b"GET /predictions/hanging HTTP/1.1\r\nhost: localhost\r\n\r\n")
    async with liar, cluster.clients() as clients, cluster.store() as store:
        await store.replicas.renew("hangs", address=address, seconds=3600)
        assert (await store.ledger.claim(Claim(Key("model", "hanging"), "hangs"))).is_granted
        trust = modes.current().trust(url.geturl())
        async with asyncio.timeout(PATIENCE):
            asking = [
                await asyncio.open_connection(url.hostname, url.port, ssl=trust) for _ in range(MOST_WAITING + 50)
            ]
            for _, writer in asking:
                writer.write(question)
            await is_full.wait()
            await ended([writer for _, writer in asking])  # they leave, and what they have asked for goes on
        async with asyncio.timeout(PATIENCE):
            answer = await clients[0].get("/predictions/hanging")
        assert answer.status_code == 503
        assert "too many requests wait for it" in answer.json()["error"]
        assert len(held) <= MOST_WAITING
        assert (await put(clients[0], "free-meanwhile")).json()["output"] == ["one", "two"]
        await store.replicas.leave("hangs")
        await ended(held)


async def ended(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*[writer.wait_closed() for writer in writers], return_exceptions=True)


@pytest.mark.parametrize("cut", ["between events", "within an event", "before the first"])
async def test_stream_that_a_peer_cuts_off_ends_with_an_error_between_events(cluster: Cluster, cut: str) -> None:
    pieces = {
        "between events": [b"event: output\ndata: 1\n", b"\n"],
        "within an event": [b"event: output\ndata: 1\n\n", b"event: output\ndata: "],
        "before the first": [],
    }[cut]

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK.replace(b"application/json", b"text/event-stream") + b"transfer-encoding: chunked\r\n\r\n")
            for piece in pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                arrived.clear()
                await arrived.wait()  # the client has it before the next one comes
        writer.close()

    arrived = asyncio.Event()
    liar = await asyncio.start_server(behave, "127.0.0.1", 0)
    address, owner, name = f"127.0.0.1:{liar.sockets[0].getsockname()[1]}", f"cuts {cut}", cut.replace(" ", "-")
    async with liar, cluster.clients() as clients, cluster.store() as store:
        await store.replicas.renew(owner, address=address, seconds=3600)
        assert (await store.ledger.claim(Claim(Key("model", name), owner))).is_granted
        received = b""
        async with (
            asyncio.timeout(PATIENCE),
            clients[0].stream("PUT", f"/predictions/{name}", headers=EVENTS) as stream,
        ):
            assert stream.status_code == 200
            async for chunk in stream.aiter_raw():
                received += chunk
                arrived.set()
        sent = b"".join(pieces)
        assert received.startswith(sent)
        told = received[len(sent) :]
        if cut == "within an event":  # what clients drop, as it is not whole
            assert told == b""
        else:
            assert told.startswith(b"event: error\n")
            assert b"PUT its id again" in told
        await store.replicas.leave(owner)


async def test_request_that_is_handed_over_goes_one_hop(cluster: Cluster) -> None:
    async with cluster.clients() as clients, cluster.store() as store:
        # A row whose owner, it says, is at the address of the server that is asked: that one hands it over to itself.
        await store.replicas.renew("mirror", address=cluster.replicas[0].address, seconds=3600)
        assert (await store.ledger.claim(Claim(Key("model", "mirrored"), "mirror"))).is_granted
        before = await relayed(clients[0])
        async with asyncio.timeout(PATIENCE):
            assert (await clients[0].get("/predictions/mirrored")).json()["status"] == "starting"
            assert (await put(clients[0], "mirrored")).status_code == 202
            assert (await put(clients[0], "mirrored", EVENTS)).status_code == 503
            assert (await clients[0].post("/predictions/mirrored/cancel")).status_code == 200
        assert await relayed(clients[0]) == before + 4
        await store.replicas.leave("mirror")


async def relayed(client: httpx.AsyncClient) -> float:
    """Number of requests that the server has handed over that the other one had no prediction for."""
    [line] = [
        each
        for each in (await client.get("/metrics")).text.splitlines()
        if each.startswith('geartrain_relayed_requests_total{outcome="not_here"}')
    ]
    return float(line.split()[1])


async def test_token_opens_what_is_handed_over_alone(cluster: Cluster) -> None:
    token = ("geartrain-cluster-token", cluster.token)
    wrong = [
        [("geartrain-cluster-token", "x" * 40)],
        [("geartrain-cluster-token", "")],
        [("geartrain-cluster-token", cluster.token[:-1])],
        [("geartrain-cluster-token", f"{cluster.token}, {cluster.token}")],
        [token, token],
        [token, ("geartrain-cluster-token", "x" * 40)],
        [("geartrain-cluster-token", "x" * 40), token],
    ]
    async with cluster.clients() as clients:
        client = clients[0]
        for headers in wrong * 2:
            assert (await client.get("/predictions/none", headers=headers)).status_code == 401
        for _ in range(2):  # the second head is known
            assert (await client.get("/predictions/none", headers=[token])).status_code == 421
        for method, path in (
            ("POST", "/predictions"),
            ("POST", "/shutdown"),
            ("GET", "/predictions"),
            ("GET", "/metrics"),
        ):
            assert (
                await client.request(method, path, headers=[token], json={"input": {"name": "free"}})
            ).status_code == 403
        # A principal counts with the token alone: a client is not believed.
        claimed = [("geartrain-cluster-principal", "*"), ("geartrain-cluster-key", "admin")]
        assert (await client.get("/predictions/none", headers=claimed)).status_code == 404
        body = {"input": {"name": "free-replayed"}}
        for _ in range(2):
            assert (await client.put("/predictions/free-replayed", headers=[token], json=body)).status_code == 421
    assert cluster.runs("free-replayed") == []
