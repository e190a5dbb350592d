"""Tests in an environment that has not all of their packages."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from tests.conftest import LONGEST

ROOT = pathlib.Path(__file__).parents[2]


def run(tests: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    command += ["-p", "no:cacheprovider", *options, str(tests)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize(("options", "is_skipped"), [([], True), (["--need-all"], False)])
def test_module_that_needs_a_missing_package_is_skipped(
    tmp_path: pathlib.Path, options: list[str], is_skipped: bool
) -> None:
    (tmp_path / "test_needing.py").write_text("import not_there.inside\n")
    (tmp_path / "test_other.py").write_text("def test_passes(): pass\n")
    done = run(tmp_path, *options)
    assert ("not_there is not installed" in done.stdout) is is_skipped
    assert done.returncode == (0 if is_skipped else 2), done.stdout
    assert ("1 passed, 1 skipped" in done.stdout) is is_skipped


def test_missing_module_of_the_project_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_needing.py").write_text("import geartrain.not_there\n")
    assert run(tmp_path).returncode == 2


def test_long_modules_begin_first_on_several_workers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_passes(): pass\n")
    (tmp_path / "test_few.py").write_text("def test_passes(): pass\n")
    (tmp_path / "test_many.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (tmp_path / f"{LONGEST[1]}.py").write_text("def test_passes(): pass\n")
    (tmp_path / f"{LONGEST[0]}.py").write_text("def test_passes(): pass\n")
    done = run(tmp_path, "-v", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder")
    began = list(dict.fromkeys(re.findall(r"PASSED \S*?(\w+)\.py::", done.stdout)))
    assert began == [LONGEST[0], LONGEST[1], "test_many", "test_a", "test_few"], done.stdout


def test_long_modules_are_there() -> None:
    for name in LONGEST:
        assert len(list((ROOT / "tests").rglob(f"{name}.py"))) == 1, name
