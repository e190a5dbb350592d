"""What all clients together may take: connections, buffers, descriptors; and what one may take that never reads."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from geartrain.transport.wire.limits import WireLimits
from tests.support.attacks import (
    ECHO,
    HEALTH,
    LAST,
    MANY,
    Peer,
    body,
    error_of,
    framed,
    handled,
    limit_descriptors,
    peer,
    post,
    resident,
    runs,
)
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model

MIB = 1024**2
StartProcess = Callable[..., ServerProcess]


# answers that nobody reads


async def settled(server: LiveServer) -> None:
    """Wait until nothing runs, and nothing begins to run."""
    for _ in range(20):
        await eventually(lambda: server.workers.permits.idle == server.workers.permits.size)
        await handled(server.url)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a2_who_reads_nothing_runs_little(serve: Serve, at_once: bool) -> None:
    """Answers of 4 MiB each; every request is sent alone, after the one before has ended, or all of them at once."""
    async with serve(ECHO) as server, peer(server.url, small=True) as client:
        if at_once:
            await client.send(post("", size=4 * MIB) * 40)
            await settled(server)
        else:
            for _ in range(40):
                await client.send(post("", size=4 * MIB))
                await settled(server)
        assert 1 <= len(runs(server)) <= 4


async def test_who_reads_again_gets_all_answers(serve: Serve) -> None:
    async with serve(ECHO) as server, peer(server.url, small=True) as client:
        await client.send(b"".join(post(str(number), size=MIB) for number in range(12)) + LAST)
        await settled(server)
        *answers, _ = await client.answers()
        assert [answer.json()["output"].rstrip("x") for answer in answers] == [str(number) for number in range(12)]


async def test_a_connection_with_unread_answers_is_not_read(serve: Serve) -> None:
    async with serve(ECHO) as server, peer(server.url, small=True) as client:
        await client.send(post("", size=16 * MIB))
        await client.begins()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send_all_of(HEALTH * 1000 for _ in range(1000)), 2)
        assert client.sent < 16 * MIB


async def test_a2_memory_is_bounded(server_process: StartProcess, tmp_path: Path) -> None:
    """16 clients that read nothing want 40 answers of 4 MiB each."""
    process = server_process(str(write_model(tmp_path / "model", ECHO)))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(peer(url, small=True)) for _ in range(16)]
        before = resident(process.popen.pid)
        for client in clients:
            await client.send(post("", size=4 * MIB) * 40)
        for _ in range(40):
            async with peer(url) as reader:
                await reader.send(post("", "Connection: close", size=1))
                assert (await reader.answers())[-1].status in {200, 409}
        assert resident(process.popen.pid) - before < 256 * MIB


# connections


async def refused_connection(client: Peer) -> str:
    """The sentence of the 503 that a connection gets, which then ends."""
    await client.send(HEALTH)
    [answer] = await client.answers()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["connection"] == "close"
    return error_of(answer)


async def test_a8_connections_are_limited(serve: Serve) -> None:
    async with serve(ECHO, wire=WireLimits(max_connections=3)) as server, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(peer(server.url)) for _ in range(3)]
        for client in held:
            await client.send(HEALTH)
            assert (await client.answer()).status == 200
        for _ in range(5):
            async with peer(server.url) as late:
                sentence = await refused_connection(late)
                assert "--max-connections" in sentence
                assert "3" in sentence
        await held[0].send(LAST)
        assert [answer.status for answer in await held[0].answers()] == [200]
        held[0].writer.close()
        await welcome(server.url)
        await held[1].send(LAST)
        assert [answer.status for answer in await held[1].answers()] == [200]


async def welcome(url: str, source: str | None = None) -> None:
    """Wait until a connection is served: the server hears of those that end in its own time."""
    async with asyncio.timeout(40):
        while True:
            async with peer(url, source=source) as client:
                await client.send(LAST)
                if [answer.status for answer in await client.answers()] == [200]:
                    return


async def test_connections_of_one_client_are_limited(serve: Serve) -> None:
    async with serve(ECHO, wire=WireLimits(max_connections_per_client=2)) as server, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(peer(server.url)) for _ in range(2)]
        for client in held:
            await client.send(HEALTH)
            assert (await client.answer()).status == 200
        async with peer(server.url) as late:
            assert "--max-connections-per-client" in await refused_connection(late)
        await welcome(server.url, source="127.0.0.2")
        held[0].abort()
        await welcome(server.url)


async def test_connections_that_come_and_go_are_not_counted_for_ever(serve: Serve) -> None:
    wire = WireLimits(max_connections=4, max_connections_per_client=4)
    async with serve(ECHO, wire=wire) as server:
        for number in range(40):
            async with peer(server.url) as client:
                await client.send(HEALTH[: number % len(HEALTH)])
                client.abort()
        await welcome(server.url)
        async with AsyncExitStack() as stack:
            held = [await stack.enter_async_context(peer(server.url)) for _ in range(3)]
            for client in held:
                await client.send(HEALTH)
            assert [(await client.answer()).status for client in held] == [200] * 3


# the bodies of all connections


async def test_a_body_that_no_buffer_can_take_is_503(serve: Serve) -> None:
    async with serve(ECHO, wire=WireLimits(max_buffered_size=MIB)) as server:
        async with peer(server.url) as client:
            content = body("s" * 2 * MIB)
            sending = asyncio.ensure_future(client.send(framed(b"Content-Length: %d\r\n" % len(content), content)))
            [answer] = await client.answers()
            sending.cancel()
            assert answer.status == 503
            assert "--max-buffered-size" in error_of(answer)
        await welcome(server.url)


async def test_bodies_that_are_too_much_together(serve: Serve) -> None:
    """None of them can be completed, so reading pauses; then some are refused, and the others are served."""
    wire = WireLimits(max_buffered_size=MIB, body_timeout=1.0)
    content = body("s" * 800_000)
    head = framed(b"Content-Length: %d\r\nConnection: close\r\n" % len(content))
    async with serve(ECHO, cog_yaml=MANY, wire=wire) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(peer(server.url)) for _ in range(4)]
        for client in clients:
            await client.send(head)
        sending = [asyncio.ensure_future(client.send(content[:700_000])) for client in clients]
        for _ in range(20):
            await handled(server.url)
        sending += [
            asyncio.ensure_future(_after(first, client.send(content[700_000:])))
            for first, client in zip(sending, clients, strict=True)
        ]
        answers = [answer for client in clients for answer in await client.answers()]
        statuses = [answer.status for answer in answers]
        assert len(statuses) == 4
        assert set(statuses) <= {200, 503}
        assert 503 in statuses
        for answer in answers:
            if answer.status == 503:
                assert "--max-buffered-size" in error_of(answer)
        for each in sending:
            each.cancel()
        async with peer(server.url) as later:
            await later.send(head + content)
            assert [answer.status for answer in await later.answers()] == [200]


async def _after(first: asyncio.Future[None], then: object) -> None:
    await first
    await then  # type: ignore[misc]


async def test_buffers_are_given_back(serve: Serve) -> None:
    """By bodies that were served, refused, malformed, or left alone by their clients."""
    async with serve(ECHO, cog_yaml=MANY, wire=WireLimits(max_buffered_size=MIB), max_body_bytes=2 * MIB) as server:
        content = body("s" * 900_000)
        head = framed(b"Content-Length: %d\r\n" % len(content))
        for number in range(12):
            async with peer(server.url) as client:
                if number % 3 == 0:
                    await client.send(head + content[:-1])
                    await handled(server.url)
                    client.abort()
                elif number % 3 == 1:
                    await client.send(head + content + LAST)
                    assert [answer.status for answer in await client.answers()] == [200, 200]
                else:
                    await client.send(
                        framed(b"Transfer-Encoding: chunked\r\n", b"a0000\r\n" + b" " * 0xA0000 + b"bad\r\n")
                    )
                    assert [answer.status for answer in await client.answers()] == [400]


# descriptors, and options by name


def test_without_descriptors_new_clients_wait(server_process: StartProcess, tmp_path: Path) -> None:
    """They are served when others have left. The log says it once, and the loop does not spin meanwhile."""
    process = server_process(str(write_model(tmp_path / "model", ECHO)))
    parts = urlsplit(process.wait_for("listening")["url"])
    address = (parts.hostname or "", parts.port or 0)
    process.wait_for("ready")
    limit_descriptors(process.popen.pid, 8)
    clients = [socket.create_connection(address, timeout=40) for _ in range(24)]
    try:
        served = set(clients[:4])
        for client in clients[:4]:
            client.sendall(HEALTH)
            assert client.recv(12) == b"HTTP/1.1 200"
        before = cpu_seconds(process.popen.pid)
        begin = time.monotonic()
        for client in clients[4:]:
            client.sendall(LAST)
        for client in clients[:4]:
            client.close()
        for client in clients[4:]:
            assert client.recv(12) == b"HTTP/1.1 200"
            client.close()
            served.add(client)
        assert len(served) == 24
        assert cpu_seconds(process.popen.pid) - before < 0.5 + 0.5 * (time.monotonic() - begin)
    finally:
        for client in clients:
            client.close()
    process.popen.terminate()
    lines = process.read_to_the_end()
    told = [line for line in lines if "descriptor" in str(line).lower() or "open files" in str(line).lower()]
    assert len(told) == 1, lines
    assert "Traceback" not in str(lines)


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("option", "sent", "status"),
    [
        (("--max-head-size", "1KiB"), HEALTH[:-2] + b"X: " + b"y" * 1024, 431),
        (("--head-timeout", "300ms"), HEALTH[:-1], 408),
        (("--body-timeout", "0.3s"), post()[:-1], 408),
        (("--idle-timeout", "0.3s"), b"", 0),
        (("--max-connections", "1"), HEALTH, 503),
        (("--max-connections-per-client", "1"), HEALTH, 503),
        (("--max-buffered-size", "100KiB"), post("s" * 200_000), 503),
    ],
)
async def test_every_limit_has_an_option(
    server_process: StartProcess, tmp_path: Path, option: tuple[str, str], sent: bytes, status: int
) -> None:
    process = server_process(str(write_model(tmp_path / "model", ECHO)), *option)
    url = process.wait_for("listening")["url"]
    async with peer(url) as first, peer(url) as second:
        client = first
        if "connections" in option[0]:
            await first.send(HEALTH)
            assert (await first.answer()).status == 200
            client = second
        await client.send(sent)
        answers = await client.answers()
        assert [answer.status for answer in answers] == ([status] if status else [])
        for answer in answers:
            assert option[0] in error_of(answer)


def test_the_help_names_every_limit() -> None:
    from typer.testing import CliRunner

    from geartrain.cli.commands import app

    text = CliRunner().invoke(app, ["serve", "--help-all"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for field in WireLimits.__struct_fields__:
        assert f"--{field.replace('_', '-')}" in text
