"""Output of a connection: gathered into few system calls, and held back while the client does not read."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.exchange import JSON, Answer, ClientGoneError, Fields, Head, Record
from geartrain.transport.wire.heads import USUAL_FORM, AnswerForm
from geartrain.transport.wire.limits import WireError

if TYPE_CHECKING:
    from geartrain.transport.wire.context import WireContext

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
BUG: Final = Answer(HTTPStatus.INTERNAL_SERVER_ERROR, (b'{"error":"Internal server error"}',))
UNREADABLE: Final = Head("", b"", b"", ())
"""In place of the head of a request that has none, or one that is not valid."""
_LATER: Final = (*JSON, (b"retry-after", b"1"))  # of a refusal for want of room, which others may leave soon
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"  # for HTTP/1.0
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_DAYS: Final = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS: Final = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_BODILESS: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
GATHERED: Final = 65_536  # bytes up to which it is cheaper to copy what is written than to send it by itself
_AT_ONCE: Final = 2_097_152  # bytes that are written in one turn of the loop
_PIECE: Final = 262_144  # bytes of them that the transport gets at a time
_OK: Final = HTTPStatus.OK
_PLAIN: Final = b"%b%bcontent-length: %d\r\n\r\n%b"
_WHOLE: Final = b"%b%bcontent-length: %d\r\n%b\r\n%b"


def http_date(at: time.struct_time) -> bytes:
    """Return a time in UTC as HTTP writes it (RFC 9110, section 5.6.7); `strftime` would use words of the locale."""
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    clock = (at.tm_hour, at.tm_min, at.tm_sec)
    return b"%b, %02d %b %04d %02d:%02d:%02d GMT" % (day, at.tm_mday, month, at.tm_year, *clock)


class AnswerHeads:
    """Makes heads up to the fields that say how long the body is."""

    def __init__(self) -> None:
        self._json: dict[HTTPStatus, bytes] = {}
        self.date = b""  # the value of the field
        self.json_ok = b""  # the head of most answers
        self.renew()

    def of_json(self, status: HTTPStatus) -> bytes:
        """Return the head of an answer with a body of JSON and no further field."""
        head = self._json.get(status)
        if head is None:
            head = self._json[status] = self.of(status, JSON)
        return head

    def of(self, status: HTTPStatus, fields: Fields) -> bytes:
        """Return the head of any answer."""
        lines = [b"%b: %b\r\n" % field for field in fields]
        return b"".join((_STATUS_LINES[status], self._date, *lines))

    def renew(self) -> None:
        """Take the date of now; to be called once a second, which is what a date tells."""
        self.date = http_date(time.gmtime(time.time()))
        self._date = b"date: %b\r\n" % self.date
        self._json.clear()
        self.json_ok = self.of_json(HTTPStatus.OK)


def has_body(status: HTTPStatus) -> bool:
    """True if an answer of this status has a body, and a length (RFC 9110, section 8.6)."""
    return status not in _BODILESS


def refusal(error: WireError) -> Answer:
    """Return the answer to a request that is refused."""
    headers = _LATER if error.status is HTTPStatus.SERVICE_UNAVAILABLE else JSON
    return Answer(error.status, (msgspec.json.encode({"error": str(error)}),), headers, error=str(error))


def unsent(transport: asyncio.Transport) -> int:
    """Return the bytes that wait for the client, in the transport and in the system."""
    waiting = transport.get_write_buffer_size()
    return waiting and waiting + _queued(transport.get_extra_info("socket").fileno())


def has_sent_all(transport: asyncio.Transport) -> bool:
    """Tell whether nothing waits for the client any more, neither here nor in the system."""
    return not transport.get_write_buffer_size() and not _queued(transport.get_extra_info("socket").fileno())


class Progress(NamedTuple):
    """Bytes that wait for a client, and the last moment of progress; the present if there are none."""

    unsent: int
    since: float


def progress(transport: asyncio.Transport, before: Progress, now: float, *, held: int = 0) -> Progress:
    """Return the progress since the last look; `held`: bytes that the transport does not have yet."""
    waiting = unsent(transport) + held
    return before if waiting and waiting == before.unsent else Progress(waiting, now)


def close_at_once(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close a connection on which little was written just now, and nothing waited before that."""
    transport.close()
    if transport.get_extra_info("ssl_object") is not None:
        # TLS would wait for the client's own word. A turn of the loop later ours has been written.
        loop.call_soon(loop.call_soon, transport.abort)


