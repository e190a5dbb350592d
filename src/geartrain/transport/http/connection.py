"""A client's connection: uvicorn's protocol on a corked transport, with a direct path for plain predictions.

Most requests are a small POST that wants its prediction's result in one piece. For those the ASGI machinery (a task, an
event, a handful of messages) costs more than the prediction's whole way through the service, so they are answered from
the connection's own callbacks, by the `Handler` of their URL. Everything else, and every request on a uvicorn that the
handlers do not know, goes through ASGI; both end in the same endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.http.handlers import JSON, Answer, Exchange, Handler, NewExchange
from geartrain.transport.http.head_cache import AnswerHeads, KnownHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from geartrain.domain.tensors.tensor import Buffer
    from geartrain.transport.http.head_cache import HeadCache

logger = logging.getLogger(__name__)

_CORK: Final = 65_536  # bytes
_WHOLE: Final = b"%b%d\r\n%b\r\n%b"  # an answer: its head, the length of its body, one more header, its body
_CLOSE: Final = b"connection: close\r\n"
_BUG: Final = GeartrainError(Code.INTERNAL, "Internal server error")


class CorkedTransport:
    """A transport that gathers what is written in one turn of the loop into one system call.

    Head and body of an answer are two writes, and the events of a stream are one each: sent by themselves, every one
    of them wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes] = []
        self._size = 0
        self.abort = transport.abort
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        """Write at the end of this turn of the loop."""
        if len(data) > _CORK:  # too large to be copied
            self.write_through(data)
            return
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._size += len(data)
        if self._size > _CORK:
            self._flush()  # so that the transport can pause its writer

    def write_through(self, data: Buffer) -> None:
        """Write at once what is whole by itself."""
        self._flush()
        self._transport.write(data)

    def close(self) -> None:
        """Write what has been gathered, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._gathered:
            data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
            self._gathered = []
            self._size = 0
            self._transport.write(data)


class IdleSweep:
    """Closes connections that have been idle too long: one timer for all of them, where uvicorn has one for each.

    To make and cancel a timer for every answer costs as much as a small prediction.
    """

    def __init__(self, limit: float) -> None:
        """`limit` in seconds; a connection may stay idle for a quarter more."""
        self._limit = limit
        self._idle: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Connection) -> None:
        """Note that a connection is idle: its answer has been given, and no request has begun."""
        self._idle[connection] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limit / 4, self._sweep)

    def remove(self, connection: Connection) -> None:
        """Note that a connection is not idle any more: a request has begun, or it is closed."""
        self._idle.pop(connection, None)

    def _sweep(self) -> None:
        before = time.monotonic() - self._limit
        for connection, since in tuple(self._idle.items()):
            if since < before:
                del self._idle[connection]
                connection.timeout_keep_alive_handler()
        again = bool(self._idle)
        self._timer = asyncio.get_running_loop().call_later(self._limit / 4, self._sweep) if again else None


class _NoEvent:
    """Stands in for uvicorn's `asyncio.Event`, on which nothing waits here."""

    def set(self) -> None:
        """Do nothing: nobody waits."""


_NO_EVENT: Final = _NoEvent()


class _DirectCycle:
    """What uvicorn's protocol wants to know of the request at hand, for one that never becomes an ASGI call."""

    __slots__ = (
        "body",
        "disconnected",
        "exchange",
        "keep_alive",
        "message_event",
        "more_body",
        "new_exchange",
        "response_complete",
    )

    def __init__(self, new_exchange: NewExchange, *, keep_alive: bool) -> None:
        self.new_exchange = new_exchange
        self.exchange: Exchange | None = new_exchange()  # until it is answered: it may hold something large
        self.keep_alive = keep_alive
        self.body = b""
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NO_EVENT


