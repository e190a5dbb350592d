"""Heads of requests: cut anywhere, within limits, and every form that is refused."""

from __future__ import annotations

import pytest

from geartrain.transport.wire.exchange import UNKNOWN_LENGTH
from geartrain.transport.wire.heads import HeadReader, RequestHead, read_head
from geartrain.transport.wire.limits import MAX_FIELDS, WireError

LIMIT = 1000
FULL = (
    b"POST /a%20b?x=1&y=?2 HTTP/1.1\r\nHost: example.org:8080\r\nX-Empty:\r\nX-Two:  a b \t\r\n"
    b"Content-Type: application/json\r\nContent-Length: 12\r\nx-two: c\r\n\r\n"
)


def read(data: bytes, limit: int = LIMIT) -> RequestHead:
    found = read_head(data, limit)
    assert found is not None
    return found[0]


def feed_all(reader: HeadReader, *pieces: bytes) -> None:
    for piece in pieces:
        reader.feed(piece)


def refused(data: bytes, limit: int = LIMIT) -> int:
    with pytest.raises(WireError) as caught:
        read_head(data, limit)
    return int(caught.value.status)


def request(*fields: str, start: str = "POST / HTTP/1.1", host: str = "Host: h") -> bytes:
    return "\r\n".join([start, *filter(None, [host]), *fields, "", ""]).encode("latin-1")


def test_all_that_a_head_says() -> None:
    found = read_head(FULL + b"the body", LIMIT)
    assert found is not None
    request_head, size = found
    assert size == len(FULL)
    head = request_head.head
    assert (head.method, head.path, head.query, head.length) == ("POST", b"/a%20b", b"x=1&y=?2", 12)
    assert list(head.headers) == [
        (b"host", b"example.org:8080"),
        (b"x-empty", b""),
        (b"x-two", b"a b"),
        (b"content-type", b"application/json"),
        (b"content-length", b"12"),
        (b"x-two", b"c"),
    ]
    assert (request_head.keeps_alive, request_head.is_modern, request_head.expects_continue) == (True, True, False)


@pytest.mark.parametrize("cut", range(1, len(FULL)))
def test_cut_at_every_byte(cut: int) -> None:
    reader = HeadReader(LIMIT)
    assert (reader.feed(FULL[:cut]), reader.is_complete) == (cut, False)
    rest = reader.feed(FULL[cut:] + b"GET / HTTP/1.1\r\n\r\n")
    assert (rest, reader.is_complete) == (len(FULL) - cut, True)
    assert reader.size == len(FULL)
    assert reader.result() == read(FULL)


def test_byte_by_byte() -> None:
    reader = HeadReader(LIMIT)
    for index in range(len(FULL)):
        assert not reader.is_complete
        assert reader.feed(FULL[index : index + 1]) == 1
    assert reader.result() == read(FULL)


def test_an_incomplete_head_is_none() -> None:
    assert all(read_head(FULL[:size], LIMIT) is None for size in range(len(FULL)))


def test_empty_lines_before_a_head_are_passed_over() -> None:
    for empty in (b"\r\n", b"\r\n\r\n", b"\r\n" * 5):
        assert read(empty + FULL) == read(FULL)
        assert read_head(empty, LIMIT) is None
    assert refused(b"\r\n" * LIMIT) == 431


@pytest.mark.parametrize("pieces", [[FULL], [FULL[i : i + 1] for i in range(len(FULL))]], ids=["whole", "bytes"])
def test_the_limit_is_of_the_whole_head(pieces: list[bytes]) -> None:
    reader = HeadReader(len(FULL))
    feed_all(reader, *pieces)
    assert reader.is_complete
    reader = HeadReader(len(FULL) - 1)
    with pytest.raises(WireError) as caught:
        feed_all(reader, *pieces)
    assert caught.value.status == 431
    assert f"{len(FULL) - 1} bytes" in str(caught.value)
    assert "--max-head-size" in str(caught.value)


