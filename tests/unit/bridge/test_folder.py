"""A worker's private directory: what may be removed when."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from geartrain.bridge.payloads import WorkerFolder, delete_temporary_files
from geartrain.domain.predictions.calls import FileRef


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerFolder:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return WorkerFolder()


def output(folder: WorkerFolder, name: str) -> FileRef:
    path = Path(folder.outputs, name, "a.png")
    path.parent.mkdir()
    path.write_text("content")
    file = FileRef(name, str(path), "image/png")
    folder.lend(file)
    return file


def test_discarded_files_are_gone(folder: WorkerFolder) -> None:
    first, second = output(folder, "1"), output(folder, "2")
    folder.discard([first, first])
    assert (Path(first.filename).parent.exists(), Path(second.filename).exists()) == (False, True)


def test_files_of_others_are_left_alone(folder: WorkerFolder, tmp_path: Path) -> None:
    other = tmp_path / "assets" / "a.png"
    other.parent.mkdir()
    other.write_text("content")
    inside = Path(folder.outputs)
    for name in (str(other), str(inside / "a.png"), str(inside / ".." / "x"), str(inside / ".." / "a" / "b"), "", "/"):
        folder.discard([FileRef("t", name, "image/png")])
    assert other.exists()
    assert inside.exists()


def test_it_stays_until_what_is_being_read_has_been(folder: WorkerFolder, tmp_path: Path) -> None:
    first, second = output(folder, "1"), output(folder, "2")
    folder.close(now=False)
    folder.discard([first])
    assert Path(second.filename).exists()
    folder.discard([second])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("now", [False, True])
def test_without_readers_it_is_gone_at_once(folder: WorkerFolder, tmp_path: Path, now: bool) -> None:
    folder.new_input().write_text("{}")
    folder.discard([output(folder, "1")])
    folder.close(now=now)
    assert list(tmp_path.iterdir()) == []


def test_at_the_end_of_the_server_it_is_gone_at_once(folder: WorkerFolder, tmp_path: Path) -> None:
    output(folder, "1")
    folder.close(now=True)
    assert list(tmp_path.iterdir()) == []


def test_inputs_have_names_of_their_own(folder: WorkerFolder) -> None:
    assert folder.new_input() != folder.new_input()


def test_temporary_files_are_deleted_with_their_empty_folders(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    for path in (empty, full):
        path.mkdir()
        (path / "a").write_text("")
    (full / "b").write_text("")
    delete_temporary_files([str(empty / "a"), str(empty), str(full / "a"), str(full), str(tmp_path / "missing")])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "full"]
