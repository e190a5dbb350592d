"""`import cog` inside a worker: the names of Cog, and ours behind them."""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import geartrain
from geartrain.authoring.coders import Coder
from geartrain.authoring.scope import Scope, use_scope
from geartrain.domain.versions import COG_VERSION
from geartrain.worker.loading import cog_alias
from geartrain.worker.loading.loader import LoadError, load


def cog_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in {"cog", "coglet"}]


@pytest.fixture(autouse=True)
def alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Coder, "_coders", {})  # a module with a coder registers it when it is imported
    monkeypatch.delitem(sys.modules, "geartrain.worker.loading.json_coder", raising=False)
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


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("cog.coder", ["Coder"]),
        ("cog.coder.json_coder", ["JsonCoder"]),
        ("cog.errors", ["CogError", "ConfigDoesNotExist", "PredictorNotSet"]),
        ("cog.mode", ["Mode"]),
        ("cog.predictor", ["extract_setup_weights", "has_setup_weights", "load_predictor_from_ref", "BasePredictor"]),
        ("cog.server.http", ["Mode"]),
        ("cog.suppress_output", ["suppress_output"]),
        ("cog.types", ["ExperimentalFeatureWarning", "Weights"]),
    ],
)
def test_c3_names_that_models_import(module: str, names: list[str]) -> None:
    found = imported(module)
    assert set(names) <= set(found.__all__)
    assert all(hasattr(found, name) for name in names)


def test_c3_names_are_loaded_only_where_they_are_needed() -> None:
    script = (
        "import sys; from geartrain.worker.loading import cog_alias; cog_alias.install()\n"
        "import cog, cog.types, cog.coder\n"
        "print(*('geartrain.worker.loading.' + name in sys.modules for name in ('cog_extras', 'json_coder')))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "False False\n"


def test_c3_values_of_the_small_modules() -> None:
    assert [str(mode) for mode in imported("cog.mode").Mode] == ["predict", "train"]
    assert imported("cog.server.http").Mode is imported("cog.mode").Mode
    errors = imported("cog.errors")
    assert issubclass(errors.ConfigDoesNotExist, errors.CogError)
    assert set(typing.get_args(imported("cog.types").Weights)) == {geartrain.File, geartrain.Path, str}


def test_c3_json_coder_makes_classes_that_derive_from_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coder, "_coders", {})
    monkeypatch.delitem(sys.modules, "geartrain.worker.loading.json_coder", raising=False)
    monkeypatch.delitem(sys.modules, "cog.coder.json_coder", raising=False)
    module: dict[str, Any] = {}
    exec("from cog.coder import json_coder", module)  # noqa: S102 - what a model writes

    class Settings(dict[str, Any]):
        pass

    coder = Coder.lookup(Settings)
    assert coder is not None
    assert type(coder) is module["json_coder"].JsonCoder
    made = coder.decode({"a": 1})
    assert (type(made), made["a"]) == (Settings, 1)
    assert type(coder.encode(made)) is dict
    assert Coder.lookup(list) is None


def test_c3_load_predictor_from_ref(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = imported("cog.predictor")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    methods = "    def setup(self, weights): ...\n    def predict(self): return 'x'\n"
    (tmp_path / "gt_predict.py").write_text(f"class Predictor:\n{methods}def train(): return 'y'\n")
    loaded = predictor.load_predictor_from_ref("gt_predict.py:Predictor")
    assert loaded.predict() == "x"
    assert predictor.load_predictor_from_ref("gt_predict.py:train")() == "y"
    assert type(predictor.load_predictor_from_ref("gt_predict.py")).__name__ == "Predictor"
    assert predictor.has_setup_weights(loaded)
    assert not predictor.has_setup_weights(imported("cog").BasePredictor())
    monkeypatch.delenv("COG_WEIGHTS", raising=False)
    assert predictor.extract_setup_weights(loaded) is None
    monkeypatch.setenv("COG_WEIGHTS", "w")
    assert predictor.extract_setup_weights(loaded) == "w"
    sys.modules.pop("gt_predict")


def test_c3_suppress_output(capfd: pytest.CaptureFixture[str]) -> None:
    suppress_output = imported("cog.suppress_output").suppress_output
    sys.stdout.write("before\n")
    with suppress_output():
        sys.stdout.write("inside")
        sys.stderr.write("inside")
        os.write(1, b"inside")
        os.write(2, b"inside")
    sys.stdout.write("after\n")
    with pytest.raises(ValueError, match="through"), suppress_output():
        raise ValueError("through")
    os.write(2, b"at last")
    assert capfd.readouterr() == ("before\nafter\n", "at last")


@pytest.mark.parametrize("name", ["Predictor", "Model", "input"])
def test_c3_names_of_the_api_before_0_1_have_a_hint(name: str, tmp_path: pathlib.Path) -> None:
    cog = imported("cog")
    assert not hasattr(cog, name)
    before = list(sys.path), set(sys.modules)
    sources = {
        "input": [
            "import cog\n@cog.input('x', type=str)\ndef run(): ...",
            "from cog import input\n@input('x')\ndef f(): ...",
        ]
    }
    for source in sources.get(name, [f"import cog\nclass A(cog.{name}): ...", f"from cog import {name}"]):
        (tmp_path / f"gt_{len(source)}.py").write_text(source)
        with pytest.raises(LoadError) as raised:
            load(f"gt_{len(source)}.py", tmp_path)
        message = str(raised.value)
        assert message.startswith("gt_")
        assert f"cog.{name} is of Cog's API before version 0.1: " in message
        assert ("cog.Input(description=...)" if name == "input" else "cog.BasePredictor") in message
    sys.path[:] = before[0]
    for each in set(sys.modules) - before[1]:
        del sys.modules[each]


def test_a_module_below_cog_is_an_attribute_of_it() -> None:
    imported("cog.server.exceptions")
    assert imported("cog").server.exceptions is sys.modules["cog.server.exceptions"]


def test_star_import() -> None:
    names: dict[str, Any] = {}
    exec("from cog import *", names)  # noqa: S102 - a star import needs a namespace of its own
    assert names["BasePredictor"] is geartrain.BasePredictor


def test_the_version_is_that_of_cogs_api() -> None:
    assert imported("cog").__version__ == COG_VERSION


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
