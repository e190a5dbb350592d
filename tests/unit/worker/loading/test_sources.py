"""A model's files are compiled each time that they are imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from geartrain.testing import call

if TYPE_CHECKING:
    import pytest

RUN = """
from helper import value
from package.inner import other

def run() -> list[int]:
    return [value, other, 1]
"""


def write(folder: Path, number: int) -> None:
    (folder / "package").mkdir(exist_ok=True)
    (folder / "run.py").write_text(RUN.replace("1]", f"{number}]"))
    (folder / "helper.py").write_text(f"value = {number}\n")
    (folder / "package/inner.py").write_text(f"other = {number}\n")
    for file in folder.rglob("*.py"):
        os.utime(file, (1_700_000_000, 1_700_000_000))


def test_a_second_version_of_the_same_size_and_second_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for number in (1, 2):
        write(tmp_path, number)
        assert call(str(tmp_path)) == [number, number, number]
    assert not list(tmp_path.rglob("__pycache__"))


def test_an_environment_in_the_folder_keeps_its_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    packages = tmp_path / "venv/lib/site-packages"
    packages.mkdir(parents=True)
    (packages / "a_library.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(packages))
    (tmp_path / "run.py").write_text("from a_library import value\n\ndef run() -> int:\n    return value\n")
    assert call(str(tmp_path)) == 7
    assert list(packages.rglob("*.pyc"))
