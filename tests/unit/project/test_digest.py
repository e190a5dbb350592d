"""Which files belong to a model, and what of them is a change."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geartrain.project.digest import Digests, Listings, ModelAlone, may_count
from geartrain.project.repository import Repository
from geartrain.project.source import find_model

RUNNER = "class Runner:\n    def run(self) -> str: ...\n"


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def changes(folder: Path, do: Callable[[], Any], digests: Digests | None = None) -> bool:
    """Whether doing something changes the digest of the model in a folder."""
    digests = digests or Digests()
    before = digests.of_model(folder)
    assert digests.of_model(folder) == before
    do()
    return digests.of_model(folder) != before


def test_there_is_none_of_no_folder(tmp_path: Path) -> None:
    assert not Digests().of_model(tmp_path / "cats")
    assert not Digests().of_model(write(tmp_path / "notes.txt"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("run.py", True),
        ("deep/down/helper.py", True),
        ("_private/helper.py", True),
        ("cog.yaml", True),
        ("geartrain.yaml", True),
        ("conf/small.yml", True),
        ("2/helper.py", True),
        ("weights.pt", False),
        ("cache/blob.pkl", False),
        ("cache/blob", False),
        ("output.txt", False),
        ("__pycache__/run.py", False),
        ("node_modules/x/x.py", False),
        (".git/hooks/x.py", False),
        (".#run.py", False),
        ("run.py~", False),
        ("flycheck_run.py", False),
    ],
)
def test_of_code_only_sources_count(tmp_path: Path, name: str, *, expected: bool) -> None:
    write(tmp_path / "cats" / "run.py", RUNNER)
    assert changes(tmp_path / "cats", lambda: write(tmp_path / "cats" / name, "# written\n")) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.onnx", True),
        ("model.onnx.data", True),
        ("part-1", True),
        ("model.savedmodel/variables/variables.index", True),
        ("transformers/pipeline.py", True),
        ("geartrain.yaml", True),
        ("README.md", False),
        ("serving.log", False),
        ("model.onnx.part", False),
        (".model.onnx.x1Zq", False),
    ],
)
def test_of_a_model_file_whatever_may_be_weights_counts(tmp_path: Path, name: str, *, expected: bool) -> None:
    write(tmp_path / "cats" / "model.onnx")
    write(tmp_path / "cats" / "cog.yaml", "environment: [A=1]\n")
    assert changes(tmp_path / "cats", lambda: write(tmp_path / "cats" / name, "changed")) == expected


def test_settings_may_name_a_file_beside_code(tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    write(folder / "run.py", RUNNER)
    write(folder / "model.onnx")
    assert not changes(folder, lambda: write(folder / "model.onnx", "changed"))
    write(folder / "geartrain.yaml", "file: model.onnx\n")
    assert changes(folder, lambda: write(folder / "model.onnx", "changed again"))
    write(folder / "geartrain.yaml", "file: [\n")
    assert not changes(folder, lambda: write(folder / "model.onnx", "x"))
    write(folder / "cog.yaml", "run: [\n")
    assert not changes(folder, lambda: write(folder / "model.onnx", "changed"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1/run.py", True),
        ("2/model.onnx", True),
        ("2/part", True),
        ("3/run.py", True),
        ("geartrain.yaml", True),
        ("run.py", True),  # beside version folders, which is a mistake
        ("model.onnx", True),
        ("1/cache/blob.onnx", False),
        ("cache/helper.py", False),
        ("notes.md", False),
    ],
)
def test_of_version_folders(tmp_path: Path, name: str, *, expected: bool) -> None:
    write(tmp_path / "cats" / "1" / "run.py", RUNNER)
    write(tmp_path / "cats" / "2" / "model.onnx")
    assert changes(tmp_path / "cats", lambda: write(tmp_path / "cats" / name, "changed")) == expected


def test_an_empty_version_folder_counts(tmp_path: Path) -> None:
    write(tmp_path / "cats" / "1" / "run.py", RUNNER)
    assert changes(tmp_path / "cats", (tmp_path / "cats" / "2").mkdir)
    assert changes(tmp_path / "cats", (tmp_path / "cats" / "2").rmdir)


def test_a_change_is_one_of_name_size_or_time(tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    path = write(folder / "run.py", RUNNER)
    assert changes(folder, lambda: path.rename(folder / "predict.py"))
    assert changes(folder, lambda: (folder / "predict.py").rename(path))
    times = path.stat()
    assert not changes(folder, lambda: os.utime(path, ns=(1, times.st_mtime_ns)))
    assert changes(folder, lambda: os.utime(path, ns=(1, times.st_mtime_ns + 1)))

    def grow() -> None:
        write(path, RUNNER + "#")
        os.utime(path, ns=(1, times.st_mtime_ns + 1))

    assert changes(folder, grow)
    assert changes(folder, lambda: shutil.rmtree(folder))


def test_moved_away_and_back_it_is_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    write(folder / "run.py", RUNNER)
    assert not changes(folder, lambda: [folder.rename(tmp_path / "x"), (tmp_path / "x").rename(folder)])


def test_links_count_by_where_they_lead(tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    for release in ("..one", "..two"):
        write(folder / release / "run.py", RUNNER)
        os.utime(folder / release / "run.py", (1, 1))

    def switch(link: Path, target: str) -> None:
        (tmp_path / "new").symlink_to(target)
        (tmp_path / "new").rename(link)

    switch(folder / "..data", "..one")
    switch(folder / "run.py", "..data/run.py")
    assert changes(folder, lambda: switch(folder / "..data", "..two"))
    assert changes(folder, lambda: switch(folder / "..data", "..nowhere"))
    assert changes(folder, lambda: switch(folder / "..data", "..one"))
    assert changes(folder, lambda: write(folder / "..one" / "run.py", RUNNER + "#"))
    assert changes(folder, lambda: switch(folder / "package", "..one"))
    assert changes(folder, lambda: switch(folder / "package", "..two"))
    (folder / "around").symlink_to(folder)
    (folder / "itself").symlink_to("itself")
    assert changes(folder, lambda: write(folder / "helper.py"))  # and it ends
    switch(tmp_path / "link", "cats")
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    assert changes(tmp_path / "link", lambda: switch(tmp_path / "link", "copy"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("run.py", True),
        ("weights.bin", True),
        ("1/model.onnx", True),
        ("data/words.txt", True),
        ("prompt.md", True),
        ("train.log", False),
        ("model.bin.part", False),
        (".git/HEAD", False),
        ("__pycache__/run.pyc", False),
    ],
)
def test_the_content_is_all_but_scratch(tmp_path: Path, name: str, *, expected: bool) -> None:
    write(tmp_path / "cats" / "run.py", RUNNER)
    digests = Digests()
    before = digests.of_content(tmp_path / "cats")
    assert before == Repository(tmp_path, environ={}).content("cats")
    write(tmp_path / "cats" / name, "something else")
    assert (digests.of_content(tmp_path / "cats") != before) == expected


def test_the_content_of_nothing_and_of_too_much_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Digests().of_content(tmp_path)
    monkeypatch.setattr("geartrain.project.digest._MOST_FILES", 3)
    for name in ("a", "b", "c"):
        write(tmp_path / name)
    assert Digests().of_content(tmp_path)
    write(tmp_path / "d")
    assert not Digests().of_content(tmp_path)


def test_virtual_environments_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "cats" / "run.py", RUNNER)
    write(tmp_path / "cats" / "env" / "pyvenv.cfg")
    assert not changes(tmp_path / "cats", lambda: write(tmp_path / "cats" / "env" / "lib" / "x.py"))


# large folders


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that have been listed."""
    scandir, found = os.scandir, list[str]()

    def count(path: str) -> Any:
        found.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    return found


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number in range(1000):
        (folder / str(number)).touch()
    return folder


