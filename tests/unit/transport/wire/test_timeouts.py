"""The sweep, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import pytest

from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.http1 import ConnectionState
from geartrain.transport.wire.limits import LEAST_BODY, LINGER, WireLimits
from geartrain.transport.wire.server import Sweep
from tests.unit.transport.wire.parts import FakeLoop, Line, NotingHandler, chunked, get, post

_OK = HTTPStatus.OK
TIMES = {"head_timeout": 10.0, "body_timeout": 20.0, "idle_timeout": 75.0, "send_timeout": 60.0}
LOOK = 1.0  # seconds between two looks
SLACK = 2 * LOOK


class Swept:
    """Connections under a sweep."""

    def __init__(self, **limits: Any) -> None:
        self.loop = FakeLoop()
        given = WireLimits(**{**TIMES, **limits})
        self.context = WireContext(NotingHandler(), given, cast("asyncio.AbstractEventLoop", self.loop))
        self.lines: list[Line] = []
        self.ticks = 0
        self.sweep = Sweep(self.context, self, self._tick)

    def __iter__(self) -> Any:
        return iter([line.connection for line in self.lines])

    def line(self) -> Line:
        self.lines.append(Line(context=self.context))
        return self.lines[-1]

    def _tick(self) -> None:
        self.ticks += 1


def has_ended(line: Line) -> bool:
    return line.is_closed() or line.transport.has_eof or line.transport.is_aborted


@pytest.mark.parametrize(
    ("limit", "sent", "status", "text"),
    [
        ("idle_timeout", b"", 0, ""),
        ("idle_timeout", get("/"), 0, ""),
        ("head_timeout", b"GET ", 408, "The head of the request took longer than 10 s. The server's --head-timeout"),
        ("head_timeout", get("/") + b"G", 408, "--head-timeout"),
        ("body_timeout", post("/run", b"12345")[:-1], 408, f"Less than {LEAST_BODY} bytes of the request body"),
        ("body_timeout", chunked("/run", b"12345", end=b""), 408, "--body-timeout"),
        ("body_timeout", chunked("/parts", b"12345", end=b""), 408, "--body-timeout"),
        ("body_timeout", post("/", b"12345")[:-1], 0, ""),
    ],
)
def test_each_limit(limit: str, sent: bytes, status: int, text: str) -> None:
    swept = Swept()
    line = swept.line()
    if sent:
        line.send(sent)
    before = line.take()
    swept.loop.advance(TIMES[limit] - SLACK)
    assert not has_ended(line)
    assert line.take() == b""
    swept.loop.advance(SLACK + LOOK)
    assert has_ended(line)
    answers = line.answers()
    assert [answer.status for answer in answers] == ([status] if status else [])
    assert all(text in answer.body.decode() for answer in answers)
    assert before == b"" or before.startswith(b"HTTP/1.1 200")


def test_look_that_comes_late_lets_what_was_sent_be_read_first() -> None:
    swept = Swept()
    line = swept.line()
    line.send(b"GET / HTTP/1.1\r\n")
    (timer,) = swept.loop.timers
    swept.loop.now += 60  # the loop is held up, and the rest of the head waits in the socket
    swept.loop.timers.remove(timer)
    timer.call()
    line.send(b"host: h\r\n\r\n")
    swept.loop.advance(SLACK)
    assert [answer.status for answer in line.answers()] == [200]
    line.send(b"GET / HTTP/1.1\r\n")
    (timer,) = swept.loop.timers
    swept.loop.now += 60
    swept.loop.timers.remove(timer)
    timer.call()
    swept.loop.advance(SLACK)
    assert [answer.status for answer in line.answers()] == [408]


@pytest.mark.parametrize("limit", ["idle_timeout", "head_timeout", "body_timeout", "send_timeout"])
def test_no_limit(limit: str) -> None:
    swept = Swept(**{limit: 0})
    line = swept.line()
    if limit == "head_timeout":
        line.send(b"GET ")
    elif limit == "body_timeout":
        line.send(post("/run", b"12345")[:-1])
    elif limit == "send_timeout":
        line.send(post("/run", b"12345"))
        line.transport.unsent = 5
    swept.loop.advance(100_000)
    assert not has_ended(line)


def test_a_request_may_run_for_any_time() -> None:
    swept = Swept()
    line = swept.line()
    line.send(post("/run", b"12345"))
    swept.loop.advance(100_000)
    assert not has_ended(line)
    line.exchange.reply()
    assert line.texts() == ['"done"']


def test_time_between_requests_begins_with_each() -> None:
    swept = Swept()
    line = swept.line()
    for _ in range(10):
        swept.loop.advance(70)
        line.send(get("/"))
        assert line.texts() == ['"now"']
    swept.loop.advance(77)
    assert line.is_closed()


def test_a_head_may_not_trickle() -> None:
    swept = Swept()
    line = swept.line()
    line.send(b"GET / HTTP/1.1\r\n")
    for _ in range(12):
        line.send(b"X: y\r\n")
        swept.loop.advance(1)
        if has_ended(line):
            break
    assert [answer.status for answer in line.answers()] == [408]


def test_empty_lines_are_no_head() -> None:
    swept = Swept()
    line = swept.line()
    for _ in range(12):
        line.send(b"\r\n")
        swept.loop.advance(1)
    assert not has_ended(line)
    assert line.answers() == []


def test_a_body_has_to_keep_a_pace() -> None:
    swept = Swept()
    line = swept.line()
    line.send(post("/run", b"x" * 100_000)[:-100_000])
    for _ in range(5):
        for _ in range(20):
            line.send(b"x" * (LEAST_BODY // 15))
            swept.loop.advance(1)
        assert not has_ended(line)
    for _ in range(43):
        if not has_ended(line):
            line.send(b"x")
        swept.loop.advance(1)
    assert [answer.status for answer in line.answers()] == [408]


def test_a_reader_that_is_slow_is_not_its_client() -> None:
    """The client cannot send what the exchange does not take."""
    swept = Swept()
    line = swept.line()
    line.send(chunked("/unlimited", b"x" * 300_000, end=b""))
    assert not line.reads()
    swept.loop.advance(1000)
    assert not has_ended(line)


def test_a_body_that_waits_for_memory() -> None:
    swept = Swept(max_buffered_size=1000)
    first, second = swept.line(), swept.line()
    first.send(post("/run", b"x" * 900)[:-1], b"x")  # it runs, and keeps its body
    second.send(post("/run", b"x" * 900)[:-1])
    assert not second.reads()
    swept.loop.advance(22)
    (answer,) = second.answers()
    assert (answer.status, "--max-buffered-size" in answer.body.decode()) == (503, True)
    assert second.reads(), "what still comes is thrown away"
    assert swept.context.budget.used == 900
    first.exchange.reply()
    assert swept.context.budget.used == 0


def test_a_body_that_was_held_back_gets_its_time() -> None:
    swept = Swept(max_buffered_size=1000)
    first, second = swept.line(), swept.line()
    first.send(post("/run", b"x" * 900)[:-1])
    second.send(post("/run", b"x" * 900)[:-1])
    swept.loop.advance(20 + LOOK)
    assert [answer.status for answer in first.answers()] == [503]
    assert second.reads(), "the memory of the first is free"
    swept.loop.advance(20 - SLACK)
    assert not has_ended(second)
    second.send(b"x")
    second.exchange.reply()
    assert second.texts() == ['"done"']


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    swept = Swept()
    line = swept.line()
    line.send(post("/run", b"12345"))
    line.transport.unsent = 1000
    for left in (900, 800, 700):
        swept.loop.advance(50)
        line.transport.unsent = left
    assert not line.transport.is_aborted
    swept.loop.advance(60 + SLACK)
    assert line.transport.is_aborted


def test_sending_begins_anew_when_all_has_been_taken() -> None:
    swept = Swept()
    line = swept.line()
    line.send(post("/run", b"12345"))
    for _ in range(5):
        line.transport.unsent = 1000
        swept.loop.advance(40)
        line.transport.unsent = 0
        swept.loop.advance(LOOK)
    assert not line.transport.is_aborted


def test_lingering_is_short() -> None:
    swept = Swept()
    line = swept.line()
    line.send(b"nonsense\r\n\r\n")
    assert line.state is ConnectionState.LINGER
    swept.loop.advance(LINGER - LOOK)
    assert not line.is_closed()
    swept.loop.advance(LOOK + SLACK)
    assert line.is_closed()


def test_half_an_answer_is_not_followed_by_a_refusal() -> None:
    swept = Swept()
    line = swept.line()
    line.send(chunked("/parts", b"12345", end=b""))
    line.handler.parts[0].responder.open_stream(_OK, ())
    line.take()
    swept.loop.advance(TIMES["body_timeout"] + SLACK)
    assert line.transport.is_aborted
    assert line.take() == b""


@pytest.mark.parametrize(
    ("limits", "pause"),
    [
        ({}, 1.0),
        ({"head_timeout": 2}, 0.5),
        ({"head_timeout": 0.001}, 0.02),
        (dict.fromkeys(TIMES, 0.0), 1.0),
    ],
)
def test_how_often_it_looks(limits: dict[str, float], pause: float) -> None:
    swept = Swept(**limits)
    swept.loop.advance(pause * 10)
    assert swept.ticks == 10


def test_it_ends() -> None:
    swept = Swept()
    swept.sweep.stop()
    swept.loop.advance(100)
    assert swept.ticks == 0


def test_a_failure_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept()
    line = swept.line()
    monkeypatch.setattr(line.transport, "get_write_buffer_size", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        swept.loop.advance(1)
    monkeypatch.undo()
    swept.loop.advance(100)
    assert line.is_closed()
