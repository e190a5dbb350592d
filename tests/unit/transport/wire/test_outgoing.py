"""What leaves: few writes, held back while the client does not read."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

import pytest

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.exchange import NO_RECORD, Answer, ClientGoneError
from geartrain.transport.wire.heads import Terms
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.outgoing import GATHERED, BodyStream, Outgoing
from tests.unit.transport.wire.parts import FakeLoop, FakeTransport, NotingHandler, read_answers

LAST = Terms(keeps_alive=False)
TO_HEAD = Terms(is_head=True)
OLD = Terms(keeps_alive=False, is_modern=False)


class Wire:
    """A sending half."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.transport = FakeTransport()
        self.context = WireContext(NotingHandler(), WireLimits(), cast("asyncio.AbstractEventLoop", self.loop))
        self.outgoing = Outgoing(self.transport, self.context)
        self.ended = 0

    def end(self) -> None:
        self.ended += 1

    def stream(self, terms: Terms) -> BodyStream:
        return self.outgoing.stream(HTTPStatus.OK, ((b"x", b"y"),), terms, record=NO_RECORD, on_end=self.end)

    def take(self) -> bytes:
        self.loop.run()
        sent, self.transport.sent = self.transport.sent, b""
        return sent

    def take_body(self) -> bytes:
        return self.take().partition(b"\r\n\r\n")[2]


