"""HTTP by hand: what a client library would not send, and what it would not show."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from tests.support import modes


class Answer:
    """One answer as it came. Header names are lower case."""

    def __init__(self, version: str, status: int, headers: dict[str, str], body: bytes) -> None:
        self.version = version
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Connection:
    """One TCP connection to a server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prefix: str = "") -> None:
        """`prefix`: the path that the server's own paths are below."""
        self._reader = reader
        self._writer = writer
        self._prefix = prefix.encode()

    async def send(self, data: bytes) -> None:
        data = modes.REQUEST_LINE.sub(lambda line: line[1] + self._prefix + line[2], data) if self._prefix else data
        self._writer.write(modes.current().authorize(data))
        await self._writer.drain()

    async def head(self) -> Answer:
        """Read an answer up to its empty line."""
        async with asyncio.timeout(40):
            start, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = start.split(" ", 2)
        assert version in {"HTTP/1.0", "HTTP/1.1"}, start
        headers = dict(line.split(": ", 1) for line in lines if line)
        return Answer(version, int(status), headers, b"")

    async def answer(self, *, to_head: bool = False) -> Answer:
        """Read a whole answer, whose length is announced."""
        return await self.complete(await self.head(), to_head=to_head)

    async def complete(self, answer: Answer, *, to_head: bool = False) -> Answer:
        """Read the body of an answer whose head has been read, and whose length is announced."""
        length = 0 if to_head else int(answer.headers.get("content-length", "0"))
        async with asyncio.timeout(40):
            answer.body = await self._reader.readexactly(length)
        return answer

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body; an empty one ends it."""
        async with asyncio.timeout(40):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def post(self, path: str, body: bytes, *headers: str) -> Answer:
        """POST exactly these headers, and a length."""
        lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {len(body)}", *headers, "", ""]
        return await self.ask("\r\n".join(lines).encode() + body)

    async def at_end(self) -> bool:
        """Whether the server closes, with nothing more to say."""
        async with asyncio.timeout(40):
            return await self._reader.read(1) == b""

    def hang_up(self) -> None:
        self._writer.close()


@contextlib.asynccontextmanager
async def connection(url: str) -> AsyncIterator[Connection]:
    """Connect to the server of `url` for the time of the block."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=modes.current().trust(url))
    try:
        yield Connection(reader, writer, parts.path if modes.current().is_replicated else "")
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
