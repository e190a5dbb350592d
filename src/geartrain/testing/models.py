"""Loads a model for a test, and leaves the test's process as it was."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from geartrain.project.served import find_fetched
from geartrain.project.source import ModelSource
from geartrain.server.workers import choice_of
from geartrain.worker.loading.finding import Mode
from geartrain.worker.loading.loader import LoadedRunner, load, load_object


class LoadedModel(NamedTuple):
    """A model before its `setup()`."""

    runner: LoadedRunner
    root: Path
    weights: str | None = None

    def at_home(self) -> AbstractContextManager[None]:
        """Work in the model's folder for a `with` block, as a worker does, for the sake of relative paths."""
        return chdir(self.root)


@contextmanager
def loaded(model: str | os.PathLike[str] | Callable[..., Any], mode: Mode) -> Iterator[LoadedModel]:
    """Load a model for a `with` block: what it adds to `sys.path`, `sys.modules` and the environment goes with it.

    The modules of its folder are imported anew in each block, as a worker does. Libraries are not. Raises `LoadError`
    and `ProjectError`.
    """
    if not isinstance(model, str | os.PathLike):
        root = source_file(model).parent
        with _imports_of(root):
            yield LoadedModel(load_object(model, str(source_file(model)), root, mode=mode), root)
        return
    from geartrain.server.fetching import Downloads  # late: most models are here

    with Downloads() as downloads:
        source = find_fetched(os.fspath(model), downloads, mode=mode)
        with _environment(source.environment), _imports_of(source.root):
            with chdir(source.root):
                runner = _load(source, mode)
            yield LoadedModel(runner, source.root, source.variables.weights)


def source_file(model: Callable[..., Any]) -> Path:
    """Return the file that a class or a function is written in. Raises `TypeError`."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(model))
    except TypeError:
        file = None
    if file is None:
        raise TypeError(f"{model!r} is no class and no function of a file; name the model's folder, or its file")
    return Path(file).resolve()


def _load(source: ModelSource, mode: Mode) -> LoadedRunner:
    choice = choice_of(source)
    if choice is None:
        return load(source.runner, source.root, mode, batching=source.batching)
    from geartrain.worker.loading.backend_runner import load_backend  # only for models that are files

    return load_backend(choice, source.batching)


@contextmanager
def _imports_of(root: Path) -> Iterator[None]:
    path, hooks, modules = list(sys.path), list(sys.path_hooks), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:], sys.path_hooks[:] = path, hooks
        for name, module in list(sys.modules.items()):
            if name not in modules and _is_of(module, root):
                del sys.modules[name]


def _is_of(module: object, root: Path) -> bool:
    """Tell whether a module lies in a model's folder; a library in an environment there does not count."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return any(Path(place).is_relative_to(root) for place in getattr(module, "__path__", ()))
    return Path(file).is_relative_to(root) and not Path(file).is_relative_to(sys.prefix)


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
