"""Log records that a thread writes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from geartrain.cli import background_logs
from geartrain.cli.background_logs import in_background

LOGGER = logging.getLogger("geartrain.test")
PATIENCE = 40.0


class Slow(logging.Handler):
    """Takes records when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.is_there = threading.Event()
        self.written: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.is_there.set()
        assert self.may_write.wait(PATIENCE)
        self.written.append(f"{record.getMessage()} {vars(record).get('count', '')}".rstrip())


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
    monkeypatch.setattr(background_logs, "_MOST", 5)
    with in_background():
        LOGGER.info("first")
        assert slow.is_there.wait(PATIENCE)
        for number in range(12):
            LOGGER.info("record %d", number)
        slow.may_write.set()
    kept = [f"record {number}" for number in range(5)]
    assert slow.written == ["first", f"{background_logs._DROPPED} 7", *kept]


def test_the_end_does_not_wait_for_long(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logs, "_LAST", 0.01)
    with in_background():
        LOGGER.info("first")
        assert slow.is_there.wait(PATIENCE)
    assert slow.written == []
