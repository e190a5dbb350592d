"""Bodies in chunks: cut anywhere, every form that is refused, and what bounds them."""

from __future__ import annotations

import pytest

from geartrain.transport.wire.bodies import CHUNK_STEPS, ChunkReader, ChunkState
from geartrain.transport.wire.limits import MAX_FIELDS, WireError

BODY = b'5\r\nhello\r\nA;name="a;b" ; other\r\n, world...\r\n00\r\nTrailer: x\r\nEmpty:\r\n\r\n'
BEHIND = b"GET / HTTP/1.1\r\n"


def feed(data: bytes, limit: int = 1000) -> tuple[ChunkReader, bytes, int]:
    reader = ChunkReader(limit)
    pieces, taken = reader.feed(data)
    return reader, b"".join(pieces), taken


def feed_all(reader: ChunkReader, *pieces: bytes) -> None:
    for piece in pieces:
        reader.feed(piece)


def refused(data: bytes, limit: int = 1000) -> WireError:
    with pytest.raises(WireError) as caught:
        feed(data, limit)
    return caught.value


def test_whole() -> None:
    reader, body, taken = feed(BODY + BEHIND)
    assert (body, taken, reader.is_complete) == (b"hello, world...", len(BODY), True)
    assert reader.feed(BEHIND) == ([], 0)


@pytest.mark.parametrize("cut", range(1, len(BODY)))
def test_cut_at_every_byte(cut: int) -> None:
    reader, first, taken = feed(BODY[:cut])
    assert (taken, reader.is_complete) == (cut, False)
    pieces, taken = reader.feed(BODY[cut:] + BEHIND)
    assert (first + b"".join(pieces), taken) == (b"hello, world...", len(BODY) - cut)
    assert reader.is_complete


def test_every_step_of_the_table_is_taken_and_no_other() -> None:
    reader = ChunkReader(1000)
    seen: set[tuple[ChunkState, ChunkState]] = set()
    data = BODY + BEHIND
    for index in range(len(data)):
        before = reader.state
        reader.feed(data[index : index + 1])
        seen.add((before, reader.state))
    table = {(state, wanted) for state, steps in CHUNK_STEPS.items() for wanted in steps}
    stays = {(state, state) for state in ChunkState}
    assert seen - stays == table - stays
    assert seen <= table | stays


@pytest.mark.parametrize("state", list(ChunkState))
@pytest.mark.parametrize("wanted", list(ChunkState))
def test_steps(state: ChunkState, wanted: ChunkState) -> None:
    reader = ChunkReader(0)
    reader.state = state
    if wanted in CHUNK_STEPS[state]:
        reader._step(wanted)
        assert reader.state is wanted
    else:
        with pytest.raises(RuntimeError, match="cannot go"):
            reader._step(wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\t\r\nhello\r\n",
        b"5 5\r\nhello\r\n",
        b"5_0\r\n",
        b"5\nhello\r\n",
        b"5\r\r\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5;\x00\r\nhello\r\n",
        b"5;\x7f\r\nhello\r\n",
        b"1" * 16 + b"\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello\r\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhelloX",
        b"5\r\nhello\rX",
        b"5\r\nhello5\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n folded: x\r\n\r\n",
        b"0\r\na b: x\r\n\r\n",
        b"0\r\na : x\r\n\r\n",
        b"0\r\na: x\n\r\n",
        b"0\r\na: \x00\r\n\r\n",
        b"0\r\na: x\ry\r\n\r\n",
        b"0\r\n: x\r\n\r\n",
        b"0\r\n\n",
        b"0\r\n\r\r\n",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    assert refused(data).status == 400
    for cut in range(1, len(data)):
        reader = ChunkReader(1000)
        with pytest.raises(WireError):
            feed_all(reader, data[:cut], data[cut:])


@pytest.mark.parametrize("size", [b"5", b"05", b"000005", b"5;", b"5;a", b"5 ;a=b", b"5\t; a", b"5;\xe4"])
def test_sizes(size: bytes) -> None:
    assert feed(size + b"\r\nhello\r\n0\r\n\r\n")[1] == b"hello"


def test_a_line_is_bounded_before_it_ends() -> None:
    assert feed(b"5;" + b"a" * 1020)[2] == 1022
    assert refused(b"5;" + b"a" * 1023).status == 400
    assert refused(b"0" * 1025).status == 400


def test_extensions_of_all_chunks_are_bounded() -> None:
    chunk = b"1;" + b"a" * 1000 + b"\r\nx\r\n"
    assert feed(chunk * 60)[1] == b"x" * 60
    assert "extensions" in str(refused(chunk * 70))


def test_small_chunks_pay_for_their_lines_with_their_data() -> None:
    assert len(feed(b"1\r\nx\r\n" * 60_000)[1]) == 60_000
    assert refused(b"1\r\nx\r\n" * 70_000).status == 400
    assert feed(b"4\r\nabcd\r\n" * 50_000)[1] == b"abcd" * 50_000


def test_trailers_are_bounded() -> None:
    trailer = b"a: b\r\n"
    most = b"0\r\n" + trailer * MAX_FIELDS + b"\r\n"
    assert feed(most, 0)[0].is_complete
    assert refused(b"0\r\n" + trailer * (MAX_FIELDS + 1) + b"\r\n", 0).status == 431
    assert feed(b"0\r\n" + trailer * 16 + b"\r\n", 98)[0].is_complete
    error = refused(b"0\r\n" + trailer * 17 + b"\r\n", 98)
    assert error.status == 431
    assert "--max-head-size" in str(error)
    assert refused(b"0\r\na: " + b"b" * 100, 98).status == 431, "before the line has ended"
