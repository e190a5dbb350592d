"""Connections over HTTP/2, with a handler that notes and a client that is not ours (h2)."""

from __future__ import annotations

import asyncio
import gc
from http import HTTPStatus
from typing import Any, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import hyperframe.frame
import pytest

from geartrain.transport.http2.interface import PREFACE
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import NO_RECORD, Answer, ClientGoneError
from geartrain.transport.wire.http2_connection import PING_TIMEOUT
from geartrain.transport.wire.http2_output import HELD, HTTP2_STEPS, STREAM_STEPS, Http2State, StreamState
from geartrain.transport.wire.http2_stream import Http2Stream
from geartrain.transport.wire.limits import LEAST_BODY, LINGER, WireLimits
from geartrain.transport.wire.server import Connections, Sweep
from tests.unit.transport.wire.parts import (
    MAX_BODY,
    FakeLoop,
    FakeTransport,
    Line,
    NotedExchange,
    NotingHandler,
    PartsExchange,
)

HEADERS = hyperframe.frame.HeadersFrame.type
GOAWAY = hyperframe.frame.GoAwayFrame.type
LOOK = 1.0  # seconds between two looks


class Http2Line:
    """A connection over HTTP/2 under a sweep, and the client at its other end."""

    def __init__(self, limits: WireLimits | None = None, *, window: int = 65_535) -> None:
        self.loop = FakeLoop()
        self.handler = NotingHandler()
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.context = WireContext(self.handler, limits or WireLimits(), loop)
        self.connections = Connections(self.context)
        self.sweep = Sweep(self.context, self.connections)
        self.transport = FakeTransport()
        self.connections.expect("a").connection_made(self.transport)
        (first,) = self.connections
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.client.local_settings.initial_window_size = window
        self.client.initiate_connection()
        first.data_received(self.client.data_to_send())
        (self.connection,) = cast("Any", self.connections)
        assert self.transport.protocol is self.connection
        self.events: list[Any] = []
        self.credits = True  # whether the client acknowledges what it gets
        self.take()

    # what the client does

    def flush(self) -> None:
        """Send what the client has written, and read what comes back."""
        data = self.client.data_to_send()
        if data:
            self.connection.data_received(data)
        self.take()

    def take(self) -> None:
        """Read what has been sent."""
        self.loop.run()
        sent, self.transport.sent = self.transport.sent, b""
        for event in self.client.receive_data(sent) if sent else ():
            self.events.append(event)
            if isinstance(event, h2.events.DataReceived) and self.credits and event.flow_controlled_length:
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        data = self.client.data_to_send()
        if data and self.connection.state != Http2State.CLOSED:
            self.connection.data_received(data)
            self.take()

    def request(self, path: str, body: bytes | None = None, *fields: tuple[str, str], method: str = "POST") -> int:
        """Begin a request; with a `body` it is whole."""
        stream = self.client.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "h"), *fields]
        self.client.send_headers(stream, head, end_stream=body == b"")
        if body:
            self.client.send_data(stream, body, end_stream=True)
        self.flush()
        return stream

    def data(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of a body."""
        self.client.send_data(stream, data, end_stream=is_last)
        self.flush()

    # what it has got

    def of(self, stream: int, kind: Any) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind) and event.stream_id == stream]

    def answer(self, stream: int) -> tuple[int, dict[bytes, bytes], bytes]:
        """Return the status, the fields and the body of an answer that is complete."""
        self.take()
        (head,) = self.of(stream, h2.events.ResponseReceived)
        assert self.of(stream, h2.events.StreamEnded)
        fields = dict(head.headers)
        return int(fields.pop(b":status")), fields, self.body(stream)

    def body(self, stream: int) -> bytes:
        self.take()
        return b"".join(event.data for event in self.of(stream, h2.events.DataReceived))

    def reset_code(self, stream: int) -> int:
        self.take()
        (event,) = self.of(stream, h2.events.StreamReset)
        return int(event.error_code)

    def goaway(self) -> h2.events.ConnectionTerminated:
        return next(event for event in self.events if isinstance(event, h2.events.ConnectionTerminated))

    def reads(self) -> bool:
        """Whether the server reads from the connection."""
        return self.transport.is_reading_on

    def has_ended(self) -> bool:
        """Whether the server has said its last."""
        return self.transport.has_eof

    @property
    def exchange(self) -> NotedExchange:
        return self.handler.exchanges[-1]

    @property
    def parts(self) -> PartsExchange:
        return self.handler.parts[-1]


def streams() -> list[Http2Stream]:
    """Return those that are in memory."""
    return [each for each in gc.get_objects() if type(each) is Http2Stream]  # others would say what they are


def frames(line: Http2Line) -> list[Any]:
    """Return the frames since the last look; h2 itself takes none behind a GOAWAY."""
    line.loop.run()
    sent, line.transport.sent = line.transport.sent, b""
    found = []
    while sent:
        frame, length = hyperframe.frame.Frame.parse_frame_header(memoryview(sent[:9]))
        frame.parse_body(memoryview(sent[9 : 9 + length]))
        found.append(frame)
        sent = sent[9 + length :]
    return found


# the beginning


@pytest.mark.parametrize("cut", [1, 3, 16, 23, 24])
def test_preface_in_pieces_is_the_beginning_of_http2(cut: int) -> None:
    line = Line()
    line.send(PREFACE[:cut])
    if cut < len(PREFACE):
        assert line.switched == []
        line.send(PREFACE[cut:])
    assert line.switched == [PREFACE]


@pytest.mark.parametrize("other", [b"P", b"PR", b"PRI ", b"PRI * HTTP/2.0\r\n"])
def test_what_only_begins_like_the_preface_is_a_request(other: bytes) -> None:
    line = Line()
    line.send(other)
    line.send(b"OST / HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n")
    assert line.switched == []
    (answer,) = line.answers()
    assert answer.status == (200 if other == b"P" else 400)


def test_preface_behind_a_request_is_none() -> None:
    line = Line()
    line.send(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    line.send(PREFACE)
    assert line.switched == []
    assert next(answer.status for answer in line.answers()) == 200


def test_preface_that_does_not_come_is_bounded_in_time() -> None:
    line = Http2Line(WireLimits(head_timeout=10))
    transport = FakeTransport()
    waiting = line.connections.expect("b")
    waiting.connection_made(transport)
    waiting.data_received(PREFACE[:10])
    line.loop.advance(9)
    assert transport.sent == b""
    line.loop.advance(4)
    assert transport.sent.startswith(b"HTTP/1.1 408")


# requests and answers


def test_request_is_answered() -> None:
    line = Http2Line()
    stream = line.request("/run?a=b", b"body", ("x-name", "value"))
    assert line.exchange.bodies == [b"body"]
    head = line.handler.heads[-1]
    assert (head.method, head.path, head.query, head.has_trailers) == ("POST", b"/run", b"a=b", True)
    assert head.header(b"host") == b"h"
    assert head.header(b"x-name") == b"value"
    line.exchange.reply("hello")
    status, fields, body = line.answer(stream)
    assert (status, body) == (200, b'"hello"')
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"content-length"] == b"7"
    assert fields[b"date"].endswith(b"GMT")
    assert not line.connection.streams


def test_requests_do_not_wait_for_each_other() -> None:
    line = Http2Line()
    first, second = line.request("/run", b"a"), line.request("/run", b"b")
    one, two = line.handler.exchanges
    two.reply("second")
    assert line.answer(second)[2] == b'"second"'
    assert not line.of(first, h2.events.ResponseReceived)
    one.reply("first")
    assert line.answer(first)[2] == b'"first"'


def test_head_that_comes_again_is_decided_once() -> None:
    line = Http2Line()
    for _ in range(5):
        line.answer(line.request("/echo", b"x"))
    count = len(line.handler.heads)
    assert count < 5, "a head is known once it comes as the same bytes"
    line.answer(line.request("/echo", b"x"))
    assert len(line.handler.heads) == count
    line.context.heads.clear()
    line.answer(line.request("/echo", b"x"))
    assert len(line.handler.heads) == count + 1


def test_request_without_a_body_and_an_answer_without_an_exchange() -> None:
    line = Http2Line()
    assert line.answer(line.request("/", b"", method="GET"))[::2] == (200, b'"now"')
    assert line.answer(line.request("/echo", b""))[::2] == (200, b"")


def test_answer_to_head_has_no_body() -> None:
    line = Http2Line()
    status, fields, body = line.answer(line.request("/", b"", method="HEAD"))
    assert (status, fields[b"content-length"], body) == (200, b"5", b"")


def test_answer_with_trailers_has_no_length() -> None:
    line = Http2Line()
    stream = line.request("/run", b"x")
    answer = Answer(HTTPStatus.OK, (b"ab", b"cd"), ((b"content-type", b"application/grpc"),), ((b"grpc-status", b"0"),))
    line.exchange.responder.respond(answer)
    _, fields, body = line.answer(stream)
    assert (b"content-length" in fields, body) == (False, b"abcd")
    (trailers,) = line.of(stream, h2.events.TrailersReceived)
    assert trailers.headers == [(b"grpc-status", b"0")]


def test_answer_that_is_a_head_alone() -> None:
    line = Http2Line()
    stream = line.request("/run", b"x")
    line.exchange.responder.respond(Answer(HTTPStatus.OK, (), ((b"grpc-status", b"12"),)))
    status, fields, body = line.answer(stream)
    assert (status, fields, body) == (200, {b"grpc-status": b"12"}, b"")


def test_body_in_frames_is_gathered_and_counted() -> None:
    line = Http2Line()
    stream = line.request("/run")
    line.data(stream, b"ab")
    assert line.context.budget.used == 2
    line.data(stream, b"cd")
    line.data(stream, b"", is_last=True)
    assert line.exchange.bodies == [b"abcd"]
    line.exchange.reply()
    assert line.answer(stream)[0] == 200
    assert line.context.budget.used == 0


def test_a_request_that_is_over_is_in_no_circle() -> None:
    """Its body and its prediction would stay in memory until the next collection."""
    line = Http2Line()
    gc.collect()
    before = streams()
    gc.disable()
    try:
        stream = line.request("/run")
        line.data(stream, b"ab")
        line.data(stream, b"cd", is_last=True)
        line.exchange.reply()
        assert line.answer(stream)[0] == 200
        line.handler.exchanges.clear()
        assert len(streams()) == len(before)
    finally:
        gc.enable()


def test_large_body_gets_credit_as_it_comes() -> None:
    line = Http2Line()
    stream = line.request("/run")
    for _ in range(9):
        line.data(stream, b"x" * 10_000)
    line.data(stream, b"", is_last=True)
    assert line.exchange.bodies == [b"x" * 90_000]


@pytest.mark.parametrize("fields", [(), (("content-length", str(MAX_BODY + 1)),)])
def test_body_beyond_the_limit_is_refused_early(fields: tuple[tuple[str, str], ...]) -> None:
    line = Http2Line()
    stream = line.request("/run", None, *fields)
    if not fields:
        for _ in range(11):
            line.data(stream, b"x" * 10_000)
    status, _, body = line.answer(stream)
    assert (status, body) == (413, f'"more than {MAX_BODY}"'.encode())
    assert line.reset_code(stream) == h2.errors.ErrorCodes.NO_ERROR
    assert not line.handler.exchanges
    assert line.context.budget.used == 0


def test_body_that_never_fits_into_memory() -> None:
    line = Http2Line(WireLimits(max_buffered_size=70_000))
    status, _, body = line.answer(line.request("/run", None, ("content-length", "80000")))
    assert status == 503
    assert b"--max-buffered-size" in body


def test_expectation_is_answered_when_the_body_is_wanted() -> None:
    line = Http2Line()
    fields = (("expect", "100-continue"), ("content-length", "1"))
    stream = line.request("/run", None, *fields)
    (event,) = line.of(stream, h2.events.InformationalResponseReceived)
    assert dict(event.headers)[b":status"] == b"100"
    line.data(stream, b"x", is_last=True)
    line.exchange.reply()
    assert line.answer(stream)[0] == 200
    refused = line.request("/", None, *fields)
    assert line.answer(refused)[0] == 200
    assert not line.of(refused, h2.events.InformationalResponseReceived)


@pytest.mark.parametrize("path", ["/fails", "/new-fails", "/receive-fails"])
def test_failing_handler_is_500(path: str) -> None:
    line = Http2Line()
    assert line.answer(line.request(path, b"x"))[0] == 500
    assert line.answer(line.request("/echo", b"x"))[0] == 200


def test_handler_that_fails_within_its_answer_resets_the_stream() -> None:
    line = Http2Line()
    assert line.reset_code(line.request("/half", b"x")) == h2.errors.ErrorCodes.INTERNAL_ERROR
    assert line.answer(line.request("/twice", b"x"))[2] == b'"first"'


# bodies in parts, and in both directions


async def test_body_in_parts_is_read_as_it_comes() -> None:
    line = Http2Line()
    stream = line.request("/parts")
    line.data(stream, b"ab")
    assert await line.parts.body.read() == b"ab"
    reading = asyncio.ensure_future(line.parts.body.read())
    await asyncio.sleep(0)
    line.data(stream, b"cd", is_last=True)
    assert await reading == b"cd"
    assert await line.parts.body.read() == b""
    line.parts.reply()
    assert line.answer(stream)[0] == 200


async def test_client_is_not_let_send_more_than_its_reader_takes() -> None:
    line = Http2Line()
    stream = line.request("/unlimited")
    sent = 0
    while sent < 5 * 1024**2 and (room := line.client.local_flow_control_window(stream)):
        size = min(room, line.client.max_outbound_frame_size)
        line.data(stream, b"x" * size)
        sent += size
    assert sent < 5 * 1024**2, "the window is spent"
    taken = 0
    while taken < sent:
        taken += len(await line.parts.body.read())
    line.take()
    assert line.client.local_flow_control_window(stream) > 1024**2


async def test_conversation() -> None:
    line = Http2Line()
    stream = line.request("/talk")
    reader: Any = line.parts.body
    answer: Any = line.parts.responder.open_stream(HTTPStatus.OK, ((b"content-type", b"application/grpc"),))
    line.data(stream, b"abc")
    assert await reader.gather(2) == b"ab"
    answer.send(b"A", b"B")
    assert line.body(stream) == b"AB"
    line.data(stream, b"d")
    assert await reader.gather(2) == b"cd"
    await answer.write(b"C")
    answer.end(((b"grpc-status", b"0"),))
    assert line.body(stream) == b"ABC"
    assert line.of(stream, h2.events.TrailersReceived)
    assert line.reset_code(stream) == h2.errors.ErrorCodes.NO_ERROR  # nobody reads what would still come
    with pytest.raises(ClientGoneError):
        await reader.gather(1)
    assert not line.connection.streams


async def test_answer_that_is_broken_off_resets_its_stream() -> None:
    line = Http2Line()
    stream = line.request("/run", b"x")
    answer: Any = line.exchange.responder.open_stream(HTTPStatus.OK, ())
    await answer.write(b"one")
    answer.abort()
    assert line.reset_code(stream) == h2.errors.ErrorCodes.INTERNAL_ERROR
    answer.abort()
    assert not line.connection.streams


async def test_writer_waits_for_the_window_of_its_client() -> None:
    line = Http2Line()
    line.credits = False
    stream = line.request("/run", b"x")
    answer: Any = line.exchange.responder.open_stream(HTTPStatus.OK, ())
    size = 65_535 + HELD
    first = asyncio.ensure_future(answer.write(bytes(size)))
    await asyncio.sleep(0)
    line.take()
    await first
    writing = asyncio.ensure_future(answer.write(b"more"))
    for _ in range(3):
        await asyncio.sleep(0)
        line.take()
    assert not writing.done()
    line.client.increment_flow_control_window(1000)
    line.client.increment_flow_control_window(1000, stream)
    line.flush()
    await writing
    answer.end()


async def test_writer_is_told_of_a_client_that_has_gone() -> None:
    line = Http2Line()
    line.credits = False
    stream = line.request("/run", b"x")
    answer: Any = line.exchange.responder.open_stream(HTTPStatus.OK, ())
    writing = asyncio.ensure_future(answer.write(bytes(1_000_000)))
    await asyncio.sleep(0)
    line.client.reset_stream(stream)
    line.flush()
    with pytest.raises(ClientGoneError):
        await writing
    assert line.exchange.abandoned == 1
    with pytest.raises(ClientGoneError):
        await answer.write(b"x")
    answer.send(b"x")
    answer.end()


async def test_client_that_does_not_read_its_socket_is_not_served() -> None:
    line = Http2Line()
    stream = line.request("/run", b"x")
    line.connection.pause_writing()
    assert not line.reads()
    line.exchange.reply("late")
    line.loop.run()
    assert line.transport.sent == b""
    line.connection.resume_writing()
    assert line.reads()
    assert line.answer(stream)[2] == b'"late"'


# the end


@pytest.mark.parametrize("path", ["/run", "/stubborn"])
def test_reset_abandons_the_request(path: str) -> None:
    line = Http2Line()
    stream = line.request(path, b"x")
    line.client.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
    line.flush()
    assert line.exchange.abandoned == 1
    line.exchange.reply()
    assert not line.of(stream, h2.events.ResponseReceived)
    assert line.answer(line.request("/echo", b"x"))[0] == 200


async def test_lost_connection_abandons_all() -> None:
    line = Http2Line()
    line.request("/run", b"x")
    line.request("/parts")
    line.request("/run")
    reading = asyncio.ensure_future(line.parts.body.read())
    await asyncio.sleep(0)
    line.connection.connection_lost(None)
    assert line.exchange.abandoned == 1
    assert line.parts.abandoned == 1
    with pytest.raises(ClientGoneError):
        await reading
    assert not tuple(line.connections)
    assert line.context.budget.used == 0


def test_broken_protocol_ends_the_connection() -> None:
    line = Http2Line()
    line.request("/run", b"x")
    line.connection.data_received(b"\0\0\1\6\0\0\0\0\0x")  # a PING of one byte
    line.take()
    assert line.goaway().error_code == h2.errors.ErrorCodes.FRAME_SIZE_ERROR
    assert line.exchange.abandoned == 1
    assert line.has_ended()
    line.connection.data_received(b"more")
    line.loop.advance(LINGER + 3 * LOOK)
    assert line.transport.is_aborted


def test_draining_gives_every_answer_that_is_owed() -> None:
    line = Http2Line()
    line.request("/run", b"x")
    line.connection.drain()
    goaway, ping = frames(line)
    assert (goaway.type, goaway.last_stream_id, goaway.error_code) == (GOAWAY, 2**31 - 1, 0)
    answer = hyperframe.frame.PingFrame(0, ping.opaque_data, flags=["ACK"])
    line.connection.data_received(answer.serialize())
    (last,) = frames(line)
    assert (last.type, last.last_stream_id) == (GOAWAY, 1)
    assert not line.has_ended()
    line.exchange.reply("last")
    head, data, *_ = frames(line)
    assert (head.type, data.data, data.flags) == (HEADERS, b'"last"', {"END_STREAM"})
    assert line.has_ended()


def test_draining_does_not_wait_for_a_client_that_says_nothing() -> None:
    line = Http2Line()
    line.context.is_draining = True
    line.connection.drain()  # and its ping is never answered
    line.loop.run()
    line.loop.advance(LINGER + 3 * LOOK)
    assert line.has_ended()
    line.loop.advance(LINGER + 3 * LOOK)
    assert line.transport.is_aborted


def test_server_that_ends_does_not_wait_for_an_idle_client() -> None:
    line = Http2Line()
    line.request("/echo", b"x")
    line.take()
    line.context.is_draining = line.context.is_closed = True
    line.connection.drain()
    assert line.transport.is_closed
    assert line.connection.state is Http2State.CLOSING
    (goaway,) = frames(line)
    assert (goaway.type, goaway.last_stream_id, goaway.error_code) == (GOAWAY, 1, 0)


def test_server_that_ends_does_not_wait_for_an_idle_client_that_was_told_to_leave() -> None:
    line = Http2Line()
    line.context.is_draining = True
    line.connection.drain()
    line.loop.run()
    assert not line.transport.is_closed
    line.context.is_closed = True
    line.connection.drain()
    assert line.transport.is_closed


def test_server_that_ends_aborts_an_idle_connection_of_tls_that_has_been_told() -> None:
    line = Http2Line()
    line.transport._extra["ssl_object"] = ChosenH2()  # type: ignore[attr-defined] # where `asyncio` keeps them
    line.context.is_draining = line.context.is_closed = True
    line.connection.drain()
    assert line.transport.is_closed
    assert not line.transport.is_aborted
    line.loop.run()
    assert line.transport.is_aborted


def test_server_that_ends_still_reads_from_a_client_whose_body_was_not_wanted() -> None:
    """A reset of the connection would take the answer from it."""
    line = Http2Line(WireLimits(body_timeout=10, idle_timeout=0))
    stream = line.request("/run")
    line.data(stream, b"x")
    line.loop.advance(10 + 2 * LOOK)
    assert line.answer(stream)[0] == 408
    line.context.is_draining = line.context.is_closed = True
    line.connection.drain()
    assert not line.transport.is_closed
    assert not line.transport.is_aborted


def test_server_that_ends_waits_for_a_head_that_is_coming() -> None:
    line = Http2Line()
    line.connection.data_received(b"\0\0\4\1\0\0\0\0\1\x82")
    line.context.is_draining = line.context.is_closed = True
    line.connection.drain()
    assert not line.transport.is_closed


# time


def test_idle_connection_is_ended() -> None:
    line = Http2Line(WireLimits(idle_timeout=50))
    line.loop.advance(48)
    line.request("/echo", b"x")
    line.loop.advance(48)
    assert not line.has_ended()
    line.loop.advance(2 + 2 * LOOK)
    line.take()
    assert line.has_ended()
    assert line.goaway().error_code == h2.errors.ErrorCodes.NO_ERROR


def test_silent_client_with_requests_has_to_answer_a_ping() -> None:
    line = Http2Line(WireLimits(idle_timeout=50))
    line.request("/run", b"x")
    for _ in range(3):
        line.loop.advance(50 + 2 * LOOK)
        line.take()  # its client answers the ping
    assert not line.transport.is_aborted
    line.loop.advance(50 + PING_TIMEOUT + 3 * LOOK)
    assert line.transport.is_aborted


def test_slow_head_ends_the_connection() -> None:
    line = Http2Line(WireLimits(head_timeout=10))
    line.connection.data_received(b"\0\0\4\1\0\0\0\0\1\x82\x86\x84\x41")  # HEADERS that are to be continued
    line.loop.advance(9)
    assert not line.has_ended()
    line.loop.advance(1 + 2 * LOOK)
    assert line.has_ended()


def test_slow_body_is_408_and_a_conversation_may_take_its_time() -> None:
    line = Http2Line(WireLimits(body_timeout=10, idle_timeout=0))
    slow, talk = line.request("/run"), line.request("/talk")
    line.data(slow, b"x" * LEAST_BODY)
    line.loop.advance(10 + 2 * LOOK)
    assert not line.of(slow, h2.events.ResponseReceived)
    line.loop.advance(10 + 2 * LOOK)
    status, _, body = line.answer(slow)
    assert status == 408
    assert b"--body-timeout" in body
    line.loop.advance(100)
    line.take()
    assert not line.of(talk, h2.events.StreamReset)
    assert talk in line.connection.streams


def test_body_that_waits_for_memory_is_503() -> None:
    line = Http2Line(WireLimits(body_timeout=10, max_buffered_size=50_000, idle_timeout=0))
    line.context.budget.take(45_000)
    stream = line.request("/run")
    line.data(stream, b"x" * 10_000)
    line.loop.advance(10 + 2 * LOOK)
    assert line.answer(stream)[0] == 503
    assert line.context.budget.used == 45_000


def test_answer_of_which_nothing_is_taken_is_given_up() -> None:
    line = Http2Line(WireLimits(send_timeout=10, idle_timeout=0))
    line.credits = False
    stream = line.request("/run", b"x")
    line.exchange.responder.respond(Answer(HTTPStatus.OK, (bytes(100_000),)))
    line.loop.advance(9)
    line.take()
    assert not line.of(stream, h2.events.StreamReset)
    line.loop.advance(1 + 3 * LOOK)
    assert line.reset_code(stream) == h2.errors.ErrorCodes.CANCEL
    assert line.connection.codec.stream_count == 0


def test_client_that_takes_nothing_of_what_is_written_is_aborted() -> None:
    line = Http2Line(WireLimits(send_timeout=10, idle_timeout=0))
    line.transport.unsent = 100
    line.loop.advance(10 + 3 * LOOK)
    assert line.transport.is_aborted


# the limits of connections


def test_connection_beyond_the_limit_is_told_so() -> None:
    line = Http2Line(WireLimits(max_connections=1))
    transport = FakeTransport()
    refused = line.connections.expect("b")
    refused.connection_made(transport)
    assert transport.sent.startswith(b"HTTP/1.1 503")  # in clear text nobody knows what it would have spoken


class ChosenH2:
    """What a transport tells of TLS when ALPN has chosen HTTP/2."""

    def selected_alpn_protocol(self) -> str:
        return "h2"


def test_connection_beyond_the_limit_that_has_chosen_h2_is_told_so_there() -> None:
    line = Http2Line(WireLimits(max_connections=1))
    transport = FakeTransport(tls=ChosenH2())
    line.connections.expect("b").connection_made(transport)
    client = h2.connection.H2Connection()
    client.initiate_connection()
    (goaway,) = [
        event for event in client.receive_data(transport.sent) if isinstance(event, h2.events.ConnectionTerminated)
    ]
    assert goaway.error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert b"--max-connections" in (goaway.additional_data or b"")
    assert transport.has_eof


@pytest.mark.parametrize("wanted", list(Http2State))
@pytest.mark.parametrize("state", list(Http2State))
def test_every_pair_of_states_of_a_connection(state: Http2State, wanted: Http2State) -> None:
    connection = Http2Line().connection
    connection.state = state
    if wanted in HTTP2_STEPS[state]:
        connection._step(wanted)
        assert connection.state is wanted
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {state} to {wanted}"):
            connection._step(wanted)


@pytest.mark.parametrize("wanted", list(StreamState))
@pytest.mark.parametrize("state", list(StreamState))
def test_every_pair_of_states_of_a_stream(state: StreamState, wanted: StreamState) -> None:
    stream = Http2Stream(Http2Line().connection, 1, record=NO_RECORD, is_head=False)
    stream.state = state
    if wanted in STREAM_STEPS[state]:
        stream.step(wanted)
        assert stream.state is wanted
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {state} to {wanted}"):
            stream.step(wanted)


def test_tables_are_whole() -> None:
    assert set(HTTP2_STEPS) == set(Http2State)
    assert set(STREAM_STEPS) == set(StreamState)
