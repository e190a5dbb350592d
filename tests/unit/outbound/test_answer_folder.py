"""Answers in a folder: bounds, ages, damage, and files that belong to others."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain.outbound.answer_folder import MAX_PENDING, AnswerFolder

PATIENCE = 30.0


def opened(folder: Path, **given: Any) -> AnswerFolder:
    settings = {"model": "m", "version": "1", "digest": "d", "ttl": 60.0, "max_bytes": 100_000, **given}
    return AnswerFolder(folder, **settings)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def fill(folder: Path, *numbers: int, size: int = 100, age: float = 0.0, **given: Any) -> None:
    answers = opened(folder, **given)
    answers.read()
    for number in numbers:
        answers.write(
            key(number), time.time() - age, size=size, encode=partial(bytes.__add__, b"%d" % number, bytes(size))
        )
    answers.close()


def read(folder: Path, **given: Any) -> list[int]:
    answers = opened(folder, **given)
    found = answers.read()
    answers.close()
    return [int.from_bytes(each.key, "big") for each in found]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_answers_come_back_with_their_age(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, age=10.0)
    answers = opened(tmp_path)
    found = answers.read()
    answers.close()
    assert [(each.key, each.content[:1]) for each in found] == [(key(1), b"1"), (key(2), b"2")]
    assert all(9.0 < time.time() - each.kept_at < 30.0 for each in found)
    fill(tmp_path, 1)
    assert len(files(tmp_path)) == 2  # one file for each key


def test_models_versions_and_digests_are_apart(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    for other in ({"model": "../m"}, {"version": "2"}, {"digest": "e"}):
        assert read(tmp_path, **other) == [], other
    assert read(tmp_path) == [1]
    assert {path.name for path in tmp_path.iterdir()} == {"m@1", "m@2", "..%2Fm@1"}


def test_old_answers_go(tmp_path: Path) -> None:
    fill(tmp_path, 1, age=59.0, ttl=3600.0)
    fill(tmp_path, 2, ttl=3600.0)
    assert read(tmp_path, ttl=30.0) == [2]
    assert len(files(tmp_path)) == 1
    fill(tmp_path, 3, age=-1000.0)  # the clock was set back
    assert read(tmp_path) == [2]
    (left,) = files(tmp_path)
    os.utime(left, (1.0, 1.0))
    assert read(tmp_path, digest="e") == []
    assert files(tmp_path) == []  # of another digest, and too old


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    fill(tmp_path, *range(50), size=10_000)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 100_000
    assert read(tmp_path) == list(range(41, 50))
    fill(tmp_path, 60, size=200_000)
    assert 60 not in read(tmp_path)
    assert len(read(tmp_path, max_bytes=25_000)) == 2
    assert len(files(tmp_path)) == 2


def test_writes_that_wait_are_bounded(tmp_path: Path) -> None:
    answers = opened(tmp_path, max_bytes=10 * MAX_PENDING)
    answers.read()
    encoded: list[int] = []
    gate = threading.Event()

    def note(number: int) -> bytes:
        gate.wait(PATIENCE)
        encoded.append(number)
        return b"x"

    for number in range(40):
        answers.write(key(number), time.time(), size=MAX_PENDING, encode=partial(note, number))
    gate.set()
    answers.close()
    assert encoded == [0]
    answers = opened(tmp_path, max_bytes=10 * MAX_PENDING)
    answers.write(key(1), time.time(), size=MAX_PENDING + 1, encode=partial(note, 99))
    answers.close()
    assert 99 not in encoded


@pytest.mark.parametrize("damage", ["cut", "changed", "older", "empty", "renamed"])
def test_damaged_files_are_no_answers(tmp_path: Path, damage: str) -> None:
    fill(tmp_path, 1, 2)
    first, second = files(tmp_path)
    data = first.read_bytes()
    first.write_bytes(
        {
            "cut": data[:-1],
            "changed": data[:-1] + b"?",
            "older": data[:20] + b"?" + data[21:],
            "empty": b"",
            "renamed": second.read_bytes(),
        }[damage]
    )
    assert read(tmp_path) == [2]


def test_foreign_files_stay(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (answer,) = files(tmp_path)
    for name in ("notes.txt", "x.answer", f"{answer.name}.bak"):
        (answer.parent / name).write_text("mine")
    (answer.parent / f"{'0' * 32}-{'0' * 64}.answer").symlink_to(answer.parent / "notes.txt")
    young, old = (answer.with_suffix(f".{number}.part") for number in (1, 2))
    young.write_text("part")
    old.write_text("part")
    os.utime(old, (1.0, 1.0))
    assert read(tmp_path) == [1]
    assert len(list(answer.parent.iterdir())) == 6
    assert young.exists()
    assert not old.exists()


def test_a_folder_that_cannot_be_made_costs_answers_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    fill(tmp_path / "file", 1, 2)
    assert [record.message for record in caplog.records] == [
        f"answers cannot be kept in {tmp_path}/file/m@1 (`cache.folder`): Not a directory"
    ]
    assert read(tmp_path / "file") == []
