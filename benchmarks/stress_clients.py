"""Clients for stress.py: they wait, read streams, cancel, and disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

Values = dict[str, Any]


class Violation(Exception):  # noqa: N818 - it is no error of this program
    """Something that must not happen."""


class Refused(Exception):  # noqa: N818 - as above
    """The server is at capacity."""


class _Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, start: str, body: object, *headers: str) -> None:
        """Ask."""
        data = json.dumps(body).encode()
        lines = [f"{start} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
        self.writer.write("\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode() + data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the status and the headers of an answer."""
        start, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        return int(start.split()[1]), dict(line.lower().split(": ", 1) for line in lines)

    async def json(self, headers: dict[str, str]) -> Values:
        """Read a body of announced length."""
        body: Values = json.loads(await self._reader.readexactly(int(headers["content-length"])))
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read a chunked body."""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)


class Client:
    """Makes predictions over connections that are used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[_Wire] = []

    async def post(self, body: Values, *, prefer: str | None = None) -> Values:
        """Make a prediction; return the answer. Raises `Refused`, and `Violation` unless it is the expected one."""
        wire = await self._take()
        wire.send("POST /predictions", body, *([] if prefer is None else [f"prefer: {prefer}"]))
        status, headers = await wire.head()
        answer = await wire.json(headers)
        self._idle.append(wire)
        _check(status, HTTPStatus.OK if prefer is None else HTTPStatus.ACCEPTED, answer)
        return answer

    async def cancel(self, name: str) -> None:
        """Cancel a prediction, which may have ended already."""
        wire = await self._take()
        wire.send(f"POST /predictions/{name}/cancel", {})
        status, headers = await wire.head()
        answer = await wire.json(headers)
        self._idle.append(wire)
        if status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND} or answer:
            raise Violation(f"a cancel was answered with {status} {answer}")

    async def stream(self, body: Values, name: str, *, put: bool) -> AsyncIterator[tuple[str, Values]]:
        """Make a prediction, or join it; give its events."""
        wire = await self._take()
        start = f"PUT /predictions/{name}" if put else "POST /predictions"
        wire.send(start, {**body, "id": name}, "accept: text/event-stream")
        status, headers = await wire.head()
        if status != HTTPStatus.OK:
            answer = await wire.json(headers)
            self._idle.append(wire)
            _check(status, HTTPStatus.OK, answer)
        text = b""
        async for chunk in wire.chunks():
            *whole, text = (text + chunk).split(b"\n\n")
            for block in whole:
                event, _, data = block.decode().removeprefix("event: ").partition("\ndata: ")
                yield event, json.loads(data)
        self._idle.append(wire)

    async def post_and_leave(self, body: Values, moment: Callable[[], Awaitable[None]], *, accept: str) -> None:
        """Make a prediction, and close the connection after a moment, whatever has come by then."""
        wire = await self._connect()
        wire.send("POST /predictions", body, f"accept: {accept}")
        await wire.writer.drain()
        await moment()
        wire.writer.transport.abort()

    def close(self) -> None:
        """Close what is not in use."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _take(self) -> _Wire:
        return self._idle.pop() if self._idle else await self._connect()

    async def _connect(self) -> _Wire:
        return _Wire(*await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20))


def _check(status: int, expected: HTTPStatus, answer: Values) -> None:
    if status == HTTPStatus.CONFLICT and str(answer.get("error")).startswith("At capacity"):
        raise Refused
    if status != expected:
        raise Violation(f"answered with {status}: {answer}")
