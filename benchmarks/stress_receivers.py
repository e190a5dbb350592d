"""Receivers of webhooks for stress.py: good, slow, failing, closing in the middle of a request, crashing, absent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from typing import Any, Self

ENDS = frozenset({"succeeded", "failed", "canceled"})
UP, DOWN = 0.3, 0.1  # seconds that the crashing receiver is there, and is not
_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


class _Listener:
    """Listens on a port of its own, when it is up."""

    def __init__(self, books: Receivers) -> None:
        self._books = books
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]

    def crash(self) -> None:
        """Drop everything."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    def url(self, kind: str, name: str) -> str:
        """Where a prediction is to be told of."""
        return f"http://127.0.0.1:{self._port}/{kind}/{name}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                kind, name = head.split(b" ", 2)[1].decode().strip("/").split("/")
                if kind == "closing" and self._books.is_first(name):
                    self._books.told["cut off"] += 1
                    break
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                if kind == "slow":
                    await asyncio.sleep(0.03)
                if kind == "busy" and self._books.is_first(name):
                    self._books.told["503"] += 1
                    writer.write(_BUSY)
                    continue
                writer.write(_OK)
                await writer.drain()
                self._books.take(name, body)
        self._writers.discard(writer)
        writer.transport.abort()


class Receivers:
    """All receivers, and what they have been told of each prediction."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()  # webhooks by how they were answered
        self.wrong: list[str] = []
        self._ended: dict[str, str] = {}  # the status of each prediction whose end has been told
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._tried: set[str] = set()
        self._steady = _Listener(self)
        self._crashing = _Listener(self)
        self._absent = socket.socket()  # bound, so that nobody else takes its port, and not listening
        self._absent.bind(("127.0.0.1", 0))

    async def __aenter__(self) -> Self:
        await self._steady.start()
        await self._crashing.start()
        self._fate = asyncio.ensure_future(self._crash_again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fate.cancel()
        self._steady.crash()
        self._crashing.crash()
        self._absent.close()

    # for the clients

    @property
    def nowhere(self) -> str:
        """A URL that nobody answers."""
        return f"http://127.0.0.1:{self._absent.getsockname()[1]}/nobody"

    def good(self, name: str) -> str:
        """A URL that takes everything at once."""
        return self._steady.url("good", name)

    def any(self, name: str, dice: random.Random) -> str:
        """A URL that takes everything in the end."""
        kind = dice.choice(["good", "slow", "busy", "closing", "crashing"])
        return (self._crashing if kind == "crashing" else self._steady).url(kind, name)

    def expect(self, name: str) -> asyncio.Future[str]:
        """Return what will have the status of a prediction when its end has been told."""
        self._waiting[name] = asyncio.get_running_loop().create_future()
        return self._waiting[name]

    # for the listeners

    def is_first(self, name: str) -> bool:
        """Whether a prediction has not been told of before."""
        if name in self._tried:
            return False
        self._tried.add(name)
        return True

    def take(self, name: str, body: dict[str, Any]) -> None:
        """A webhook has been accepted."""
        self.told["accepted"] += 1
        status = body["status"]
        before = self._ended.get(name)
        if before is not None and status != before:
            self.wrong.append(f"{name} was told to be {status} after it was {before}")
        if status in ENDS:
            self.told["ends accepted"] += 1
            self._ended[name] = status
            waiting = self._waiting.pop(name, None)
            if waiting is not None:
                waiting.set_result(status)

    async def _crash_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(UP)
            self._crashing.crash()
            self.told["crashes"] += 1
            await asyncio.sleep(DOWN)
            await self._crashing.start()
