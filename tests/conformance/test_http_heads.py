"""Heads of requests (RFC 9112, sections 2, 3 and 5; RFC 9110, sections 5 and 7): the bytes that go in, the reaction."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from geartrain.transport.wire.limits import WireLimits
from tests.support.attacks import (
    ECHO,
    HEALTH,
    LAST,
    MANY,
    Flood,
    accepted,
    answers_to,
    body,
    error_of,
    handled,
    peer,
    post,
    refused,
    request,
    resident,
    runs,
)
from tests.support.servers import LiveServer, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_HEAD = 32 * 1024
MOST = 64 * 1024**2  # bytes of a flood
BODY = body()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ECHO, cog_yaml=MANY) as server:
        yield server


def lined(line: bytes, *fields: bytes) -> bytes:
    """A request without a body, of this request line and these fields."""
    return b"\r\n".join([line, *(fields or (b"Host: localhost",)), b"", b""])


def with_field(field: bytes) -> bytes:
    """A good prediction with one more line in its head."""
    return post("x", field)


async def status_of(server: LiveServer, data: bytes) -> int:
    """The status of one request; the one behind it is answered too."""
    first, second = await answers_to(server.url, data + LAST)
    assert second.status == 200
    return first.status


# the request line


@pytest.mark.parametrize("lines", [1, 2, 5])
async def test_empty_lines_before_a_request_are_ignored(server: LiveServer, lines: int) -> None:
    await accepted(server, b"\r\n" * lines + post())
    first, second, _ = await answers_to(server.url, post() + b"\r\n" * lines + post() + LAST)
    assert (first.status, second.status) == (200, 200)


async def test_empty_lines_without_end(server: LiveServer) -> None:
    """They are thrown away, or refused: either way nothing is kept of them, and others are served."""
    async with peer(server.url) as client:
        before = resident_here()
        await client.send_all_of([b"\r\n" * 32_768] * 64)
        await handled(server.url)
        assert resident_here() - before < 32 * 1024**2


def resident_here() -> int:
    return resident(os.getpid())


@pytest.mark.parametrize(
    "line",
    [
        b"GET  /health-check HTTP/1.1",
        b"GET /health-check  HTTP/1.1",
        b"GET\t/health-check HTTP/1.1",
        b"GET /health-check\tHTTP/1.1",
        b"GET /health-check HTTP/1.1\t",
        b" GET /health-check HTTP/1.1",
        b"GET /health-check",
        b"GET",
        b"/health-check HTTP/1.1",
        b"GET HTTP/1.1",
        b"nonsense",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x80\x80\x80\x80",
        b"GET /health-check HTTP/1.1 HTTP/1.1",
        b"GET /health check HTTP/1.1",
        b"GET /health-check\x00 HTTP/1.1",
        b"GET /health-check\x7f HTTP/1.1",
        b"GET /health-check\rX HTTP/1.1",
        b"GET /health-check HTTP/1.1\rX: y",
        b"GET /health-check#fragment HTTP/1.1",
        b"GET health-check HTTP/1.1",
        b"GET ?query HTTP/1.1",
        b"G\x00T /health-check HTTP/1.1",
        b"G(T /health-check HTTP/1.1",
    ],
)
async def test_a_request_line_that_is_none(server: LiveServer, line: bytes) -> None:
    await refused(server, lined(line), 400, 505)


@pytest.mark.parametrize(
    "version",
    [
        b"http/1.1", b"Http/1.1", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/9.9", b"HTTP/1", b"HTTP/1.", b"HTTP/.1",
        b"HTTP/11", b"HTTP/1.1.1", b"HTTP/1.10", b"HTTP/01.1", b"HTTP/1,1", b"HTTP/-1.1", b"HTTP 1.1", b"HTP/1.1",
        b"ICE/1.1", b"RTSP/1.1", b"HTTPS/1.1", b"HTTP/\xb1.1", b"HTTP/1.1x",
    ],
)  # fmt: skip
async def test_a_version_that_is_not_ours(server: LiveServer, version: bytes) -> None:
    await refused(server, lined(b"GET /health-check " + version), 400, 505)


@pytest.mark.parametrize("sent", [b"PRI * HTTP/2.0\r\n\r\n\r\n\r\n", b"PRI / HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_what_only_looks_like_the_preface_of_http_2_is_refused(server: LiveServer, sent: bytes) -> None:
    await refused(server, sent, 400, 505)


@pytest.mark.parametrize(
    "method", [b"get", b"Get", b"FROB", b"G", b"TRACE", b"TRACK", b"PATCH", b"DELETE", b"LINK", b"!#$%&'*+-.^_`|~"]
)
async def test_a_method_that_nobody_takes(server: LiveServer, method: bytes) -> None:
    """Methods are case-sensitive (RFC 9110, section 9.1). Nothing is echoed, as TRACE would."""
    answers = await answers_to(
        server.url, lined(method + b" /health-check HTTP/1.1", b"Host: localhost", b"X: secret") + LAST
    )
    assert answers[0].status in {400, 405, 501}
    assert b"secret" not in answers[0].body
    assert [answer.status for answer in answers[1:]] in ([], [200])


async def test_connect_opens_no_tunnel(server: LiveServer) -> None:
    for target in (b"localhost:80", b"/health-check", b"*"):
        answers = await answers_to(server.url, lined(b"CONNECT " + target + b" HTTP/1.1") + LAST)
        assert answers[0].status in {400, 404, 405, 501}
        assert error_of(answers[0])


@pytest.mark.parametrize(
    "target",
    ["http://localhost/health-check", "HTTP://localhost/health-check", "http://localhost:80/health-check", "http://[::1]/health-check",
     "http://localhost/health-check?x=http://y/"],
)  # fmt: skip
async def test_an_absolute_target_is_served(server: LiveServer, target: str) -> None:
    """A server must accept it, although only clients of proxies send it (RFC 9112, section 3.2.2)."""
    assert await status_of(server, request("GET", target)) == 200


async def test_an_absolute_target_without_a_path_is_the_root(server: LiveServer) -> None:
    first, _ = await answers_to(server.url, request("GET", "http://localhost") + LAST)
    assert first.json()["predictions_url"] == "/predictions"


@pytest.mark.parametrize(
    "target", ["http:///health-check", "http://", "http:/health-check", "ftp://localhost/", "//", "http://local host/"]
)
async def test_a_target_of_no_known_form_runs_nothing(server: LiveServer, target: str) -> None:
    answers = await answers_to(server.url, request("GET", target) + LAST)
    assert answers[0].status in {400, 404}
    assert [answer.status for answer in answers[1:]] in ([], [200])


async def test_an_asterisk_is_for_options_alone(server: LiveServer) -> None:
    answers = await answers_to(server.url, lined(b"OPTIONS * HTTP/1.1") + LAST)
    assert answers[0].status in {200, 204, 404, 405}
    assert answers[1].status == 200
    await refused(server, lined(b"GET * HTTP/1.1"))


@pytest.mark.parametrize("target", [b"/h\xc3\xa9alth", b"/\xff", b"/health-check?\x80"])
async def test_a_target_with_bytes_beyond_ascii_is_an_error_of_the_client(server: LiveServer, target: bytes) -> None:
    answers = await answers_to(server.url, lined(b"GET " + target + b" HTTP/1.1") + LAST)
    assert answers[0].status in {400, 404}
    assert [answer.status for answer in answers[1:]] in ([], [200])


# fields


@pytest.mark.parametrize(
    "field",
    [
        b"X : y", b"X\t: y", b" X: y", b"\tX: y", b": y", b"X", b"X y: z", b"X(y): z", b"X,y: z", b"X@: z",
        b"\xc3\xa9: z", b"X\x00: y", b"X\x01y: z", b"X\x7f: y", b'"X": y', b"X/y: z", b"X[]: y", b"X{}: y", b"X\\: y",
    ],
)  # fmt: skip
async def test_a_name_that_is_no_token(server: LiveServer, field: bytes) -> None:
    await refused(server, with_field(field))


@pytest.mark.parametrize("byte", [*range(9), 11, 12, *range(14, 32), 127])
async def test_a_control_in_a_value(server: LiveServer, byte: int) -> None:
    await refused(server, with_field(b"X: a%cb" % byte))


@pytest.mark.parametrize(
    "field",
    [b"X: a\rb", b"X: a\r\rb", b"X: a\nb", b"X: a\n", b"X: a\r", b"X: a\nHost: evil", b"X: a\n\nb", b"X: a\r \r"],
)
async def test_half_a_line_end(server: LiveServer, field: bytes) -> None:
    await refused(server, with_field(field))


@pytest.mark.parametrize("fold", [b"\r\n b", b"\r\n\tb", b"\r\n ", b"\r\n \r\n b"])
async def test_a_folded_value(server: LiveServer, fold: bytes) -> None:
    await refused(server, with_field(b"X: a" + fold))
    await refused(server, lined(b"GET /health-check HTTP/1.1", b"Host: localhost" + fold))


async def test_lines_that_end_with_lf_alone(server: LiveServer) -> None:
    await refused(server, HEALTH.replace(b"\r\n", b"\n"))
    await refused(server, HEALTH.replace(b"\r\n", b"\n", 1))
    await refused(server, post().replace(b"\r\n\r\n", b"\n\n", 1))


@pytest.mark.parametrize(
    "field",
    [
        b"X:", b"X: ", b"X:y", b"X:  y  ", b"X:\ty\t", b"X: \xff\x80", b"X: a\tb", b"X: : ,;\"'()[]{}",
        b"!#$%&'*+-.^_`|~09: y", b"X: " + b"y" * 20_000,
    ],
)  # fmt: skip
async def test_unusual_fields_are_fine(server: LiveServer, field: bytes) -> None:
    await accepted(server, with_field(field))


async def test_names_have_no_case(server: LiveServer) -> None:
    data = (
        b"POST /predictions HTTP/1.1\r\nHOST: localhost\r\ncOnTeNt-TyPe: application/json\r\nCONTENT-LENGTH: %d\r\n\r\n"
        % len(BODY)
    )
    await accepted(server, data + BODY)


# Host


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST",
        b"localhost:80",
        b"localhost:",
        b"127.0.0.1",
        b"127.0.0.1:5000",
        b"[::1]",
        b"[::1]:80",
    ],
)
async def test_a_host(server: LiveServer, host: bytes) -> None:
    assert await status_of(server, lined(b"GET /health-check HTTP/1.1", b"Host: " + host)) == 200


async def test_a_request_without_host(server: LiveServer) -> None:
    sentence = await refused(server, lined(b"GET /health-check HTTP/1.1", b"X: y"))
    assert "host" in sentence.lower()
    await refused(server, post().replace(b"Host: localhost\r\n", b""))


@pytest.mark.parametrize("second", [b"Host: localhost", b"host: evil.example", b"HOST:"])
async def test_a11_two_hosts(server: LiveServer, second: bytes) -> None:
    sentence = await refused(server, with_field(second))
    assert "host" in sentence.lower()


@pytest.mark.parametrize(
    "host",
    [
        b"", b" ", b"a b", b"a/b", b"http://localhost", b"user@localhost", b"localhost:x", b"localhost:-1", b"[]",
        b":80", b"localhost:80:80", b"[::1", b"::1]", b"a?b", b"a#b", b"a\\b", b"<script>", b"a\xffb", b"[::1]x",
        b"local\thost",
    ],
)  # fmt: skip
async def test_a_host_that_is_none(server: LiveServer, host: bytes) -> None:
    await refused(server, lined(b"GET /health-check HTTP/1.1", b"Host: " + host))


async def test_http_1_0_may_do_without_host(server: LiveServer) -> None:
    [answer] = await answers_to(server.url, lined(b"GET /health-check HTTP/1.0", b"X: y"))
    assert answer.status == 200
    await refused(server, lined(b"GET /health-check HTTP/1.0", b"Host: localhost", b"Host: localhost"))


# sizes


async def test_a_head_of_nearly_the_limit_is_read(server: LiveServer) -> None:
    await accepted(server, with_field(b"X: " + b"y" * (MAX_HEAD - 300)))
    assert await status_of(server, request("GET", "/health-check?" + "q" * (MAX_HEAD - 300))) == 200


async def test_a_head_beyond_the_limit_is_431(server: LiveServer) -> None:
    for field in (b"X: " + b"y" * MAX_HEAD, b"x" * MAX_HEAD + b": y", b"\r\n".join([b"X: " + b"y" * 1000] * 40)):
        sentence = await refused(server, with_field(field), 431)
        assert "--max-head-size" in sentence
        assert str(MAX_HEAD) in sentence


async def test_a_target_beyond_the_limit_is_414(server: LiveServer) -> None:
    sentence = await refused(server, request("GET", "/" + "u" * MAX_HEAD), 414)
    assert "--max-head-size" in sentence
    assert str(MAX_HEAD) in sentence


async def test_128_fields_are_read_and_129_are_not(server: LiveServer) -> None:
    many = [b"X-%d: y" % number for number in range(125)]
    await accepted(server, post("x", *many))  # with Host, Content-Type and Content-Length
    sentence = await refused(server, post("x", *many, b"X-last: y"), 431)
    assert "128" in sentence


async def test_a_head_that_is_too_large_may_come_in_pieces(server: LiveServer) -> None:
    async with peer(server.url) as client:
        await client.send(HEALTH[:-2] + b"X: ")
        for _ in range(33):
            await client.send(b"y" * 1024)
            await handled(server.url)
        [answer] = await client.answers()
        assert answer.status == 431


@pytest.mark.parametrize(
    ("begin", "piece", "status"),
    [
        (HEALTH[:-2], b"X: a\r\n" * 10_000, 431),
        (HEALTH[:-2] + b"X: ", b"y" * 65_536, 431),
        (HEALTH[:-2], b"x" * 65_536, 431),
        (b"GET /", b"u" * 65_536, 414),
        (b"GET /health-check?", b"u" * 65_536, 414),
    ],
    ids=["fields", "value", "name", "path", "query"],
)
async def test_a3_a_head_without_end(server: LiveServer, begin: bytes, piece: bytes, status: int) -> None:
    before = resident_here()
    [answer], taken = await Flood(lambda: piece, MOST).run(server.url, begin)
    assert answer.status == status
    assert "--max-head-size" in error_of(answer) or "128" in error_of(answer)
    assert taken < MOST
    assert resident_here() - before < 32 * 1024**2


@pytest.mark.parametrize("begin", [b"G" * 65_536, b"GET / HTTP/1.1" + b"1" * 65_536, b"GET / " + b"H" * 65_536])
async def test_a_request_line_without_end(server: LiveServer, begin: bytes) -> None:
    [answer], taken = await Flood(lambda: begin[-1:] * 65_536, MOST).run(server.url, begin)
    assert answer.status in {400, 414, 431}
    assert taken < MOST


async def test_the_limit_of_a_head_can_be_set(serve: Serve) -> None:
    async with serve(ECHO, name="small", wire=WireLimits(max_head_size=1024)) as server:
        await accepted(server, with_field(b"X: " + b"y" * 700))
        sentence = await refused(server, with_field(b"X: " + b"y" * 1024), 431)
        assert "1024" in sentence


async def test_an_error_repeats_little_of_what_was_sent(server: LiveServer) -> None:
    long = b"z" * 20_000
    for data in (
        with_field(b"X " + long + b": y"),
        lined(b"GET " + long + b" HTTP/1.1"),
        lined(b"GET / HTTP/1.1", b"Host: a/" + long),
    ):
        assert "z" * 201 not in await refused(server, data)


async def test_every_cut_of_a_request_gives_the_same_answer(server: LiveServer) -> None:
    """Each request comes in two pieces, cut at every place, with an empty line, a chunk and a trailer in it."""
    data = b"\r\n" + request("POST", "/predictions", "Content-Type: application/json", "Transfer-Encoding: chunked")
    data += b"%x\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(BODY), BODY)
    before = len(runs(server))
    for cut in range(1, len(data)):
        async with peer(server.url) as client:
            await client.send(data[:cut])
            await handled(server.url)
            await client.send(data[cut:] + LAST)
            first, second = await client.answers()
            assert (first.json()["output"], second.status) == ("x", 200), cut
    assert len(runs(server)) - before == len(data) - 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x7f\x01\x00\x00\x7b\x03\x03" + bytes(range(32, 64)),  # TLS
        b"\0" * 20,
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",  # an empty frame of SETTINGS
        b"\x16",
    ],
)
async def test_s16_bytes_that_begin_no_request_are_refused_at_once(server: LiveServer, data: bytes) -> None:
    async with asyncio.timeout(5):  # the limit of time for a head is twice as long
        await refused(server, data, 400)
