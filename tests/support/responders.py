"""The side of the wire, without a socket: requests for a `Handler`, and a `Responder` that keeps what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, cast

import msgspec

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.records import NOBODY, RequestRecord, RequestRecords
from geartrain.transport.wire.exchange import (
    Accepted,
    Answer,
    AnswerStream,
    Body,
    ClientGoneError,
    Exchange,
    Handler,
    Head,
    Headers,
    Record,
)
from geartrain.transport.wire.outgoing import UNREADABLE

LIMIT: Final = 40.0  # seconds


class Changes:
    """Lets a test wait until something is so. There is one waiter at a time."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()

    def note(self) -> None:
        self._happened.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                self._happened.clear()
                await self._happened.wait()


class FakeStream:
    """An `AnswerStream` whose client reads all, until it is told not to."""

    def __init__(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.status = status
        self.headers = dict(headers)
        self.pieces: list[bytes] = []
        self.is_ended = False
        self.is_aborted = False
        self._is_read = asyncio.Event()
        self._is_read.set()
        self._has_left = False
        self._changes = Changes()

    async def write(self, data: bytes) -> None:
        """See `AnswerStream`."""
        await self._is_read.wait()
        if self._has_left:
            raise ClientGoneError
        self.pieces.append(data)
        self._changes.note()

    def end(self) -> None:
        """See `AnswerStream`."""
        assert not self.is_ended, "it has ended already"
        self.is_ended = True
        self._changes.note()

    def abort(self) -> None:
        """See `AnswerStream`."""
        self.is_aborted = True
        self._changes.note()

    def stop_reading(self) -> None:
        """Let writes wait from now on."""
        self._is_read.clear()

    def go_on_reading(self) -> None:
        """Let them through again."""
        self._is_read.set()

    def hang_up(self) -> None:
        """Fail writes, those that wait and all later ones."""
        self._has_left = True
        self._is_read.set()

    async def piece(self, index: int) -> bytes:
        """Wait for a piece of the body."""
        await self._changes.until(lambda: len(self.pieces) > index)
        return self.pieces[index]

    async def body(self) -> bytes:
        """Wait for the end; return the body."""
        await self._changes.until(lambda: self.is_ended)
        return b"".join(self.pieces)


class FakeResponder:
    """A `Responder` that keeps the one answer to its request."""

    def __init__(self) -> None:
        self.record: Record = new_record()
        self.answers: list[Answer] = []
        self.streams: list[FakeStream] = []
        self._changes = Changes()

    def respond(self, answer: Answer) -> None:
        """See `Responder`."""
        assert not self.streams, "a stream has begun"
        assert not self.answers, "there is an answer already"
        self.answers.append(answer)
        self._changes.note()

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> AnswerStream:
        """See `Responder`."""
        assert not self.streams, "a stream has begun"
        assert not self.answers, "there is an answer already"
        self.streams.append(FakeStream(status, headers))
        self._changes.note()
        return self.streams[0]

    async def answer(self) -> Answer:
        """Wait for the whole answer."""
        await self._changes.until(lambda: bool(self.answers))
        return self.answers[0]

    async def stream(self) -> FakeStream:
        """Wait for the head of a stream."""
        await self._changes.until(lambda: bool(self.streams))
        return self.streams[0]


class Sent(msgspec.Struct):
    """A request that has been handed over as a whole."""

    exchange: Exchange
    responder: FakeResponder


def new_record(head: Head = UNREADABLE) -> RequestRecord:
    """Return the record of a request, of which nobody hears."""
    return cast("RequestRecord", RequestRecords(NOBODY).of(head)("192.0.2.1:999"))


def head_of(method: str, path: str, body: Body = b"", *, headers: Headers = ()) -> Head:
    """Return the head of a request."""
    raw, _, query = path.encode().partition(b"?")
    return Head(method, raw, query, headers, len(body))


def accept(handler: Handler, head: Head) -> Accepted:
    """Have a request accepted."""
    decision = handler.begin(head)
    assert isinstance(decision, Accepted), decision
    return decision


def send(handler: Handler, method: str, path: str, *, body: Body = b"", headers: Headers = ()) -> Sent:
    """Send a request that is accepted."""
    responder = FakeResponder()
    exchange = accept(handler, head_of(method, path, body, headers=headers)).new_exchange(responder)
    exchange.receive(body)
    return Sent(exchange, responder)


async def ask(handler: Handler, method: str, path: str, *, body: Body = b"", headers: Headers = ()) -> Answer:
    """Return the answer to a request, whoever gives it; a body that is too large is refused as a wire does."""
    decision = handler.begin(head_of(method, path, body, headers=headers))
    if isinstance(decision, Answer):
        return decision
    if len(body) > decision.max_body:
        return decision.refuse_size(decision.max_body)
    assert isinstance(decision, Accepted), "a body in pieces"
    responder = FakeResponder()
    decision.new_exchange(responder).receive(body)
    return await responder.answer()


def body_of(answer: Answer) -> bytes:
    """Return the whole body."""
    parts: Sequence[Buffer] = answer.parts
    return b"".join(parts)
