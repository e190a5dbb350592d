"""Clients that are slow or silent: each wait has its limit, the answer says which, and nobody else notices.

A client that paces itself sleeps: that is its pace, and nothing is synchronised by it.
"""

from __future__ import annotations

import asyncio

from geartrain.transport.wire.limits import LEAST_BODY, WireLimits
from tests.support.attacks import (
    ECHO,
    HEALTH,
    LAST,
    MANY,
    STREAMING,
    Peer,
    body,
    error_of,
    framed,
    handled,
    in_chunks,
    peer,
    post,
    request,
    runs,
)
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.waiting import for_each

SHORT = 0.4  # seconds
LARGE = 32 * 1024**2  # bytes: more than the buffers of the kernel hold


def limits(**given: float) -> WireLimits:
    """No limit of time but those given."""
    none = {"head_timeout": 0.0, "body_timeout": 0.0, "idle_timeout": 0.0, "send_timeout": 0.0}
    return WireLimits(**{**none, **given})  # type: ignore[arg-type]


async def trickle(client: Peer, data: bytes, pause: float) -> None:
    """Send byte by byte, until the connection ends."""
    for index in range(len(data)):
        await client.send(data[index : index + 1])
        await asyncio.sleep(pause)
        if client.was_reset or client.reader.at_eof():
            return


async def passes(server: LiveServer, seconds: float) -> None:
    """Let time pass, while the server is asked now and then: it goes on serving others."""
    async with asyncio.timeout(40):
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await handled(server.url)
            await asyncio.sleep(0.05)


# heads


async def test_a8_half_a_head(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(head_timeout=SHORT)) as server:

        async def check(sent: bytes) -> None:
            async with peer(server.url) as client:
                await client.send(sent)
                [answer] = await client.answers()
                assert answer.status == 408, sent
                assert "--head-timeout" in error_of(answer), sent
                assert answer.headers["connection"] == "close", sent

        await for_each(check, b"G", HEALTH[:-1], HEALTH[:20], HEALTH[:-2] + b"X: y", b"\r\nGET")


async def test_a8_a_head_that_trickles(serve: Serve) -> None:
    """What comes does not begin the time anew."""
    async with serve(ECHO, wire=limits(head_timeout=SHORT)) as server, peer(server.url) as client:
        sending = asyncio.ensure_future(trickle(client, HEALTH[:-2] + b"X: y\r\n" * 1000, SHORT / 10))
        begin = asyncio.get_running_loop().time()
        [answer] = await client.answers()
        assert answer.status == 408
        assert asyncio.get_running_loop().time() - begin < 100 * SHORT  # all of it would take 600
        sending.cancel()


async def test_the_head_of_a_second_request_has_its_own_time(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(head_timeout=SHORT)) as server, peer(server.url) as client:
        await client.send(post("first"))
        assert (await client.answer()).status == 200
        await passes(server, 2 * SHORT)
        await client.send(post("second"))
        assert (await client.answer()).json()["output"] == "second"
        await client.send(HEALTH[:-1])
        [answer] = await client.answers()
        assert answer.status == 408


async def test_an_empty_line_behind_a_request_begins_no_head(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(head_timeout=SHORT)) as server, peer(server.url) as client:
        for text in ("first", "second", "third"):
            await client.send(post(text) + b"\r\n")
            assert (await client.answer()).json()["output"] == text
            await client.send(b"\r\n\r\n")
            await passes(server, 2 * SHORT)


async def test_a_slow_answer_does_not_count_as_a_slow_head(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(head_timeout=SHORT, body_timeout=SHORT, idle_timeout=SHORT)) as server:
        async with peer(server.url) as client:
            await client.send(post("slow", gate="go") + post("next")[:-5])
            await passes(server, 3 * SHORT)
            await client.send(post("next")[-5:] + LAST)
            server.open_gate()
            answers = await client.answers()
        assert answers[0].json()["output"] == "slow"
        assert [answer.status for answer in answers[1:]] in ([200, 200], [408])


# bodies


async def test_a8_a_body_that_does_not_come(serve: Serve) -> None:
    """In its length, in chunks, or after `100 Continue`."""
    async with serve(ECHO, wire=limits(body_timeout=SHORT)) as server:

        async def check(data: bytes) -> None:
            async with peer(server.url) as client:
                await client.send(data)
                *_, answer = await client.answers()
                assert answer.status == 408, data
                assert "--body-timeout" in error_of(answer), data

        await for_each(
            check,
            framed(b"Content-Length: 100\r\n", b'{"input"'),
            in_chunks(b'8\r\n{"input"'),
            framed(b"Content-Length: 100\r\nExpect: 100-continue\r\n"),
        )
        assert runs(server) == []


async def test_a8_a_body_that_trickles(serve: Serve) -> None:
    """A byte now and then is less than 10 KiB in the time."""
    async with serve(ECHO, wire=limits(body_timeout=SHORT)) as server, peer(server.url) as client:
        await client.send(framed(b"Content-Length: 1000000\r\n"))
        sending = asyncio.ensure_future(trickle(client, b" " * 10_000, SHORT / 20))
        [answer] = await client.answers()
        assert answer.status == 408
        assert str(LEAST_BODY) in error_of(answer) or "10 KiB" in error_of(answer)
        sending.cancel()


async def test_a_large_body_may_take_longer_if_it_keeps_coming(serve: Serve) -> None:
    content = body("s" * 8 * LEAST_BODY)
    async with serve(ECHO, wire=limits(body_timeout=1.0)) as server, peer(server.url) as client:
        await client.send(request("POST", "/predictions", "Connection: close", content=content).removesuffix(content))
        for begin in range(0, len(content), 2 * LEAST_BODY):
            await client.send(content[begin : begin + 2 * LEAST_BODY])
            await asyncio.sleep(0.4)
        [answer] = await client.answers()
        assert len(answer.json()["output"]) == 8 * LEAST_BODY


