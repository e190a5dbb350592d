"""The heads that are known."""

from __future__ import annotations

from http import HTTPStatus

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from geartrain.transport.wire.exchange import Accepted, Answer, keep_nothing
from geartrain.transport.wire.heads import HeadCache, KnownHead, ParsedHeads, Terms, read_head
from geartrain.transport.wire.limits import WireError
from geartrain.transport.wire.outgoing import UNREADABLE
from tests.unit.transport.wire.parts import NotedExchange

KNOWN = KnownHead(Accepted(NotedExchange, 10, lambda _: Answer(HTTPStatus.OK)), 2, Terms(), keep_nothing(UNREADABLE))
HEAD = b"POST /%d HTTP/1.1\r\ncontent-length: 2\r\n\r\n"


def test_they_are_found_byte_for_byte() -> None:
    heads = HeadCache()
    heads.learn(HEAD % 1, KNOWN)
    assert heads.find(HEAD % 1) is KNOWN
    for other in (HEAD % 2, HEAD % 1 + b"{", (HEAD % 1)[:-1], (HEAD % 1).upper(), b""):
        assert heads.find(other) is None


def test_their_number_is_bounded() -> None:
    heads = HeadCache()
    for number in range(2000):
        heads.learn(HEAD % number, KNOWN)
    assert len(heads._known) <= 512
    assert heads.find(HEAD % 1999) is KNOWN


def test_their_size_is_bounded() -> None:
    heads = HeadCache()
    rest = b" HTTP/1.1\r\n\r\n"
    for size in (2048, 2049):
        heads.learn(b"GET /".ljust(size - len(rest), b"x") + rest, KNOWN)
    assert list(map(len, heads._known)) == [2048]


def test_only_whole_heads_are_learned() -> None:
    heads = HeadCache()
    heads.learn(b"", KNOWN)
    heads.learn((HEAD % 1)[:-1], KNOWN)
    heads.learn(HEAD % 1 + b"{}", KNOWN)
    assert not heads._known


def test_they_are_forgotten() -> None:
    heads = HeadCache()
    heads.learn(HEAD % 1, KNOWN)
    heads.clear()
    assert heads.find(HEAD % 1) is None


TARGETS = ["/predictions/a", "/predictions/b%20c", "/", "/a?b=1", "/a#b", "*", "http://host/a", "//a", "/\x7f", "/a b"]
TARGETS += ["", "/é"]
LINES = ["PUT @ HTTP/1.1", "GET @ HTTP/1.1", "OPTIONS @ HTTP/1.1", "PUT @ HTTP/1.0", "PUT  @ HTTP/1.1"]
LINES += ["CONNECT @ HTTP/1.1"]
FIELDS = [
    "host: a",
    "Host:  b ",
    "content-length: 3",
    "Content-Length: 03",
    "transfer-encoding: chunked",
    "connection: close",
    "expect: 100-continue",
    "x-request-id: 1",
    "x: /predictions/a",
    "x:@",
]


def outcome(data: bytes) -> object:
    try:
        found = read_head(data, 0)
    except WireError as error:
        return error.status, str(error)
    assert found is not None
    return structs.asdict(found[0])


@given(
    st.lists(
        st.tuples(st.sampled_from(TARGETS), st.sampled_from(LINES), st.lists(st.sampled_from(FIELDS), max_size=3)),
        max_size=8,
    )
)
def test_what_is_recalled_of_a_head_is_what_reading_it_gives(requests: list[tuple[str, str, list[str]]]) -> None:
    parsed = ParsedHeads(0)
    for target, line, fields in [*requests, *requests]:
        data = "\r\n".join([line.replace("@", target), "host: test", *fields, "", ""]).encode()
        recalled = parsed.recall(data)
        if recalled is not None:
            assert structs.asdict(recalled) == outcome(data)
        try:
            found = read_head(data, 0)
        except WireError:
            continue
        assert found is not None
        parsed.learn(data, found[0])


def a_put(number: int, *, fields: str = "") -> bytes:
    return f"PUT /predictions/{number} HTTP/1.1\r\nhost: test\r\n{fields}\r\n".encode()


def learned(parsed: ParsedHeads, data: bytes) -> None:
    found = read_head(data, 0)
    assert found is not None
    parsed.learn(data, found[0])


def test_a_head_with_another_path_is_recalled_with_notes_of_its_own() -> None:
    parsed = ParsedHeads(0)
    learned(parsed, a_put(1))
    one, two = parsed.recall(a_put(2)), parsed.recall(a_put(3))
    assert one is not None
    assert two is not None
    assert (one.head.path, two.head.path) == (b"/predictions/2", b"/predictions/3")
    assert one.head.notes is not two.head.notes


def test_a_head_with_an_id_of_its_own_is_not_learned() -> None:
    parsed = ParsedHeads(0)
    learned(parsed, a_put(1, fields="x-request-id: 1\r\n"))
    assert parsed.recall(a_put(2, fields="x-request-id: 1\r\n")) is None


def test_only_so_many_parsed_heads_are_kept() -> None:
    parsed = ParsedHeads(0)
    for number in range(1000):
        learned(parsed, a_put(1, fields=f"x: {number}\r\n"))
        assert parsed.recall(a_put(2, fields=f"x: {number}\r\n")) is not None
    assert len(parsed._known) <= 128


def test_a_head_that_is_larger_than_the_limit_is_not_recalled() -> None:
    parsed = ParsedHeads(len(a_put(1)) + 1)
    learned(parsed, a_put(1))
    assert parsed.recall(a_put(12)) is not None
    assert parsed.recall(a_put(123)) is None


def test_a_head_that_is_not_whole_is_not_recalled() -> None:
    parsed = ParsedHeads(0)
    learned(parsed, a_put(1))
    for size in range(len(a_put(1))):
        assert parsed.recall(a_put(1)[:size]) is None