def set_back(folder: Path) -> None:
    """As if it had been written a while ago."""
    os.utime(folder, (time.time() - 10, time.time() - 10))


def test_a_large_folder_is_listed_again_only_when_it_has_changed(tmp_path: Path, scans: list[str]) -> None:
    write(tmp_path / "cats" / "run.py", RUNNER)
    cache = fill(tmp_path / "cats" / "cache")
    source = write(cache / "helper.py")
    set_back(cache)
    digests = Digests()
    for _ in range(3):
        digests.of_model(tmp_path / "cats")
    assert scans.count("cache") == 1
    assert changes(tmp_path / "cats", lambda: source.write_text("changed, in a folder that has not"), digests)
    assert scans.count("cache") == 1
    assert changes(tmp_path / "cats", lambda: write(cache / "new.py"), digests)
    assert scans.count("cache") == 2
    assert changes(tmp_path / "cats", lambda: write(cache / "newer.py"), digests)
    set_back(cache)
    assert changes(tmp_path / "cats", lambda: cache.rename(tmp_path / "away"), digests)


def test_what_is_known_of_a_large_folder_is_found_out_again_after_a_while(
    tmp_path: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, listings = fill(tmp_path / "cache"), Listings()
    set_back(cache)
    for _ in range(2):
        listings.list(str(cache), str.isdecimal)
    assert scans == ["cache"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert len(listings.list(str(cache), str.isdecimal).files) == 1000
    assert scans == ["cache"] * 2


# how a model is named


def alone(target: Path | str) -> ModelAlone:
    return ModelAlone(find_model(str(target), environ={}), str(target))


def test_a_model_alone_that_has_gone_has_a_digest(tmp_path: Path) -> None:
    folder = write(tmp_path / "cats" / "run.py", RUNNER).parent
    for target in (folder, folder / "run.py", f"{folder / 'run.py'}:Runner"):
        write(folder / "run.py", RUNNER)
        model = alone(target)
        assert (model.root, model.candidates(), model.name_of(folder)) == (folder, ["cats"], "cats")
        before = model.digest("cats")
        write(folder / "weights.pt")
        assert model.digest("cats") == before
        write(folder / "helper.py", str(target))
        between = model.digest("cats")
        shutil.rmtree(folder)
        assert len({before, between, model.digest("cats"), ""}) == 4


def test_a_model_file_that_is_named_counts_with_what_is_called_like_it(tmp_path: Path) -> None:
    path = write(tmp_path / "cats" / "model.onnx")
    model = alone(path)

    def is_changed_by(name: str) -> bool:
        before = model.digest("model")
        write(path.parent / name, f"changed: {name}")
        return model.digest("model") != before

    assert [is_changed_by(name) for name in ("model.onnx", "model.onnx.data", "helper.py")] == [True] * 3
    assert [is_changed_by(name) for name in ("other.onnx", "notes.txt")] == [False] * 2


def test_a_module_is_looked_at_where_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "pets.py", RUNNER)
    monkeypatch.chdir(tmp_path)
    model = alone("pets:Runner")
    before = model.digest("pets")
    write(tmp_path / "output.txt")
    assert model.digest("pets") == before
    write(tmp_path / "pets.py", RUNNER + "#")
    assert model.digest("pets") != before


def test_a_variable_may_name_the_code_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tom.py", RUNNER)
    monkeypatch.chdir(tmp_path)
    model = ModelAlone(find_model(None, environ={"COG_PREDICT_TYPE_STUB": "tom.py:Runner"}))
    before = model.digest("tom")
    write(tmp_path / "output.txt")
    assert model.digest("tom") == before


def test_a_repository_has_digests_of_folders_alone(tmp_path: Path) -> None:
    write(tmp_path / "cats" / "run.py", RUNNER)
    write(tmp_path / "notes" / "notes.txt")
    write(tmp_path / "_old" / "run.py", RUNNER)
    write(tmp_path / "loose.py", RUNNER)
    repository = Repository(tmp_path, environ={})
    assert repository.candidates() == ["cats", "notes"]
    assert [name for name in ("cats", "notes", "_old", "loose.py", "") if repository.digest(name)] == ["cats", "notes"]
    assert [repository.holds_model(name) for name in ("cats", "notes")] == [True, False]


# which reports are worth a look


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cats", True),
        ("cats/run.py", True),
        ("cats/deep/helper.py", True),
        ("cats/geartrain.yaml", True),
        ("cats/model.ONNX", True),
        ("cats/model.savedmodel/saved_model.pb", True),
        ("cats/folder.with.dots", True),
        ("cats/..data", True),
        ("cats/cache/blob.txt.gz", False),
        ("cats/run.cpython-311.pyc", False),
        ("cats/__pycache__/run.py", False),
        (".git/index", False),
        (".git", False),
    ],
)
def test_reports_of_what_may_count(tmp_path: Path, name: str, *, expected: bool) -> None:
    (tmp_path / "cats" / "folder.with.dots").mkdir(parents=True)
    (tmp_path / "cats" / "..data").symlink_to("nowhere")
    assert may_count(tmp_path / name, tmp_path) == expected
    assert may_count(tmp_path, tmp_path)
