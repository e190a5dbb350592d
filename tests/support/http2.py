"""HTTP/2 by hand (RFC 9113): a client that writes frames one by one, as no library would, and checks all that it reads.

Field blocks are written and read by `hpack`; everything else is here, so the server's own code says nothing about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import hpack
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.support import modes
from tests.support.servers import PATIENCE

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
LARGEST_WINDOW: Final = 2**31 - 1
_WINDOW: Final = 65_535  # of a connection, and of a stream unless settings say otherwise
_FRAME_SIZE: Final = 16_384
_OF_CONNECTIONS: Final = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Frame(NamedTuple):
    """A frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> ErrorCodes:
        """The error code of a RST_STREAM or a GOAWAY."""
        begin = 4 if self.kind == Kind.GOAWAY else 0
        return ErrorCodes(int.from_bytes(self.payload[begin : begin + 4]))

    @property
    def last_stream(self) -> int:
        """The last stream that a GOAWAY speaks of."""
        return int.from_bytes(self.payload[:4]) & LARGEST_WINDOW


# frames as they are sent


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int] | None = None) -> bytes:
    return frame(Kind.SETTINGS, b"".join(struct.pack(">HI", *each) for each in (values or {}).items()))


def data(stream: int, content: bytes = b"", *, end: bool = False) -> bytes:
    return frame(Kind.DATA, content, flags=END_STREAM if end else 0, stream=stream)


def headers(stream: int, block: bytes, *, end: bool = True, end_headers: bool = True) -> bytes:
    flags = (END_STREAM if end else 0) | (END_HEADERS if end_headers else 0)
    return frame(Kind.HEADERS, block, flags=flags, stream=stream)


def reset(stream: int, code: int = ErrorCodes.CANCEL) -> bytes:
    return frame(Kind.RST_STREAM, struct.pack(">I", code), stream=stream)


def window_update(stream: int, size: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, struct.pack(">I", size), stream=stream)


def ping(payload: bytes = b"abcdefgh") -> bytes:
    return frame(Kind.PING, payload)


