"""Parts that the tests of the wire share: a loop and a transport that are driven by hand, and a handler that notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import Accepted, AcceptedInParts, Answer, Body, BodyReader, Head, Responder
from geartrain.transport.wire.http1 import Connection, ConnectionState
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import Connections

MAX_BODY = 100_000


class FakeTimer:
    """A call that is due at some time."""

    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due = due
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """What the wire uses of a loop. Its calls run when a test says so, its clock is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.soon: list[Callable[[], object]] = []
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[..., object], *args: Any) -> FakeTimer:
        self.soon.append(lambda: call(*args))
        return FakeTimer(self.now, call)

    def call_later(self, delay: float, call: Callable[[], object]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + delay, call))
        return self.timers[-1]

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def run(self) -> None:
        """Run what is due in the next turns, until nothing is."""
        while self.soon:
            calls, self.soon = self.soon, []
            for call in calls:
                call()

    def advance(self, seconds: float) -> None:
        """Move the clock, and call each timer when it is due."""
        until = self.now + seconds
        while True:
            due = [timer for timer in self.timers if timer.due <= until + 1e-9 and not timer.is_cancelled]
            if not due:
                break
            first = min(due, key=lambda timer: timer.due)
            self.timers.remove(first)
            self.now = first.due
            first.call()
            self.run()
        self.now = until


class FakeSocket:
    """The socket of a transport, whose system tells nothing of what waits in it."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int, bytes]] = []

    def fileno(self) -> int:
        return -1

    def setsockopt(self, level: int, name: int, value: bytes) -> None:
        self.options.append((level, name, value))


class FakeTransport(asyncio.Transport):
    """Notes what it is told. `unsent` is set by tests, as is whether it is being closed by the other side."""

    def __init__(self, address: str = "192.0.2.1", *, can_eof: bool = True, tls: object = None) -> None:
        self.socket = FakeSocket()
        super().__init__({"peername": (address, 1234), "socket": self.socket, "ssl_object": tls})
        self.sent = b""
        self.writes = 0
        self.is_reading_on = True
        self.has_eof = False
        self.is_closed = False
        self.is_aborted = False
        self.unsent = 0
        self.protocol: asyncio.BaseProtocol | None = None
        self._can_eof = can_eof

    def write(self, data: Any) -> None:
        if self.has_eof:
            msg = "Cannot call write() after write_eof()"  # as uvloop does
            raise RuntimeError(msg)
        self.sent += bytes(data)
        self.writes += 1

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_reading_on = False

    def resume_reading(self) -> None:
        self.is_reading_on = True

    def can_write_eof(self) -> bool:
        return self._can_eof

    def write_eof(self) -> None:
        assert self._can_eof
        self.has_eof = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


class NotedExchange:
    """Notes what it is given; it answers when the test does."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.bodies: list[Body] = []
        self.abandoned = 0

    def receive(self, body: Body) -> None:
        self.bodies.append(body)

    def abandon(self) -> None:
        self.abandoned += 1

    def reply(self, text: str = "done") -> None:
        self.responder.respond(said(text))


class EchoExchange(NotedExchange):
    """Answers at once with what it is given."""

    def receive(self, body: Body) -> None:
        super().receive(body)
        self.responder.respond(Answer(HTTPStatus.OK, (bytes(body),)))


class FailingExchange(NotedExchange):
    """Raises where nothing may be raised."""

    def receive(self, body: Body) -> None:
        super().receive(body)
        msg = "receive"
        raise ValueError(msg)


class HalfExchange(NotedExchange):
    """Raises after its answer has begun."""

    def receive(self, body: Body) -> None:
        super().receive(body)
        self.responder.open_stream(HTTPStatus.OK, ())
        msg = "half"
        raise ValueError(msg)


class TwiceExchange(NotedExchange):
    """Answers two times, and raises."""

    def receive(self, body: Body) -> None:
        super().receive(body)
        self.reply("first")
        self.reply("second")
        msg = "twice"
        raise ValueError(msg)


class StubbornExchange(NotedExchange):
    """Raises when its client has left."""

    def abandon(self) -> None:
        super().abandon()
        msg = "abandon"
        raise ValueError(msg)


class PartsExchange:
    """Notes the reader of a body."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.body: BodyReader
        self.abandoned = 0

    def receive(self, body: BodyReader) -> None:
        self.body = body

    def abandon(self) -> None:
        self.abandoned += 1

    def reply(self, text: str = "done") -> None:
        self.responder.respond(said(text))


def said(text: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return an answer that is a string."""
    return Answer(status, (f'"{text}"'.encode(),))


