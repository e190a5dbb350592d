"""Names of the models of one script, which is read again only when it has changed."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from geartrain.project import script_models
from geartrain.project.script_models import ScriptModels, find_script_models
from geartrain.project.source import find_model

SCRIPT = """
from pytriton.triton import Triton

with Triton() as triton:
    triton.bind(model_name="first", infer_func=len, inputs=[], outputs=[])
    triton.bind(model_name="{}", infer_func=len, inputs=[], outputs=[])
    triton.serve()
"""


def _models(folder: Path) -> ScriptModels:
    target = str(folder)
    found = find_script_models(target, find_model(target, environ={}), "", environ={}, no_pickle=False)
    assert isinstance(found, ScriptModels)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The reads of the script from now on."""
    found: list[object] = []

    def parse(source: str | bytes) -> ast.Module:
        found.append(source)
        return ast.parse(source)

    monkeypatch.setattr(script_models, "ast", _Ast(parse))
    return found


class _Ast:
    """The module, with a `parse` that counts."""

    def __init__(self, parse: Any) -> None:
        self.parse = parse

    def __getattr__(self, name: str) -> Any:
        return getattr(ast, name)


def test_a_script_is_read_once_until_it_changes(tmp_path: Path, reads: list[object]) -> None:
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT.format("second"))
    models = _models(tmp_path)
    del reads[:]
    for _ in range(20):
        assert models.names() == ["first", "second"]
        assert models.holds_model("second")
    assert len(reads) == 1
    script.write_text(SCRIPT.format("another"))
    for _ in range(20):
        assert models.names() == ["another", "first"]
    assert len(reads) == 2
    beside = tmp_path / "beside"
    beside.write_text(SCRIPT.format("3rd-one"))
    os.utime(beside, ns=(script.stat().st_atime_ns, script.stat().st_mtime_ns))
    beside.replace(script)  # of the same size and time
    assert models.names() == ["3rd-one", "first"]
    (tmp_path / "geartrain.yaml").write_text("parameters: {models: [first]}\n")
    assert models.names() == ["first"]
    script.unlink()
    assert models.names() == []


def test_names_are_the_callers_own(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SCRIPT.format("second"))
    models = _models(tmp_path)
    models.names().clear()
    assert models.names() == ["first", "second"]
