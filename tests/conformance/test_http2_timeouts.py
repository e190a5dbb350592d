"""Slow and silent clients over HTTP/2: each wait has its limit, and other streams and connections do not notice.

A client that paces itself sleeps: that is its pace, and nothing is synchronised by it.
"""

from __future__ import annotations

import asyncio
import select

from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from geartrain.service.models.deployment import Limits
from geartrain.transport.wire.limits import WireLimits
from tests.support.attacks import ECHO, MANY, STREAMING, body, runs
from tests.support.http2 import PREFACE, Http2Client, headers, http2, raw_connection, settings
from tests.support.servers import PATIENCE, LiveServer, Serve, eventually
from tests.support.waiting import for_each

SHORT = 0.4  # seconds
LARGE = 32 * 1024**2  # bytes: more than the buffers of the kernel hold
JSON = ("content-type", "application/json")


def limits(**given: float) -> WireLimits:
    """No limit of time but those given."""
    none = {"head_timeout": 0.0, "body_timeout": 0.0, "idle_timeout": 0.0, "send_timeout": 0.0}
    return WireLimits(**{**none, **given})  # type: ignore[arg-type]


async def healthy(client: Http2Client) -> None:
    assert (await client.ask("GET", "/health-check")).status == 200


async def passes(server: LiveServer, seconds: float) -> None:
    """Let time pass, while others are served."""
    async with asyncio.timeout(PATIENCE), http2(server.url) as other:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await healthy(other)
            await asyncio.sleep(0.05)


# the beginning


async def test_a_connection_that_does_not_begin(serve: Serve) -> None:
    """It ends within its method, within the preface, before the settings, or within them."""
    async with serve(ECHO, wire=limits(head_timeout=SHORT)) as server:

        async def check(sent: bytes) -> None:
            async with raw_connection(server.url) as (reader, writer):
                writer.write(sent)
                async with asyncio.timeout(PATIENCE):
                    while await reader.read(65_536):
                        pass

        await for_each(check, PREFACE[:5], PREFACE[:-1], PREFACE, PREFACE + settings()[:5])


async def test_a_head_that_does_not_end(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(head_timeout=SHORT)) as server:

        async def check(cut: str) -> None:
            async with http2(server.url) as client:
                await healthy(client)
                stream = client.open()
                block = client.block("GET", "/health-check")
                whole = headers(stream, block)
                await client.send(
                    {
                        "block": headers(stream, block[:3], end_headers=False),
                        "frame": whole[:-1],
                        "head of a frame": whole[:8],
                    }[cut]
                )
                await client.to_end()
                assert client.answers[stream].status in {0, 408}, cut

        await for_each(check, "block", "frame", "head of a frame")


async def test_what_is_awaited_is_no_late_head(serve: Serve) -> None:
    async with (
        serve(ECHO, cog_yaml=MANY, wire=limits(head_timeout=SHORT)) as server,
        http2(server.url) as client,
    ):
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("slow", gate="go"))
        await passes(server, 3 * SHORT)
        await healthy(client)
        server.open_gate()
        assert (await client.answer(stream)).json()["output"] == "slow"


# bodies


async def test_a_body_that_does_not_come(serve: Serve) -> None:
    """Its stream is answered, and another one of the same connection goes on."""
    async with (
        serve(ECHO, cog_yaml=MANY, wire=limits(body_timeout=SHORT)) as server,
        http2(server.url) as client,
    ):
        late = await client.begin("POST", "/predictions", JSON)
        await client.upload(late, b'{"inp', end=False)
        await client.until(lambda: client.answers[late].is_whole)
        assert client.answers[late].status == 408
        assert "--body-timeout" in client.answers[late].json()["error"]
        await healthy(client)
        assert runs(server) == []


async def test_a_body_that_does_not_come_leaves_other_streams_alone(serve: Serve) -> None:
    async with (
        serve(ECHO, cog_yaml=MANY, wire=limits(body_timeout=1.0)) as server,
        http2(server.url) as client,
    ):
        held = client.open()
        block = client.block("POST", "/predictions", JSON)
        content = body("held", gate="go")
        await client.send(headers(held, block, end=False) + _whole(held, content))
        await eventually(lambda: len(runs(server)) == 1)
        late = await client.begin("POST", "/predictions", JSON)
        await client.until(lambda: client.answers[late].is_over)
        assert not client.answers[held].is_over
        server.open_gate()
        assert (await client.answer(held)).json()["output"] == "held"


