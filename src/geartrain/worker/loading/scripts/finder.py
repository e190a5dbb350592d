"""Stands in for modules of other servers that are not installed, and changes those that are.

A change comes right after a module has run, and in its own classes, so that every importer gets the changed ones.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Names = Mapping[str, Any]
Change = Callable[[ModuleType], None]


def stand_in(modules: Mapping[str, Names | str]) -> bool:
    """Have these modules imported from here unless the first of them is installed; True if it is not.

    Each has its names, or the name of a module of geartrain that has them and is imported with it. Packages above them
    need not be given.
    """
    first = next(iter(modules))
    if not (_FINDER.has(first) or _is_missing(first)):
        return False
    _FINDER.add(modules)
    return True


def after_import(module: str, change: Change) -> None:
    """Change an installed module when it is imported; at once if it has been."""
    found = sys.modules.get(module)
    if found is None:
        _FINDER.change(module, change)
    else:
        change(found)


def stand_in_for_web() -> None:
    """Have scripts import FastAPI's names from here where it is not installed."""
    own = "geartrain.worker.loading.scripts.web_names"
    if stand_in({"fastapi": own, "fastapi.responses": own, "fastapi.exceptions": own}):
        stand_in({"starlette.responses": own, "starlette.requests": own})


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return True


class _Finder:  # no base class: `importlib.abc` is slow to import
    """Finds the modules that are stood in for, and those that are to be changed."""

    def __init__(self) -> None:
        self._modules: dict[str, Names | str] = {}
        self._changes: dict[str, Change] = {}

    def has(self, name: str) -> bool:
        """True if a module is stood in for."""
        return name in self._modules

    def add(self, modules: Mapping[str, Names | str]) -> None:
        """Stand in for modules."""
        self._install()
        for name, names in modules.items():
            above = name.rpartition(".")[0]
            while above:
                if above not in self._modules and _is_missing(above):
                    self._modules[above] = {}
                above = above.rpartition(".")[0]
            self._modules[name] = names

    def change(self, name: str, change: Change) -> None:
        """Change a module when it is imported."""
        self._install()
        self._changes[name] = change

    def _install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module. Raises `ModuleNotFoundError` for one of a package that is stood in for, and is not there."""
        if fullname in self._modules:
            return ModuleSpec(fullname, self, origin="geartrain", is_package=True)  # type: ignore[arg-type]
        package = fullname.partition(".")[0]
        if package in self._modules:
            there = ", ".join(name for name in self._modules if name.partition(".")[0] == package)
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {package} is not installed, and geartrain stands in for {there}",
                name=fullname,
            )
        change = self._changes.get(fullname)
        return None if change is None else self._changed(fullname, path, target, change=change)

    def _changed(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None, *, change: Change
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Changed(spec.loader, change)
                found: ModuleSpec = spec
                return found
        return None

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        """Leave that to the import system."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with its names."""
        name = module.__name__
        given = self._modules[name]
        public = own_names(given) if isinstance(given, str) else dict(given)

        def refuse(attribute: str) -> Any:
            raise AttributeError(
                f"module {name!r} has no attribute {attribute!r}: it is not installed, and geartrain stands in for "
                f"{', '.join(sorted(public)) or 'the modules in it'}",
                name=attribute,
                obj=module,
            )

        module.__dict__.update(public, __getattr__=refuse)


def own_names(module: str) -> dict[str, Any]:
    """Import a module of geartrain; return its classes, its functions and its version."""
    found = vars(importlib.import_module(module))
    own = {key: value for key, value in found.items() if key == "__version__" or _module_of(value) == module}
    return {key: value for key, value in own.items() if key == "__version__" or not key.startswith("_")}


def _module_of(value: Any) -> str | None:
    return getattr(value, "__module__", None) if callable(value) else None


class _Changed:
    """Loads a module as its own loader does, and changes it then."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with its own loader, which it keeps, and change it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)


_FINDER = _Finder()
