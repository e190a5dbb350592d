"""The heads that are known."""

from __future__ import annotations

from http import HTTPStatus

from geartrain.transport.wire.exchange import Accepted, Answer, keep_nothing
from geartrain.transport.wire.head_cache import HeadCache, KnownHead
from geartrain.transport.wire.responses import UNREADABLE
from geartrain.transport.wire.terms import Terms
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
