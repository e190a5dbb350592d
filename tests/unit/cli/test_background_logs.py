"""Log records that a thread writes."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from geartrain.cli import background_logs, logs
from geartrain.cli.background_logs import Lines, in_background

LOGGER = logging.getLogger("geartrain.test")
PATIENCE = 40.0


class Slow(logging.Handler):
    """Takes records when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.is_there = threading.Event()
        self.written: list[str] = []
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.is_there.set()
        assert self.may_write.wait(PATIENCE)
        self.written.append(f"{record.getMessage()} {vars(record).get('count', '')}".rstrip())
        self.tracebacks.append(record.exc_text or "")


@pytest.fixture
def slow() -> Iterator[Slow]:
    root, handler = logging.getLogger(), Slow()
    before, level = root.handlers[:], LOGGER.level
    root.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    yield handler
    handler.may_write.set()
    root.handlers[:] = before
    LOGGER.setLevel(level)


def test_nobody_waits_for_a_reader_who_does_not_read(slow: Slow) -> None:
    with in_background():
        for number in range(3):
            LOGGER.info("record %d", number)
        assert slow.is_there.wait(PATIENCE)
        assert slow.written == []
        slow.may_write.set()
    assert slow.written == ["record 0", "record 1", "record 2"]
    LOGGER.info("after")
    assert slow.written[3:] == ["after"]


def test_what_is_too_much_is_dropped_and_counted(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "MAX_WAITING", 5)
    with in_background():
        LOGGER.info("first")
        assert slow.is_there.wait(PATIENCE)
        for number in range(12):
            LOGGER.info("record %d", number)
        slow.may_write.set()
    kept = [f"record {number}" for number in range(5)]
    assert slow.written == ["first", f"{background_logs._DROPPED} 7", *kept]


def test_long_records_are_dropped_before_there_are_many(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "MAX_CHARACTERS", 25_000)
    with in_background():
        LOGGER.info("first")
        assert slow.is_there.wait(PATIENCE)
        for number in range(3):
            LOGGER.info("message %s", f"{number}" * 10_000)
            LOGGER.info("field", extra={"text": f"{number}" * 10_000})
        slow.may_write.set()
    assert [text[:9] for text in slow.written] == ["first", "records o", "message 0", "field"]
    assert slow.written[1] == f"{background_logs._DROPPED} 4"
    LOGGER.info("long %s", "x" * 30_000)  # not in the background
    assert slow.written[-1] == "long " + "x" * 30_000


def test_room_for_long_records_is_had_again(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "MAX_CHARACTERS", 25_000)
    slow.may_write.set()
    with in_background():
        for number in range(10):
            LOGGER.info("%s%d", "x" * 20_000, number)
            background_logs.settle()
    assert [text[-1] for text in slow.written] == list("0123456789")


def test_the_end_does_not_wait_for_long(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "_LAST", 0.01)
    with in_background():
        LOGGER.info("first")
        assert slow.is_there.wait(PATIENCE)
    assert slow.written == []


