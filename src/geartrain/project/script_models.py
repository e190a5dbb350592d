"""Several models of one script for KServe or PyTriton: each has its name, and a worker that runs the script."""

from __future__ import annotations

import ast
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from geartrain.project.errors import ProjectError
from geartrain.project.formats import KSERVE, PYTRITON
from geartrain.project.precheck import precheck
from geartrain.project.repository import ModelFolder, Repository
from geartrain.project.settings import SETTINGS_NAME
from geartrain.project.source import ModelSource, find_model

OPTION: Final = "models"
"""The parameter with the names of the models that are served."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


class ScriptModels(Repository):
    """The models of one script."""

    def __init__(
        self,
        target: str | None,
        source: ModelSource,
        *,
        environ: Mapping[str, str] = os.environ,
        no_pickle: bool = False,
    ) -> None:
        """`source` is what `target` names."""
        super().__init__(source.root, environ=environ, no_pickle=no_pickle)
        self._target = target
        self._file = source.file
        self._names: tuple[str, ...] = ()
        self._names_stamp: tuple[object, ...] = ()  # of the files that the names have been read from
        self.backend = source.backend

    def names(self) -> list[str]:
        """Return the names of the models, in order. The script is read again once it has changed: that takes 6 ms."""
        stamp = self._stamp()
        if stamp != self._names_stamp:
            try:
                source = self._source()
                self._file, self._names = source.file, tuple(sorted(script_names(source)))
            except ProjectError:
                self._names = ()
            self._names_stamp = stamp
        return [*self._names]

    def _stamp(self) -> tuple[object, ...]:
        """Return a stamp of the script, its settings and their folder, which differs after a change."""
        return tuple(_stamp_of(path) for path in (self._file, self.root / SETTINGS_NAME, self.root) if path is not None)

    def candidates(self) -> list[str]:
        """Return the same: the names are in the script."""
        return self.names()

    def folder(self, name: str) -> pathlib.Path:  # noqa: ARG002 - all lie in one
        """Return the folder of the script."""
        return self.root

    def name_of(self, path: pathlib.Path) -> str | None:  # noqa: ARG002 - a change concerns all of them
        """Return None: a file belongs to all models."""
        return None

    def digest(self, name: str) -> str:
        """Return the digest of the files of the folder, "" if there is no such model. May block."""
        return self._digests.of_model(self.root) if name in self.names() else ""

    def holds_model(self, name: str) -> bool:
        """True if the script has a model of this name."""
        return name in self.names()

    def read(self, name: str) -> ModelFolder:
        """Return a model; raise ProjectError when there is none."""
        source = self._source()
        names = script_names(source)
        if name not in names:
            raise ProjectError(f"{source.file}: it has no model {name!r}; it has {', '.join(names)}")
        precheck(source)
        options = {**source.options, OPTION: [name]}
        return ModelFolder(name=name, versions={"1": msgspec.structs.replace(source, name=name, options=options)})

    def _source(self) -> ModelSource:
        return find_model(self._target, environ=self._environ, no_pickle=self._no_pickle)


def _stamp_of(path: pathlib.Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def find_script_models(
    target: str | None, source: ModelSource, name: str, *, environ: Mapping[str, str], no_pickle: bool
) -> ModelSource | ScriptModels | None:
    """Return the models of a script, or its one model by the name that clients of PyTriton know; None for any other.

    `name` is that of a single model, "" for the usual one. Raises ProjectError where there are several.
    """
    names = script_names(source)
    if len(names) > 1 and name:
        raise ProjectError(f"{source.file}: a name can be given to a single model, and here are {', '.join(names)}")
    if len(names) > 1:
        return ScriptModels(target, source, environ=environ, no_pickle=no_pickle)
    is_named = bool(names) and not name and source.backend == PYTRITON
    return msgspec.structs.replace(source, name=names[0]) if is_named else None


def script_names(source: ModelSource) -> list[str]:
    """Return the names of the models of a script: those of its parameter, or as texts in it; none for any other model.

    Raises ProjectError for a parameter that is no list of names.
    """
    if source.backend not in {KSERVE, PYTRITON} or source.file is None:
        return []
    given = source.options.get(OPTION)
    if given is not None:
        return _checked(given, source.root)
    try:
        tree = ast.parse(source.file.read_bytes())
        found = list(_bound(tree) if source.backend == PYTRITON else _started(tree))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names = [each for each in found if each is not None and _NAME.fullmatch(each)]
    return list(dict.fromkeys(names)) if len(names) == len(found) else []


def _checked(given: Any, root: pathlib.Path) -> list[str]:
    if isinstance(given, list) and given and all(isinstance(each, str) and _NAME.fullmatch(each) for each in given):
        return list(dict.fromkeys(given))
    raise ProjectError(
        f"{root / SETTINGS_NAME}: `parameters.{OPTION}` is {given!r}; write a list of names, such as [first, second]"
    )


def _bound(tree: ast.AST) -> Iterator[str | None]:
    """The names in calls of `bind()`; None for one that is computed."""
    for call in _calls(tree, "bind"):
        yield _text(call, "model_name")


def _started(tree: ast.AST) -> Iterator[str | None]:
    """The names of the models in calls of `start()`; None for one that is computed."""
    made: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            made.update({each.id: node.value for each in node.targets if isinstance(each, ast.Name)})
    for call in _calls(tree, "start"):
        models = next((each.value for each in call.keywords if each.arg == "models"), next(iter(call.args), None))
        models = made.get(models.id) if isinstance(models, ast.Name) else models
        for each in models.elts if isinstance(models, (ast.List, ast.Tuple)) else ():
            model = made.get(each.id) if isinstance(each, ast.Name) else each
            yield _text(model, "name") if isinstance(model, ast.Call) else None


def _calls(tree: ast.AST, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _text(call: ast.Call, name: str) -> str | None:
    """Return an argument of this name, or the first one, where it is written as a text."""
    value = next((each.value for each in call.keywords if each.arg == name), next(iter(call.args), None))
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