class Answer:
    """One answer as far as it has come. Header names are lower case; `reset` is why the server ended it early."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.trailers: dict[str, str] = {}
        self.is_whole = False
        self.reset: ErrorCodes | None = None
        self.window = 0  # bytes that the server may still send

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.is_whole or self.reset is not None

    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self.headers
        return json.loads(bytes(self.body))


class Http2Client:
    """One connection. Settings and pings are acknowledged, and windows given back, as frames are taken."""

    def __init__(
        self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], url: str, own: Mapping[int, int]
    ) -> None:
        """`url`: of the server; `own`: the settings that it has been told."""
        self.reader, self.writer = streams
        self.encoder = hpack.Encoder()
        self.answers: dict[int, Answer] = {}
        self.goaway: Frame | None = None  # the last one
        self.is_over = False  # nothing more comes from the server
        self.gives_credit = True  # for what has been received
        self.windows = {0: _WINDOW}  # bytes that may be sent: of the connection, and of streams that have been opened
        self.settings: dict[int, int] = {}  # of the server
        self._url = urlsplit(url)
        self._blocks = _Blocks(own)
        self._own = own

    # sending

    async def send(self, *frames: bytes) -> None:
        """Send, as far as the server takes it."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self.writer.write(b"".join(frames))
            async with asyncio.timeout(PATIENCE):
                await self.writer.drain()

    def block(self, method: str, path: str, *fields: tuple[str, str], authorized: bool = True) -> bytes:
        """Return the field block of a request, with what lets the client in."""
        pseudo = [(":method", method), (":scheme", self._url.scheme), (":path", path)]
        own = list(modes.current().headers.items()) if authorized else []
        if not any(name == ":authority" for name, _ in fields):
            pseudo.append((":authority", self._url.netloc))
        return self.encoder.encode([*pseudo, *fields, *own])

    def open(self) -> int:
        """Return the number of the next stream."""
        stream = 2 * len(self.answers) + 1
        self.answers[stream] = answer = Answer()
        answer.window = self._own.get(SettingCodes.INITIAL_WINDOW_SIZE, _WINDOW)
        self.windows[stream] = self.settings.get(SettingCodes.INITIAL_WINDOW_SIZE, _WINDOW)
        return stream

    async def begin(self, method: str, path: str, *fields: tuple[str, str], end: bool = False) -> int:
        """Send the head of a request; return its stream."""
        stream = self.open()
        await self.send(headers(stream, self.block(method, path, *fields), end=end))
        return stream

    async def upload(self, stream: int, content: bytes, *, end: bool = True, size: int = _FRAME_SIZE) -> None:
        """Send a body in frames of `size` bytes at most, as the windows of the server allow."""
        begin = 0
        while begin < len(content) or (end and begin == 0):
            await self.until(lambda: not content or self._room(stream) > 0 or self.answers[stream].is_over)
            if self.answers[stream].is_over or self.is_over:
                return
            piece = content[begin : begin + min(size, max(self._room(stream), 0))]
            begin += len(piece)
            self.windows[0] -= len(piece)
            self.windows[stream] -= len(piece)
            await self.send(data(stream, piece, end=end and begin == len(content)))
            if not content:
                return

    def _room(self, stream: int) -> int:
        return min(self.windows[0], self.windows[stream])

    async def ask(self, method: str, path: str, content: bytes | None = None, *fields: tuple[str, str]) -> Answer:
        """Send a whole request, a JSON body with its length if there is `content`, and wait for its answer."""
        if content is None:
            return await self.answer(await self.begin(method, path, *fields, end=True))
        given = [("content-type", "application/json"), ("content-length", str(len(content))), *fields]
        stream = await self.begin(method, path, *given)
        await self.upload(stream, content)
        return await self.answer(stream)

    # receiving

    async def answer(self, stream: int) -> Answer:
        """Wait for the end of an answer, which has to come whole."""
        answer = self.answers[stream]
        await self.until(lambda: answer.is_over)
        assert answer.is_whole, f"stream {stream} was reset: {answer.reset!r}; {self.goaway}"
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Take frames until something holds, or fail at the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                assert await self.take() is not None, f"the connection has ended: {self.goaway}"

    async def next(self, kind: int, stream: int = 0) -> Frame:
        """Take frames until one of that kind on that stream."""
        async with asyncio.timeout(PATIENCE):
            while (found := await self.take()) is not None:
                if (found.kind, found.stream) == (kind, stream):
                    return found
        raise AssertionError(f"the connection has ended: {self.goaway}")

    async def to_end(self) -> Frame | None:
        """Take all that still comes, up to the end of the connection; return the last GOAWAY."""
        async with asyncio.timeout(PATIENCE):
            while await self.take() is not None:
                pass
        return self.goaway

    async def take(self) -> Frame | None:
        """Take one frame and act as a client has to; None at the end of the connection."""
        found = await self.read()
        if found is None:
            self.is_over = True
            return None
        kind, flags, stream, payload = found
        assert len(payload) <= self._own.get(SettingCodes.MAX_FRAME_SIZE, _FRAME_SIZE), found
        match kind:
            case Kind.SETTINGS if not flags & ACK:
                self._settle(payload)
            case Kind.PING if not flags & ACK:
                self.writer.write(frame(Kind.PING, payload, flags=ACK))
            case Kind.WINDOW_UPDATE:
                if stream in self.windows:
                    self.windows[stream] += int.from_bytes(payload)
            case Kind.GOAWAY:
                self.goaway = found
            case Kind.RST_STREAM:
                self.answers[stream].reset = found.code
            case Kind.HEADERS | Kind.CONTINUATION | Kind.DATA:
                self._collect(found)
            case _:
                assert kind in {Kind.SETTINGS, Kind.PING}, found
        return found

    async def read(self) -> Frame | None:
        """Read one frame and do nothing about it; None at the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3]))
            except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                return None
        return Frame(head[3], head[4], int.from_bytes(head[5:9]) & LARGEST_WINDOW, payload)

    def _settle(self, payload: bytes) -> None:
        before = self.settings.get(SettingCodes.INITIAL_WINDOW_SIZE, _WINDOW)
        self.settings.update(struct.iter_unpack(">HI", payload))
        change = self.settings.get(SettingCodes.INITIAL_WINDOW_SIZE, _WINDOW) - before
        for stream in self.answers:
            self.windows[stream] += change
        if SettingCodes.HEADER_TABLE_SIZE in self.settings:
            self.encoder.header_table_size = min(4096, self.settings[SettingCodes.HEADER_TABLE_SIZE])
        self.writer.write(frame(Kind.SETTINGS, flags=ACK))

    def _collect(self, found: Frame) -> None:
        answer = self.answers[found.stream]
        assert not answer.is_whole, f"a frame behind the end: {found}"
        if found.kind == Kind.DATA:
            self._take_data(answer, found)
        else:
            self._blocks.add(answer, found)
        answer.is_whole = bool(found.flags & END_STREAM) or self._blocks.is_last(found)

    def _take_data(self, answer: Answer, found: Frame) -> None:
        assert answer.status, "a body without a head"
        size = len(found.payload)
        padding = found.payload[0] if found.flags & PADDED else 0
        answer.body += found.payload[1 : size - padding] if found.flags & PADDED else found.payload
        answer.window -= size
        self._blocks.window -= size
        assert answer.window >= 0, f"the server has overrun the window of stream {found.stream}"
        assert self._blocks.window >= 0, "the server has overrun the window of the connection"
        if self.gives_credit and size:
            self.credit(0, size)
            if not found.flags & END_STREAM:
                self.credit(found.stream, size)

    def credit(self, stream: int, size: int) -> None:
        """Let the server send so many bytes more."""
        self.writer.write(window_update(stream, size))
        if stream:
            self.answers[stream].window += size
        else:
            self._blocks.window += size


class _Blocks:
    """What a connection has of the server's field blocks, and of the window of all bodies together."""

    def __init__(self, own: Mapping[int, int]) -> None:
        self.window = _WINDOW
        self._decoder = hpack.Decoder(max_header_list_size=2**20)
        self._decoder.max_allowed_table_size = own.get(SettingCodes.HEADER_TABLE_SIZE, 4096)
        self._pieces: list[bytes] = []
        self._ends_stream = False

    def add(self, answer: Answer, found: Frame) -> None:
        """Take a HEADERS or a CONTINUATION; at the end of the block, the answer gets its fields."""
        assert (found.kind == Kind.CONTINUATION) == bool(self._pieces), f"out of place: {found}"
        assert not found.flags & PADDED, found
        if found.kind == Kind.HEADERS:
            self._ends_stream = bool(found.flags & END_STREAM)
        self._pieces.append(found.payload)
        if found.flags & END_HEADERS:
            fields = self._decoder.decode(b"".join(self._pieces), raw=True)
            self._pieces.clear()
            _take_fields(answer, [(bytes(name), bytes(value)) for name, value in fields])

    def is_last(self, found: Frame) -> bool:
        """Whether a CONTINUATION ends a stream whose HEADERS have said so."""
        return found.kind == Kind.CONTINUATION and bool(found.flags & END_HEADERS) and self._ends_stream


