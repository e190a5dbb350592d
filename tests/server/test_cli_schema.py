"""`geartrain schema`: the document of a model, without its setup."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from tests.support.forked import run_forked
from tests.support.servers import write_model


def schema(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_forked("schema", folder)


def test_document_is_printed_and_setup_does_not_run(tmp_path: Path) -> None:
    write_model(
        tmp_path / "pets",
        """
        from geartrain import BaseRunner, Input

        class Runner(BaseRunner):
            def setup(self) -> None:
                raise RuntimeError("setup must not run")

            def run(self, name: str = Input(description="whose"), age: int = 3) -> str: ...
        """,
    )
    command = [sys.executable, "-m", "geartrain", "schema", str(tmp_path / "pets")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    validate(document)
    assert document["info"]["title"] == "pets"
    assert list(document["components"]["schemas"]["Input"]["properties"]) == ["name", "age"]


def test_prints_of_the_model_do_not_spoil_the_document(tmp_path: Path) -> None:
    write_model(tmp_path / "pets", "print('importing')\ndef run(n: int) -> str: ...\n")
    json.loads(schema(tmp_path / "pets").stdout)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def run(x: complex) -> str: ...\n", "error: run.py:1: "),
        ("raise ValueError('not today')\ndef run() -> str: ...\n", "error: run.py:1: ValueError: not today"),
        ("print('before')\nimport nowhere\ndef run() -> str: ...\n", "before\nerror: run.py:2: ModuleNotFoundError"),
        ("class Runner:\n    x = 1\n", "error: run.py:1: the class Runner has no run() or predict()"),
    ],
)
def test_model_that_cannot_be_loaded_is_one_sentence(tmp_path: Path, source: str, said: str) -> None:
    write_model(tmp_path / "pets", source)
    done = schema(tmp_path / "pets")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr
