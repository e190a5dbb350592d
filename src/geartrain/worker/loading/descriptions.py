"""Types of the signature: what every reader of annotations returns, raises and begins with."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, Union

from geartrain.authoring.decorators import OpaqueType
from geartrain.authoring.inputs import FieldInfo
from geartrain.domain.signature.types import TypeSpec

Converter = Callable[[Any], Any]
"""Makes the Python value of a decoded JSON value. Given a value that is one already, returns it."""

Compose = Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]]
"""Makes the arguments of `run()` of the parts of a request, and of the parameters of its protocol."""

_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")


class Described(NamedTuple):
    """A type of the signature; `convert` is None where the decoded JSON value is already what it should be.

    `is_plain`: the converter only tells integers from floats, so its values are still those of JSON.
    """

    spec: TypeSpec
    convert: Converter | None = None
    is_plain: bool = False

    @property
    def makes(self) -> bool:
        """True if values are of a type that JSON does not have."""
        return self.convert is not None and not self.is_plain


class UnsupportedTypeError(TypeError):
    """A type that has no place in a signature: which one, what to use instead, and which field it is of, if any."""

    def __init__(self, annotation: Any, advice: str) -> None:
        super().__init__(annotation, advice)
        self.name = type_name(annotation)
        self.advice = advice
        self.place = ""

    def __str__(self) -> str:
        return f"{self.place}{self.name} is not supported; {self.advice}"


def type_name(annotation: Any) -> str:
    """Return an annotation as its author would write it."""
    if annotation is NoneType or annotation is None:
        return "None"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in {Union, types.UnionType}:
        return " | ".join(map(type_name, arguments))
    if origin is Annotated:
        return type_name(arguments[0])
    name = getattr(annotation, "__name__", None) or repr(annotation).removeprefix("typing.")
    return f"{name}[{', '.join(map(_argument_name, arguments))}]" if arguments else name


def _argument_name(argument: Any) -> str:
    if isinstance(argument, list):  # of a Callable
        return f"[{', '.join(map(_argument_name, argument))}]"
    return "..." if argument is Ellipsis else type_name(argument)


def strip(annotation: Any) -> tuple[Any, bool]:
    """Take off what says nothing of the JSON: aliases, NewType and metadata. Tell whether `Opaque` was among it."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is Annotated:
            if any(isinstance(each, OpaqueType) for each in annotation.__metadata__):
                return annotation.__origin__, True
            if any(isinstance(each, FieldInfo) for each in annotation.__metadata__):
                raise UnsupportedTypeError(annotation, "Input() describes a whole parameter, not a part of its type")
            annotation = annotation.__origin__
        elif getattr(origin, "_name", None) in _WRAPPERS:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12 on
            annotation = annotation.__value__
        elif type(origin).__name__ == "TypeAliasType":  # `type X[T] = ...`, with its arguments
            annotation = origin.__value__[typing.get_args(annotation)]
        else:
            return annotation, False


def is_typed_dict(origin: type) -> bool:
    """Tell whether this is a TypedDict, also one of `typing_extensions`."""
    return issubclass(origin, dict) and hasattr(origin, "__required_keys__")
