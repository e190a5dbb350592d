"""Reads the `setup()` of a runner: whether it takes `weights` and `device`, and in which form."""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Union

from geartrain.authoring.values import Path as InputPath
from geartrain.worker.loading.callables import SeveralFunctionsError, layers, signature_of
from geartrain.worker.loading.load_errors import LoadError, line_of
from geartrain.worker.loading.signature import UnsupportedAnnotationError, resolve

Setup = Callable[..., Any]

GIVEN: Final = frozenset({"weights", "device"})


def read_setup(setup: Setup, root: Path) -> tuple[Setup, frozenset[str]]:
    """Return the function to call for a bound `setup()`, and the names in `GIVEN` of its parameters.

    `device` is text, such as `cuda:0`; `weights` are text, or None. Where they are annotated `Path`, the function that
    is returned makes a `Path` of the text. Raises `LoadError` for a parameter without a value.
    """
    line = line_of(layers(setup)[-1], "setup()", root)
    try:
        parameters = signature_of(setup).parameters
    except SeveralFunctionsError as error:
        raise LoadError(f"{line}: setup(): {error}") from error
    except (TypeError, ValueError) as error:
        raise LoadError(f"{line}: the signature of setup() cannot be read: {error}") from error
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for name, parameter in parameters.items():
        if name not in GIVEN and parameter.default is parameter.empty and parameter.kind not in optional:
            raise LoadError(
                f"{line}: setup() has the parameter {name!r}, and nothing but weights and device can be given to it"
            )
    taken = GIVEN.intersection(parameters)
    has_path = "weights" in taken and _is_path(parameters["weights"].annotation, setup)
    return (_with_path(setup) if has_path else setup), taken


def arguments_of_setup(taken: frozenset[str], weights: str | None) -> dict[str, Any]:
    """Return the arguments for a `setup()` that takes those of `GIVEN`; `device` is that of this process."""
    arguments: dict[str, Any] = {}
    if "weights" in taken:
        arguments["weights"] = weights
    if "device" in taken:
        from geartrain.authoring.devices import own_device  # late: few models ask

        arguments["device"] = own_device()
    return arguments


def _is_path(annotation: Any, setup: Setup) -> bool:
    """Tell whether weights are a path and never text; an annotation that cannot be evaluated is left aside."""
    if annotation is inspect.Parameter.empty:
        return False
    try:
        annotation = resolve(annotation, setup, "setup(): the parameter 'weights'")
    except UnsupportedAnnotationError:
        return False
    members = [annotation]
    if typing.get_origin(annotation) in {Union, types.UnionType}:
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
    return all(isinstance(member, type) and issubclass(member, os.PathLike) for member in members)


def _with_path(setup: Setup) -> Setup:
    def setup_with_path(weights: str | None = None, **further: Any) -> Any:
        return setup(weights=None if weights is None else InputPath.validate(weights), **further)

    return setup_with_path