def refuse_size(limit: int) -> Answer:
    """Return the answer to a body beyond a limit."""
    return said(f"more than {limit}", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def fail_to_make(responder: Responder) -> NotedExchange:
    """Raise instead of making an exchange."""
    msg = "new_exchange"
    raise ValueError(msg)


KINDS: dict[bytes, Callable[[Responder], NotedExchange]] = {
    b"/run": NotedExchange,
    b"/echo": EchoExchange,
    b"/receive-fails": FailingExchange,
    b"/half": HalfExchange,
    b"/twice": TwiceExchange,
    b"/stubborn": StubbornExchange,
    b"/new-fails": fail_to_make,
}


class NotingHandler:
    """Decides by the path of a request."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.exchanges: list[NotedExchange] = []
        self.parts: list[PartsExchange] = []

    def begin(self, head: Head) -> Accepted | AcceptedInParts | Answer:
        self.heads.append(head)
        if head.path == b"/parts":
            return AcceptedInParts(self._new_parts, MAX_BODY, refuse_size)
        if head.path == b"/unlimited":
            return AcceptedInParts(self._new_parts, 0, refuse_size)
        if head.path == b"/talk":
            return AcceptedInParts(self._new_parts, 0, refuse_size, is_bidirectional=True)
        if head.path == b"/fails":
            msg = "begin"
            raise ValueError(msg)
        kind = KINDS.get(head.path)
        if kind is None:
            return said("now")
        return Accepted(lambda responder: self._new(kind, responder), MAX_BODY, refuse_size)

    def _new(self, kind: Callable[[Responder], NotedExchange], responder: Responder) -> NotedExchange:
        self.exchanges.append(kind(responder))
        return self.exchanges[-1]

    def _new_parts(self, responder: Responder) -> PartsExchange:
        self.parts.append(PartsExchange(responder))
        return self.parts[-1]


class Received(NamedTuple):
    """One answer as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes


def read_answers(sent: bytes, *, to_head: bool = False) -> list[Received]:
    """Take apart what was sent: whole answers, whose lengths are announced, one after the other."""
    answers = []
    while sent:
        head, end, rest = sent.partition(b"\r\n\r\n")
        assert end, sent
        start, *lines = head.decode().split("\r\n")
        version, status, _ = start.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = dict(line.split(": ", 1) for line in lines)
        size = 0 if to_head else int(headers.get("content-length", "0"))
        assert len(rest) >= size, sent
        answers.append(Received(int(status), headers, rest[:size]))
        sent = rest[size:]
    return answers


class Line:
    """A connection, and the client at its other end."""

    def __init__(self, limits: WireLimits | None = None, *, context: WireContext | None = None, **peer: Any) -> None:
        if context is None:
            fake = cast("asyncio.AbstractEventLoop", FakeLoop())
            context = WireContext(NotingHandler(), limits or WireLimits(), fake)
        self.context = context
        self.loop = cast("FakeLoop", context.loop)
        self.handler = cast("NotingHandler", context.handler)
        self.transport = FakeTransport(**peer)
        self.made = 0
        self.closed = 0
        self.switched: list[bytes] = []
        self.connection = Connection(context, cast("Connections", self))
        self.connection.connection_made(self.transport)

    @property
    def state(self) -> ConnectionState:
        return self.connection.state

    @property
    def exchange(self) -> NotedExchange:
        """The latest exchange."""
        return self.handler.exchanges[-1]

    def reads(self) -> bool:
        """Whether the server reads from the connection."""
        return self.transport.is_reading_on

    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self.transport.is_closed

    def send(self, *pieces: bytes) -> None:
        """Send pieces, a turn of the loop each."""
        for piece in pieces:
            assert self.reads(), "the server does not read"
            self.connection.data_received(piece)
            self.loop.run()

    def take(self) -> bytes:
        """Return what has been sent since the last look."""
        self.loop.run()
        sent, self.transport.sent = self.transport.sent, b""
        return sent

    def answers(self, *, to_head: bool = False) -> list[Received]:
        """Return the answers since the last look."""
        return read_answers(self.take(), to_head=to_head)

    def texts(self) -> list[str]:
        """Return the bodies of the answers since the last look."""
        return [answer.body.decode() for answer in self.answers()]

    def leave(self) -> None:
        """Disconnect."""
        self.connection.connection_lost(None)
        self.loop.run()

    def add(self, _: Connection) -> None:
        self.made += 1

    def remove(self, _: Connection) -> None:
        self.closed += 1

    def switch(self, _: Connection, data: bytes) -> None:
        self.switched.append(data)


def post(path: str, body: bytes = b"", *fields: str, version: str = "1.1") -> bytes:
    """Return a request with a body of announced length."""
    lines = [f"POST {path} HTTP/{version}", "host: h", *fields, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    """Return a request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: h", *fields, "", ""]).encode()


def chunked(path: str, *chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a request whose body comes in chunks."""
    head = f"POST {path} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
