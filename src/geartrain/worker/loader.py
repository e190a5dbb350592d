"""Loads an author's model: imports its file, finds the runner in it, and reads its signature."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, NamedTuple

from geartrain.authoring.marks import BATCHED_MARK, CONCURRENT_MARK
from geartrain.authoring.runner import BasePredictor, BaseRunner
from geartrain.domain.batching import Batching
from geartrain.domain.signature import Signature
from geartrain.worker.cog_alias import COG_NAMES
from geartrain.worker.introspect import (
    Parameter,
    UnsupportedAnnotationError,
    is_async,
    is_generator,
    make_signature,
    mark_of,
    read_output,
    read_parameters,
)

Mode = Literal["predict", "train"]

_USUAL_CLASSES: dict[Mode, tuple[str, ...]] = {
    "predict": ("Runner", "Predictor"),
    "train": ("Trainer", "Runner", "Predictor"),
}
_METHODS: dict[Mode, tuple[str, ...]] = {"predict": ("run", "predict"), "train": ("train",)}
_FRAMEWORK = (BaseRunner, BasePredictor, object)


class LoadError(Exception):
    """The model cannot be loaded: one message with the file, the line, and what to do."""


class LoadedRunner(NamedTuple):
    """A model, ready for its `setup()`. `instance` is None for a model that is a function."""

    instance: Any
    run: Callable[..., Any]
    setup: Callable[..., Any] | None
    setup_takes_weights: bool
    healthcheck: Callable[[], Any] | None
    is_async: bool
    is_generator: bool
    signature: Signature
    max_concurrency: int | None
    parameters: tuple[Parameter, ...]
    batching: Batching | None = None
    platform: str = ""  # what runs the model, where that is no Python class


def load(ref: str, root: Path, mode: Mode = "predict", *, batching: Mapping[str, Any] | None = None) -> LoadedRunner:
    """Load the model that `ref` names, and make its instance; `setup()` is left to the caller.

    `ref` is `run.py:Runner`, `run.py`, or `package.module:name`, below the folder `root`, which comes first on
    `sys.path`. Without a name it is the class `Runner` or `Predictor`, or the one function `run` or `predict`. With
    `mode` "train" it is a function, or the `train()` of a class; without a name, of `Trainer`, `Runner` or `Predictor`,
    or the function `train`. `batching` are settings that come before those of `@batched`. Raises `LoadError`.
    """
    root = root.resolve()
    if str(root) not in sys.path[:1]:
        sys.path.insert(0, str(root))
    location, _, name = ref.partition(":")
    module = _import(location, root)
    where = _relative(getattr(module, "__file__", None) or location, root)
    target = _find(module, name, where, mode=mode)
    if inspect.isclass(target):
        instance, run, name = _make(target, where, root, mode=mode)
    elif callable(target):
        instance, run, name = None, target, getattr(target, "__name__", name)
    else:
        raise LoadError(f"{where}: {name!r} is of type {type(target).__name__}; name a class or a function")
    owner = name if name.endswith(")") else f"{name}()"
    try:
        described = _read(run, owner, mode=mode, settings=batching)
    except UnsupportedAnnotationError as error:
        raise LoadError(f"{_line_of(run, name, root)}: {error}") from error
    return _runner(run, described, root, instance=instance)


def _import(location: str, root: Path) -> ModuleType:
    try:
        if location.endswith(".py"):
            return _import_file((root / location).resolve(), root)
        return importlib.import_module(location)
    except LoadError:
        raise
    except SyntaxError as error:
        in_file = error.filename is not None and Path(error.filename).is_file()
        message = _syntax_message(error, root) if in_file else _blame(error, root, fallback=location)
        raise LoadError(message) from error
    except (Exception, SystemExit) as error:
        raise LoadError(_blame(error, root, fallback=location)) from error


def _import_file(path: Path, root: Path) -> ModuleType:
    """Import a file under its own name, so that pickle and dataclasses find it again in `sys.modules`."""
    if not path.is_file():
        raise LoadError(f"there is no file {_relative(path, root)} in {root}")
    name = path.stem
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__file__", None) != str(path):
        name = f"geartrain_model_{name}"  # a file called like a library: that one stays importable
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{_relative(path, root)} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _find(module: ModuleType, name: str, where: str, *, mode: Mode) -> Any:
    if name:
        if not hasattr(module, name):
            raise LoadError(f"{where} has no {name!r}; {_offer(module)}")
        return getattr(module, name)
    for usual in _USUAL_CLASSES[mode]:
        candidate = getattr(module, usual, None)
        if inspect.isclass(candidate) and any(_is_own(candidate, method) for method in _METHODS[mode]):
            return candidate
    functions = [found for usual in _METHODS[mode] if callable(found := getattr(module, usual, None))]
    if len(functions) == 1:
        return functions[0]
    for usual in _USUAL_CLASSES[mode]:  # its own complaint is the better message
        if inspect.isclass(getattr(module, usual, None)):
            return getattr(module, usual)
    usual, method = _USUAL_CLASSES[mode][0], _METHODS[mode][0]
    wanted = " or ".join(f"{method}()" for method in _METHODS[mode])
    raise LoadError(
        f"{where} has no class {usual} and no one function {wanted}; {_offer(module)}."
        f" Write a class {usual} with a method {method}(), or name the class: {where}:Name"
    )


def _offer(module: ModuleType) -> str:
    """What a person may have meant: the classes and functions that the file defines itself."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]
    return f"it defines {', '.join(own)}" if own else "it defines no class and no function"


