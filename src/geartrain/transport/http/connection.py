"""A client's connection: uvicorn's protocol on a corked transport, with an express lane for plain predictions.

Most requests are a small POST that wants its prediction's result in one piece. For those the ASGI machinery (a task, an
event, a handful of messages) costs more than the prediction's whole way through the service, so they are answered
from the connection's own callbacks, as the `Lane` says whose URL it is. Everything else, and every request on a uvicorn
that the lanes do not know, takes the ASGI road; both end in the same endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.http.handlers import JSON, Answer, Call, Lane, NewCall
from geartrain.transport.http.head_cache import AnswerHeads, KnownHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from geartrain.domain.tensors.tensor import Buffer
    from geartrain.transport.http.head_cache import KnownHeads

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
        if len(data) > _CORK:  # to be joined to others it would be copied
            self.write_through(data)
            return
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._size += len(data)
        if self._size > _CORK:
            self._flush()  # so that the transport can say that its client does not keep up

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
        """An answer has been given, and nothing else asked yet."""
        self._idle[connection] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limit / 4, self._sweep)

    def remove(self, connection: Connection) -> None:
        """Something is asked, or the connection is gone."""
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
    """Stands for the `asyncio.Event` that nobody waits for here."""

    def set(self) -> None:
        """Do nothing: nobody waits."""


_NO_EVENT: Final = _NoEvent()


class _Express:
    """What uvicorn's protocol wants to know of the request at hand, for one that never becomes an ASGI call."""

    __slots__ = (
        "body",
        "call",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "new_call",
        "response_complete",
    )

    def __init__(self, new_call: NewCall, *, keep_alive: bool) -> None:
        self.new_call = new_call
        self.call: Call | None = new_call()  # until it is answered: it may hold something large
        self.keep_alive = keep_alive
        self.body = b""
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NO_EVENT


class Connection(HttpToolsProtocol):
    """One client."""

    def __init__(
        self, lanes: Sequence[Lane], sweep: IdleSweep, *, heads: KnownHeads, answers: AnswerHeads, **options: Any
    ) -> None:
        super().__init__(**options)
        self._sweep = sweep
        self._lanes = lanes
        self._express: _Express | None = None  # a plain request whose body is still coming
        self._awaited: _Express | None = None  # one whose prediction is running
        self._corked: CorkedTransport | None = None
        self._heads = heads
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
        if awaited is not None and awaited.call is not None:
            awaited.call.abandon()

    def data_received(self, data: bytes) -> None:
        """Read requests; one whose head is known does without the parser."""
        self._whole = None
        if self._is_between and self._is_idle():
            found = self._heads.find(data)
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
        cycle: Any = _Express(known.new_call, keep_alive=True)
        cycle.body = body
        cycle.more_body = False
        self.cycle = cycle
        self._serve(cycle)

    def on_message_complete(self) -> None:
        """The parser has come to the end of a request."""
        super().on_message_complete()
        self._is_between = True
        whole, self._whole = self._whole, None
        cycle, self._express = self._express, None
        if cycle is not None:
            if whole is not None and cycle.keep_alive:
                self._heads.learn(whole, KnownHead(cycle.new_call, len(cycle.body)))
            self._serve(cycle)

    def shutdown(self) -> None:
        """End the connection; at once if half of a request is there, which would only be refused."""
        cycle: Any = self.cycle
        if cycle is not None and cycle.more_body and not getattr(cycle, "response_started", False):
            self.transport.close()
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        """The parser has met a request. What only the ASGI road needs is made when that road is taken."""
        self._sweep.remove(self)
        self._is_between = False
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """The parser has come to the end of a request's head."""
        # While another one is being answered it waits in the pipeline, and takes the road.
        express = self._enter() if self._is_idle() and self.parser.get_method() == b"POST" else None
        if express is None:
            self._take_the_road()
        else:
            self._express = express
            self.cycle = cast("RequestResponseCycle", express)

    def _enter(self) -> _Express | None:
        if self.expect_100_continue or self.parser.get_http_version() != "1.1":
            return None
        for lane in self._lanes:
            new_call = lane.enter(self.url, self.headers)
            if new_call is not None:
                return _Express(new_call, keep_alive=self.parser.should_keep_alive())
        return None

    def _take_the_road(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # in place: the scope has that list
        super().on_headers_complete()

    def _serve(self, cycle: _Express) -> None:
        call = cycle.call
        if call is None:
            return
        try:
            prediction = call.admit(cycle.body)
        except GeartrainError as error:
            self._answer(cycle, call.refuse(error))
        except Exception:
            logger.exception("an endpoint failed")
            self._answer(cycle, call.refuse(_BUG))
        else:
            self._awaited = cycle
            if prediction.is_terminal:
                self._on_end()
            else:
                prediction.log.listen_for_end(self._on_end)

    def _on_end(self) -> None:
        """The prediction that is awaited is over; there is never more than one."""
        cycle, self._awaited = self._awaited, None
        if cycle is None or cycle.call is None:  # the client has gone
            return
        call = cycle.call
        try:
            answer = call.answer()
        except Exception:
            logger.exception("an endpoint failed")
            answer = call.refuse(_BUG)
        self._answer(cycle, answer)

    def _answer(self, cycle: _Express, answer: Answer) -> None:
        """Write a whole answer, and leave uvicorn's record of it as it would."""
        cycle.response_complete = True
        cycle.call = None
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
