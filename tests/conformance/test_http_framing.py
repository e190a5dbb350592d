"""Where a request ends (RFC 9112, sections 6 and 7): the bytes that go in, and what may come out.

What two servers in a row could read differently is refused, and nothing behind it is run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.attacks import (
    ECHO,
    LAST,
    MANY,
    SMUGGLED,
    Flood,
    accepted,
    answers_to,
    body,
    error_of,
    framed,
    in_chunks,
    post,
    refused,
    runs,
)
from tests.support.servers import LiveServer, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = body()
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
TE = b"Transfer-Encoding: "
MAX_BODY = 65_536


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ECHO, cog_yaml=MANY, max_body_bytes=MAX_BODY) as server:
        yield server


# Content-Length


async def test_a_body_of_the_announced_length(server: LiveServer) -> None:
    await accepted(server, framed(LENGTH, BODY))


async def test_zeros_before_a_length_are_part_of_the_number(server: LiveServer) -> None:
    await accepted(server, framed(b"Content-Length: 00%d\r\n" % len(BODY), BODY))


async def test_a_request_without_framing_has_no_body(server: LiveServer) -> None:
    await accepted(server, b"POST /predictions HTTP/1.1\r\nHost: localhost\r\n\r\n", "")


@pytest.mark.parametrize(
    "value",
    [
        b"+19", b"-19", b"1_9", b"0x13", b"1 9", b"", b" ", b"19.0", b"1e1", b"19,", b"19;", b"nineteen", b"\xb219",
        b"19\x0b", b"19, 19", b"19, 20", b'"19"',
    ],
)  # fmt: skip
async def test_a_length_that_is_no_number(server: LiveServer, value: bytes) -> None:
    assert len(BODY) == 19
    await refused(server, framed(b"Content-Length: " + value + b"\r\n", BODY))


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 19, 10**40])
async def test_a_length_beyond_all_integers_is_no_small_one(server: LiveServer, value: int) -> None:
    await refused(server, framed(b"Content-Length: %d\r\n" % value, BODY), 400, 413)


@pytest.mark.parametrize("second", [19, 20, 0])
async def test_two_lengths(server: LiveServer, second: int) -> None:
    await refused(server, framed(LENGTH + b"Content-Length: %d\r\n" % second, BODY))


# Transfer-Encoding


async def test_a_body_in_chunks(server: LiveServer) -> None:
    await accepted(server, in_chunks(CHUNKS))


@pytest.mark.parametrize("coding", [b"Chunked", b"CHUNKED", b" chunked "])
async def test_the_name_of_the_coding_has_no_case_and_spaces_around_it(server: LiveServer, coding: bytes) -> None:
    await accepted(server, framed(TE + coding + b"\r\n", CHUNKS))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("content", [BODY, CHUNKS])
async def test_a_length_beside_a_transfer_coding(server: LiveServer, order: int, content: bytes) -> None:
    fields = [LENGTH, TE + b"chunked\r\n"]
    await refused(server, framed(b"".join(fields[::order]), content))


@pytest.mark.parametrize(
    "value",
    [
        b"identity", b"gzip", b"chunked, gzip", b"chunked, identity", b"gzip, chunked", b"chunked, chunked", b"cow",
        b"chunked,", b"xchunked", b"chunkedx", b"chunked;q=1", b'"chunked"', b",chunked", b"chun ked", b"",
        b"[chunked]", b"chunked\x0b", b"\x0bchunked", b"chunked\x00",
    ],
)  # fmt: skip
async def test_another_transfer_coding(server: LiveServer, value: bytes) -> None:
    """501 is for a coding that we do not know (section 6.1), 400 for one that does not tell where the body ends."""
    await refused(server, framed(TE + value + b"\r\n", CHUNKS), 400, 501)


@pytest.mark.parametrize("second", [b"chunked", b"identity", b"gzip", b""])
async def test_two_fields_of_transfer_codings(server: LiveServer, second: bytes) -> None:
    await refused(server, framed(TE + b"chunked\r\n" + TE + second + b"\r\n", CHUNKS), 400, 501)


async def test_http_1_0_has_no_transfer_coding(server: LiveServer) -> None:
    await refused(server, in_chunks(CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0", 1))


@pytest.mark.parametrize(
    "name", [b"Transfer-Encoding ", b"Transfer-Encoding\t", b" Transfer-Encoding", b"Transfer_Encoding\x00"]
)
async def test_a_name_that_another_server_may_read_as_framing(server: LiveServer, name: bytes) -> None:
    await refused(server, framed(LENGTH + name + b": chunked\r\n", BODY))
    await refused(server, framed(name.replace(b"Transfer-Encoding", b"Content-Length") + b": 19\r\n", BODY))


# chunks


@pytest.mark.parametrize(
    "size",
    [b"g", b"", b"+13", b"-13", b"0x13", b" 13", b"1 3", b"1_3", b"13,", b"\xb213", b"13\x00", b"13\x0b", b"x", b"13h"],
)
async def test_a_chunk_size_that_is_no_number(server: LiveServer, size: bytes) -> None:
    assert len(BODY) == 0x13
    await refused(server, in_chunks(size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"))


@pytest.mark.parametrize(
    "size", [b"f" * 16, b"1" + b"0" * 16, b"1" + b"0" * 14 + b"13", b"1" + b"0" * 16 + b"13", b"f" * 1000]
)
async def test_a_chunk_size_beyond_all_integers_is_no_small_one(server: LiveServer, size: bytes) -> None:
    await refused(server, in_chunks(size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400, 413)


@pytest.mark.parametrize("size", [b"13", b"013", b"00000013"])
async def test_a_chunk_size_in_either_case_and_with_zeros(server: LiveServer, size: bytes) -> None:
    await accepted(server, in_chunks(size + b"\r\n" + BODY + b"\r\n000\r\n\r\n"))


async def test_a_chunk_size_in_letters_of_either_case(server: LiveServer) -> None:
    content = body("y" * (0xAB - len(body(""))))
    for size in (b"ab", b"AB", b"aB"):
        await accepted(server, in_chunks(size + b"\r\n" + content + b"\r\n0\r\n\r\n"), content.decode()[15:-3])


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"x\r\n", b"\r\r\n", b" \r\n", b"\n\r\n"])
async def test_a_chunk_that_is_not_as_long_as_it_says(server: LiveServer, end: bytes) -> None:
    await refused(server, in_chunks(b"13\r\n" + BODY + end + b"0\r\n\r\n"))


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\r\n", b"\n\r\n"])
async def test_a_line_of_a_chunk_that_does_not_end_with_crlf(server: LiveServer, end: bytes) -> None:
    await refused(server, in_chunks(b"13" + end + BODY + b"\r\n0\r\n\r\n"))


async def test_many_chunks_and_a_size_cut_anywhere(server: LiveServer) -> None:
    data = in_chunks(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")
    for cut in range(len(data) - 60, len(data)):
        first, _ = await answers_to(server.url, data[:cut], data[cut:] + LAST)
        assert first.json()["output"] == "x"


# chunk extensions are read over, and bounded


@pytest.mark.parametrize("extension", [b";a", b";a=b", b";a=b;c=d", b';a="b;c"', b';a="\\""', b";" + b"a" * 500])
async def test_extensions_of_chunks_are_accepted(server: LiveServer, extension: bytes) -> None:
    await accepted(server, in_chunks(b"13%b\r\n%b\r\n0%b\r\n\r\n" % (extension, BODY, extension)))


@pytest.mark.parametrize("extension", [b";a\n", b";a\r", b";a\nb", b";a\rb", b";a\x00b", b";\n0\r\n\r\n"])
async def test_extensions_with_half_a_line_end_are_refused(server: LiveServer, extension: bytes) -> None:
    """One server takes a bare LF for the end of the line and another does not."""
    await refused(server, in_chunks(b"13%b\r\n%b\r\n0\r\n\r\n" % (extension, BODY)))


async def test_an_extension_without_end(server: LiveServer) -> None:
    flood = Flood(lambda: b"a" * 65_536, 64 * 1024**2)
    [answer], taken = await flood.run(server.url, in_chunks(b"13;"))
    assert answer.status in {400, 431}
    assert error_of(answer)
    assert taken < 64 * 1024**2


async def test_extensions_without_end_in_front_of_single_bytes(server: LiveServer) -> None:
    flood = Flood(lambda: b"1;%b\r\n \r\n" % (b"a" * 900) * 70, 64 * 1024**2)
    [answer], taken = await flood.run(server.url, in_chunks(b""))
    assert answer.status in {400, 431}
    assert error_of(answer)
    assert taken < 64 * 1024**2


# trailers are discarded, and bounded


@pytest.mark.parametrize(
    "trailers",
    [
        b"X: y\r\n",
        b"X:\r\n",
        b"X: y\r\nZ: w\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Host: evil\r\n",
    ],
)
async def test_trailers_are_discarded(server: LiveServer, trailers: bytes) -> None:
    await accepted(server, in_chunks(CHUNKS.removesuffix(b"\r\n") + trailers + b"\r\n"))


async def test_trailers_up_to_the_limits_are_read(server: LiveServer) -> None:
    await accepted(server, in_chunks(CHUNKS.removesuffix(b"\r\n") + b"X: %b\r\n\r\n" % (b"y" * 32_000)))
    await accepted(server, in_chunks(CHUNKS.removesuffix(b"\r\n") + b"X: y\r\n" * 128 + b"\r\n"))


@pytest.mark.parametrize("trailers", [b"X: " + b"y" * 40_000 + b"\r\n", b"X: %b\r\n" % (b"y" * 1000) * 40])
async def test_large_trailers_are_431(server: LiveServer, trailers: bytes) -> None:
    sentence = await refused(server, in_chunks(CHUNKS.removesuffix(b"\r\n") + trailers + b"\r\n"), 431)
    assert "--max-head-size" in sentence
    assert "32768" in sentence


async def test_many_trailers_are_431(server: LiveServer) -> None:
    sentence = await refused(server, in_chunks(CHUNKS.removesuffix(b"\r\n") + b"X: y\r\n" * 129 + b"\r\n"), 431)
    assert "128" in sentence


async def test_a3_trailers_without_end(server: LiveServer) -> None:
    flood = Flood(lambda: b"X: a\r\n" * 10_000, 64 * 1024**2)
    [answer], taken = await flood.run(server.url, in_chunks(CHUNKS.removesuffix(b"\r\n")))
    assert answer.status == 431
    assert taken < 64 * 1024**2


@pytest.mark.parametrize(
    "trailer", [b"X\r\n", b"X : y\r\n", b": y\r\n", b"X: y\n", b"X: a\rb\r\n", b"X: a\x00\r\n", b"X: a\r\n b\r\n"]
)
async def test_a_trailer_that_is_no_field(server: LiveServer, trailer: bytes) -> None:
    await refused(server, in_chunks(CHUNKS.removesuffix(b"\r\n") + trailer + b"\r\n"))


# what is in a body is data


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_request_inside_a_body_is_not_run(server: LiveServer, framing: str) -> None:
    before = runs(server)
    if framing == "length":
        data = framed(b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED)
    else:
        data = in_chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED))
    first, second = await answers_to(server.url, data + LAST)
    assert (first.status, second.status) == (400, 200)
    assert runs(server) == before


async def test_a_body_of_a_request_that_wants_none_is_read_over(server: LiveServer) -> None:
    before = runs(server)
    data = b"GET /health-check HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
    first, *more = await answers_to(server.url, data + SMUGGLED + LAST)
    assert first.status == 200
    assert [answer.status for answer in more] == [200]
    assert runs(server) == before


@pytest.mark.parametrize("path", ["/nothing-here", "/health-check", "/v2/models/nobody/infer"])
async def test_a_body_of_a_request_that_is_refused_is_not_run(server: LiveServer, path: str) -> None:
    """Whether the server reads over the body or ends the connection: never does it take it for a request."""
    before = runs(server)
    data = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(SMUGGLED))
    first, *more = await answers_to(server.url, data, SMUGGLED + LAST)
    assert 400 <= first.status < 500
    assert [answer.status for answer in more] in ([], [200])
    assert runs(server) == before


async def test_a_connection_goes_on_after_a_body_that_was_no_json(server: LiveServer) -> None:
    answers = await answers_to(server.url, framed(b"Content-Length: 4\r\n", b"{bad") + post("after") + LAST)
    assert [answer.status for answer in answers] == [400, 200, 200]
    assert answers[1].json()["output"] == "after"
