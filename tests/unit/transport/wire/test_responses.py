"""Heads of answers."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus

import pytest

from geartrain.transport.wire.outgoing import AnswerHeads, has_body, http_date


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_fields(clock: list[float]) -> None:
    assert AnswerHeads().of(HTTPStatus.NOT_FOUND, ((b"x", b"1"), (b"x", b"2"))) == (
        b"HTTP/1.1 404 Not Found\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nx: 1\r\nx: 2\r\n"
    )


@pytest.mark.parametrize("day", [*range(0, 800, 7), 11_016, 19_782, 24_837])
def test_a_date_is_written_as_others_write_it(day: int) -> None:
    at = day * 86_400.0 + day * 61 % 86_400
    assert http_date(time.gmtime(at)).decode() == formatdate(at, usegmt=True)


def test_the_date_is_of_now(clock: list[float]) -> None:
    heads = AnswerHeads()
    first = heads.of_json(HTTPStatus.OK)
    assert first == (b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-type: application/json\r\n")
    clock[0] = 0.9
    assert heads.of_json(HTTPStatus.OK) is first
    clock[0] = 1.0
    heads.renew()
    assert b"00:00:01 GMT" in heads.of_json(HTTPStatus.OK)
    clock[0] = 3600.5
    heads.renew()
    assert b"01:00:00 GMT" in heads.of(HTTPStatus.OK, ())
    assert b"01:00:00 GMT" in heads.of_json(HTTPStatus.OK)


@pytest.mark.parametrize("status", list(HTTPStatus))
def test_every_status(status: HTTPStatus) -> None:
    assert AnswerHeads().of_json(status).startswith(f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode())
    assert has_body(status) == (status not in {204, 304})
