"""Bytes as no client library sends them, and what a server makes of them: every answer, and what it has run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.servers import LiveServer
from tests.support.wire import Answer

TIMEOUT = 40.0  # seconds
STREAMING = """
    import os, asyncio
    from collections.abc import AsyncIterator
    from geartrain import streaming

    @streaming
    async def run(s: str = "", gate: str = "", pieces: int = 1, size: int = 0) -> AsyncIterator[str]:
        for number in range(pieces):
            yield s + "x" * size
            await asyncio.sleep(0)
            while gate and not os.path.exists(gate):
                await asyncio.sleep(0.002)
"""
JSON = b"Content-Type: application/json\r\n"
PIECE = 65_536  # bytes sent at a time by a client that sends without end

ECHO = """
    import os, asyncio
    async def run(s: str = "", gate: str = "", size: int = 0) -> str:
        while gate and not os.path.exists(gate):
            await asyncio.sleep(0.002)
        return s + "x" * size
"""
MANY = "concurrency: {max: 64}"


def body(text: str = "x", **values: object) -> bytes:
    """The body of a prediction that gives `text` back."""
    return json.dumps({"input": {"s": text, **values}}, separators=(",", ":")).encode()


def request(
    method: str, target: str, *fields: str | bytes, content: bytes | None = None, version: str = "1.1"
) -> bytes:
    """A request with a good Host, these fields, and a length if there is `content`."""
    lines = [f"{method} {target} HTTP/{version}".encode(), b"Host: localhost"]
    lines += [field.encode() if isinstance(field, str) else field for field in fields]
    if content is not None:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(content)]
    return b"\r\n".join([*lines, b"", content or b""])


def post(text: str = "x", *fields: str | bytes, **values: object) -> bytes:
    """A whole, good prediction."""
    return request("POST", "/predictions", *fields, content=body(text, **values))


def framed(fields: bytes, content: bytes = b"") -> bytes:
    """A prediction whose body is framed by `fields`, lines that end with CRLF."""
    return b"POST /predictions HTTP/1.1\r\nHost: localhost\r\n" + JSON + fields + b"\r\n" + content


def in_chunks(content: bytes) -> bytes:
    """A prediction whose body, with the framing of its chunks, is `content`."""
    return framed(b"Transfer-Encoding: chunked\r\n", content)


HEALTH = request("GET", "/health-check")
LAST = request("GET", "/health-check", "Connection: close")
SMUGGLED = request("PUT", "/predictions/smuggled", "Connection: close", content=body("smuggled"))


def parse_answers(data: bytes, *, bodiless: Collection[int] = ()) -> list[Answer]:
    """All answers in `data`, which holds nothing else. `bodiless`: the positions of answers to HEAD."""
    answers: list[Answer] = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, f"half a head: {head!r}"
        start, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = start.split(" ", 2)
        assert version == "HTTP/1.1", start
        answer = Answer(version, int(status), dict(line.lower().split(": ", 1) for line in lines), b"")
        if len(answers) not in bodiless and answer.status >= 200:
            answer.body, data = _take_body(answer, data)
        answers.append(answer)
    return answers


def _take_body(answer: Answer, data: bytes) -> tuple[bytes, bytes]:
    if answer.headers.get("transfer-encoding") != "chunked":
        length = int(answer.headers["content-length"])
        assert len(data) >= length, f"{len(data)} of {length} bytes of a body"
        return data[:length], data[length:]
    pieces = []
    while True:
        size, end, data = data.partition(b"\r\n")
        assert end, "half a chunk"
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n", "half a chunk"
        pieces.append(data[:length])
        data = data[length + 2 :]
        if not length:
            return b"".join(pieces), data


class Peer:
    """A client of bytes. What it reads it keeps; a reset counts as an end, which `was_reset` tells apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.was_reset = False
        self.sent = 0  # bytes taken from it by the kernel
        self._begun = b""  # of what comes next

    async def send(self, data: bytes) -> None:
        """Send, as far as the server lets it."""
        try:
            self.writer.write(data)
            await self.writer.drain()
            self.sent += len(data)
        except ConnectionError:
            self.was_reset = True

    async def send_all_of(self, pieces: Iterable[bytes]) -> None:
        """Send one after the other, until the connection ends."""
        for piece in pieces:
            if self.was_reset or self.writer.is_closing():
                return
            await self.send(piece)

    async def begins(self, size: int = 1) -> None:
        """Wait for the first bytes of an answer, which stay there to be read."""
        async with asyncio.timeout(TIMEOUT):
            self._begun += await self.reader.readexactly(size)

    async def to_end(self) -> bytes:
        """All that still comes, up to the end of the connection."""
        pieces = [self._begun]
        async with asyncio.timeout(TIMEOUT):
            try:
                while piece := await self.reader.read(PIECE):
                    pieces.append(piece)
            except ConnectionError:
                self.was_reset = True
        return b"".join(pieces)

    async def answers(self, *, bodiless: Collection[int] = ()) -> list[Answer]:
        """All answers that still come; then the connection has ended."""
        return parse_answers(await self.to_end(), bodiless=bodiless)

    async def answer(self) -> Answer:
        """The next answer, which has a length."""
        async with asyncio.timeout(TIMEOUT):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = dict(line.lower().split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if line)
            content = await self.reader.readexactly(int(lines.get("content-length", "0")))
        return Answer("HTTP/1.1", int(head.split(b" ", 2)[1]), lines, content)

    def abort(self) -> None:
        """Leave with a reset."""
        transport = self.writer.transport
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        transport.abort()

    async def is_aborted(self, seconds: float = TIMEOUT) -> bool:
        """Whether the server resets the connection within so many seconds; nothing is read to find out."""
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket").fileno(), 0)  # POLLERR and POLLHUP are told in any case
        return bool(await asyncio.to_thread(poll.poll, seconds * 1000))


