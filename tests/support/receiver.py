"""A receiver of webhooks on the test's own loop, on a real socket, that behaves as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

LIMIT = 40.0  # seconds


@dataclass
class Call:
    """One request as it came. Header names are lower case, in their order."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def prediction(self) -> dict[str, Any]:
        """The body."""
        body: dict[str, Any] = json.loads(self.body)
        return body

    @property
    def status(self) -> str:
        """Of the prediction."""
        status: str = self.prediction["status"]
        return status


class Exchange:
    """A request being answered: its head has been read."""

    def __init__(
        self, head: tuple[str, str, dict[str, str]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.method, self.path, self.headers = head
        self._reader = reader
        self._writer = writer

    async def body(self) -> bytes:
        """Read the body."""
        return await self._reader.readexactly(int(self.headers.get("content-length", "0")))

    async def answer(self, status: int = 200, **headers: str) -> None:
        """Answer without a body; an underscore in a header's name stands for a hyphen."""
        lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {headers.pop('content_length', '0')}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        await self._writer.drain()

    async def send(self, answer: bytes, *, closes: bool = False) -> None:
        """Send these bytes; close the connection then if `closes`."""
        self._writer.write(answer)
        await self._writer.drain()
        if closes:
            self._writer.close()

    def cut(self) -> None:
        """Close the connection, whatever is still to come."""
        self._writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


def answers(status: int, **headers: str) -> Behaviour:
    """Answer like this."""

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(status, **headers)

    return behave


async def cuts(exchange: Exchange) -> None:
    """Close without an answer."""
    exchange.cut()


def waits_for(event: asyncio.Event) -> Behaviour:
    """Answer when it has happened."""

    async def behave(exchange: Exchange) -> None:
        await event.wait()
        await exchange.answer()

    return behave


class Receiver:
    """Takes calls; each is answered by the next of `script`, or with 200 when there is none.

    What is in `heads` instead acts before the body has been read, and its request counts as no call.
    """

    def __init__(self) -> None:
        self.script: deque[Behaviour] = deque()
        self.heads: deque[Behaviour] = deque()
        self.routes: dict[str, Behaviour] = {}
        self.calls: list[Call] = []
        self.connections = 0
        self.open_connections = 0
        self.busy = 0
        self.busiest = 0
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, port: int = 0) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def wait(self, count: int) -> list[Call]:
        """Wait for that many calls in all; return them."""
        return await self.until(lambda calls: len(calls) >= count)

    async def ended(self, count: int = 1) -> list[Call]:
        """Wait until that many calls have told of an end; return all calls."""
        return await self.until(lambda calls: sum(is_end(call) for call in calls) >= count)

    async def until(self, condition: Callable[[list[Call]], bool]) -> list[Call]:
        """Wait until it holds; return all calls."""
        async with asyncio.timeout(LIMIT), self._arrived:
            await self._arrived.wait_for(lambda: condition(self.calls))
        return list(self.calls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        try:
            while True:
                await self._exchange(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client has gone, or the test is over
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = start.split(" ")
        exchange = Exchange(
            (method, path, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}),
            reader,
            writer,
        )
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            if self.heads:
                await self.heads.popleft()(exchange)
                return
            call = Call(method, path, exchange.headers, await exchange.body())
            behave = self.routes.get(path.partition("?")[0]) or (self.script.popleft() if self.script else answers(200))
            async with self._arrived:
                self.calls.append(call)
                self._arrived.notify_all()
            await behave(exchange)
        finally:
            self.busy -= 1


def is_end(call: Call) -> bool:
    """Whether a call tells of a terminal state."""
    return bool(call.body) and call.status in {"succeeded", "failed", "canceled"}


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver for the time of the block."""
    receiver = Receiver()
    await receiver.open()
    try:
        yield receiver
    finally:
        await receiver.close()
