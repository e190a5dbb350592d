"""A server of a cluster whose peer lies: garbage, endless heads, broken framing. Needs Postgres."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import psutil
import pytest

from geartrain.domain.predictions.ledger import Claim, Key
from tests.support.cluster import Cluster, running_cluster
from tests.support.postgres import running_postgres
from tests.support.servers import PATIENCE

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