@contextlib.asynccontextmanager
async def peer(url: str, *, small: bool = False, source: str | None = None) -> AsyncIterator[Peer]:
    """Connect for the time of the block. `small`: with little room for what is not read; `source`: from there."""
    parts = urlsplit(url)
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.setblocking(False)
    if small:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    if source is not None:
        raw.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(raw, (parts.hostname, parts.port))
    limit = 8192 if small else PIECE
    reader, writer = await asyncio.open_connection(sock=raw, limit=limit)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def handled(url: str) -> None:
    """Wait until the server has taken what was sent to it before: it answers somebody who came later."""
    async with peer(url) as later:
        await later.send(LAST)
        assert (await later.answers())[-1].status == 200


async def answers_to(url: str, *segments: bytes, bodiless: Collection[int] = ()) -> list[Answer]:
    """All answers up to the end of the connection. Each segment is read by the server before the next is sent."""
    async with peer(url) as client:
        for segment in segments[:-1]:
            await client.send(segment)
            await handled(url)
        sending = asyncio.ensure_future(client.send(segments[-1]))
        try:
            return await client.answers(bodiless=bodiless)
        finally:
            sending.cancel()


def runs(server: LiveServer) -> list[str]:
    """The ids of the predictions that were admitted."""
    return list(server._admitted)


def error_of(answer: Answer) -> str:
    """The sentence of an answer that refuses."""
    content = answer.json()
    assert isinstance(content["error"], str), content
    assert content["error"], content
    return str(content["error"])


async def refused(server: LiveServer, data: bytes, *statuses: int) -> str:
    """Send `data`, and a prediction behind it: one answer, of one of these statuses, and nothing is run.

    Returns the sentence of the answer.
    """
    before = runs(server)
    answers = await answers_to(server.url, data + SMUGGLED)
    assert [answer.status for answer in answers][1:] == [], [answer.body for answer in answers]
    [answer] = answers
    assert answer.status in (statuses or (400,)), answer.body
    assert answer.headers["connection"] == "close"
    assert runs(server) == before
    return error_of(answer)


async def accepted(server: LiveServer, data: bytes, text: str = "x") -> None:
    """Send `data`, a prediction that gives `text` back, and a request behind it: both are answered."""
    first, second = await answers_to(server.url, data + LAST)
    assert first.status == 200, first.body
    assert first.json()["output"] == text
    assert second.json()["status"] in {"READY", "BUSY"}


class Flood:
    """A client that goes on sending, whatever it is told."""

    def __init__(self, pieces: Callable[[], bytes], most: int) -> None:
        """`pieces` makes each; `most` bytes in all."""
        self._pieces = pieces
        self._most = most

    async def run(self, url: str, begin: bytes) -> tuple[list[Answer], int]:
        """Send `begin` and the pieces; return all answers up to the end, and how many bytes were taken."""

        async def send(client: Peer) -> None:
            await client.send(begin)
            while client.sent < self._most and not client.was_reset:
                await client.send(self._pieces())

        async with peer(url) as client:
            sending = asyncio.ensure_future(send(client))
            answers = await client.answers()
            await asyncio.wait_for(_ended(sending, client), TIMEOUT)
            return answers, client.sent


async def _ended(sending: Awaitable[None], client: Peer) -> None:
    """Wait for the end of a flood: nobody takes it any more, or all of it has been taken."""
    await sending
    client.writer.transport.abort()


def resident(pid: int, kind: str = "VmRSS") -> int:
    """Bytes of memory of a process (RSS), or of one kind of it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def limit_descriptors(pid: int, spare: int) -> None:
    """Let a process open no more than `spare` descriptors beside those that it has."""
    numbers = [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(numbers) + 1 + spare, hard))