def _make(cls: type, where: str, root: Path, *, mode: Mode) -> tuple[Any, Callable[..., Any], str]:
    """An instance of the author's class, its bound method, and what errors call that."""
    methods = [method for method in _METHODS[mode] if _is_own(cls, method)]
    if not methods:
        wanted = " or ".join(f"{method}()" for method in _METHODS[mode])
        line = _line_of(cls, where, root)
        raise LoadError(f"{line}: the class {cls.__name__} has no {wanted}: write the method {_METHODS[mode][0]}()")
    if len(methods) > 1:
        line = _line_of(cls, where, root)
        raise LoadError(f"{line}: the class {cls.__name__} has both run() and predict(): keep one of them")
    try:
        instance = cls()
    except (Exception, SystemExit) as error:
        raise LoadError(_blame(error, root, fallback=_line_of(cls, where, root))) from error
    return instance, getattr(instance, methods[0]), f"{cls.__name__}.{methods[0]}()"


def _is_own(cls: type, method: str) -> bool:
    """Tell whether a class has a method that is not one of the base class's own."""
    owner = next((base for base in cls.__mro__ if method in vars(base)), object)
    return owner not in _FRAMEWORK and callable(getattr(cls, method))


class _Described(NamedTuple):
    """What is read from a `run()`."""

    parameters: tuple[Parameter, ...]
    signature: Signature
    batching: Batching | None = None


def _read(run: Callable[..., Any], owner: str, *, mode: Mode, settings: Mapping[str, Any] | None) -> _Described:
    """Read the signature, which of a batched `run()` is that of one request. Raises `UnsupportedAnnotationError`."""
    is_batched = mark_of(run, BATCHED_MARK) is not None
    if is_batched and mode == "train":
        raise UnsupportedAnnotationError(
            f"{owner} is marked @batched, and trainings run one by one: take the mark away"
        )
    if is_batched:
        from geartrain.worker.batched_signature import read_batched

        return _Described(*read_batched(run, owner_name=owner, settings=settings or {}))
    if settings and mode == "predict":
        raise UnsupportedAnnotationError(
            f"there are settings for batching ({', '.join(settings)}), and {owner} takes one prediction at a time:"
            " mark it with @geartrain.batched, or take `batching` out of geartrain.yaml"
        )
    parameters = read_parameters(run, owner_name=owner)
    return _Described(parameters, make_signature(run, parameters, read_output(run, owner_name=owner)))


def _runner(run: Callable[..., Any], described: _Described, root: Path, *, instance: Any) -> LoadedRunner:
    setup = _own_method(instance, "setup")
    return LoadedRunner(
        instance=instance,
        run=run,
        setup=setup,
        setup_takes_weights=setup is not None and _takes_weights(setup, root),
        healthcheck=_own_method(instance, "healthcheck"),
        is_async=is_async(run),
        is_generator=is_generator(run),
        signature=described.signature,
        max_concurrency=mark_of(run, CONCURRENT_MARK),
        parameters=described.parameters,
        batching=described.batching,
    )


def _own_method(instance: Any, method: str) -> Callable[..., Any] | None:
    if instance is None or not _is_own(type(instance), method):
        return None
    bound: Callable[..., Any] = getattr(instance, method)
    return bound


def _takes_weights(setup: Callable[..., Any], root: Path) -> bool:
    """Tell whether `setup()` has a parameter `weights`. Raises `LoadError` for any other that it cannot do without."""
    parameters = inspect.signature(setup).parameters
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for name, parameter in parameters.items():
        if name != "weights" and parameter.default is parameter.empty and parameter.kind not in optional:
            line = _line_of(setup, "setup()", root)
            raise LoadError(f"{line}: setup() has the parameter {name!r}, and nothing but weights can be given to it")
    return "weights" in parameters


# messages


def _relative(path: str | Path, root: Path) -> str:
    """A path as the author knows it: from the model's folder."""
    path = Path(path)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _line_of(target: Any, fallback: str, root: Path) -> str:
    """`run.py:12` of a class or function; `fallback` where that is not known."""
    try:
        target = inspect.unwrap(target)
        _, line = inspect.getsourcelines(target)
        return f"{_relative(inspect.getsourcefile(target) or fallback, root)}:{line}"
    except (OSError, TypeError):
        return fallback


def _syntax_message(error: SyntaxError, root: Path) -> str:
    where = f"{_relative(error.filename or '', root)}:{error.lineno or 1}"
    text = f": {error.text.strip()}" if error.text else ""
    return f"{where}: {type(error).__name__}: {error.msg}{text}"


def _blame(error: BaseException, root: Path, fallback: str) -> str:
    """Say what was raised, and the line of the author's own code that it came through last."""
    where, step = fallback, error.__traceback__
    while step is not None:
        where = _place(step, root) or where
        step = step.tb_next
    text = f": {error}" if str(error) else ""
    return f"{where}: {type(error).__name__}{text}{_advice(error)}"


def _place(step: TracebackType, root: Path) -> str | None:
    filename = step.tb_frame.f_code.co_filename
    path = Path(filename)
    if not path.is_relative_to(root) or "site-packages" in path.parts:
        return None
    return f"{_relative(path, root)}:{step.tb_lineno}"


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "cog":
        return f" (geartrain stands in for Cog here, with {COG_NAMES})"
    if isinstance(error, ModuleNotFoundError):
        return " (is it installed in the environment that geartrain runs in?)"
    return ""
