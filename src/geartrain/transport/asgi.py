"""A wire on ASGI: the same handlers as an application inside another server.

The server that calls it, its host, owns the connections: TLS, limits of heads, time limits, `Upgrade`, the `Date`
header. The wire translates requests and answers, bounds bodies, and notices clients that leave. The application starts
and ends with a lifespan, or starts with the first request where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.bodies import too_large
from geartrain.transport.wire.exchange import (
    NO_BODY,
    UNKNOWN_LENGTH,
    Accepted,
    AcceptedInParts,
    Answer,
    AnswerStream,
    Body,
    ClientGoneError,
    Exchange,
    Fields,
    Handler,
    Head,
    Headers,
    PartsExchange,
    Record,
    Records,
    keep_nothing,
)
from geartrain.transport.wire.outgoing import UNREADABLE

_SAFE: Final = "/:@!$&'()*+,;=~"  # need not be percent-encoded in a path, RFC 3986, section 3.3
_MAX_DIGITS: Final = 18  # of a length
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})
Start = Callable[[], Awaitable[Handler]]
Stop = Callable[[], Awaitable[None]]
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

_DISCONNECT: Final = "http.disconnect"
_BODILESS: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})  # they have no length either


class BadHeadError(Exception):
    """The head of a request that the host let pass, and that is refused all the same."""


def read_head(scope: Mapping[str, Any]) -> Head:
    """Return the head of the request of an `http` scope; raise `BadHeadError`."""
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    method: str = scope["method"]
    is_framed = scope.get("http_version", "1.1").startswith("1")
    # HTTP/2 and later have no header that says that a body comes without a length.
    unsaid = NO_BODY if is_framed or method in _WITHOUT_BODY else UNKNOWN_LENGTH
    query: bytes = scope.get("query_string", b"")
    root = _quote(scope.get("root_path", "").rstrip("/"))
    return Head(method, read_path(scope), query, headers, _read_length(headers, unsaid), root)


def read_path(scope: Mapping[str, Any]) -> bytes:
    """Return the path below the place where the application is mounted, percent-encoded as it came.

    `path` decides, because it is what the host and its middleware have looked at. `raw_path` only adds how it was
    encoded, where the two agree; servers differ in whether it, or `path` too, still has the `root_path` in it.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    raw = (scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    if unquote(raw) not in {path, root + path}:
        raw = _quote(path)
    if "://" in raw and not raw.startswith("/"):  # the absolute form, which servers should have taken apart
        raw = "/" + raw.partition("://")[2].partition("/")[2]
    below = (raw[_end_of_root(raw, root) :] or "/").encode("latin-1")
    if not below.startswith(b"/") and below != b"*":
        msg = "The target of the request is not a path."
        raise BadHeadError(msg)
    return below


def _quote(path: str) -> str:
    return quote(path, safe=_SAFE, errors="replace")


def _end_of_root(raw: str, root: str) -> int:
    """Return the index in a path at which what is below `root` begins; 0 if the path does not begin with it."""
    if not root:
        return 0
    wanted = root.encode()
    at = 0
    for byte in wanted:
        step = 3 if raw[at : at + 1] == "%" else 1
        if unquote(raw[at : at + step], "latin-1") != chr(byte):
            return 0
        at += step
    return at if raw[at : at + 1] in {"", "/"} else 0


def _read_length(headers: Headers, unsaid: int) -> int:
    lengths = {value for name, value in headers if name == b"content-length"}
    if any(not value.isdigit() or len(value) > _MAX_DIGITS for value in lengths) or len(lengths) > 1:
        msg = "The Content-Length of the request is not one number of bytes."
        raise BadHeadError(msg)
    if any(name == b"transfer-encoding" for name, _ in headers):
        return UNKNOWN_LENGTH
    return int(lengths.pop()) if lengths else unsaid


class EndedError(Exception):
    """The application has been stopped."""


class _State(enum.Enum):
    IDLE = enum.auto()  # not started yet, or the start has failed: the next request tries again
    STARTING = enum.auto()
    RUNNING = enum.auto()
    STOPPED = enum.auto()  # only another lifespan starts it again


class Lifecycle:
    """Starts once, however many requests ask for it at once, and stops when the last lifespan ends."""

    def __init__(self, start: Start, stop: Stop) -> None:
        self._start = start
        self._stop = stop
        self._state = _State.IDLE
        self._lifespans = 0
        self._task: asyncio.Task[Handler]
        self._loop: asyncio.AbstractEventLoop

    async def enter(self) -> None:
        """Begin a lifespan: start, or wait for a start that is under way. Raises what `start` raises."""
        self._lifespans += 1
        try:
            await self._started()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """End a lifespan; stop if it was the last one."""
        self._lifespans -= 1
        if self._lifespans:
            return
        if self._state is _State.STARTING:  # it has no waiter
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._state is _State.RUNNING:
            self._state = _State.STOPPED
            await self._stop()

    async def handler(self) -> Handler:
        """Return the handler for a request, after a start if there was none. Raises `EndedError` after the end."""
        if self._state is _State.STOPPED:
            msg = "The server is shutting down."
            raise EndedError(msg)
        return await self._started()

    async def _started(self) -> Handler:
        loop = asyncio.get_running_loop()
        if self._state in {_State.IDLE, _State.STOPPED}:
            self._state = _State.STARTING
            self._loop = loop
            self._task = loop.create_task(self._begin())
        elif self._loop is not loop:
            msg = (
                "geartrain's ASGI application runs in another event loop; let the lifespan of the host start and end it"
            )
            raise RuntimeError(msg)
        if self._task.done():
            return self._task.result()
        return await asyncio.shield(self._task)  # a canceled request does not cancel the start for others

    async def _begin(self) -> Handler:
        try:
            handler = await self._start()
        except BaseException:
            self._state = _State.IDLE
            raise
        self._state = _State.RUNNING
        return handler


class AsgiApplication:
    """An ASGI application that answers with the handler that `start` returns.

    It starts with the `lifespan` of its host, or within the block `async with app.lifespan()`. Mounted applications are
    not told of a lifespan by most frameworks; without any it starts with the first request and ends with the process.
    """

    def __init__(self, start: Start, stop: Stop, records: Records = keep_nothing) -> None:
        """`start` cleans up after itself when it fails; `stop` follows a start that succeeded, once."""
        self._lifecycle = Lifecycle(start, stop)
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one lifespan, as ASGI 3 wants it."""
        kind = scope["type"]
        if kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            msg = f"geartrain does not know the ASGI scope {kind!r}"
            raise ValueError(msg)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Run the application for the length of a block: `FastAPI(lifespan=app.lifespan)` does it for its own.

        Blocks may overlap; the end of the last one stops the application.
        """
        await self._lifecycle.enter()
        try:
            yield
        finally:
            await self._lifecycle.leave()

    async def _live(self, receive: Receive, send: Send) -> None:
        phase = "startup"
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as error:
            logger.exception("%s failed", phase)
            await send({"type": f"lifespan.{phase}.failed", "message": str(error) or type(error).__name__})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["method"] == "HEAD"
        head = UNREADABLE
        try:
            handler = await self._lifecycle.handler()
            head = read_head(scope)
        except EndedError as error:
            decision: Accepted | AcceptedInParts | Answer = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except BadHeadError as error:
            decision = _refusal(HTTPStatus.BAD_REQUEST, str(error))
        else:
            decision = handler.begin(head)
            if not isinstance(decision, Answer) and head.length > decision.max_body:
                decision = decision.refuse_size(decision.max_body)
        responder = _Responder(self._records(head)(_peer(scope)), is_head=is_head)
        if isinstance(decision, Answer):
            responder.respond(decision)
            await responder.deliver(send)
        elif isinstance(decision, Accepted):
            await _exchange(decision, responder, receive=receive, send=send)
        else:
            await _exchange_in_parts(decision, responder, receive=receive, send=send)


def _refusal(status: HTTPStatus, reason: str) -> Answer:
    return Answer(status, (msgspec.json.encode({"error": reason}),), error=reason)


async def _exchange(accepted: Accepted, responder: _Responder, *, receive: Receive, send: Send) -> None:
    body = await _read_body(receive, accepted.max_body)
    if body is None:
        responder.record.leave()
        return
    responder.record.received = len(body)
    if len(body) > accepted.max_body:
        responder.respond(accepted.refuse_size(accepted.max_body))
        await responder.deliver(send)
        return
    exchange = accepted.new_exchange(responder)

    async def wait_for_disconnect() -> bool:
        message = await receive()
        return bool(message["type"] == _DISCONNECT)

    exchange.receive(body)
    await _run(exchange, responder, listen=wait_for_disconnect, send=send)


async def _exchange_in_parts(accepted: AcceptedInParts, responder: _Responder, *, receive: Receive, send: Send) -> None:
    reader = _BodyReader(accepted.max_body, responder.record)
    exchange = accepted.new_exchange(responder)
    exchange.receive(reader)
    try:
        await _run(exchange, responder, listen=lambda: reader.fill(receive), send=send)
    finally:
        reader.close()


async def _read_body(receive: Receive, limit: int) -> Body | None:
    """Return the body, or the beginning of one that is larger than `limit`; None if it will never come whole."""
    whole = bytearray()  # it grows in place: pieces that are joined in the end would need twice the memory
    while True:
        message = await receive()
        if message["type"] == _DISCONNECT:
            return None
        piece: bytes = message.get("body", b"")
        is_last = not message.get("more_body", False)
        if is_last and not whole:
            return piece
        whole += piece
        if is_last or len(whole) > limit:
            return whole


async def _run(
    exchange: Exchange | PartsExchange, responder: _Responder, *, listen: Callable[[], Awaitable[bool]], send: Send
) -> None:
    """Send the answer; abandon the exchange if that ends before the answer is complete, for whatever reason.

    `listen` returns when there is nothing more to hear: True if the client has left.
    """
    if responder.has_whole_answer:  # at once: there is nothing to wait for
        await responder.deliver(send)
        return

    def on_heard(task: asyncio.Task[bool]) -> None:
        if not task.cancelled() and (task.exception() is not None or task.result()):
            leave()

    def leave() -> None:
        if responder.leave():
            exchange.abandon()

    async def listen_for_client() -> bool:
        try:
            return await listen()
        except OSError:
            return True

    listening = asyncio.create_task(listen_for_client())
    listening.add_done_callback(on_heard)
    try:
        await responder.deliver(send)
    finally:
        leave()
        listening.cancel()
        await asyncio.wait((listening,))
    if not listening.cancelled():
        listening.result()  # an error of the host's `receive` belongs to the host


class _Responder:
    """The messages of one answer. All of them are sent by the task of the request, in `deliver`."""

    __slots__ = ("_changed", "_has_left", "_is_complete", "_is_head", "_messages", "has_whole_answer", "record")

    def __init__(self, record: Record, *, is_head: bool) -> None:
        self.record = record
        self._is_head = is_head  # of a request with the method HEAD
        self._messages: deque[tuple[Message, asyncio.Future[None] | None]] = deque()  # and who waits for its end
        self._changed = asyncio.Event()
        self._has_left = False
        self._is_complete = False
        self.has_whole_answer = False

    # calls of a handler

    def respond(self, answer: Answer) -> None:
        """Send a whole answer. See `Responder`."""
        for message in _messages_of(answer, self.record.fields(), is_head=self._is_head):
            self.put(message)
        self.record.error = answer.error
        self._end(answer.status)

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> AnswerStream:
        """Send a head, and return what sends the body. See `Responder`."""
        self.put(_start(status, (*headers, *self.record.fields())))
        return _Stream(self, status, is_head=self._is_head)

    # calls of a stream

    def put(self, message: Message) -> None:
        """Have a message sent."""
        self._put(message, None)

    def end(self, status: HTTPStatus) -> None:
        """Complete the body."""
        self.put(_body(b"", more=False))
        self._end(status)

    def _end(self, status: HTTPStatus) -> None:
        if not self._has_left:
            self.record.end(status)

    async def put_and_wait(self, message: Message) -> None:
        """Have a message sent, and wait for that; raises `ClientGoneError`."""
        if self._has_left:
            raise ClientGoneError
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(message, sent)
        await sent

    def _put(self, message: Message, sent: asyncio.Future[None] | None) -> None:
        if self._has_left or self.has_whole_answer:
            return
        self.has_whole_answer = _is_last(message)
        self.record.sent += len(message.get("body", b""))
        self._messages.append((message, sent))
        self._changed.set()

    # calls of the request's task

    async def deliver(self, send: Send) -> None:
        """Send the answer as it comes; return when it is complete, or when the client has left."""
        while not self._has_left:
            if not self._messages:
                self._changed.clear()
                await self._changed.wait()
                continue
            message, sent = self._messages[0]
            self._is_complete = _is_last(message)  # now: when this has been sent, a host may report a disconnect
            try:
                await send(message)
            except OSError:  # some hosts report a client's disconnect so
                return
            if self._is_complete:
                return
            if self._messages:  # `leave` may have cleared them meanwhile
                self._messages.popleft()
            if sent is not None and not sent.done():
                sent.set_result(None)

    def leave(self) -> bool:
        """Send nothing more; return whether that leaves the answer incomplete, the first time."""
        if self._is_complete or self._has_left:
            return False
        self._has_left = True
        self.record.leave()
        for _, sent in self._messages:
            if sent is not None and not sent.done():
                sent.set_exception(ClientGoneError())
        self._messages.clear()
        self._changed.set()
        return True


class _Stream:
    """The body of an answer in pieces. See `AnswerStream`."""

    __slots__ = ("_is_head", "_responder", "_status")

    def __init__(self, responder: _Responder, status: HTTPStatus, *, is_head: bool) -> None:
        self._responder = responder
        self._status = status
        self._is_head = is_head

    async def write(self, data: bytes) -> None:
        """Send a piece, when all before it have been taken. Raises `ClientGoneError`."""
        await self._responder.put_and_wait(_body(b"" if self._is_head else data, more=True))

    def end(self) -> None:
        """Complete the body."""
        self._responder.end(self._status)

    def abort(self) -> None:
        """Leave the body incomplete: a host closes such a connection."""
        self._responder.leave()


class _BodyReader:
    """A request body in pieces, at most one of them in memory. See `BodyReader`."""

    __slots__ = ("_changed", "_count", "_has_left", "_is_whole", "_limit", "_piece", "_record", "_taken")

    def __init__(self, limit: int, record: Record) -> None:
        self._limit = limit
        self._record = record
        self._piece = b""
        self._count = 0  # bytes that have been taken
        self._is_whole = False
        self._has_left = False
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    async def read(self) -> bytes:
        """Return the next piece. Raises `ClientGoneError`, `GeartrainError` (`TOO_LARGE`)."""
        while not self._piece:
            if self._is_whole:
                return b""
            if self._has_left:
                raise ClientGoneError
            self._changed.clear()
            await self._changed.wait()
        piece = self._piece
        if self._count + len(piece) > self._limit:
            raise too_large(self._limit)
        self._count += len(piece)
        self._piece = b""
        self._taken.set()
        return piece

    async def fill(self, receive: Receive) -> bool:
        """Take pieces from the host as they are read; return whether the client has left."""
        while True:
            message = await receive()
            if message["type"] == _DISCONNECT:
                return True
            if self._is_whole:
                return False
            self._piece = message.get("body", b"")
            self._record.received += len(self._piece)
            self._is_whole = not message.get("more_body", False)
            self._changed.set()
            while self._piece and not self._is_whole:
                self._taken.clear()
                await self._taken.wait()

    def close(self) -> None:
        """Note that no more will come."""
        self._has_left = True
        self._changed.set()


def _peer(scope: Scope) -> str:
    """Return the address of the client, as its host tells it."""
    host, port = scope.get("client") or ("", 0)
    return f"{host}:{port}" if host else ""


def _messages_of(answer: Answer, own: Fields, *, is_head: bool) -> Iterator[Message]:
    parts = [bytes(part) for part in answer.parts]  # ASGI has no views, and they may count other things than bytes
    is_bodiless = answer.status in _BODILESS
    length = () if is_bodiless else ((b"content-length", b"%d" % sum(map(len, parts))),)
    yield _start(answer.status, (*answer.headers, *length, *own))
    *others, last = [b""] if is_bodiless or is_head or not parts else parts
    for part in others:
        yield _body(part, more=True)
    yield _body(last, more=False)


def _start(status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> Message:
    return {"type": "http.response.start", "status": int(status), "headers": list(headers)}


def _body(data: Buffer, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": bytes(data), "more_body": more}


def _is_last(message: Message) -> bool:
    return not message.get("more_body", True)
