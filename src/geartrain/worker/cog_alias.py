"""Lets models written for Cog import `cog` and get this package's authoring API.

`install` puts a finder in front of all others of this process: nothing is written to disk, and a real `cog` package,
should one be installed, stays as it is and is only not seen from here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from geartrain import authoring
from geartrain.authoring.inputs import FieldInfo
from geartrain.authoring.urls import URLFile, URLPath, get_filename

COG_VERSION = "0.23.1"
"""The version of Cog whose authoring API this is: what `cog.__version__` says."""


class ExperimentalFeatureWarning(FutureWarning):
    """For `warnings.filterwarnings` only: never issued."""


def emit_metric(name: str, value: Any) -> None:
    """Record a metric: the older name of `current_scope().record_metric`."""
    authoring.current_scope().record_metric(name, value)


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

# Where Cog has its names, today or in one of its versions since 0.9; a package is a name with others below it.
_MODULES: Mapping[str, Mapping[str, Any]] = {
    "cog": _EVERYTHING,
    "cog.base_input": _INPUTS,
    "cog.base_predictor": _RUNNERS,
    "cog.exceptions": _EXCEPTIONS,
    "cog.input": _INPUTS,
    "cog.model": {"BaseModel": authoring.BaseModel},
    "cog.predictor": _RUNNERS,
    "cog.server": {},
    "cog.server.exceptions": _EXCEPTIONS,
    "cog.server.scope": _SCOPE,
    "cog.types": {**_TYPES, **_INPUTS, "get_filename": get_filename},
    "coglet": {"CancelationException": authoring.CancelationException, "__version__": COG_VERSION},
}

COG_NAMES = ", ".join(sorted(_EVERYTHING))


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

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system to make an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with our names."""
        name, names = module.__name__, _MODULES[module.__name__]

        def refuse(attribute: str) -> Any:
            raise AttributeError(
                f"module {name!r} has no attribute {attribute!r}: geartrain stands in for Cog here, with"
                f" {', '.join(sorted(names))}",
                name=attribute,
                obj=module,
            )

        module.__dict__.update(names, __all__=sorted(names), __getattr__=refuse)


def install() -> None:
    """Make `import cog` give this package's authoring API from now on, in this process. Repeating it is harmless."""
    if any(isinstance(finder, _CogFinder) for finder in sys.meta_path):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in {"cog", "coglet"}]:
        del sys.modules[name]
    sys.meta_path.insert(0, _CogFinder())
