"""Which models were written for Cog: told by what their files import."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from geartrain.worker.loading.loader import is_for_cog


def load(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def run(): ...", False),
        ("def run():\n    from cog import current_scope", True),
        ("def run():\n    import cog.types as types", True),
        ("def run():\n    import geartrain, cog", False),
        ("import geartrain\ndef run():\n    'as with cog'", False),
        ("def run():\n    from .cog import x", False),
        ("def run():\n    import cognition\n    'import cog'", False),
    ],
)
def test_c10_a_function(text: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(tmp_path, "style_function", text, monkeypatch)
    assert is_for_cog(module.run) is expected


@pytest.mark.parametrize(("own", "expected"), [("", True), ("import geartrain\n", False)])
def test_c10_a_class_and_its_bases(
    own: str,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(tmp_path, "style_base", "class Base:\n    def help(self):\n        import cog", monkeypatch)
    text = f"{own}from style_base import Base\nclass Predictor(Base):\n    def predict(self): ..."
    assert is_for_cog(load(tmp_path, "style_class", text, monkeypatch).Predictor) is expected


def test_c10_a_module_without_a_text() -> None:
    assert not is_for_cog(len)
    assert not is_for_cog(type("Made", (), {"__module__": "nowhere"}))
