"""MCP over HTTP: a message is a request with `POST`, answered with JSON or with a stream of server-sent events."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from geartrain.apis.mcp import messages
from geartrain.apis.mcp.messages import Fault, JsonObject, Message, MessageId
from geartrain.apis.sse import KEEP_ALIVE
from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.compression import accepted_weight
from geartrain.transport.errors import HTTP_STATUS, error_headers
from geartrain.transport.large_bodies import LargeBodies, read_aside
from geartrain.transport.mcp.methods import Caller, Methods, handshake
from geartrain.transport.records import RequestRecord
from geartrain.transport.runs import DIRECT_LIMIT, start
from geartrain.transport.wire.bodies import too_large
from geartrain.transport.wire.exchange import (
    JSON,
    Accepted,
    Answer,
    AnswerStream,
    Body,
    ClientGoneError,
    Decision,
    Exchange,
    Head,
    Responder,
)

_OK: Final = HTTPStatus.OK
_EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass events on at once
)
_VERSION: Final = b"mcp-protocol-version"
_METHOD: Final = b"mcp-method"
_NAME: Final = b"mcp-name"
_NAMED: Final = {"tools/call": "name", "resources/read": "uri"}  # methods, and the parameter in Mcp-Name
_SESSION: Final = b"mcp-session-id"
_SESSION_FORM: Final = re.compile(rb"[!-~]{1,128}")
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=")
_ACCEPTED_TYPES: Final = (b"application/json", b"text/event-stream")
_MOST_LEVELS: Final = 1024  # log levels that are kept, each of a session
_BAD: Final = frozenset({messages.PARSE_ERROR, messages.INVALID_REQUEST, messages.UNSUPPORTED_VERSION})
_STATELESS_STATUS: Final = {
    **dict.fromkeys((*_BAD, messages.INVALID_PARAMS, messages.HEADER_MISMATCH), HTTPStatus.BAD_REQUEST),
    messages.METHOD_NOT_FOUND: HTTPStatus.NOT_FOUND,
}


def refuse(error: GeartrainError) -> Answer:
    """Return the answer to a request that is refused by its head, or as too large."""
    number = messages.INTERNAL_ERROR if error.code is Code.INTERNAL else messages.INVALID_REQUEST
    status = HTTP_STATUS[error.code]
    return _answer(status, Fault(number, error.message), error_headers(status, error))


def not_found() -> Answer:
    """Return the answer for an unknown path."""
    return _answer(HTTPStatus.NOT_FOUND, Fault(messages.INVALID_REQUEST, "There is no such path: MCP is at /mcp."))


def wrong_method(allowed: str) -> Answer:
    """Return the answer to another method than those `allowed`: there are no streams to `GET`, no sessions to end."""
    fault = Fault(messages.INVALID_REQUEST, f"Method not allowed: use {allowed}.")
    return _answer(HTTPStatus.METHOD_NOT_ALLOWED, fault, ((b"allow", allowed.encode()),))


def _answer(status: HTTPStatus, fault: Fault, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return Answer(status, (messages.encode_fault(fault),), (*JSON, *headers), error=fault.message)


class _Session(NamedTuple):
    """A session of the revisions with a handshake: the name that its client gives, and whose key it has.

    A server keeps nothing of a session but its log level, so a client may go on with one at another server.
    """

    name: bytes
    principal: str


class Endpoint:
    """The end of MCP over HTTP on one server, with what it keeps between requests."""

    def __init__(
        self,
        catalogue: Catalogue,
        bodies: LargeBodies,
        max_body: int,
        *,
        refuse_size: Callable[[GeartrainError], Answer],
        quiet: float,
    ) -> None:
        """`quiet`: the seconds without a message after which a comment keeps a connection alive."""
        self.methods = Methods((catalogue,), bodies)
        self.quiet = quiet
        self.running: dict[tuple[_Session, MessageId], asyncio.Task[Any]] = {}
        self._levels: OrderedDict[_Session, str] = OrderedDict()
        self._max_body = max_body
        self._refuse_size = refuse_size

    def begin(self, head: Head) -> Decision:
        """Check the head of a request. Raises `GeartrainError`."""
        media_type = (head.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            raise GeartrainError(Code.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json.")
        accepts = [value for name, value in head.headers if name == b"accept"]
        weights = [accepted_weight(accepts, each) for each in _ACCEPTED_TYPES] if accepts else [1.0, 0.0]
        if not any(weights):
            raise GeartrainError(Code.NOT_ACCEPTABLE, "Accept must list application/json and text/event-stream.")
        new_exchange = partial(self._new_exchange, head, can_stream=weights[1] > 0)
        return Accepted(new_exchange, self._max_body, lambda limit: self._refuse_size(too_large(limit)))

    def _new_exchange(self, head: Head, responder: Responder, *, can_stream: bool) -> Exchange:
        return McpExchange(self, head, responder, can_stream=can_stream)

    def level_of(self, session: _Session) -> str:
        """Return the least severe log messages that a session wants."""
        return self._levels.get(session, "info")

    def set_level(self, session: _Session, level: str) -> None:
        """Keep the log level of a session. The oldest one is forgotten when there are too many."""
        self._levels[session] = level
        self._levels.move_to_end(session)
        if len(self._levels) > _MOST_LEVELS:
            self._levels.popitem(last=False)


class McpExchange:
    """One message of a client. See `Exchange`."""

    __slots__ = (
        "_can_stream",
        "_endpoint",
        "_has_left",
        "_head",
        "_responder",
        "_stream",
        "_task",
        "_writing",
        "record",
    )

    def __init__(self, endpoint: Endpoint, head: Head, responder: Responder, *, can_stream: bool) -> None:
        self.record: RequestRecord = responder.record  # type: ignore[assignment]
        self._endpoint = endpoint
        self._head = head
        self._responder = responder
        self._can_stream = can_stream
        self._has_left = False
        self._stream: AnswerStream | None = None
        self._task: asyncio.Task[Any] | None = None
        self._writing = asyncio.Lock()

    def receive(self, body: Body) -> None:
        """Read the message and answer it."""
        start(self._run(body))

    def abandon(self) -> None:
        """Cancel the call: the client has disconnected."""
        self._has_left = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, body: Body) -> None:
        if self._has_left:
            return
        self._task = asyncio.current_task()
        try:
            await self._answer(body)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            if not self._has_left:  # a canceled request gets no answer, and its stream has to end
                self._open().end()
        finally:
            self._task = None

    async def _answer(self, body: Body) -> None:
        message: Message | None = None
        try:
            session = self._session()
            is_large = len(body) > DIRECT_LIMIT
            message = await read_aside(messages.read_message, body) if is_large else messages.read_message(body)
            del body
            if message.id is None:
                self._notice(message, session)
                return
            result = await self._result(message, session)
        except Fault as fault:
            if message is not None:
                fault.id = message.id
            await self._refuse(fault)
            return
        headers = self._new_session() if message.method == "initialize" else ()
        await self._send(messages.encode_result(message.id, result), _OK, headers)

    async def _result(self, message: Message, session: _Session) -> JsonObject:
        assert message.id is not None  # noqa: S101 - it is a request
        caller = self._caller(message, session)
        if not caller.is_stateless and message.method == "initialize":
            return handshake(message.text("protocolVersion"))
        if not caller.is_stateless and message.method == "logging/setLevel":
            if not session.name:
                raise Fault(messages.INVALID_REQUEST, "A log level belongs to a session: send Mcp-Session-Id.")
            self._endpoint.set_level(session, messages.check_level(message.text("level")))
            return {}
        if message.method != "tools/call":
            return await self._endpoint.methods.answer(message, caller, self._notify)
        key = (session, message.id)
        if session.name and not caller.is_stateless and self._task is not None:
            self._endpoint.running[key] = self._task
        try:
            return await self._call(message, caller)
        finally:
            if self._endpoint.running.get(key) is self._task:
                del self._endpoint.running[key]

    async def _call(self, message: Message, caller: Caller) -> JsonObject:
        """Call a tool, and keep the connection alive meanwhile."""
        work = asyncio.ensure_future(self._endpoint.methods.answer(message, caller, self._notify))
        try:
            while not (await asyncio.wait((work,), timeout=self._endpoint.quiet))[0]:
                if self._can_stream:
                    await self._write(KEEP_ALIVE)
            return work.result()
        finally:
            work.cancel()
            del work  # a fault in it refers to this frame

    def _caller(self, message: Message, session: _Session) -> Caller:
        """Return the client and its revision. Raises `Fault`."""
        stated = self._head.header(_VERSION)
        version = messages.UNSTATED if stated is None else stated.decode("latin-1")
        level: str | None
        if message.is_stateless or version == messages.STATELESS:
            version, level = self._check_stateless(message)
        elif version in messages.HANDSHAKE_VERSIONS:
            level = self._endpoint.level_of(session)
        else:
            raise messages.unsupported(version)
        notes, record = self._head.notes, self.record

        def on_admitted(prediction: object) -> None:
            record.prediction = prediction  # type: ignore[assignment]

        return Caller(
            version,
            level,
            can_be_notified=self._can_stream,
            check_model=notes.check_model,
            principal=notes.principal,
            context=record.context,
            on_admitted=on_admitted,
        )

    def _check_stateless(self, message: Message) -> messages.Envelope:
        """Return the envelope of a request, which its header fields have to repeat. Raises `Fault`."""
        wanted = {_VERSION: message.stated_version(), _METHOD: message.method}
        if message.method in _NAMED:
            wanted[_NAME] = message.text(_NAMED[message.method])
        for name, value in wanted.items():
            given = [each.decode("latin-1") for field, each in self._head.headers if field == name]
            if len(given) != 1 or _decoded(given[0]) != value:
                text = f"The header {name.decode()} must be there once, and say the same as the body."
                raise Fault(messages.HEADER_MISMATCH, text)
        return message.envelope()

    def _session(self) -> _Session:
        name = self._head.header(_SESSION) or b""
        if name and _SESSION_FORM.fullmatch(name) is None:
            raise Fault(messages.INVALID_REQUEST, "Mcp-Session-Id has 1 to 128 visible ASCII characters.")
        return _Session(name, self._head.notes.principal.name)

    def _new_session(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((_SESSION, secrets.token_hex(16).encode()),)

    def _notice(self, message: Message, session: _Session) -> None:
        """Take a notification. `notifications/cancelled` ends a request of the same session."""
        if message.method == "notifications/cancelled" and session.name:
            canceled = message.canceled_id()
            task = None if canceled is None else self._endpoint.running.get((session, canceled))
            if task is not None:
                task.cancel()
        self._responder.respond(Answer(HTTPStatus.ACCEPTED, (b"",), ()))

    # the answer

    async def _refuse(self, fault: Fault) -> None:
        is_stateless = self._head.header(_VERSION) == messages.STATELESS.encode()
        status = _STATELESS_STATUS.get(fault.number, _OK)
        if not is_stateless and fault.number not in {*_BAD, messages.HEADER_MISMATCH}:
            status = _OK  # clients of earlier revisions read the error only then
        self.record.error = fault.message
        await self._send(messages.encode_fault(fault), status)

    async def _notify(self, method: str, params: JsonObject) -> None:
        await self._write(*_event(messages.encode_notification(method, params)))

    async def _send(self, data: bytes, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Send the answer: as JSON, or as the last event of a stream that has begun."""
        if self._stream is None:
            self._responder.respond(Answer(status, (data,), (*JSON, *headers)))
            return
        await self._write(*_event(data))
        self._stream.end()

    async def _write(self, *parts: bytes) -> None:
        async with self._writing:
            for part in parts:
                await self._open().write(part)

    def _open(self) -> AnswerStream:
        """Return the stream, whose head is sent with the first event: a request that fails at once has a status."""
        if self._stream is None:
            self._stream = self._responder.open_stream(_OK, _EVENT_STREAM)
        return self._stream


def _event(data: bytes) -> tuple[bytes, ...]:
    """Return an event in parts; one that is large, without a copy."""
    parts = b"event: message\ndata: ", data, b"\n\n"
    return parts if len(data) > DIRECT_LIMIT else (b"".join(parts),)


def _decoded(value: str) -> str | None:
    """Return the value of a header field that may be in base64, as the protocol writes what is no plain ASCII."""
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
