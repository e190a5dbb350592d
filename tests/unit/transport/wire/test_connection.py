"""A connection, driven by hand: each request gets its own answer, in order, whatever the client does."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

import pytest

from geartrain.transport.wire.exchange import ClientGoneError
from geartrain.transport.wire.http1 import ConnectionState
from geartrain.transport.wire.limits import WireError, WireLimits
from tests.unit.transport.wire.parts import MAX_BODY, HalfExchange, Line, chunked, get, post, read_answers

State = ConnectionState
OK = HTTPStatus.OK
REFUSAL = WireError(HTTPStatus.REQUEST_TIMEOUT, "too slow")


def test_a_connection_begins_and_ends() -> None:
    line = Line()
    assert (line.made, line.closed, line.state) == (1, 0, State.IDLE)
    line.leave()
    assert (line.made, line.closed, line.state) == (1, 1, State.CLOSED)


# requests, one after the other


REQUESTS = [
    post("/echo", b"1"),
    get("/"),
    post("/echo", b"3"),
    chunked("/echo", b"4", b"5"),
    get("/"),
    post("/echo", b"6"),
]
EXPECTED = ["1", '"now"', "3", "45", '"now"', "6"]


def test_pipelined_in_one_piece() -> None:
    line = Line()
    line.send(b"".join(REQUESTS))
    assert line.texts() == EXPECTED
    assert line.state is State.IDLE


@pytest.mark.parametrize("is_known", [False, True])
def test_pipelined_and_cut_anywhere(*, is_known: bool) -> None:
    data = b"".join(REQUESTS)
    for cut in range(1, len(data)):
        line = Line()
        if is_known:
            line.send(data)
            line.take()
        line.send(data[:cut], data[cut:])
        assert line.texts() == EXPECTED, cut


def test_byte_by_byte() -> None:
    line = Line()
    line.send(*(bytes([each]) for each in b"".join(REQUESTS * 2)))
    assert line.texts() == EXPECTED * 2


def test_one_request_at_a_time() -> None:
    line = Line()
    line.send(post("/run", b"1") + post("/run", b"2") + get("/"))
    assert [exchange.bodies for exchange in line.handler.exchanges] == [[b"1"]]
    line.exchange.reply("a")
    assert line.texts() == ['"a"']
    assert [exchange.bodies for exchange in line.handler.exchanges] == [[b"1"], [b"2"]]
    line.exchange.reply("b")
    assert line.texts() == ['"b"', '"now"']


def test_what_is_held_comes_before_what_arrives() -> None:
    """Also in the turn of the loop in which the answer was given, before what is held is read."""
    line = Line()
    smuggled = post("/echo", b"smuggled")
    line.send(smuggled, post("/run", b"1"))
    line.take()
    outer = post("/echo", smuggled)
    line.send(outer[: -len(smuggled)])
    line.exchange.reply("first")
    line.connection.data_received(smuggled)
    assert line.texts() == ['"first"', smuggled.decode()]


def test_what_comes_meanwhile_is_held_up_to_a_bound() -> None:
    line = Line()
    line.send(post("/run", b"1"))
    sent = 0
    while line.reads():
        line.send(get("/") * 100)
        sent += 100
        assert sent < 10_000
    assert len(line.connection.reader.held) < 2 * 65_536
    line.exchange.reply()
    assert len(line.answers()) == sent + 1
    assert line.reads()


def test_a_client_that_does_not_read_is_not_served() -> None:
    line = Line()
    line.send(post("/echo", b"1"))
    line.connection.pause_writing()
    assert not line.reads()
    line.take()
    line.connection.data_received(post("/echo", b"2") + get("/"))  # it was on its way
    assert line.take() == b""
    assert len(line.handler.exchanges) == 1
    line.connection.resume_writing()
    assert line.reads()
    assert line.texts() == ["2", '"now"']


def test_backpressure_between_pipelined_requests() -> None:
    line = Line()
    line.send(post("/run", b"1") + get("/") * 3)
    line.connection.pause_writing()
    line.exchange.reply()
    assert line.texts() == ['"done"']
    line.connection.resume_writing()
    assert line.texts() == ['"now"'] * 3


# known heads


def test_a_known_head_is_not_shown_again() -> None:
    line = Line()
    for number in range(3):
        line.send(post("/echo", b"%d" % number))
    assert line.texts() == ["0", "1", "2"]
    assert len(line.handler.heads) == 1
    other = Line(context=line.context)
    other.send(post("/echo", b"3"))
    assert other.texts() == ["3"]
    assert len(line.handler.heads) == 1, "all connections know it"
    line.send(post("/echo", b"33"))
    assert len(line.handler.heads) == 2, "another length is another head"


def test_a_known_head_with_its_body_cut_anywhere() -> None:
    line = Line()
    request = post("/echo", b"the body")
    line.send(request)
    line.take()
    for cut in range(1, len(request)):
        line.send(request[:cut], request[cut:])
        assert line.texts() == ["the body"]
        line.send(request[:cut], request[cut:] + request)
        assert line.texts() == ["the body"] * 2
        line.send(request + request[:cut], request[cut:])
        assert line.texts() == ["the body"] * 2


@pytest.mark.parametrize(
    "request_",
    [
        post("/echo", b"1", "connection: close"),
        post("/echo", b"1", version="1.0"),
        post("/echo", b"1", "connection: keep-alive", version="1.0"),
        post("/echo", b"1", "expect: 100-continue"),
        chunked("/echo", b"1"),
        post("/parts", b"1"),
        get("/"),
    ],
    ids=lambda data: data.decode().replace("\r\n", "|"),
)
def test_heads_that_are_not_remembered(request_: bytes) -> None:
    line = Line()
    line.send(request_)
    assert not line.context.heads._known
    again = Line(context=line.context)
    again.send(request_)
    assert len(line.handler.heads) == 2


def test_a_known_head_needs_what_is_wrong_with_others_to_be_seen() -> None:
    line = Line()
    line.send(post("/echo", b"1"))
    line.take()
    line.send(post("/echo", b"1").replace(b"host: h", b"host: \0"))
    assert [answer.status for answer in line.answers()] == [400]


# the end of a connection


@pytest.mark.parametrize(
    "request_", [post("/run", b"1", "connection: close"), post("/run", b"1", version="1.0")], ids=["close", "1.0"]
)
def test_the_last_request(request_: bytes) -> None:
    line = Line()
    line.send(request_)
    line.exchange.reply()
    (answer,) = line.answers()
    assert (answer.body, answer.headers["connection"]) == (b'"done"', "close")
    assert (line.is_closed(), line.state) == (True, State.CLOSING)
    line.leave()
    assert line.exchange.abandoned == 0


def test_what_comes_behind_the_last_request_is_thrown_away() -> None:
    line = Line()
    line.send(post("/run", b"1", "connection: close") + post("/run", b"2"))
    line.exchange.reply()
    (answer,) = line.answers()
    assert (answer.body, answer.headers["connection"]) == (b'"done"', "close")
    assert (line.transport.has_eof, line.is_closed(), line.state) == (True, False, State.LINGER)
    line.send(post("/run", b"3"))
    assert len(line.handler.exchanges) == 1
    line.leave()
    assert line.exchange.abandoned == 0


def test_an_older_client_may_keep_its_connection() -> None:
    line = Line()
    for _ in range(2):
        line.send(post("/echo", b"1", "connection: keep-alive", version="1.0"))
    assert line.texts() == ["1", "1"]
    assert not line.is_closed()


def test_while_the_server_ends_an_answer_is_the_last() -> None:
    line = Line()
    line.send(post("/run", b"1"))
    line.context.is_draining = True
    line.exchange.reply()
    assert line.answers()[0].headers["connection"] == "close"
    assert line.is_closed()


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        (b"", State.IDLE),
        (b"POST", State.HEAD),
        (post("/run", b"12")[:-1], State.BODY),
        (post("/", b"12")[:-1], State.DISCARD),
        (b"nonsense\r\n\r\n", State.LINGER),
        (get("/", "connection: close"), State.CLOSING),
    ],
)
def test_a_client_leaves_when_nothing_runs(sent: bytes, state: ConnectionState) -> None:
    line = Line()
    if sent:
        line.send(sent)
    assert line.state is state
    line.leave()
    assert (line.state, line.closed) == (State.CLOSED, 1)
    assert not line.handler.exchanges
    assert line.context.budget.used == 0


def test_a_client_leaves_while_its_request_runs() -> None:
    line = Line()
    line.send(post("/run", b"1") + get("/"))
    line.leave()
    assert line.exchange.abandoned == 1
    line.exchange.reply("late")
    assert line.take() == b""
    assert len(line.handler.heads) == 1, "what it had sent is not served any more"


async def test_a_client_leaves_while_its_body_is_read_in_parts() -> None:
    line = Line()
    line.send(post("/parts", b"12")[:-1])
    (exchange,) = line.handler.parts
    assert line.state is State.PARTS
    line.leave()
    assert exchange.abandoned == 1
    with pytest.raises(ClientGoneError):
        await exchange.body.read()
    exchange.reply("late")
    assert line.take() == b""


def test_a_body_in_parts_is_abandoned_when_the_server_closes() -> None:
    line = Line()
    line.send(post("/parts", b"12")[:-1])
    line.connection.close()
    line.leave()
    assert line.handler.parts[0].abandoned == 1


def test_an_exchange_that_fails_when_its_client_has_left(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    line.send(post("/stubborn", b"1"))
    line.leave()
    assert line.exchange.abandoned == 1
    assert line.closed == 1
    assert caplog.records[0].levelno == logging.ERROR


def test_a_turn_that_comes_after_the_end() -> None:
    line = Line()
    line.send(post("/run", b"1") + get("/"))
    line.exchange.reply()  # what is held would be read in the next turn
    line.connection.connection_lost(None)
    line.loop.run()
    assert len(line.handler.heads) == 1


# answers before the end of a body


@pytest.mark.parametrize("size", [1, 5000, 262_144])
def test_an_early_answer_to_a_short_body_keeps_the_connection(size: int) -> None:
    line = Line()
    body = b"x" * size
    line.send(post("/", body)[:-size])
    assert line.texts() == ['"now"']
    assert line.state is State.DISCARD
    line.send(body[: size // 2], body[size // 2 :] + post("/echo", b"next"))
    assert line.texts() == ["next"]


def test_an_early_answer_to_a_short_body_that_is_there() -> None:
    line = Line()
    line.send((post("/", b"x" * 10) + post("/echo", b"next")) * 2)
    assert line.texts() == ['"now"', "next"] * 2


@pytest.mark.parametrize(
    "request_",
    [
        post("/", b"x" * 262_145)[:1000],
        chunked("/", b"x", end=b""),
        post("/", b"12", "connection: close")[:-1],
        post("/", b"12", version="1.0")[:-1],
        post("/", b"12", "expect: 100-continue")[:-2],
        post("/run", b"x" * (MAX_BODY + 1), "expect: 100-continue")[:200],
    ],
    ids=["long", "chunks", "close", "1.0", "expect", "refused"],
)
def test_an_early_answer_ends_the_connection(request_: bytes) -> None:
    line = Line()
    line.send(request_)
    (answer,) = line.answers()
    assert answer.headers["connection"] == "close"
    assert (line.state, line.transport.has_eof, line.is_closed()) == (State.LINGER, True, False)
    line.send(b"x" * 1_000_000, get("/"))
    assert line.take() == b""
    assert len(line.handler.heads) == 1


def test_without_half_closing_a_client_still_has_time_to_read() -> None:
    line = Line(can_eof=False)
    line.send(b"nonsense\r\n\r\n")
    assert [answer.status for answer in line.answers()] == [400]
    assert (line.state, line.is_closed()) == (State.LINGER, False)


def test_lingering_is_bounded() -> None:
    line = Line()
    line.send(b"nonsense\r\n\r\n", *[b"x" * 1024**2] * 16)
    assert not line.is_closed()
    line.send(b"x")
    assert line.is_closed()
    line.leave()


# sizes


@pytest.mark.parametrize("size", [MAX_BODY, MAX_BODY + 1])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_the_largest_body(size: int, *, in_chunks: bool) -> None:
    line = Line()
    body = b"x" * size
    request = chunked("/echo", body[:1000], body[1000:]) if in_chunks else post("/echo", body)
    line.send(request)
    (answer,) = line.answers()
    if size == MAX_BODY:
        assert (answer.status, len(answer.body), line.state) == (200, size, State.IDLE)
    else:
        assert (answer.status, answer.body) == (413, b'"more than 100000"')
        assert not line.handler.exchanges
        assert line.context.budget.used == 0


def test_chunks_that_grow_too_large_are_refused_at_once() -> None:
    line = Line()
    line.send(chunked("/echo", b"x" * MAX_BODY, b"y", end=b""))
    assert [answer.status for answer in line.answers()] == [413]
    assert line.state is State.LINGER
    line.send(b"5\r\nhello\r\n0\r\n\r\n")
    assert line.take() == b""


@pytest.mark.parametrize("in_chunks", [False, True])
def test_bodies_share_their_memory(*, in_chunks: bool) -> None:
    line = Line(WireLimits(max_buffered_size=1000))
    other = Line(context=line.context)
    body = b"x" * 700
    line.send(post("/run", body)[:-1])
    request = chunked("/echo", body) if in_chunks else post("/echo", body)
    other.send(request[:-10])
    assert not other.reads()
    line.send(b"x")
    assert not other.reads(), "the body is in use while its request runs"
    line.exchange.reply()
    assert other.reads()
    other.send(request[-10:])
    assert other.texts() == [body.decode()]
    assert line.context.budget.used == 0


def test_a_body_that_could_never_be_held() -> None:
    line = Line(WireLimits(max_buffered_size=1000))
    line.send(post("/run", b"x" * 1001)[:-1001])
    (answer,) = line.answers()
    assert answer.status == 503
    assert b"--max-buffered-size" in answer.body


def test_a_body_in_chunks_that_grows_beyond_all_memory() -> None:
    line = Line(WireLimits(max_buffered_size=1000))
    line.send(chunked("/run", b"x" * 900, end=b""))
    assert not line.answers()
    line.send(b"65\r\n" + b"x" * 101)
    (answer,) = line.answers()
    assert answer.status == 503
    assert b"--max-buffered-size" in answer.body
    assert line.context.budget.used == 0


def test_a_client_that_leaves_gives_its_memory_back() -> None:
    line = Line(WireLimits(max_buffered_size=1000))
    other = Line(context=line.context)
    line.send(post("/run", b"x" * 900)[:-1])
    other.send(post("/run", b"x" * 900)[:-1])
    other.leave()
    assert line.context.budget.used == 899
    line.leave()
    assert line.context.budget.used == 0


# expectations


def test_the_body_is_asked_for() -> None:
    line = Line()
    request = post("/echo", b"12", "expect: 100-continue")
    line.send(request[:-2])
    assert line.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.send(b"12")
    assert line.texts() == ["12"]


def test_a_body_that_is_there_is_not_asked_for() -> None:
    line = Line()
    line.send(post("/echo", b"12", "expect: 100-continue") + get("/", "expect: 100-continue"))
    assert line.texts() == ["12", '"now"']


def test_a_body_in_parts_is_asked_for() -> None:
    line = Line()
    line.send(post("/parts", b"12", "expect: 100-continue")[:-2])
    assert line.take() == b"HTTP/1.1 100 Continue\r\n\r\n"


# HEAD


def test_answers_to_head() -> None:
    line = Line()
    line.send(get("/", method="HEAD") + get("/run", method="HEAD"))
    line.exchange.reply("long")
    answers = line.answers(to_head=True)
    assert [answer.headers["content-length"] for answer in answers] == ["5", "6"]
    line.send(get("/"))
    assert line.texts() == ['"now"']


def test_what_follows_a_head_is_answered_by_its_own_terms() -> None:
    line = Line()
    line.send(get("/", method="HEAD"))
    line.take()
    line.send(b"nonsense\r\n\r\n")
    (answer,) = line.answers()
    assert answer.status == 400
    assert b"not valid HTTP" in answer.body


# streams


async def test_a_stream() -> None:
    line = Line()
    line.send(post("/run", b"1") + get("/"))
    stream = line.exchange.responder.open_stream(OK, ((b"content-type", b"text/plain"),))
    await stream.write(b"one")
    sent = line.take()
    assert b"transfer-encoding: chunked" in sent
    assert sent.endswith(b"\r\n\r\n3\r\none\r\n")
    assert line.state is State.RUNNING
    stream.end()
    ended, sent = line.take().split(b"\r\n\r\n", 1)
    assert ended == b"0"
    assert [answer.body for answer in read_answers(sent)] == [b'"now"']


async def test_a_stream_to_an_old_client() -> None:
    line = Line()
    line.send(post("/run", b"1", "connection: keep-alive", version="1.0"))
    stream = line.exchange.responder.open_stream(OK, ())
    await stream.write(b"one")
    stream.end()
    head, _, body = line.take().partition(b"\r\n\r\n")
    assert (b"connection: close" in head, b"chunked" in head, body) == (True, False, b"one")
    assert line.is_closed()


async def test_a_stream_in_answer_to_head() -> None:
    line = Line()
    line.send(get("/run", method="HEAD") + get("/"))
    stream = line.exchange.responder.open_stream(OK, ())
    await stream.write(b"one")
    stream.end()
    _, sent = line.take().split(b"\r\n\r\n", 1)
    assert [answer.body for answer in read_answers(sent)] == [b'"now"']


async def test_a_stream_whose_client_leaves() -> None:
    line = Line()
    line.send(post("/run", b"1"))
    stream = line.exchange.responder.open_stream(OK, ())
    line.connection.pause_writing()
    writing = asyncio.ensure_future(stream.write(b"one"))
    await asyncio.sleep(0)
    line.leave()
    assert line.exchange.abandoned == 1
    with pytest.raises(ClientGoneError):
        await writing
    stream.end()
    assert line.state is State.CLOSED


async def test_a_stream_for_a_client_that_has_left() -> None:
    line = Line()
    line.send(post("/run", b"1"))
    line.leave()
    stream = line.exchange.responder.open_stream(OK, ())
    with pytest.raises(ClientGoneError):
        await stream.write(b"one")
    stream.end()
    assert line.take() == b""


async def test_stream_that_is_broken_off_ends_its_connection() -> None:
    line = Line()
    line.send(post("/run", b"1"))
    stream = line.exchange.responder.open_stream(OK, ())
    await stream.write(b"one")
    stream.abort()
    assert line.transport.is_closing()
    sent = line.take()
    assert b"3\r\none\r\n" in sent
    assert not sent.endswith(b"0\r\n\r\n")
    stream.end()
    stream.abort()
    assert line.take() == b""


async def test_a_stream_and_the_next_request() -> None:
    line = Line()
    line.send(post("/run", b"1"))
    line.exchange.responder.open_stream(OK, ()).end()
    line.take()
    line.send(b"nonsense\r\n\r\n")
    assert [answer.status for answer in line.answers()] == [400], "the stream is over: the next answer is its own"


# bodies in parts


async def test_a_body_in_parts() -> None:
    line = Line()
    line.send(chunked("/parts", b"one", b"two", end=b""))
    (exchange,) = line.handler.parts
    assert [await exchange.body.read() for _ in range(2)] == [b"one", b"two"]
    line.send(b"0\r\n\r\n" + get("/"))
    assert await exchange.body.read() == b""
    assert line.state is State.RUNNING
    exchange.reply()
    assert line.texts() == ['"done"', '"now"']
    line.leave()
    assert exchange.abandoned == 0


async def test_no_body_in_parts() -> None:
    line = Line()
    line.send(post("/parts", b""))
    (exchange,) = line.handler.parts
    assert await exchange.body.read() == b""
    exchange.reply()
    assert line.texts() == ['"done"']
    assert line.state is State.IDLE


async def test_a_body_in_parts_is_read_as_it_is_taken() -> None:
    line = Line()
    line.send(post("/unlimited", b"x" * 700_000)[:300_000])
    (exchange,) = line.handler.parts
    assert not line.reads()
    await exchange.body.read()
    assert line.reads()
    line.connection.data_received(b"x" * 262_144)
    assert not line.reads()
    line.connection.data_received(b"y" * 65_537)  # it was on its way
    assert len(line.connection.reader.held) == 65_537
    await exchange.body.read()
    assert line.connection.reader.held == b""
    assert await exchange.body.read() == b"y" * 65_537


async def test_an_answer_before_the_end_of_a_body_in_parts() -> None:
    line = Line()
    line.send(chunked("/parts", b"one", end=b""))
    (exchange,) = line.handler.parts
    exchange.reply()
    (answer,) = line.answers()
    assert (answer.headers["connection"], line.state) == ("close", State.LINGER)
    with pytest.raises(ClientGoneError):
        await exchange.body.read()
    exchange.reply("again")
    line.send(b"0\r\n\r\n" + get("/"))
    assert line.take() == b""
    line.leave()
    assert exchange.abandoned == 0


async def test_a_stream_before_the_end_of_a_body_in_parts() -> None:
    line = Line()
    line.send(chunked("/parts", b"one", end=b""))
    (exchange,) = line.handler.parts
    stream = exchange.responder.open_stream(OK, ())
    await stream.write(b"a")
    line.send(b"3\r\ntwo\r\n")
    assert [await exchange.body.read() for _ in range(2)] == [b"one", b"two"]
    stream.end()
    sent = line.take()
    assert b"connection: close" in sent
    assert sent.endswith(b"1\r\na\r\n0\r\n\r\n")
    assert line.state is State.LINGER


async def test_a_stream_that_outlasts_a_body_in_parts() -> None:
    line = Line()
    line.send(chunked("/parts", b"one", end=b""))
    stream = line.handler.parts[0].responder.open_stream(OK, ())
    line.send(b"0\r\n\r\n" + get("/"))
    stream.end()
    assert line.take().endswith(b"0\r\n\r\n")
    assert line.state is State.LINGER


async def test_a_body_in_parts_that_is_not_valid() -> None:
    line = Line()
    line.send(chunked("/parts", b"one", end=b"oops\r\n"))
    (exchange,) = line.handler.parts
    assert [answer.status for answer in line.answers()] == [400]
    assert exchange.abandoned == 1
    with pytest.raises(ClientGoneError):
        await exchange.body.read()


async def test_a_body_in_parts_that_breaks_its_answer() -> None:
    line = Line()
    line.send(chunked("/parts", b"one", end=b""))
    (exchange,) = line.handler.parts
    stream = exchange.responder.open_stream(OK, ())
    await stream.write(b"a")
    line.take()
    line.send(b"oops\r\n")
    assert line.transport.is_aborted
    assert line.take() == b"", "no second answer in the first"
    line.leave()
    assert exchange.abandoned == 1


# what fails


@pytest.mark.parametrize("path", ["/fails", "/new-fails", "/receive-fails"])
@pytest.mark.parametrize("body", [b"", b"12"])
def test_a_handler_that_fails(path: str, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    line.send(post(path, body) + post("/echo", b"next"))
    answers = line.answers()
    assert [answer.status for answer in answers] == [500, 200]
    assert answers[0].body == b'{"error":"Internal server error"}'
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("caplog")
def test_a_handler_that_fails_in_the_middle_of_its_answer() -> None:
    line = Line()
    line.send(post("/half", b"1"))
    assert line.transport.is_aborted
    assert line.take().count(b"HTTP/1.1") == 1
    line.leave()
    assert isinstance(line.exchange, HalfExchange)
    assert line.exchange.abandoned == 1


@pytest.mark.usefixtures("caplog")
def test_one_answer_is_all() -> None:
    line = Line()
    line.send(post("/twice", b"1"))
    assert line.texts() == ['"first"']
    line.exchange.reply("third")
    assert line.take() == b""
    line.send(get("/"))
    assert line.texts() == ['"now"']


# refusals


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", 408),
        (b"POST", 408),
        (post("/run", b"12")[:-1], 408),
        (post("/parts", b"12")[:-1], 408),
        (post("/", b"12")[:-1], 0),  # it has its answer
        (b"nonsense\r\n\r\n", 0),
        (get("/", "connection: close"), 0),
    ],
)
def test_refused_in_each_state(sent: bytes, answered: int) -> None:
    line = Line()
    if sent:
        line.send(sent)
    line.take()
    line.connection.refuse(REFUSAL)
    answers = line.answers()
    assert [answer.status for answer in answers] == ([answered] if answered else [])
    if answered:
        assert answers[0].body == b'{"error":"too slow"}'
        assert answers[0].headers["connection"] == "close"
    assert line.state in {State.LINGER, State.CLOSING}
    assert all(exchange.abandoned == 1 for exchange in line.handler.parts)
    line.connection.refuse(REFUSAL)
    assert line.take() == b"", "once is enough"
    line.leave()
    assert all(exchange.abandoned == 1 for exchange in line.handler.parts)


def test_what_is_sent_behind_a_refused_request_is_not_served() -> None:
    line = Line()
    line.send(b"nonsense\r\n\r\n" + get("/"))
    line.send(get("/"))
    assert [answer.status for answer in line.answers()] == [400]
    assert not line.handler.heads
