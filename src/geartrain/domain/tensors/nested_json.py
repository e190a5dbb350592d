"""Tensors in JSON: nested arrays, row by row, down to the elements; a tensor of no dimension is the element itself.

BYTES are strings: the UTF-8 text of each element. What does not fit a datatype is refused, never wrapped, rounded to
infinity or guessed (T4 and T6 of observed Triton).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, Literal

import msgspec

from geartrain.domain.rendering import render
from geartrain.domain.tensors.tensor import VARIABLE, describe_shape, names_agree, spread

Element = Literal["number", "integer", "boolean", "string"]
Place = tuple[str | int, ...]

ELEMENTS: Final[dict[str, Element]] = {
    **{f"{sign}INT{bits}": "integer" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": "number",
    "FP32": "number",
    "FP64": "number",
    "BF16": "number",
    "BOOL": "boolean",
    "BYTES": "string",
}
"""The JSON type of an element of each datatype."""

INTEGERS: Final[dict[str, tuple[int, int]]] = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
"""The smallest and the largest value of each integer datatype."""

# From here on a value would be rounded to infinity: half a step beyond the largest one.
_OVERFLOW: Final = {"FP16": 65520, "BF16": 2**128 - 2**119, "FP32": 2**128 - 2**103, "FP64": 2**1024 - 2**970}
_PLAIN: Final[dict[Element, frozenset[type]]] = {
    "number": frozenset({int, float}),
    "integer": frozenset({int}),
    "boolean": frozenset({bool}),
    "string": frozenset({str}),
}
_LIST: Final = frozenset({list})


class NestedArray(msgspec.Struct, frozen=True):
    """Form of the nested arrays of one tensor; see `TensorSpec` for all but the datatype."""

    datatype: str
    shape: tuple[int, ...]
    variadic: bool = False
    variadic_at: int = 0
    names: tuple[str, ...] = ()

    @property
    def element(self) -> Element:
        """The JSON type of the elements."""
        return ELEMENTS[self.datatype]

    def accepts(self, value: Any) -> bool:
        """True if `value` is such an array. Takes no step of Python's for an element, and one for each dimension."""
        sizes = self._sizes(value)
        return sizes is not None and self._fits(value, sizes) and self._has_names(value, sizes)

    def faults(self, value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
        """Yield what is wrong, as a place inside the value and a sentence; lazily, and passing over what is right."""
        if self.accepts(value):
            return
        sizes = self._sizes(value)
        if sizes is None:
            yield place, f"{_depth(value)} nested arrays are too few for the shape {describe_shape(self)}"
            return
        found = _sizes_of(value, len(sizes))
        yield from self._faults(value, tuple(zip(sizes, found, strict=True)), place)
        if self._fits(value, sizes):
            wanted = describe_shape(self)
            yield place, f"the shape {list(found)} is not {wanted}: dimensions of one name must be equally long"

    def _sizes(self, value: Any) -> tuple[int, ...] | None:
        """The sizes of all dimensions; how many a variadic array has is said by its first elements.

        None where these are fewer than are declared. An array that ends with an empty list does not show the rest.
        """
        if not self.variadic:
            return self.shape
        depth = _depth(value)
        if depth and not _sizes_of(value, depth)[-1]:
            depth = max(depth, len(self.shape))
        return spread(self, self.shape, depth, fill=VARIABLE)

    def _has_names(self, value: Any, sizes: Sequence[int]) -> bool:
        return not self.names or names_agree(_sizes_of(value, len(sizes)), self)

    def _fits(self, value: Any, sizes: Sequence[int]) -> bool:
        level = [value]
        for size in sizes:
            if not _LIST.issuperset(map(type, level)):
                return False
            lengths = set(map(len, level))
            if len(lengths) > 1 or (size != VARIABLE and not lengths <= {size}):
                return False
            level = list(chain.from_iterable(level))
        return self._are_elements(level)

    def _faults(self, value: Any, sizes: Sequence[tuple[int, int]], place: Place) -> Iterator[tuple[Place, str]]:
        """`sizes`: for each dimension the one that the model takes, and the one that the first row has."""
        if not sizes:
            yield from self._element_faults(value, place)
            return
        if type(value) is not list:
            yield place, f'{render(value)} is not of type "array"'
            return
        (fixed, first), *inner = sizes
        if fixed not in {VARIABLE, len(value)}:
            yield place, f"{_counted(len(value))} in an array that must have {fixed}"
        elif fixed == VARIABLE and len(value) != first:
            yield (
                place,
                f"{_counted(len(value))}, where the arrays before it have {first}: the rows must be equally long",
            )
        rows = tuple(first if fixed == VARIABLE else fixed for fixed, first in inner)
        for index in self._misfits(value, rows, 0):
            yield from self._faults(value[index], inner, (*place, index))

    def _misfits(self, values: list[Any], sizes: Sequence[int], start: int) -> Iterator[int]:
        """The indices of the rows, or elements, that do not fit: found by halves, for most of many may be right."""
        if self._fits(values, (len(values), *sizes)):
            return
        if len(values) == 1:
            yield start
            return
        half = len(values) // 2
        yield from self._misfits(values[:half], sizes, start)
        yield from self._misfits(values[half:], sizes, start + half)

    def _are_elements(self, values: list[Any]) -> bool:
        kinds = set(map(type, values))
        plain = _PLAIN[self.element]
        if float in kinds and self.datatype in INTEGERS:  # 7.0 is an integer in JSON
            floats = [value for value in values if type(value) is float]
            if kinds <= {int, float} and all(map(float.is_integer, floats)):
                kinds = {int}
        if not kinds <= plain:
            return False
        if not values:
            return True
        if self.datatype in INTEGERS:
            least, most = INTEGERS[self.datatype]
            return bool(min(values) >= least and max(values) <= most)
        limit = _OVERFLOW.get(self.datatype)
        return limit is None or bool(max(values) < limit and min(values) > -limit)

    def _element_faults(self, value: Any, place: Place) -> Iterator[tuple[Place, str]]:
        if self._are_elements([value]):
            return
        is_number = type(value) in {int, float}
        if is_number and self.datatype in INTEGERS and (type(value) is int or value.is_integer()):
            least, most = INTEGERS[self.datatype]
            yield place, f"{render(value)} is not in the range of {self.datatype}: {least} to {most}"
        elif is_number and self.element == "number":
            yield place, f"{render(value)} is beyond the range of {self.datatype}"
        else:
            yield place, f'{render(value)} is not of type "{self.element}"'


def _depth(value: Any) -> int:
    depth = 0
    while type(value) is list:
        depth += 1
        value = value[0] if value else None
    return depth


def _sizes_of(value: Any, depth: int) -> tuple[int, ...]:
    """The sizes along the first elements; 0 where there is no such array."""
    sizes = []
    for _ in range(depth):
        sizes.append(len(value) if type(value) is list else 0)
        value = value[0] if type(value) is list and value else None
    return tuple(sizes)


def _counted(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"
