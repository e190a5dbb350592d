"""`import cog` inside a worker: the names of Cog, and ours behind them."""

from __future__ import annotations

import importlib
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import geartrain
from geartrain.authoring.scope import Scope, use_scope
from geartrain.worker import cog_alias


def cog_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in {"cog", "coglet"}]


@pytest.fixture(autouse=True)
def alias() -> Iterator[None]:
    finders = list(sys.meta_path)
    cog_alias.install()
    yield
    sys.meta_path[:] = finders
    for name in cog_modules():
        del sys.modules[name]


def imported(name: str) -> Any:
    return importlib.import_module(name)


# What cog 0.23.1 has in its `__all__`
PUBLIC = (
    "AsyncConcatenateIterator",
    "BaseModel",
    "BasePredictor",
    "BaseRunner",
    "CancelationException",
    "ConcatenateIterator",
    "ExperimentalFeatureWarning",
    "FieldInfo",
    "File",
    "Input",
    "Opaque",
    "Path",
    "Secret",
    "URLFile",
    "URLPath",
    "__version__",
    "concurrent",
    "current_scope",
    "emit_metric",
    "streaming",
)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_of_cog_is_there(name: str) -> None:
    cog = imported("cog")
    assert hasattr(cog, name)
    assert name in cog.__all__


@pytest.mark.parametrize("name", sorted(set(PUBLIC) & set(geartrain.__all__) - {"__version__"}))
def test_they_are_ours(name: str) -> None:
    assert getattr(imported("cog"), name) is getattr(geartrain, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cog.types", "ConcatenateIterator"),
        ("cog.types", "Secret"),
        ("cog.types", "Input"),
        ("cog.input", "FieldInfo"),
        ("cog.base_input", "Input"),
        ("cog.model", "BaseModel"),
        ("cog.predictor", "BaseRunner"),
        ("cog.base_predictor", "BasePredictor"),
        ("cog.exceptions", "CancelationException"),
        ("cog.server.exceptions", "CancelationException"),
        ("cog.server.exceptions", "CancellationException"),
        ("cog.server.scope", "current_scope"),
        ("coglet", "CancelationException"),
    ],
)
def test_modules_below_cog(module: str, name: str) -> None:
    found = getattr(imported(module), name)
    assert found is getattr(imported("cog"), name)


def test_a_module_below_cog_is_an_attribute_of_it() -> None:
    imported("cog.server.exceptions")
    assert imported("cog").server.exceptions is sys.modules["cog.server.exceptions"]


def test_star_import() -> None:
    names: dict[str, Any] = {}
    exec("from cog import *", names)  # noqa: S102 - a star import needs a namespace of its own
    assert names["BasePredictor"] is geartrain.BasePredictor


def test_the_version_is_that_of_cogs_api() -> None:
    assert imported("cog").__version__ == cog_alias.COG_VERSION


def test_emit_metric() -> None:
    sent: list[Any] = []
    with use_scope(Scope(emit=lambda *event: sent.append(event))):
        imported("cog").emit_metric("tokens", 3)
    assert sent == [("tokens", 3, "replace")]


def test_the_warning_that_older_models_silence() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=imported("cog").ExperimentalFeatureWarning)


def test_the_types_that_stand_for_downloads_are_types() -> None:
    cog = imported("cog")
    assert issubclass(cog.URLPath, cog.Path)
    assert issubclass(cog.URLFile, cog.File)


# What is not there


def test_an_unknown_attribute() -> None:
    cog = imported("cog")
    assert not hasattr(cog, "Nope")
    with pytest.raises(
        AttributeError, match=r"'cog' has no attribute 'Nope': geartrain stands in for Cog here, with Asy"
    ):
        cog.Nope  # noqa: B018 - looking it up is the test


def test_an_unknown_name_in_a_from_import() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nope' from 'cog'") as raised:
        exec("from cog import Nope", {})  # noqa: S102 - as above
    assert raised.value.name == "cog"


def test_an_unknown_module() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'cog\.nope': geartrain stands in for Cog here"
    ) as raised:
        imported("cog.nope")
    assert raised.value.name == "cog.nope"


def test_other_modules_are_left_alone() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'cogwheel'$"):
        imported("cogwheel")


# A real cog


def test_a_real_cog_is_not_seen_and_not_touched(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cog").mkdir()
    init = tmp_path / "cog" / "__init__.py"
    init.write_text("REAL = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imported("cog").BasePredictor is geartrain.BasePredictor
    assert init.read_text() == "REAL = True"
    assert [path.name for path in (tmp_path / "cog").iterdir()] == ["__init__.py"]


def test_a_cog_that_was_imported_before_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if type(one).__name__ != "_CogFinder"])
    monkeypatch.setitem(sys.modules, "cog", type(sys)("cog"))
    monkeypatch.setitem(sys.modules, "cog.types", type(sys)("cog.types"))
    cog_alias.install()
    assert imported("cog").BasePredictor is geartrain.BasePredictor
    assert imported("cog.types").Path is geartrain.Path


def test_installing_twice_is_once() -> None:
    before = list(sys.meta_path)
    cog_alias.install()
    assert sys.meta_path == before