def _whole(stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + b"\0\1" + stream.to_bytes(4) + content


# idle connections


async def test_a_connection_without_a_stream_is_closed(serve: Serve) -> None:
    async with (
        serve(ECHO, wire=limits(idle_timeout=SHORT)) as server,
        http2(server.url) as fresh,
        http2(server.url) as used,
    ):
        stream = used.open()
        await used.send(headers(stream, used.block("GET", "/health-check")))
        for client in (fresh, used):
            goaway = await client.to_end()
            assert goaway is not None
            assert goaway.code is ErrorCodes.NO_ERROR
        assert used.answers[stream].status == 200


async def test_who_waits_for_an_answer_is_not_idle(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(idle_timeout=SHORT)) as server, http2(server.url) as client:
        stream = client.open()
        content = body("slow", gate="go")
        block = client.block("POST", "/predictions", JSON)
        await client.send(headers(stream, block, end=False) + _whole(stream, content))
        async with http2(server.url) as idle:
            await idle.to_end()
        assert not client.answers[stream].is_over
        server.open_gate()
        assert (await client.answer(stream)).json()["output"] == "slow"
        goaway = await client.to_end()
        assert goaway is not None
        assert goaway.code is ErrorCodes.NO_ERROR


# answers that nobody takes


async def test_an_answer_without_a_window_is_given_up(serve: Serve) -> None:
    """The stream is reset, or the connection ended; nobody else notices."""
    async with (
        serve(ECHO, cog_yaml=MANY, wire=limits(send_timeout=SHORT)) as server,
        http2(server.url, {SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client,
    ):
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("", size=100_000))
        await eventually(lambda: len(runs(server)) == 1)
        async with asyncio.timeout(PATIENCE):
            while client.answers[stream].reset is None and await client.take() is not None:
                pass
        assert client.answers[stream].reset is not None or client.is_over
        assert client.answers[stream].body == b""
        async with http2(server.url) as other:
            await healthy(other)


async def test_a_connection_that_nobody_reads_is_aborted(serve: Serve) -> None:
    own: dict[int, int] = {SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}
    async with (
        serve(ECHO, wire=limits(send_timeout=SHORT)) as server,
        http2(server.url, own, small=True) as client,
    ):
        client.credit(0, 2**31 - 1 - 65_535)
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("", size=LARGE))
        poll = select.poll()
        poll.register(client.writer.get_extra_info("socket").fileno(), 0)  # errors are told in any case
        assert await asyncio.to_thread(poll.poll, PATIENCE * 1000)
        await client.to_end()
        assert len(client.answers[stream].body) < LARGE


async def test_a_stream_of_events_that_nobody_takes_is_canceled(serve: Serve) -> None:
    async with (
        serve(STREAMING, cog_yaml=MANY, wire=limits(send_timeout=SHORT), limits=Limits(stream_grace=0.0)) as server,
        http2(server.url) as client,
    ):
        client.gives_credit = False
        stream = await client.begin("POST", "/predictions", JSON, ("accept", "text/event-stream"))
        await client.upload(stream, body("e", pieces=10**9, size=1000))
        await client.until(lambda: client.answers[stream].window == 0)
        await eventually(lambda: server.newest().is_terminal)
        assert server.newest().status == "canceled"


async def test_who_takes_little_at_a_time_is_not_given_up(serve: Serve) -> None:
    own: dict[int, int] = {SettingCodes.INITIAL_WINDOW_SIZE: 1000}
    async with serve(ECHO, wire=limits(send_timeout=3.0)) as server, http2(server.url, own) as client:
        client.gives_credit = False
        stream = await client.begin("POST", "/predictions", JSON)
        await client.upload(stream, body("", size=50_000))
        answer = client.answers[stream]
        for _ in range(30):
            await client.until(lambda: answer.window == 0)
            await asyncio.sleep(0.12)
            client.credit(stream, 1000)
        client.credit(stream, 100_000)
        assert len((await client.answer(stream)).json()["output"]) == 50_000
