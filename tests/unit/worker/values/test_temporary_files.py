"""Which of an author's temporary files are deleted when a run is over."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from geartrain.domain.signature.types import RecordField, TypeSpec
from geartrain.worker.values import call_files
from geartrain.worker.values.call_files import TemporaryFiles, may_hold_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def temporary(folder: Path, tmp_path: Path) -> TemporaryFiles:
    return TemporaryFiles(str(tmp_path / "model"))


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("content")
    return path


def has_exact_dates() -> bool:
    clock = call_files._FileClock()
    return clock.now() != clock.now()


@pytest.mark.skipif(not has_exact_dates(), reason="Linux 6.13 and later")
def test_what_was_made_before_and_after_a_moment(temporary: TemporaryFiles, folder: Path) -> None:
    """However quickly they follow each other."""
    for number in range(200):
        before = made(folder / f"before{number}")
        run = temporary.begin()
        after = made(folder / f"after{number}")
        assert temporary.add(run, before) == ()
        assert temporary.add(run, after) == (str(after),)
        temporary.end(run)
        assert (before.exists(), after.exists()) == (True, False)


def test_clock_that_was_set_back_makes_no_older_file_one_of_the_run(
    temporary: TemporaryFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3600 * 10**9
    earlier = made(folder / "earlier")
    run = temporary.begin()
    now = made(folder / "now")
    assert temporary.made_since(now, run.since - hour) == (str(now),)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - hour)
    assert temporary.made_since(earlier, run.since - hour) == ()


def test_folders_made_for_a_file_go_with_it(temporary: TemporaryFiles, folder: Path) -> None:
    (folder / "old").mkdir()
    run = temporary.begin()
    path = made(folder / "new" / "a")
    deep = folder / "old" / "x" / "y"
    deep.mkdir(parents=True)
    other = made(deep / "b")
    assert temporary.add(run, path) == (str(path), str(path.parent))
    assert temporary.add(run, other) == (str(other), str(deep), str(deep.parent))
    temporary.end(run)
    assert [entry.name for entry in folder.iterdir()] == ["old"]
    assert list((folder / "old").iterdir()) == []


def test_folder_that_holds_something_else_stays(temporary: TemporaryFiles, folder: Path) -> None:
    run = temporary.begin()
    path = made(folder / "new" / "a")
    other = made(folder / "new" / "b")
    temporary.add(run, path)
    temporary.end(run)
    assert (path.exists(), other.exists()) == (False, True)


def test_what_is_elsewhere_stays(temporary: TemporaryFiles, folder: Path) -> None:
    run = temporary.begin()
    assert temporary.add(run, Path("/etc/hostname")) == ()
    assert temporary.add(run, folder / "missing") == ()
    assert temporary.add(run, folder / ".." / ".." / "etc") == ()
    link = folder / "link"
    link.symlink_to(made(folder / "target"))
    assert temporary.add(run, link) == ()


def test_model_in_a_temporary_folder_keeps_its_own(folder: Path) -> None:
    temporary = TemporaryFiles(str(folder / "model"))
    run = temporary.begin()
    assert temporary.add(run, made(folder / "model" / "a")) == ()
    assert temporary.add(run, made(folder / "model2" / "a")) != ()


def test_runs_beside_each_other(temporary: TemporaryFiles, folder: Path) -> None:
    first, second = temporary.begin(), temporary.begin()
    own, shared = made(folder / "own"), made(folder / "shared")
    temporary.add(first, own)
    temporary.add(first, shared)
    temporary.end(first)
    assert own.exists()  # the second may yet give it
    third = temporary.begin()
    temporary.add(second, shared)
    temporary.end(second)
    assert (own.exists(), shared.exists()) == (False, True)
    temporary.end(third)
    temporary.end(third)
    assert (temporary._running, temporary._waiting, temporary._shared, +temporary._uses) == (set(), [], set(), {})


def test_run_that_gives_a_file_twice_is_one_run(temporary: TemporaryFiles, folder: Path) -> None:
    run = temporary.begin()
    path = made(folder / "a")
    assert temporary.add(run, path) == temporary.add(run, path)
    temporary.end(run)
    assert not path.exists()


def test_without_birth_dates_everything_stays(
    temporary: TemporaryFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_files, "_birth_time", lambda *_: None)
    run = temporary.begin()
    assert temporary.add(run, made(folder / "a")) == ()


def test_without_exact_dates_a_tick_in_which_another_run_ended_is_left_out(
    temporary: TemporaryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary._clock, "_touch", lambda _: 17)
    monkeypatch.setattr(call_files, "_tick", lambda: 17)
    run = temporary.begin()
    assert run.since == 17
    temporary.end(run)
    assert temporary.begin().since == 18
    monkeypatch.setattr(temporary._clock, "_touch", lambda _: 21)
    assert temporary.begin().since == 21
    monkeypatch.setattr(temporary._clock, "_probe", None)
    assert temporary.begin().since == 18


def test_folder_that_takes_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert TemporaryFiles("/model").begin().since > 1e18


@pytest.mark.parametrize(
    ("spec", "may"),
    [
        (TypeSpec("string"), False),
        (TypeSpec("path"), True),
        (TypeSpec("opaque"), True),
        (TypeSpec("object"), True),
        (TypeSpec("array", items=TypeSpec("integer")), False),
        (TypeSpec("array", items=TypeSpec("path")), True),
        (TypeSpec("union", members=(TypeSpec("string"), TypeSpec("file"))), True),
        (TypeSpec("record", fields=(RecordField("a", TypeSpec("number")),)), False),
        (TypeSpec("record", fields=(RecordField("a", TypeSpec("path")),)), True),
    ],
)
def test_types_that_may_hold_files(spec: TypeSpec, may: bool) -> None:
    assert may_hold_files(spec) == may


def test_delete_never_raises(folder: Path) -> None:
    call_files.delete([str(folder / "missing"), os.sep, str(made(folder / "a"))])
    assert list(folder.iterdir()) == []