@pytest.mark.parametrize("cut", range(30, 60))
def test_too_large_wherever_it_is_cut(cut: int) -> None:
    reader = HeadReader(60)
    data = b"GET / HTTP/1.1\r\nA: b\r\nC: d\r\nE: f\r\nG: h\r\nI: j\r\nK: l\r\nM: n\r\nO: p\r\n\r\n"
    with pytest.raises(WireError) as caught:
        feed_all(reader, data[:cut], data[cut:60], data[60:])
    assert caught.value.status == 431


def test_too_large_because_of_its_target() -> None:
    assert refused(b"GET /" + b"a" * LIMIT) == 414
    assert refused(b"GET /" + b"a" * (LIMIT - 300) + b" HTTP/1.1\r\nHost: h\r\nx: " + b"b" * 300) == 414
    assert refused(b"GET /" + b"a" * 100 + b" HTTP/1.1\r\nHost: h\r\nx: " + b"b" * LIMIT) == 431


def test_no_limit() -> None:
    assert len(read(request(f"x: {'y' * 200_000}"), 0).head.headers[1][1]) == 200_000


def test_fields_are_counted() -> None:
    fields = [f"x{number}: y" for number in range(MAX_FIELDS)]
    assert len(read(request(*fields[:-1]), 0).head.headers) == MAX_FIELDS
    assert refused(request(*fields), 0) == 431


@pytest.mark.parametrize("control", [*range(9), 11, 12, *range(14, 32), 127])
def test_controls_are_refused_anywhere(control: int) -> None:
    sign = bytes([control])
    for data in (
        b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h%b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nx%b: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nx: a%bb\r\n\r\n",
    ):
        assert refused(data % sign) == 400
    assert read(b"GET / HTTP/1.1\r\nHost: h\r\nx: a\tb\r\n\r\n").head.header(b"x") == b"a\tb"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\rx: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nx: y\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nx: y\r\n\tfolded\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
        b"\n\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\r\n GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
)
def test_line_ends_are_strict_however_they_are_cut(data: bytes) -> None:
    assert refused(data) == 400
    for cut in range(1, len(data)):
        reader = HeadReader(LIMIT)
        with pytest.raises(WireError):
            feed_all(reader, data[:cut], data[cut:])


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n: nameless\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nx y: z\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"FOO / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"{}\r\n\r\n",
        b"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_no_request(data: bytes) -> None:
    assert refused(data) == 400


# Host


@pytest.mark.parametrize("host", ["h", "example.org", "example.org:80", "h:", "127.0.0.1:5000", "[::1]", "[::1]:5000"])
def test_hosts(host: str) -> None:
    assert read(request(host=f"Host: {host}")).head.header(b"host") == host.encode()


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "a@b", "a:b", "a:123456", "::1", "[::1", "[x]", "a,b@", "a?b", "a#b", "a\\b", "h\xe4"]
)
def test_what_is_no_host(host: str) -> None:
    assert refused(request(host=f"Host: {host}")) == 400
    assert refused(request(host=f"Host: {host}", start="GET http://a/ HTTP/1.1")) == 400


def test_there_is_one_host() -> None:
    assert refused(request(host="")) == 400
    assert refused(request("Host: h")) == 400
    assert refused(request("Host: h", start="GET http://h/ HTTP/1.1")) == 400
    assert refused(request("Host: h", start="POST / HTTP/1.0")) == 400
    assert read(request(host="", start="POST / HTTP/1.0")).head.header(b"host") is None


# the target


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        ("/", b"/", b"", b"h"),
        ("//a", b"//a", b"", b"h"),
        ("/?", b"/", b"", b"h"),
        ("/a/../%2e?b?c", b"/a/../%2e", b"b?c", b"h"),
        ("http://other:80/a?b", b"/a", b"b", b"other:80"),
        ("HTTPS://other", b"/", b"", b"other"),
        ("http://other?a", b"/", b"a", b"other"),
    ],
)
def test_targets(target: str, path: bytes, query: bytes, host: bytes) -> None:
    head = read(request(start=f"GET {target} HTTP/1.1")).head
    assert (head.path, head.query, head.header(b"host")) == (path, query, host)
    assert len([name for name, _ in head.headers if name == b"host"]) == 1


