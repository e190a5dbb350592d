"""Reads a `run()` with `@joint`: what one request brings and gets, and the async function that stands in its place."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import AsyncIterator, Callable
from types import MethodType
from typing import Any, Final

from geartrain.authoring.decorators import BATCHED_ATTRIBUTE, CONCURRENT_ATTRIBUTE, JOINT_ATTRIBUTE
from geartrain.authoring.joining import Batch
from geartrain.worker.loading.callables import decorator_value, is_async, is_generator
from geartrain.worker.loading.joint_loop import JointLoop
from geartrain.worker.loading.signature import UnsupportedAnnotationError, class_hints, output_mode, resolve

_FORM: Final = (
    "write `def run(self, batch: Batch[Prompt, Iterator[str]]) -> None`, where Prompt is a class with an annotation for"
    " each input, and the second part is the output of one request"
)


def joined(run: Callable[..., Any], *, owner_name: str) -> Callable[..., Any]:
    """Return the async function of one request, with its signature, in the place of the author's `run()`.

    A `run()` without `@joint` is returned as it is. Raises `UnsupportedAnnotationError`.
    """
    max_size = decorator_value(run, JOINT_ATTRIBUTE)
    if max_size is None:
        return run
    _check(run, owner_name)
    inputs, output = _parts(run, owner_name)
    mode, _ = output_mode(output, owner_name)
    loop = JointLoop(run, _maker(inputs), streams=mode != "value")
    function: Callable[..., Any]
    if mode == "value":

        async def give(_self: object = None, /, **values: Any) -> Any:
            return await loop.value(values)

        function = give
    else:

        async def generate(_self: object = None, /, **values: Any) -> AsyncIterator[Any]:
            async for piece in loop.stream(values):
                yield piece

        function = generate
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    is_method = isinstance(run, MethodType)
    parameters = [*([first] if is_method else ()), *_parameters(inputs, owner_name)]
    # Attributes that `layers` and `inspect.signature` look for; other decorators are found in what is wrapped.
    vars(function).update(
        {
            "__wrapped__": run,
            "__signature__": inspect.Signature(parameters, return_annotation=output),
            CONCURRENT_ATTRIBUTE: max_size,
        }
    )
    return MethodType(function, run.__self__) if isinstance(run, MethodType) else function


def _check(run: Callable[..., Any], owner: str) -> None:
    if is_async(run):
        raise UnsupportedAnnotationError(
            f"{owner} has the decorator @joint and is async: write it without `async`, its loop has a thread of its own"
        )
    if is_generator(run):
        raise UnsupportedAnnotationError(
            f"{owner} has the decorator @joint and yields: each request gets its pieces by request.send(piece)"
        )
    for attribute, name in ((BATCHED_ATTRIBUTE, "@batched"), (CONCURRENT_ATTRIBUTE, "@concurrent")):
        if decorator_value(run, attribute) is not None:
            raise UnsupportedAnnotationError(
                f"{owner} has the decorators @joint and {name}: keep one of them; @joint(max_size=…) says how many"
                " requests are there at once"
            )


def _parts(run: Callable[..., Any], owner: str) -> tuple[type, Any]:
    """The author's class of inputs, and the annotation of one request's output."""
    parameters = list(inspect.signature(run).parameters.values())
    if len(parameters) != 1:
        raise UnsupportedAnnotationError(
            f"{owner} has the decorator @joint and takes {len(parameters)} inputs: {_FORM}"
        )
    annotation = parameters[0].annotation
    if annotation is not inspect.Parameter.empty:
        annotation = resolve(annotation, run, f"{owner}: the parameter {parameters[0].name!r}")
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is not Batch or len(parts) != 2:  # noqa: PLR2004 - inputs and output
        raise UnsupportedAnnotationError(f"{owner} has the decorator @joint: {_FORM}")
    inputs, output = parts
    if not isinstance(inputs, type) or not _hints(inputs, owner):
        raise UnsupportedAnnotationError(
            f"{owner}: {inputs!r} is no class with an annotation for each input, such as `prompt: str`: {_FORM}"
        )
    return inputs, output


def _parameters(inputs: type, owner: str) -> list[inspect.Parameter]:
    """A parameter for each annotation of the author's class."""
    hints = _hints(inputs, owner)
    defaults = _defaults(inputs)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=annotation,
        )
        for name, annotation in hints.items()
        if typing.get_origin(annotation) is not typing.ClassVar
    ]


def _hints(inputs: type, owner: str) -> dict[str, Any]:
    return class_hints(inputs, f"{owner}: the annotations of {inputs.__name__}")


def _defaults(inputs: type) -> dict[str, Any]:
    if dataclasses.is_dataclass(inputs):
        found = {}
        for field in dataclasses.fields(inputs):
            if field.default is not dataclasses.MISSING:
                found[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory()
        return found
    known = getattr(inputs, "_field_defaults", None)  # of a named tuple
    if isinstance(known, dict):
        return dict(known)
    return {name: value for owner in reversed(inputs.__mro__) for name, value in vars(owner).items()}


def _maker(inputs: type) -> Callable[..., Any]:
    """Return a function that makes an object of the author's class; without a constructor its attributes are set."""
    if any(getattr(inputs, name) is not getattr(object, name) for name in ("__init__", "__new__")):
        return inputs

    def make(**values: Any) -> Any:
        made = inputs()
        for name, value in values.items():
            setattr(made, name, value)
        return made

    return make
