"""Replacements for types that have no place in a signature."""

from __future__ import annotations

import typing
from typing import Any

_GENERAL_INPUT = (
    "use str, int, float, bool, Path, Secret, list, dict, a Literal, an Enum, a TypedDict, a dataclass or a BaseModel"
)
_GENERAL_OUTPUT = (
    "use str, int, float, bool, Path, list, dict, Iterator, a TypedDict, a dataclass or a BaseModel,"
    " or Annotated[..., Opaque] to leave the type open"
)
_LIST = "use list[...] instead"
_ADVICE: tuple[tuple[frozenset[str], str, str], ...] = (
    (
        frozenset({"bytes", "bytearray", "memoryview"}),
        "use Path for a file, or str",
        "write it to a file and return Path, or return a str",
    ),
    (frozenset({"set", "frozenset", "tuple", "deque", "Set"}), _LIST, _LIST),
    (frozenset({"Iterator", "Generator", "AsyncIterator", "AsyncGenerator", "AsyncIterable"}), _LIST, _LIST),
    (frozenset({"ConcatenateIterator", "AsyncConcatenateIterator"}), _LIST, _LIST),
    (frozenset({"PIL"}), "use Path, and open the image in run()", "save the image to a file and return Path"),
    (frozenset({"numpy"}), "use float, int or str, or NDArray[...] for an array", "return .tolist() as list[float]"),
    (frozenset({"torch"}), "use Float32[torch.Tensor, ...] of jaxtyping", "return .tolist() as list[float]"),
    (frozenset({"datetime", "uuid", "decimal"}), "use str, and parse it in run()", "return a str or a float"),
    (frozenset({"TextIO", "StringIO", "TextIOWrapper"}), "use Path, and open it in run()", "return Path"),
)


def advice_for(annotation: Any, *, output: bool) -> str:
    """Return half a sentence about a type that is not supported, as an input or as an output."""
    origin = typing.get_origin(annotation) or annotation
    module = getattr(origin, "__module__", "").partition(".")[0]
    name = getattr(origin, "__name__", "")
    for names, of_input, of_output in _ADVICE:
        if name in names or module in names:
            return of_output if output else of_input
    return _GENERAL_OUTPUT if output else _GENERAL_INPUT