def reset(transport: asyncio.Transport) -> None:
    """End a connection now, and have the system forget what it still has for the client."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the client and its port; empty where there is none, as of a Unix socket."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _queued(descriptor: int) -> int:
    """Return the bytes in the system that a socket's peer has not taken; 0 if unknown."""
    import termios  # late: it is large, and is needed where a client reads slowly

    try:
        (size,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):  # of a system that does not tell, or a socket that is gone
        return 0
    return int(size)


def _do_nothing() -> None:
    """Follow what has been written."""


class Outgoing:
    """The sending half of a connection.

    The events of a stream are a small write each. Sent by themselves, every one of them is a system call here and wakes
    the client, so what is written in one turn of the loop leaves together.
    """

    __slots__ = (
        "_context",
        "_gathered",
        "_loop",
        "_then",
        "_transport",
        "_waiters",
        "is_closed",
        "is_paused",
        "mark",
        "size",
    )

    def __init__(self, transport: asyncio.Transport, context: WireContext) -> None:
        self._transport = transport
        self._context = context
        self._loop = context.loop
        self._gathered: list[Buffer] = []
        self.size = 0  # bytes that the transport does not have yet
        self._then: Callable[[], None] = _do_nothing
        self._waiters: list[asyncio.Future[None]] = []
        self.is_paused = False  # the client does not read as fast as it is written to
        self.is_closed = False  # nothing more is sent
        self.mark = Progress(0, context.now)  # at the last look

    def answer(self, answer: Answer, form: AnswerForm, record: Record, *, is_last: bool = False) -> None:
        """Write a whole answer; `is_last`: the connection ends after it, whatever its request wants."""
        context, status, parts = self._context, answer.status, answer.parts
        is_json = answer.headers is JSON
        if (
            form is USUAL_FORM
            and status is _OK
            and is_json
            and len(parts) == 1
            and not is_last
            and not context.is_draining
        ):
            body = parts[0]  # nearly all of them
            size = len(body)
            if size <= GATHERED and not self._gathered and not self.is_closed:
                self._transport.write(_PLAIN % (context.answers.json_ok, record.lines(), size, body))
                record.sent = size
                return
        head = context.answers.of_json(status) if is_json else context.answers.of(status, answer.headers)
        closing = CLOSE if is_last else self._connection_field(form)
        if not has_body(status):
            self.write_now(b"%b%b%b\r\n" % (head, record.lines(), closing))
            return
        first, *more = parts
        size = len(first) + sum(map(len, more)) if more else len(first)
        record.sent = 0 if form.is_head else size
        if form.is_head:
            first, more = b"", []
        elif size > GATHERED:
            first, more = b"", list(parts)
        elif more:
            first, more = b"".join(parts), []
        self.write_now(_WHOLE % (head, record.lines(), size, closing, first), more)

    def stream(
        self, status: HTTPStatus, headers: Fields, form: AnswerForm, *, record: Record, on_end: Callable[[], None]
    ) -> BodyStream:
        """Write the head of an answer, and return its body, which is in chunks if the client knows them."""
        closing = self._connection_field(form)
        framing = CHUNKED if form.is_modern else b""
        self.write(b"%b%b%b%b\r\n" % (self._context.answers.of(status, headers), record.lines(), framing, closing))
        return BodyStream(self, record, on_end, is_chunked=form.is_modern, is_silent=form.is_head)

    def _connection_field(self, form: AnswerForm) -> bytes:
        """Return the `connection` field for the answer."""
        if not form.keeps_alive or self._context.is_draining:
            return CLOSE
        return b"" if form.is_modern else KEEP

    def write(self, data: Buffer) -> None:
        """Write at the end of this turn of the loop, or at once if there is much."""
        if self.is_closed:
            return
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(data)
        self.size += len(data)
        if self.size > GATHERED:
            self.flush()  # so that the transport can pause its writer

    def write_now(self, first: bytes, more: Sequence[Buffer] = ()) -> None:
        """Write at once what is whole by itself."""
        if self.is_closed:
            return
        if self._gathered:
            self.flush()
        if not self._gathered and sum(map(len, more)) <= _AT_ONCE:
            self._transport.write(first)
            for part in more:
                self._transport.write(part)
            return
        self._gathered += (first, *more)
        self.size += len(first) + sum(map(len, more))
        self.flush()

    def flush(self) -> None:
        """Write what has been gathered; of much, as far as the client takes it, and in several turns of the loop."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            size, self.size = self.size, 0
            if size <= 2 * GATHERED:
                self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
            elif size <= _AT_ONCE:
                for part in gathered:
                    self._transport.write(part)
            else:
                self._write_in_pieces(gathered)
            if self.is_closed and not self._gathered:
                then, self._then = self._then, _do_nothing
                then()

    def _write_in_pieces(self, parts: Sequence[Buffer]) -> None:
        """Write what a transport may take long to copy, or to encrypt; keep what the client does not take yet."""
        rest = deque(parts)
        left = _AT_ONCE
        while rest and left > 0 and not self.is_paused:
            view = memoryview(rest.popleft())
            self._transport.write(view[:_PIECE])
            left -= min(len(view), _PIECE)
            if len(view) > _PIECE:
                rest.appendleft(view[_PIECE:])
        self._gathered = [*rest]
        self.size = sum(map(len, rest))
        if rest and not self.is_paused:
            self._loop.call_soon(self.flush)
        if self._waiters and self.size <= _AT_ONCE and not self.is_paused:
            self._wake()

    def pause(self) -> None:
        """Note that the client does not read."""
        self.is_paused = True

    def resume(self) -> None:
        """Note that the client reads again."""
        self.is_paused = False
        self.flush()
        self._wake()

    def finish(self, then: Callable[[], None]) -> None:
        """Write what has been gathered, and nothing more; call `then` when the transport has it."""
        self.flush()
        self.is_closed = True
        if self._gathered:
            self._then = then
        else:
            then()
        self._wake()

    def abort(self) -> None:
        """End the connection without completing what has been written."""
        self.flush()
        self._transport.abort()

    def close(self) -> None:
        """Drop what is written from now on, and what has been gathered."""
        self.is_closed = True
        self._gathered.clear()
        self.size = 0
        self._then = _do_nothing
        self._wake()

    @property
    def is_behind(self) -> bool:
        """True if the transport does not have all that has been written."""
        return bool(self._gathered)

    async def drained(self) -> None:
        """Wait until the client reads; raise `ClientGoneError` if it has gone."""
        if self.size > GATHERED // 2:
            self.flush()
        while (self.is_paused or self.size > _AT_ONCE) and not self.is_closed:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self.is_closed:
            raise ClientGoneError

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class BodyStream:
    """The body of an answer in pieces: in chunks, or up to the end of the connection. See `AnswerStream`."""

    __slots__ = ("_is_chunked", "_is_over", "_is_silent", "_on_end", "_outgoing", "_record")

    def __init__(
        self, outgoing: Outgoing, record: Record, on_end: Callable[[], None], *, is_chunked: bool, is_silent: bool
    ) -> None:
        """`on_end` is called when the body is complete. `is_silent`: nothing is sent, as in the answer to HEAD."""
        self._outgoing = outgoing
        self._record = record
        self._on_end = on_end
        self._is_chunked = is_chunked
        self._is_silent = is_silent
        self._is_over = False

    async def write(self, data: bytes) -> None:
        """Send a piece; wait while the client does not read. Raises `ClientGoneError`."""
        outgoing = self._outgoing
        if data and not self._is_silent:
            self._record.sent += len(data)
            if not self._is_chunked:
                outgoing.write(data)
            elif len(data) <= GATHERED:
                outgoing.write(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                outgoing.write(b"%x\r\n" % len(data))
                outgoing.write(data)
                outgoing.write(b"\r\n")
        if outgoing.is_paused or outgoing.is_closed or outgoing.size > _AT_ONCE:
            await outgoing.drained()

    def end(self) -> None:
        """Complete the body. Does nothing if the client has disconnected."""
        if self._is_over:
            return
        self._is_over = True
        if self._is_chunked and not self._is_silent:
            self._outgoing.write(b"0\r\n\r\n")
        self._on_end()

    def abort(self) -> None:
        """Break off, so that the client notices that the body is not whole. Does nothing if it has disconnected."""
        if not self._is_over:
            self._is_over = True
            self._outgoing.abort()
