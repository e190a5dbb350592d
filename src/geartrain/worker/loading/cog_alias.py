"""Lets models written for Cog import `cog` and get this package's authoring API.

`install` puts a finder in front of all others of this process: nothing is written to disk, and a real `cog` package,
should one be installed, stays as it is and is only not seen from here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Union

from geartrain import authoring
from geartrain.authoring.coders import Coder
from geartrain.authoring.inputs import FieldInfo
from geartrain.authoring.values import URLFile, URLPath, get_filename
from geartrain.domain.versions import COG_VERSION

_OLDEST_NAMES: Mapping[str, str] = {
    "Model": "derive the class from cog.BasePredictor",
    "Predictor": "derive the class from cog.BasePredictor",
    "input": "annotate the parameters of predict() instead, as in `text: str = cog.Input(description=...)`",
}
"""For each name of Cog's API before version 0.1, what to write instead."""


class ExperimentalFeatureWarning(FutureWarning):
    """For `warnings.filterwarnings` only: never issued."""


def emit_metric(name: str, value: Any) -> None:
    """Record a metric: the older name of `current_scope().record_metric`."""
    authoring.current_scope().record_metric(name, value)


Weights = Union[authoring.File, authoring.Path, str]  # noqa: UP007 - what a model's author sees is Cog's own form

_TYPES: dict[str, Any] = {
    "AsyncConcatenateIterator": authoring.AsyncConcatenateIterator,
    "ConcatenateIterator": authoring.ConcatenateIterator,
    "File": authoring.File,
    "Path": authoring.Path,
    "Secret": authoring.Secret,
    "URLFile": URLFile,
    "URLPath": URLPath,
}
_RUNNERS: dict[str, Any] = {"BasePredictor": authoring.BasePredictor, "BaseRunner": authoring.BaseRunner}
_INPUTS: dict[str, Any] = {"FieldInfo": FieldInfo, "Input": authoring.Input}
_EXCEPTIONS: dict[str, Any] = {
    "CancelationException": authoring.CancelationException,
    "CancellationException": authoring.CancellationException,
}
_SCOPE: dict[str, Any] = {
    "Scope": authoring.Scope,
    "current_scope": authoring.current_scope,
    "emit_metric": emit_metric,
}
_EVERYTHING: dict[str, Any] = {
    **_TYPES,
    **_RUNNERS,
    **_INPUTS,
    **_EXCEPTIONS,
    **_SCOPE,
    "BaseModel": authoring.BaseModel,
    "ExperimentalFeatureWarning": ExperimentalFeatureWarning,
    "Opaque": authoring.Opaque,
    "__version__": COG_VERSION,
    "concurrent": authoring.concurrent,
    "streaming": authoring.streaming,
}

# Names of Cog's modules, today or in one of its versions since 0.9; a package is a name with others below it.
_MODULES: Mapping[str, Mapping[str, Any]] = {
    "cog": _EVERYTHING,
    "cog.base_input": _INPUTS,
    "cog.base_predictor": _RUNNERS,
    "cog.coder": {"Coder": Coder},
    "cog.coder.json_coder": {},
    "cog.errors": {},
    "cog.exceptions": _EXCEPTIONS,
    "cog.input": _INPUTS,
    "cog.mode": {},
    "cog.model": {"BaseModel": authoring.BaseModel},
    "cog.predictor": _RUNNERS,
    "cog.server": {},
    "cog.server.exceptions": _EXCEPTIONS,
    "cog.server.http": {},
    "cog.server.scope": _SCOPE,
    "cog.suppress_output": {},
    "cog.types": {
        **_TYPES,
        **_INPUTS,
        "ExperimentalFeatureWarning": ExperimentalFeatureWarning,
        "Weights": Weights,
        "get_filename": get_filename,
    },
    "coglet": {"CancelationException": authoring.CancelationException, "__version__": COG_VERSION},
}

# Rare names, and their places: loaded with the module of Cog that they belong to.
_EXTRAS = "geartrain.worker.loading.cog_extras"
_LATER: Mapping[str, tuple[str, Sequence[str]]] = {
    "cog.coder.json_coder": ("geartrain.worker.loading.json_coder", ("JsonCoder",)),
    "cog.errors": (_EXTRAS, ("CogError", "ConfigDoesNotExist", "PredictorNotSet")),
    "cog.mode": (_EXTRAS, ("Mode",)),
    "cog.predictor": (_EXTRAS, ("extract_setup_weights", "has_setup_weights", "load_predictor_from_ref")),
    "cog.server.http": (_EXTRAS, ("Mode",)),
    "cog.suppress_output": (_EXTRAS, ("suppress_output",)),
}

COG_NAMES = ", ".join(sorted(_EVERYTHING))


def advice_for_oldest(name: str) -> str | None:
    """Say what to write instead of a name of Cog's API before version 0.1; None for any other name."""
    advice = _OLDEST_NAMES.get(name)
    return None if advice is None else f"cog.{name} is of Cog's API before version 0.1: {advice}"


class _InputModule(ModuleType):
    """The module `cog.input`, which has the name of a decorator before version 0.1."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(advice_for_oldest("input"))


class _CogFinder:  # no base class: `importlib.abc` is slow to import
    """Finds and loads `cog` and everything below it, here and nowhere else."""

    def find_spec(
        self,
        fullname: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Take `cog` and every name below it. Raises `ModuleNotFoundError` for one that Cog has and we do not."""
        if fullname.partition(".")[0] not in {"cog", "coglet"}:
            return None
        if fullname not in _MODULES:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: geartrain stands in for Cog here, with {', '.join(_MODULES)}",
                name=fullname,
            )
        is_package = any(name.startswith(f"{fullname}.") for name in _MODULES)
        return ModuleSpec(fullname, self, origin="geartrain", is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make an empty module, or leave that to the import system."""
        return _InputModule(spec.name) if spec.name == "cog.input" else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with geartrain's names."""
        name = module.__name__
        names = dict(_MODULES[name])
        if name in _LATER:
            origin, later = _LATER[name]
            filled = importlib.import_module(origin)
            names |= {each: getattr(filled, each) for each in later}

        def refuse(attribute: str) -> Any:
            advice = advice_for_oldest(attribute) if name == "cog" else None
            offer = f"geartrain stands in for Cog here, with {', '.join(sorted(names))}"
            raise AttributeError(
                f"module {name!r} has no attribute {attribute!r}: {advice or offer}", name=attribute, obj=module
            )

        module.__dict__.update(names, __all__=sorted(names), __getattr__=refuse)


def install() -> None:
    """Make `import cog` give this package's authoring API from now on, in this process. Repeating it is harmless."""
    if any(isinstance(finder, _CogFinder) for finder in sys.meta_path):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in {"cog", "coglet"}]:
        del sys.modules[name]
    sys.meta_path.insert(0, _CogFinder())