def _take_fields(answer: Answer, fields: list[tuple[bytes, bytes]]) -> None:
    for name, value in fields:
        assert name == name.lower(), f"{name!r} is not in lower case"
        assert name not in _OF_CONNECTIONS, f"{name!r} is not for HTTP/2"
        assert value == value.strip(b" \t"), f"{name!r} has blanks around its value: {value!r}"
    texts = [(name.decode("ascii"), value.decode("latin-1")) for name, value in fields]
    if answer.status >= 200:
        assert not any(name.startswith(":") for name, _ in texts), f"trailers with a pseudo-header: {texts}"
        answer.trailers = dict(texts)
        return
    assert [name for name, _ in texts if name.startswith(":")] == [":status"], texts
    assert texts[0][0] == ":status"
    answer.status = int(texts[0][1])
    answer.headers = dict(texts[1:])


def trusting(url: str, protocols: Iterable[str] = ("h2",)) -> ssl.SSLContext | None:
    """Return what a client opens a connection to `url` with, in the mode of this run, and offers these protocols."""
    given = modes.current().credentials
    if given is None or not url.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=str(given.authority))
    context.set_alpn_protocols(list(protocols))
    return context


@contextlib.asynccontextmanager
async def raw_connection(
    url: str, *, small: bool = False, trust: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect for the time of the block and send nothing. `small`: with little room for what is not read."""
    parts = urlsplit(url)
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    plain.setblocking(False)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if small:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    await asyncio.get_running_loop().sock_connect(plain, (parts.hostname, parts.port))
    tls = trust or trusting(url)
    name = None if tls is None else parts.hostname
    limit = 8192 if small else 2**20
    reader, writer = await asyncio.open_connection(sock=plain, limit=limit, ssl=tls, server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def http2(
    url: str, own: Mapping[int, int] | None = None, *, small: bool = False, trust: ssl.SSLContext | None = None
) -> AsyncIterator[Http2Client]:
    """Open a connection for the time of the block: both sides have told their settings. `own`: those of the client."""
    async with raw_connection(url, small=small, trust=trust) as streams:
        tls = streams[1].get_extra_info("ssl_object")
        assert tls is None or tls.selected_alpn_protocol() == "h2"
        client = Http2Client(streams, url, own or {})
        await client.send(PREFACE, settings(own))
        first = await client.take()
        assert first is not None, "the server has closed the connection"
        assert (first.kind, first.flags, first.stream) == (Kind.SETTINGS, 0, 0), first
        yield client
