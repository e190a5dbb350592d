"""Finds the runner in an author's module."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Literal

from geartrain.authoring.runner import BasePredictor, BaseRunner
from geartrain.worker.loading.load_errors import LoadError

Mode = Literal["predict", "train"]

_USUAL_CLASSES: dict[Mode, tuple[str, ...]] = {
    "predict": ("Runner", "Predictor"),
    "train": ("Trainer", "Runner", "Predictor"),
}
METHODS: dict[Mode, tuple[str, ...]] = {"predict": ("run", "predict"), "train": ("train",)}
_FRAMEWORK = (BaseRunner, BasePredictor, object)


def find_runner(module: ModuleType, name: str, where: str, *, mode: Mode) -> Any:
    """Find the runner `name` in a module; without a name, the runner of a usual name, or the only one.

    `where` is the module's file, for the message. Raises `LoadError`.
    """
    if name:
        if not hasattr(module, name):
            raise LoadError(f"{where} has no {name!r}; {_offer(module)}")
        return getattr(module, name)
    for usual in _USUAL_CLASSES[mode]:
        candidate = getattr(module, usual, None)
        if inspect.isclass(candidate) and any(is_own(candidate, method) for method in METHODS[mode]):
            return candidate
    classes = _runner_classes(module, mode)
    functions = [found for usual in METHODS[mode] if callable(found := getattr(module, usual, None))]
    if len(functions) == 1 and (not classes or _is_of(module, functions[0])):
        return functions[0]
    if not functions and any(_is_of(module, getattr(module, usual, None)) for usual in _USUAL_CLASSES[mode]):
        classes = []  # its own complaint is the better message
    if classes:
        return _only(classes, where, mode)
    usual_class = next(
        (found for usual in _USUAL_CLASSES[mode] if isinstance(found := getattr(module, usual, None), type)), None
    )
    if usual_class is not None:
        return usual_class
    usual, method = _USUAL_CLASSES[mode][0], METHODS[mode][0]
    wanted = " or ".join(f"{method}()" for method in METHODS[mode])
    raise LoadError(
        f"{where} has no class {usual} and no one function {wanted}; {_offer(module)}."
        f" Write a class {usual} with a method {method}(), or name the class: {where}:Name"
    )


def _only(classes: list[type], where: str, mode: Mode) -> type:
    if len(classes) > 1:
        names = ", ".join(each.__name__ for each in classes)
        raise LoadError(
            f"{where} has no class {_USUAL_CLASSES[mode][0]}, and several classes that could be the runner: {names};"
            f" name the one that is meant: {where}:{classes[0].__name__}"
        )
    return classes[0]


def _runner_classes(module: ModuleType, mode: Mode) -> list[type]:
    """Return the classes of a file that can be its runner: those with a runner's base class, else any with a method."""
    classes = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and _is_of(module, value)
        and name == value.__name__
        and not name.startswith("_")
        and not inspect.isabstract(value)
        and any(is_own(value, method) for method in METHODS[mode])
    ]
    return [each for each in classes if issubclass(each, BaseRunner)] or classes


def _is_of(module: ModuleType, value: object) -> bool:
    """Tell whether a class or function was defined in this module, and not imported."""
    return getattr(value, "__module__", None) == module.__name__


def _offer(module: ModuleType) -> str:
    """List the likely names: the classes and functions that the file defines itself."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]
    return f"it defines {', '.join(own)}" if own else "it defines no class and no function"


def is_own(cls: type, method: str) -> bool:
    """Tell whether a class has a method that is not one of the base class's own."""
    owner = next((base for base in cls.__mro__ if method in vars(base)), object)
    return owner not in _FRAMEWORK and callable(getattr(cls, method))