class Connection(HttpToolsProtocol):
    """The connection of one client."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        sweep: IdleSweep,
        *,
        head_cache: HeadCache,
        answers: AnswerHeads,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._sweep = sweep
        self._handlers = handlers
        self._direct: _DirectCycle | None = None  # a plain request whose body is still coming
        self._awaited: _DirectCycle | None = None  # one whose prediction is running
        self._corked: CorkedTransport | None = None
        self._head_cache = head_cache
        self._answers = answers
        self._is_between = True  # two requests, as the parser sees it
        self._whole: bytes | None = None  # what has come at once since it was

    def connection_made(self, transport: Any) -> None:
        self._corked = CorkedTransport(transport, self.loop)
        super().connection_made(cast("Any", self._corked))

    def connection_lost(self, exc: Exception | None) -> None:
        """Abandon the prediction: a client that has disconnected no longer wants it."""
        self._sweep.remove(self)
        awaited, self._awaited = self._awaited, None
        super().connection_lost(exc)
        if awaited is not None and awaited.exchange is not None:
            awaited.exchange.abandon()

    def data_received(self, data: bytes) -> None:
        """Read requests; one whose head is known does without the parser."""
        self._whole = None
        if self._is_between and self._is_idle():
            found = self._head_cache.find(data)
            if found is not None:
                self._serve_known(*found)
                return
            self._whole = data
        super().data_received(data)

    def _is_idle(self) -> bool:
        """Whether nothing is being answered."""
        before: Any = self.cycle  # None at first, whatever uvicorn's annotation says
        return before is None or before.response_complete

    def _serve_known(self, known: KnownHead, body: bytes) -> None:
        """Serve a request as the parser and its callbacks would."""
        self._sweep.remove(self)
        self._unset_keepalive_if_required()
        cycle: Any = _DirectCycle(known.new_exchange, keep_alive=True)
        cycle.body = body
        cycle.more_body = False
        self.cycle = cycle
        self._serve(cycle)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        super().on_message_complete()
        self._is_between = True
        whole, self._whole = self._whole, None
        cycle, self._direct = self._direct, None
        if cycle is not None:
            if whole is not None and cycle.keep_alive:
                self._head_cache.learn(whole, KnownHead(cycle.new_exchange, len(cycle.body)))
            self._serve(cycle)

    def shutdown(self) -> None:
        """End the connection; at once if half of a request is there, which would only be refused."""
        cycle: Any = self.cycle
        if cycle is not None and cycle.more_body and not getattr(cycle, "response_started", False):
            self.transport.close()
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        """Handle the beginning of a request. What ASGI alone needs is made when the request goes there."""
        self._sweep.remove(self)
        self._is_between = False
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """Handle the end of a request's head."""
        # While another one is being answered it waits in the pipeline, and goes through ASGI.
        direct = self._enter() if self._is_idle() and self.parser.get_method() == b"POST" else None
        if direct is None:
            self._use_asgi()
        else:
            self._direct = direct
            self.cycle = cast("RequestResponseCycle", direct)

    def _enter(self) -> _DirectCycle | None:
        if self.expect_100_continue or self.parser.get_http_version() != "1.1":
            return None
        for handler in self._handlers:
            new_exchange = handler.enter(self.url, self.headers)
            if new_exchange is not None:
                return _DirectCycle(new_exchange, keep_alive=self.parser.should_keep_alive())
        return None

    def _use_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # in place: the scope has that list
        super().on_headers_complete()

    def _serve(self, cycle: _DirectCycle) -> None:
        exchange = cycle.exchange
        if exchange is None:
            return
        try:
            prediction = exchange.admit(cycle.body)
        except GeartrainError as error:
            self._answer(cycle, exchange.refuse(error))
        except Exception:
            logger.exception("an endpoint failed")
            self._answer(cycle, exchange.refuse(_BUG))
        else:
            self._awaited = cycle
            if prediction.is_terminal:
                self._on_end()
            else:
                prediction.log.listen_for_end(self._on_end)

    def _on_end(self) -> None:
        """Answer the request whose prediction has ended; there is never more than one."""
        cycle, self._awaited = self._awaited, None
        if cycle is None or cycle.exchange is None:  # the client has gone
            return
        exchange = cycle.exchange
        try:
            answer = exchange.answer()
        except Exception:
            logger.exception("an endpoint failed")
            answer = exchange.refuse(_BUG)
        self._answer(cycle, answer)

    def _answer(self, cycle: _DirectCycle, answer: Answer) -> None:
        """Write a whole answer, and leave uvicorn's state as uvicorn would."""
        cycle.response_complete = True
        cycle.exchange = None
        cycle.body = b""
        first, *more = answer.parts
        size = len(first) + sum(map(len, more)) if more else len(first)
        if more and size <= _CORK:
            first, more = b"".join(answer.parts), []
        common = self.server_state.default_headers
        if answer.headers is JSON:
            head = self._answers.of_json(answer.status, common)
        else:
            head = self._answers.of(answer.status, common, answer.headers)
        if self._corked is not None:
            closing = b"" if cycle.keep_alive else _CLOSE
            self._corked.write_through(_WHOLE % (head, size, closing, first))
            for part in more:
                self._corked.write_through(part)
        if not cycle.keep_alive:
            self.transport.close()
        if self.pipeline or self.transport.is_closing():
            self.on_response_complete()
        else:  # the same, but for its timer
            self.server_state.total_requests += 1
            if self.flow.read_paused:
                self.flow.resume_reading()
            self._sweep.add(self)
