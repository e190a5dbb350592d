"""Calls whose client sends any number of messages: read one after the other, by one task for each call."""

from __future__ import annotations

import abc
import asyncio
from typing import Final, cast

from geartrain.transport.grpc.answers import MessageAnswer
from geartrain.transport.grpc.errors import CallError, status_of
from geartrain.transport.grpc.framing import PREFIX_SIZE, check_flag, inflate, read_prefix, too_large
from geartrain.transport.grpc.heads import CallHead
from geartrain.transport.grpc.status import Status
from geartrain.transport.wire.exchange import Body, BodyReader, ClientGoneError, MessageReader, Responder

SHUTTING_DOWN: Final = "The server is shutting down."
_LONG: Final = 4096  # bytes of a message that takes a turn of its own
BURST: Final = 64  # messages that are there already, after which others have a turn


class StreamingCalls:
    """Those that are open at one server, so that they end when it does."""

    def __init__(self) -> None:
        self._open: set[StreamingCall] = set()
        self._is_closed = False

    def add(self, call: StreamingCall) -> None:
        """Note one that begins; it ends at once if the server does."""
        self._open.add(call)
        if self._is_closed:
            call.close()

    def discard(self, call: StreamingCall) -> None:
        """Forget one that is over."""
        self._open.discard(call)

    def close(self) -> None:
        """Have no further messages read; what runs may end."""
        self._is_closed = True
        for call in tuple(self._open):
            call.close()


class StreamingCall(abc.ABC):
    """One call. See `PartsExchange`.

    It ends when all messages have been read and `is_idle` says that nothing more is owed, when its client has gone,
    when its time is up, or with the status of a fault in how messages are sent.
    """

    def __init__(self, owner: StreamingCalls, head: CallHead, responder: Responder, *, max_message: int) -> None:
        """`max_message`: bytes, `NO_LIMIT` for any."""
        self._owner = owner
        self._head = head
        self._max_message = max_message
        self._status = Status.OK
        self._text = ""
        self._reading: asyncio.Task[None] | None = None  # until all messages have been read, or none will be
        self._is_read = False
        self.answer = MessageAnswer(responder, head.timeout, self._drop_all, mirrors=head.mirrors)

    @abc.abstractmethod
    async def take(self, message: Body, *, mirrors: bool) -> None:
        """Take a message: answer it, or begin to. May wait before the next one is read.

        `mirrors`: it was compressed, and what answers it may be.
        """

    @property
    @abc.abstractmethod
    def is_idle(self) -> bool:
        """True if every message that was taken has been answered."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Drop the unfinished call: it has no reader."""

    # calls of the wire and the server

    def receive(self, body: BodyReader) -> None:
        """Begin to read."""
        reader = cast("MessageReader", body)  # which a request with `Head.has_trailers` has
        self._reading = asyncio.ensure_future(self._read(reader))
        self._reading.add_done_callback(self._on_read)
        self._owner.add(self)

    def abandon(self) -> None:
        """Give up everything: the client has gone."""
        self.answer.close()
        self._drop_all()

    def close(self) -> None:
        """Read no further messages; the server is about to end."""
        if self._reading is not None:
            self._status, self._text = Status.UNAVAILABLE, SHUTTING_DOWN
            self._reading.cancel()

    # inside

    def settle(self) -> None:
        """End the call if nothing more will come of it; to be called when `is_idle` may have become true."""
        if self._is_read and self.is_idle:
            self.answer.finish(self._status, self._text)
            self._owner.discard(self)

    def _drop_all(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._owner.discard(self)
        self.drop()

    def _on_read(self, reading: asyncio.Task[None]) -> None:
        """Go on when all messages have been read, or none will be read any more."""
        self._reading = None  # its exception has frames that refer to this: a cycle
        self._is_read = True
        if not reading.cancelled():
            error = reading.exception()
            if isinstance(error, ClientGoneError):
                self.abandon()
                return
            if isinstance(error, Exception):
                self._drop_all()
                self.answer.finish(*status_of(error))
                return
        self.settle()

    async def _read(self, reader: MessageReader) -> None:
        count = 0
        while True:
            prefix = await reader.gather(PREFIX_SIZE)
            if not prefix:
                return
            message, is_compressed = await self._read_message(reader, prefix)
            await self.take(message, mirrors=is_compressed and self._head.mirrors)
            await self.answer.drained()
            count += 1
            if count % BURST == 0 or len(message) > _LONG:
                await asyncio.sleep(0)

    async def _read_message(self, reader: MessageReader, prefix: Body) -> tuple[Body, bool]:
        """Return a message, decompressed if it has to be, and whether it had to be."""
        if len(prefix) < PREFIX_SIZE:
            raise _cut_off()
        flag, size = read_prefix(prefix)
        check_flag(flag)
        if 0 < self._max_message < size:
            raise too_large(self._max_message)
        message = await reader.gather(size) if size else b""
        if len(message) < size:
            raise _cut_off()
        return (await inflate(message, self._head, self._max_message), True) if flag else (message, False)


def _cut_off() -> CallError:
    return CallError(Status.INTERNAL, "The request ends within a message.")