def test_target_of_options() -> None:
    assert read(request(start="OPTIONS * HTTP/1.1")).head.path == b"*"
    assert refused(request(start="GET * HTTP/1.1")) == 400


@pytest.mark.parametrize(
    "target", ["a", "h:80", "http:///a", "http://", "http://u@h/", "http://a%20:x/", "ftp://h/", "/a#b", "http://h/#b"]
)
def test_what_is_no_target(target: str) -> None:
    assert refused(request(start=f"GET {target} HTTP/1.1")) == 400


def test_no_proxy() -> None:
    assert refused(request(start="CONNECT h:80 HTTP/1.1")) == 501


# versions and the connection


@pytest.mark.parametrize(
    ("version", "field", "keeps_alive"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: x, Close", False),
        ("1.1", "Connection: keep-alive", True),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive", True),
        ("1.0", "Connection: close", False),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_keep_alive(version: str, field: str, *, keeps_alive: bool, method: str) -> None:
    fields = [field] if field else []
    for more in ([], ["Content-Length: 3"]):
        found = read(request(*fields, *more, start=f"{method} / HTTP/{version}"))
        assert (found.keeps_alive, found.is_modern) == (keeps_alive, version == "1.1")


@pytest.mark.parametrize("start", ["GET / HTTP/2.0", "GET / HTTP/0.9"])
def test_other_versions(start: str) -> None:
    assert refused(request(start=start)) == 505


@pytest.mark.parametrize("start", ["GET /", "GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET / RTSP/1.1", "GET / http/1.1"])
def test_request_lines_are_taken_to_the_letter(start: str) -> None:
    assert refused(request(start=start)) == 400


def test_offers_of_other_protocols_are_ignored() -> None:
    fields = ["Upgrade: h2c, websocket", "Connection: upgrade"]
    assert read(request(*fields, start="GET / HTTP/1.1")).keeps_alive
    found = read(request(*fields, "Content-Length: 3"))
    assert (found.keeps_alive, found.head.length) == (True, 3)


# the body


@pytest.mark.parametrize(("value", "length"), [("0", 0), ("7", 7), ("007", 7), ("9" * 18, int("9" * 18)), (" 5 ", 5)])
def test_lengths(value: str, length: int) -> None:
    assert read(request(f"Content-Length: {value}")).head.length == length


def test_no_length_is_no_body() -> None:
    assert read(request()).head.length == 0
    assert read(request("Transfer-Encoding: Chunked")).head.length == UNKNOWN_LENGTH


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.0", "0x1", "1 2", "1, 1", "1_0", "\xb2", "9" * 19, "1" * 30])
def test_what_is_no_length(value: str) -> None:
    assert refused(request(f"Content-Length: {value}")) == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (("Content-Length: 3", "Content-Length: 3"), 400),
        (("Content-Length: 3", "Content-Length: 4"), 400),
        (("Content-Length: 3", "Transfer-Encoding: chunked"), 400),
        (("Transfer-Encoding: chunked", "Content-Length: 3"), 400),
        (("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (("Transfer-Encoding: chunked, chunked",), 400),
        (("Transfer-Encoding: chunked, identity",), 400),
        (("Transfer-Encoding: identity",), 400),
        (("Transfer-Encoding: gzip",), 400),
        (("Transfer-Encoding: xchunked",), 400),
        (("Transfer-Encoding: \xa0chunked",), 400),
        (("Transfer-Encoding: \x0bchunked",), 400),
        (("Transfer-Encoding:",), 400),
        (("Transfer-Encoding: gzip, chunked",), 501),
    ],
)
def test_framing_that_is_refused(fields: tuple[str, ...], status: int) -> None:
    assert refused(request(*fields)) == status


def test_chunks_are_unknown_to_the_older_version() -> None:
    assert refused(request("Transfer-Encoding: chunked", start="POST / HTTP/1.0")) == 400


def test_expectations() -> None:
    assert read(request("Expect: 100-Continue", "Content-Length: 1")).expects_continue
    assert not read(request("Expect: 100-continue", "Content-Length: 1", start="POST / HTTP/1.0")).expects_continue
    assert refused(request("Expect: miracles", "Content-Length: 1")) == 417
