"""The load of `geartrain bench`, against servers that answer as a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from geartrain.bench.connection import target_of
from geartrain.bench.load import Level, Limits, Load
from geartrain.bench.meter import Meter
from geartrain.bench.pool import Pool
from geartrain.bench.work import Work, judge_cog
from tests.support.servers import PATIENCE

GOOD = b'{"status": "succeeded"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(GOOD), GOOD)
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(GOOD), GOOD)
CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    % (
        len(GOOD),
        GOOD,
    )
)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
FOR_CLOSED = Limits(0, 12, PATIENCE, 8)


class Site:
    """A server; `begun` counts requests. What is done with each of them is the test's."""

    def __init__(self) -> None:
        self.begun = 0
        self.url = ""
        self.listener: asyncio.Server

    async def next(self, reader: asyncio.StreamReader) -> bool:
        """Read a request; false at the end."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        assert head.startswith(b"POST /predictions HTTP/1.1\r\nHost: 127.0.0.1:")
        self.begun += 1
        return True

    async def load(self, level: Level, limits: Limits, meter: Meter | None = None) -> Meter:
        """Put it under load."""
        target = target_of(self.url, key=None, verify=True)
        work = Work((target.request("POST", "/predictions", headers={}, content=b""),), judge_cog)
        meter, pool = meter or Meter(), Pool(target)
        try:
            await asyncio.wait_for(Load(pool, work, meter=meter, limits=limits).run(level), PATIENCE)
        finally:
            await pool.close()
        return meter


@contextlib.asynccontextmanager
async def served(make: Callable[[Site], Handler]) -> AsyncIterator[Site]:
    site = Site()
    handle = make(site)

    tasks: set[asyncio.Task[None] | None] = set()

    async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await handle(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    site.listener = await asyncio.start_server(until_gone, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{site.listener.sockets[0].getsockname()[1]}"
    yield site
    site.listener.close()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*filter(None, tasks))


def answering(answer: bytes) -> Callable[[Site], Handler]:
    """Give each request this answer."""

    def make(site: Site) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await site.next(reader):
                writer.write(answer)
                if answer is LAST:
                    return

        return handle

    return make


@pytest.mark.parametrize("answer", [ANSWER, LAST, CHUNKED])
@pytest.mark.parametrize("level", [Level("concurrency", 3), Level("rate", 10_000)])
async def test_every_request_is_sent_and_answered(answer: bytes, level: Level) -> None:
    async with served(answering(answer)) as site:
        meter = await site.load(level, FOR_CLOSED)
    assert (site.begun, meter.sent, meter.ended, meter.latencies.count, meter.failed) == (12, 12, 12, 12, 0)
    assert 0 < meter.latencies.longest <= PATIENCE


async def test_closed_loop_has_as_many_in_flight_as_it_says() -> None:
    inside: list[asyncio.Event] = []
    most = 0

    def make(site: Site) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal most
            while await site.next(reader):
                inside.append(asyncio.Event())
                most = max(most, len(inside))
                if len(inside) == 3:
                    for event in inside:
                        event.set()
                    inside.clear()
                else:
                    await inside[-1].wait()
                writer.write(ANSWER)

        return handle

    async with served(make) as site:
        meter = await site.load(Level("concurrency", 3), FOR_CLOSED)
    assert (meter.latencies.count, most) == (12, 3)


async def test_connection_that_breaks_is_counted_and_replaced() -> None:
    def make(site: Site) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await site.next(reader):
                if site.begun % 3 == 0:
                    return
                writer.write(ANSWER)

        return handle

    async with served(make) as site:
        meter = await site.load(Level("concurrency", 2), FOR_CLOSED)
    assert (meter.sent, meter.latencies.count, meter.failed) == (12, 8, 4)
    assert [(kind, count) for kind, (count, _) in meter.faults.items()] == [("connection", 4)]


async def test_request_that_takes_too_long_is_given_up() -> None:
    def make(site: Site) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await site.next(reader):
                pass

        return handle

    async with served(make) as site:
        meter = await site.load(Level("concurrency", 2), Limits(0, 2, 0.05, 8))
    assert meter.faults == {"connection": (2, "no answer within 0.05 s")}


async def test_server_that_goes_away_is_counted() -> None:
    def make(site: Site) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await site.next(reader)
            site.listener.close()

        return handle

    async with served(make) as site:
        meter = await site.load(Level("concurrency", 1), Limits(0, 3, PATIENCE, 8))
    assert {kind: count for kind, (count, _) in meter.faults.items()} == {"connection": 1, "no connection": 2}


async def test_answer_that_is_no_http_is_counted() -> None:
    async with served(answering(b"hello\r\n\r\n")) as site:
        meter = await site.load(Level("concurrency", 1), Limits(0, 2, PATIENCE, 8))
    assert (meter.failed, meter.faults["connection"][1][:22]) == (2, "the answer is not HTTP")


class TellingMeter(Meter):
    """Tells when it hears of requests that could not be sent."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "unsent" and value:
            self.told.set()


async def test_open_loop_tells_what_it_could_not_send() -> None:
    meter = TellingMeter()

    def make(site: Site) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await site.next(reader):
                await meter.told.wait()
                writer.write(ANSWER)

        return handle

    async with served(make) as site:
        await site.load(Level("rate", 5000), Limits(0.1, 0, PATIENCE, 2), meter)
    assert (meter.sent, meter.latencies.count) == (site.begun, site.begun)
    assert 0 < meter.sent <= 2
    assert meter.unsent > 0


async def test_server_that_is_not_there_is_an_error() -> None:
    async with served(answering(ANSWER)) as site:
        pass
    with pytest.raises(OSError, match="Connect call failed"):
        await site.load(Level("concurrency", 1), FOR_CLOSED)
