from __future__ import annotations

import os
from pathlib import Path

import pytest

from geartrain.domain.remote.reference import read_reference
from geartrain.project.errors import ProjectError
from geartrain.project.served import find_served
from geartrain.project.setting_values import Weights
from geartrain.project.settings import read_settings
from geartrain.project.source import ModelSource
from geartrain.server.fetching import cache_folder

SUM = "ab" * 32


def weights(folder: Path, text: str) -> tuple[Weights, ...]:
    (folder / "geartrain.yaml").write_text(text)
    return read_settings(folder).weights


def test_list_and_map_say_the_same(tmp_path: Path) -> None:
    expected = (
        Weights(read_reference("s3://bucket/a.bin"), "w/a.bin"),
        Weights(read_reference(f"hf://org/name/b.bin#sha256={SUM}"), "b"),
    )
    listed = f"""
    weights:
    - source: s3://bucket/a.bin
      dest: w/a.bin
    - {{source: hf://org/name/b.bin, dest: ./b, sha256: {SUM}}}
    """
    mapped = f"""
    weights:
      w/a.bin: s3://bucket/a.bin
      b: {{source: hf://org/name/b.bin, sha256: {SUM}}}
    """
    assert weights(tmp_path, listed) == weights(tmp_path, mapped) == expected


def test_entry_without_a_place(tmp_path: Path) -> None:
    assert weights(tmp_path, "weights: [s3://bucket/a]") == (Weights(read_reference("s3://bucket/a")),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights: s3://bucket/a", r"geartrain\.yaml: `weights` is the text 's3://bucket/a'; write a list of entries"),
        ("weights: []", "`weights` is a list; write a list of entries"),
        ("weights: [1]", r"`weights\[0\]` is the number 1; write `source:` with a URL"),
        ("weights: [{url: s3://bucket/a}]", r"`weights\[0\]` has no key `url`; there are source, dest, sha256"),
        ("weights: [{dest: a}]", r"`weights\[0\]\.source` is empty; write for example s3://"),
        ("weights: {a: b.bin}", r"`weights\.a\.source` is the text 'b\.bin'; write for example s3://"),
        ("weights: {a: 'oci://x/y'}", r"`weights\.a\.source`: oci:// cannot be fetched"),
        ("weights: {a: {source: s3://b/c, sha256: abc}}", r"`weights\.a\.sha256` is the text 'abc'; write 64"),
        ("weights: {../a: s3://b/c}", r"`weights\.\.\./a\.dest` is the text '\.\./a'; write a path inside"),
        ("weights: {/a: s3://b/c}", "write a path inside of the model's folder"),
        ("weights: {.: s3://b/c}", "write a path inside of the model's folder"),
        ("weights: [{source: s3://b/c, dest: 1}]", r"`weights\[0\]\.dest` is the number 1"),
        ("weights: [s3://b/c, s3://b/d]", "several entries without `dest`, and setup.. gets one path"),
        ("weights: {a: s3://b/c, a/b: s3://b/d}", "puts something else at or above a/b, too"),
        ("weights: {a: s3://b/c, ./a: s3://b/d}", "puts something else at or above a, too"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=message):
        weights(tmp_path, text)


def served(target: str) -> ModelSource:
    found = find_served(target, environ={})
    assert isinstance(found, ModelSource)
    return found


def test_model_elsewhere_is_pending() -> None:
    found = served("s3://bucket/models/cats.tar.gz")
    assert (found.name, found.is_pending, found.mode) == ("cats", True, "predict")
    assert [served(f"s3://bucket/{file}").name for file in ("a.py", "b.onnx", "c.v1")] == ["a", "b", "c.v1"]
    with pytest.raises(ProjectError, match="oci:// cannot be fetched"):
        find_served("oci://host/model")


def test_model_that_is_complete_with_its_weights_is_pending(tmp_path: Path) -> None:
    (tmp_path / "geartrain.yaml").write_text("weights: {model.onnx: s3://bucket/model.onnx}")
    assert served(str(tmp_path)).is_pending
    with pytest.raises(ProjectError, match="no model here"):
        find_served(str(tmp_path), is_fetched=True)
    (tmp_path / "run.py").write_text("class Runner:\n    def run(self) -> str: return ''\n")
    found = served(str(tmp_path))
    assert (found.is_pending, len(found.weights)) == (False, 1)


def test_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"GEARTRAIN_CACHE": "/a", "XDG_CACHE_HOME": "/b"}
    assert cache_folder(tmp_path, environ) == tmp_path
    assert cache_folder(None, environ) == Path("/a")
    assert cache_folder(None, {"XDG_CACHE_HOME": "/b"}) == Path("/b/geartrain")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder(None, {"XDG_CACHE_HOME": "relative"}) == Path("/home/ada/.cache/geartrain")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(ProjectError, match="no home folder for the cache; choose a folder with --cache-dir"):
        cache_folder(None, {})


def test_relative_folder_of_the_cache_is_below_the_current_one() -> None:
    assert cache_folder(Path("x"), {}) == Path(os.getcwd()) / "x"  # noqa: PTH109 - what Path.cwd() is compared with