class Seen:
    """The texts on stderr and those of records, in the order of writing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: Slow) -> None:
        slow.may_write.set()
        self.texts: list[str] = []
        monkeypatch.setattr(logs, "write_lines", self.texts.append)
        monkeypatch.setattr(slow, "emit", lambda record: self.texts.append(record.getMessage()))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, slow: Slow) -> Seen:
    return Seen(monkeypatch, slow)


def log_at(moment: float, text: str) -> None:
    record = LOGGER.makeRecord(LOGGER.name, logging.INFO, "", 0, text, (), None)
    record.created = moment
    LOGGER.handle(record)


def test_lines_and_records_are_in_the_order_of_their_moments(seen: Seen) -> None:
    now = time.time()
    with in_background():
        log_at(now + 0.02, "second\n")
        log_at(now + 0.04, "fourth\n")
        background_logs.write([Lines((now + 0.01, now + 0.03), "first\nthird\n"), Lines((now + 0.05,), "fifth\n")])
    assert "".join(seen.texts).split() == ["first", "second", "third", "fourth", "fifth"]


def test_record_is_sorted_into_lines_that_wait(seen: Seen) -> None:
    now = time.time()
    with in_background():
        background_logs.write([Lines((now, now + 10), "first\nthird\u2028\x85\n")])
        log_at(now + 5, "second\n")
    assert "".join(seen.texts).split("\n") == ["first", "second", "third\u2028\x85", ""]


@pytest.mark.parametrize("is_together", [True, False])
def test_lines_that_come_later_than_others_are_sorted_in(seen: Seen, is_together: bool) -> None:
    now = time.time()
    lines = [Lines((now, now + 3), "first\nfourth\n"), Lines((now + 1, now + 2), "second\nthird\n")]
    with in_background():
        for sent in [lines] if is_together else [[each] for each in lines]:
            background_logs.write(sent)
    assert seen.texts == ["first\nsecond\nthird\nfourth\n"]


def test_many_lines_are_written_in_one_piece(seen: Seen) -> None:
    now = time.time()
    with in_background():
        background_logs.write([Lines((now, now), "a\nb\n"), Lines((now,), "c\n")])
        background_logs.write([Lines((now,), "d\n")])
        log_at(now + 0.01, "record")
    assert seen.texts == ["a\nb\nc\nd\n", "record"]


def test_sender_waits_while_many_lines_wait(slow: Slow, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "_MAX_LINES", 2)
    monkeypatch.setattr(background_logs, "_HELD", 0.01)
    slow.may_write.clear()
    sent = 0

    def write(text: str) -> None:
        assert slow.may_write.wait(PATIENCE)
        seen.texts.append(text)

    monkeypatch.setattr(logs, "write_lines", write)

    def send() -> None:
        nonlocal sent
        for number in range(4):
            background_logs.write([Lines((0.0,), f"{number}\n")])
            sent += 1

    with in_background():
        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.2)
        assert sender.is_alive()
        assert sent == 2
        slow.may_write.set()
        sender.join(PATIENCE)
    assert "".join(seen.texts) == "0\n1\n2\n3\n"


def test_steps_of_the_start_wait_for_nothing(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "_HELD", PATIENCE)
    with in_background():
        logging.getLogger("geartrain.server").warning("listening")
        until = time.monotonic() + PATIENCE / 2
        while not seen.texts and time.monotonic() < until:
            threading.Event().wait(0.01)
        assert seen.texts == ["listening"]


def test_lines_are_written_at_once_where_no_thread_writes(seen: Seen) -> None:
    background_logs.write([Lines((0.0,), "a\n"), Lines((1.0,), "b\n")])
    assert seen.texts == ["a\nb\n"]


class Body:
    """Large, and held by the frames that read it."""

    def __str__(self) -> str:
        return "a body"


def fail_with(body: Body) -> None:
    raise ValueError(f"{body} is wrong")


def test_record_that_waits_keeps_nothing_of_a_request(slow: Slow) -> None:
    """Neither the values of the frames of a traceback, nor those of its message."""
    with in_background():
        LOGGER.info("first")
        assert slow.is_there.wait(PATIENCE)  # and nothing is written from here on
        body, other = Body(), Body()
        held = [weakref.ref(body), weakref.ref(other)]
        try:
            fail_with(body)
        except ValueError:
            LOGGER.exception("reading %s failed", other)
        del body, other
        gc.collect()
        assert [reference() for reference in held] == [None, None]
        slow.may_write.set()
    assert slow.written == ["first", "reading a body failed"]
    assert "in fail_with" in slow.tracebacks[1]
    assert slow.tracebacks[1].endswith("ValueError: a body is wrong")


def test_traceback_is_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Of both forms, as without the thread."""
    root = logging.getLogger()
    before = root.handlers[:]
    for form in (logs.JsonFormatter(), logs.ConsoleFormatter()):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(form)
        root.handlers[:] = [handler]
        try:
            with in_background():
                try:
                    fail_with(Body())
                except ValueError:
                    LOGGER.exception("failed")
        finally:
            root.handlers[:] = before
        shown = capsys.readouterr().err
        assert shown.count("ValueError: a body is wrong") == 1
        assert "in fail_with" in shown
