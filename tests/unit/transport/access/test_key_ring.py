"""The keys of a running server follow their file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.keys import NEVER, KeyRing
from geartrain.transport.access.options import AccessError
from tests.unit.transport.access.parts import Clock, line, write_keys


class Ring:
    """A ring under test, with its clocks and the count of its changes."""

    def __init__(self, path: Path) -> None:
        self.changes = 0
        self.clock = Clock()
        self.now = Clock()
        self.ring = KeyRing(path, self._count, clock=self.clock, now=self.now)

    def _count(self) -> None:
        self.changes += 1

    def names(self, *secrets: str) -> list[str | None]:
        grants = [self.ring.find(secret) for secret in secrets]
        return [None if grant is None else grant.holder for grant in grants]


def test_key_is_found_by_itself_alone(tmp_path: Path) -> None:
    ring = Ring(write_keys(tmp_path / "keys", line("one"), line("two", "bob")))
    assert ring.names("one", "two", "three", "", "é\udcff") == ["key 'ada'", "key 'bob'", None, None, None]


def test_digest_is_no_key(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    assert Ring(path).names(path.read_text().split()[2], path.read_text().split()[2][7:]) == [None, None]


def test_changed_file_is_read_at_the_next_refresh(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    ring = Ring(path)
    write_keys(path, line("two", "bob"))
    assert ring.names("one", "two") == ["key 'ada'", None]
    ring.ring.refresh()
    assert ring.names("one", "two") == [None, "key 'bob'"]
    assert ring.changes == 1


def test_replaced_file_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    ring = Ring(path)
    before = path.stat()
    new = write_keys(tmp_path / "new", line("two"))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    assert path.stat().st_size == before.st_size
    ring.ring.refresh()
    assert ring.names("one", "two") == [None, "key 'ada'"]


def test_requests_look_at_the_file_once_a_second(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    ring = Ring(path)
    write_keys(path, line("two"))
    ring.clock.time += 0.9
    assert ring.names("one") == ["key 'ada'"]
    ring.clock.time += 0.2
    assert ring.names("one", "two") == [None, "key 'ada'"]


def test_file_that_only_looks_new_changes_nothing(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    ring = Ring(path)
    write_keys(path, "# a comment", line("one"))
    ring.ring.refresh()
    assert ring.changes == 0


@pytest.mark.parametrize("broken", ["ada predict", "\xff", None])
def test_broken_file_keeps_the_keys_and_is_logged_once(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    ring = Ring(path)
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken.encode("latin-1"))
    for _ in range(3):
        ring.ring.refresh()
    assert ring.names("one") == ["key 'ada'"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(path) in record.message
    assert record.message.endswith("The keys stay as they were.")
    write_keys(path, line("two"))
    ring.ring.refresh()
    assert ring.names("one", "two") == [None, "key 'ada'"]
    assert ring.changes == 1


def test_expired_key_is_refused_and_tells_that_it_was(tmp_path: Path) -> None:
    ring = Ring(write_keys(tmp_path / "keys", line("one", expires=2000.0), line("two", "bob", expires=3000.0)))
    ring.now.time = 1999.0
    ring.ring.refresh()
    assert ring.names("one") == ["key 'ada'"]
    assert ring.changes == 0
    ring.now.time = 2000.0
    with pytest.raises(GeartrainError, match="The key 'ada' has expired") as caught:
        ring.ring.find("one")
    assert caught.value.code is Code.UNAUTHENTICATED
    for _ in range(2):
        ring.ring.refresh()
    assert ring.changes == 1  # so that heads with that key are forgotten, once
    assert ring.names("two") == ["key 'bob'"]
    ring.now.time = 4000.0
    for _ in range(2):
        ring.ring.refresh()
    assert ring.changes == 2


def test_clock_that_is_set_forth_and_back_does_not_hide_the_end_of_a_key(tmp_path: Path) -> None:
    ring = Ring(write_keys(tmp_path / "keys", line("one", expires=2000.0), line("two", "bob")))
    for time in (5000.0, 1500.0):
        ring.now.time = time
        ring.ring.refresh()
    assert (ring.names("one"), ring.changes) == (["key 'ada'"], 1)
    ring.now.time = 2000.0
    ring.ring.refresh()
    assert ring.changes == 2  # heads that were remembered since the clock was set back are forgotten


def test_end_that_a_new_file_brings_is_watched_too(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one", expires=NEVER))
    ring = Ring(path)
    write_keys(path, line("one", expires=1500.0))
    ring.ring.refresh()
    assert ring.changes == 1
    ring.now.time = 1500.0
    ring.ring.refresh()
    assert ring.changes == 2


def test_server_does_not_start_without_its_file(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="it cannot be read: No such file"):
        Ring(tmp_path / "none")
    with pytest.raises(AccessError, match="line 1: a key has the form"):
        Ring(write_keys(tmp_path / "keys", "ada"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(5 * 1024**2)
    with pytest.raises(AccessError, match="larger than 4194304 bytes"):
        Ring(tmp_path / "large")