async def test_a_small_body_in_time_is_fine(serve: Serve) -> None:
    """The last of it may be less than 10 KiB."""
    async with serve(ECHO, wire=limits(body_timeout=2.0)) as server, peer(server.url) as client:
        data = post("small", "Connection: close")
        await client.send(data[:-10])
        await handled(server.url)
        await client.send(data[-10:])
        [answer] = await client.answers()
        assert answer.json()["output"] == "small"


async def test_a_body_that_the_server_does_not_read_is_not_late(serve: Serve) -> None:
    """It waits behind a slow answer, and has been sent long since."""
    content = body("s" * 6 * 1024**2)
    async with serve(ECHO, wire=limits(body_timeout=SHORT)) as server, peer(server.url) as client:
        data = request("POST", "/predictions", "Connection: close", content=content)
        await client.send(post("slow", gate="go"))
        sending = asyncio.ensure_future(client.send(data))
        await passes(server, 3 * SHORT)
        server.open_gate()
        first, second = await client.answers()
        await sending
        assert first.json()["output"] == "slow"
        assert len(second.json()["output"]) == 6 * 1024**2


# idle connections


async def test_a8_a_connection_without_a_request_is_closed(serve: Serve) -> None:
    wire = limits(idle_timeout=SHORT)
    async with serve(ECHO, wire=wire) as server, peer(server.url) as fresh, peer(server.url) as used:
        await used.send(HEALTH)
        assert (await used.answer()).status == 200
        assert await fresh.to_end() == b""
        assert await used.to_end() == b""
        assert not fresh.was_reset
        assert not used.was_reset


async def test_empty_lines_do_not_keep_a_connection(serve: Serve) -> None:
    wire = limits(idle_timeout=SHORT, head_timeout=SHORT)
    async with serve(ECHO, wire=wire) as server, peer(server.url) as client:
        sending = asyncio.ensure_future(trickle(client, b"\r\n" * 1000, SHORT / 10))
        assert [answer.status for answer in await client.answers()] in ([], [408])
        sending.cancel()


async def test_who_waits_for_an_answer_is_not_idle(serve: Serve) -> None:
    wire = limits(idle_timeout=SHORT)
    async with serve(ECHO, wire=wire) as server, peer(server.url) as client, peer(server.url) as idle:
        await client.send(post("slow", gate="go"))
        assert await idle.to_end() == b""
        await passes(server, SHORT)
        server.open_gate()
        assert (await client.answer()).json()["output"] == "slow"
        assert await client.to_end() == b""  # now it is


async def test_0_disables_a_limit_of_time(serve: Serve) -> None:
    async with serve(ECHO, wire=limits()) as server, peer(server.url) as idle, peer(server.url) as head:
        await head.send(HEALTH[:-2])
        async with peer(server.url) as client:
            await client.send(post("x")[:-1])
            await passes(server, 1.5)
            await client.send(post("x")[-1:] + LAST)
            assert (await client.answers())[0].json()["output"] == "x"
        await head.send(b"Connection: close\r\n\r\n")
        assert (await head.answers())[0].status == 200
        await idle.send(LAST)
        assert (await idle.answers())[0].status == 200


# answers that nobody reads


async def test_a2_who_reads_nothing_is_aborted(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(send_timeout=SHORT)) as server, peer(server.url, small=True) as client:
        await client.send(post("", size=LARGE))
        assert await client.is_aborted()
        data = await client.to_end()
        assert client.was_reset
        assert len(data) < LARGE


async def test_who_reads_slowly_is_not_aborted(serve: Serve) -> None:
    async with serve(ECHO, wire=limits(send_timeout=1.0)) as server, peer(server.url, small=True) as client:
        size = 6 * 1024**2
        await client.send(post("", "Connection: close", size=size))
        pieces = []
        end = asyncio.get_running_loop().time() + 3.0
        while asyncio.get_running_loop().time() < end:
            async with asyncio.timeout(40):
                pieces.append(await client.reader.read(8192))
            await asyncio.sleep(0.02)
        data = b"".join(pieces) + await client.to_end()
        assert not client.was_reset
        assert len(data) > size


async def test_a_stream_that_nobody_reads_is_aborted_and_its_prediction_canceled(serve: Serve) -> None:
    async with serve(STREAMING, wire=limits(send_timeout=SHORT)) as server, peer(server.url, small=True) as client:
        content = body("", pieces=2000, size=100_000, gate="go")
        await client.send(request("POST", "/predictions", "Accept: text/event-stream", content=content))
        await client.begins()
        server.open_gate()
        assert await client.is_aborted()
        await eventually(lambda: server.newest().is_terminal)


async def test_an_early_answer_that_nobody_reads_ends_too(serve: Serve) -> None:
    """Its client sends on and on."""
    wire = limits(send_timeout=SHORT)
    async with serve(ECHO, wire=wire, max_body_bytes=1000) as server, peer(server.url, small=True) as client:
        await client.send(framed(b"Content-Length: 100000000000\r\n"))
        await asyncio.wait_for(client.send_all_of(b" " * 65_536 for _ in range(100_000)), 40)
        assert client.was_reset


async def test_time_limits_do_not_touch_who_keeps_to_them(serve: Serve) -> None:
    wire = limits(head_timeout=SHORT, body_timeout=SHORT, idle_timeout=3 * SHORT, send_timeout=SHORT)
    async with serve(ECHO, cog_yaml=MANY, wire=wire) as server, peer(server.url) as client:
        for number in range(20):
            await client.send(post(str(number)))
            assert (await client.answer()).json()["output"] == str(number)
            await asyncio.sleep(SHORT / 5)