def answer(*parts: Buffer, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(status, parts, ((b"x", b"y"),))


@pytest.mark.parametrize("size", [0, 1, GATHERED, GATHERED + 1, 5 * GATHERED])
@pytest.mark.parametrize("count", [1, 3])
def test_a_whole_answer(size: int, count: int) -> None:
    wire = Wire()
    all_parts: tuple[Buffer, ...] = (b"a" * size, memoryview(b"b" * size), bytearray(b"c" * size))
    parts = all_parts[:count]
    wire.outgoing.answer(answer(*parts), Terms(), NO_RECORD)
    (received,) = read_answers(wire.transport.sent)
    assert received.body == b"".join(parts)
    assert received.headers["content-length"] == str(size * count)
    assert "connection" not in received.headers
    assert (wire.transport.writes == 1) == (size * count <= GATHERED), "small ones leave at once, and in one piece"


@pytest.mark.parametrize(("terms", "is_last"), [(LAST, False), (OLD, False), (Terms(), True)])
def test_the_last_answer_says_so(terms: Terms, *, is_last: bool) -> None:
    wire = Wire()
    wire.outgoing.answer(answer(b"a"), terms, NO_RECORD, is_last=is_last)
    assert read_answers(wire.transport.sent)[0].headers["connection"] == "close"


def test_while_the_server_ends_every_answer_is_the_last() -> None:
    wire = Wire()
    wire.context.is_draining = True
    wire.outgoing.answer(answer(b"a"), Terms(), NO_RECORD)
    assert read_answers(wire.take())[0].headers["connection"] == "close"
    wire.stream(Terms())
    assert b"connection: close" in wire.take()


def test_answers_without_a_body() -> None:
    wire = Wire()
    wire.outgoing.answer(answer(b"abc", b"de"), TO_HEAD, NO_RECORD)
    (received,) = read_answers(wire.take(), to_head=True)
    assert received.headers["content-length"] == "5"
    for status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        wire.outgoing.answer(answer(b"", status=status), Terms(), NO_RECORD)
        (received,) = read_answers(wire.take())
        assert (received.status, "content-length" in received.headers) == (status, False)


async def test_a_stream_in_chunks_leaves_in_few_pieces() -> None:
    wire = Wire()
    stream = wire.stream(Terms())
    await stream.write(b"one")
    await stream.write(b"")
    await stream.write(b"x" * 17)
    assert wire.transport.writes == 0
    sent = wire.take()
    assert b"\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n11\r\n" + b"x" * 17 + b"\r\n" in sent
    assert wire.transport.writes == 1
    stream.end()
    assert wire.ended == 1
    assert wire.take() == b"0\r\n\r\n"
    stream.end()
    assert (wire.ended, wire.take()) == (1, b"")


@pytest.mark.parametrize("size", [GATHERED, GATHERED + 1, 4 * GATHERED])
async def test_large_pieces_do_not_wait_for_the_turn(size: int) -> None:
    wire = Wire()
    stream = wire.stream(Terms())
    await stream.write(b"x" * size)
    assert wire.transport.sent.endswith(b"%x\r\n" % size + b"x" * size + (b"\r\n" if size <= GATHERED else b""))
    assert wire.take_body() == b"%x\r\n" % size + b"x" * size + b"\r\n"


async def test_a_stream_to_an_old_client_ends_with_its_connection() -> None:
    wire = Wire()
    stream = wire.stream(OLD)
    await stream.write(b"one")
    await stream.write(b"two")
    stream.end()
    head, _, body = wire.take().partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"chunked" not in head
    assert b"connection: close" in head


async def test_a_stream_in_answer_to_head_is_silent() -> None:
    wire = Wire()
    stream = wire.stream(TO_HEAD)
    await stream.write(b"one")
    stream.end()
    assert wire.take().endswith(b"\r\n\r\n")
    assert wire.ended == 1


async def test_a_stream_waits_while_its_client_does_not_read() -> None:
    wire = Wire()
    stream = wire.stream(Terms())
    wire.outgoing.pause()
    writing = [asyncio.ensure_future(stream.write(b"x")) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in writing)
    wire.outgoing.resume()
    await asyncio.gather(*writing)


async def test_a_writer_that_was_cancelled_is_no_trouble() -> None:
    wire = Wire()
    stream = wire.stream(Terms())
    wire.outgoing.pause()
    writing = asyncio.ensure_future(stream.write(b"x"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    wire.outgoing.resume()
    assert not wire.outgoing.is_paused


async def test_a_stream_learns_that_its_client_has_left() -> None:
    wire = Wire()
    stream = wire.stream(Terms())
    wire.outgoing.pause()
    writing = asyncio.ensure_future(stream.write(b"x"))
    await asyncio.sleep(0)
    wire.outgoing.close()
    with pytest.raises(ClientGoneError):
        await writing
    with pytest.raises(ClientGoneError):
        await stream.write(b"y")
    stream.end()
    assert wire.take() == b""


def test_order_of_what_is_gathered_and_what_is_not() -> None:
    wire = Wire()
    wire.outgoing.write(b"one ")
    wire.outgoing.write(b"two ")
    wire.outgoing.write_now(b"three ", (b"four ", memoryview(b"five")))
    assert wire.take() == b"one two three four five"


LARGE = 20 * 1024**2


def test_s13_a_large_answer_leaves_in_pieces() -> None:
    wire = Wire()
    body = bytes(range(256)) * (LARGE // 256)
    wire.outgoing.answer(answer(body), Terms(), NO_RECORD)
    assert len(wire.transport.sent) < LARGE // 2
    wire.outgoing.answer(answer(b"second"), Terms(), NO_RECORD)
    first, second = read_answers(wire.take())
    assert (first.body, second.body) == (body, b"second")


def test_s13_a_large_answer_waits_for_the_client() -> None:
    wire = Wire()
    body = b"a" * LARGE
    wire.outgoing.pause()
    wire.outgoing.answer(answer(body), Terms(), NO_RECORD)
    assert not wire.take()
    assert wire.outgoing.is_behind
    wire.outgoing.resume()
    assert wire.take_body() == body
    assert not wire.outgoing.is_behind


@pytest.mark.parametrize("is_paused", [False, True])
def test_s13_the_end_follows_a_large_answer(is_paused: bool) -> None:
    wire = Wire()
    body = b"a" * LARGE
    ends: list[int] = []
    if is_paused:
        wire.outgoing.pause()
    wire.outgoing.answer(answer(body), LAST, NO_RECORD)
    wire.outgoing.finish(lambda: ends.append(len(wire.transport.sent)))
    assert not ends
    wire.outgoing.resume()
    assert wire.take_body() == body
    assert [size > LARGE for size in ends] == [True]


async def test_s13_the_writer_of_a_stream_waits_for_what_is_held() -> None:
    wire = Wire()
    stream = wire.stream(OLD)
    writing = asyncio.ensure_future(stream.write(b"a" * LARGE))
    await asyncio.sleep(0)
    assert not writing.done()
    assert wire.take_body() == b"a" * LARGE
    await writing


def test_nothing_is_written_after_the_end() -> None:
    wire = Wire()
    wire.outgoing.write(b"one")
    wire.outgoing.finish(wire.transport.close)
    wire.outgoing.write(b"two")
    wire.outgoing.write_now(b"three")
    wire.outgoing.answer(answer(b"four"), Terms(), NO_RECORD)
    assert wire.take() == b"one"
