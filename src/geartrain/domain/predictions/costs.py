"""Cost of a request: a number that follows from its inputs, by a rule that the author of the model writes.

A rule is an expression over the names of inputs. A name stands for the length of its input: the characters of a text,
the elements of a list or a tensor, a number for itself, 0 for what is not given. `image[1]` is a dimension of a tensor
or of nested lists, the first being 0; of a model that takes rows the first one is that of the rows. There are `+`, `-`,
`*`, division by a number, `max(...)` and `min(...)`. A name that is no identifier stands in quotes, or by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import msgspec

from geartrain.domain.signature.types import Signature, TypeSpec
from geartrain.domain.tensors.tensor import Tensor

_MOST_TEXT: Final = 500  # characters of a rule
_MOST: Final = 10**15  # of a cost, and of each number in it: sums of such costs are exact
_UNKNOWN_LENGTH: Final = frozenset({"path", "file"})  # kinds whose contents the server does not see
_WITH_DIMENSIONS: Final = frozenset({"tensor", "array", "opaque"})
_EXAMPLE: Final = 'write it like "text", "text + 4 * max_tokens" or "image[1] * image[2]"'

Value = Callable[[Mapping[str, Any]], float]
"""Gives a number for the inputs by name, each a `Tensor` or a decoded JSON value."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode


class CostRule:
    """The cost of the requests of one model."""

    def __init__(self, text: str, signature: Signature) -> None:
        """Raises `ValueError` that names the fault and the fix for a rule that the signature does not allow."""
        declared = {each.name: TypeSpec("tensor", datatype=each.datatype) for each in signature.open_inputs}
        reader = _Reader(declared or {field.name: field.type for field in signature.inputs})
        self._value = reader.read(text)
        self._names = tuple(sorted(reader.names))
        defaults = {field.name: field.default for field in signature.inputs if field.has_default}
        self._defaults: dict[str, Any] = {name: defaults.get(name) for name in self._names}

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that the rule names."""
        return self._names

    def __call__(self, json: bytes, tensors: Sequence[Tensor] | None) -> float:
        """Return the cost of a request, from 0 to 10^15; its inputs are as in `domain.predictions.calls.ItemInput`."""
        values = dict(self._defaults)
        for tensor in tensors or ():
            if tensor.name in values:
                values[tensor.name] = tensor
        if len(json) > 2:  # noqa: PLR2004 - `{}`
            raw = _decode(json)
            values.update({name: _decode_any(raw[name]) for name in self._names if name in raw})
        cost = self._value(values)
        return min(cost, _MOST) if cost > 0 else 0.0  # NaN is not above 0


class _Reader:
    """Reads one rule, and keeps the names of inputs that it finds."""

    def __init__(self, types: Mapping[str, TypeSpec]) -> None:
        self._types = types
        self._text = ""
        self.names: set[str] = set()

    def read(self, text: str) -> Value:
        """Raises `ValueError`."""
        if text in self._types:
            text = repr(text)
        if len(text) > _MOST_TEXT:
            raise ValueError(f"cost has {len(text)} characters; at most {_MOST_TEXT} are possible")
        try:
            self._text = text.strip()
            tree = ast.parse(self._text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"cost={text!r} is no expression: {_EXAMPLE}") from None
        value = self._read(tree.body)
        if not self.names:
            raise ValueError(f"cost={text!r} names no input, so that all requests cost the same: {_EXAMPLE}")
        return value

    def _read(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return lambda _: number
            case ast.Name(id=name) | ast.Constant(value=str() as name):
                self._check(name)
                return lambda values: _limited(_length(values[name]))
            case ast.Subscript(value=ast.Name(id=name) | ast.Constant(value=str() as name), slice=index):
                return self._read_dimension(name, index)
            case ast.BinOp(left=left, op=operator, right=right):
                return self._read_operation(self._read(left), operator, right)
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[_, *_] as given, keywords=[]):
                return _extreme(name, [self._read(each) for each in given])
        raise ValueError(f"cost: {self._source(node)!r} cannot be a part of it: {_EXAMPLE}")

    def _read_operation(self, first: Value, operator: ast.operator, right: ast.expr) -> Value:
        second = self._read(right)
        match operator, right:
            case ast.Add(), _:
                return lambda values: first(values) + second(values)
            case ast.Sub(), _:
                return lambda values: first(values) - second(values)
            case ast.Mult(), _:
                return lambda values: first(values) * second(values)
            case ((ast.Div() | ast.FloorDiv()), ast.Constant(value=int() | float() as divisor)) if divisor > 0:
                whole = isinstance(operator, ast.FloorDiv)
                return lambda values: first(values) // divisor if whole else first(values) / divisor
        raise ValueError(f"cost: there are + - * and the division by a number above 0, not {type(operator).__name__}")

    def _read_dimension(self, name: str, index: ast.expr) -> Value:
        kind = self._check(name).kind
        if kind not in _WITH_DIMENSIONS:
            raise ValueError(f"cost: the input {name!r} has no dimensions; its length is {name!r}")
        try:
            place = ast.literal_eval(index)
        except ValueError:
            place = None
        if type(place) is not int:
            raise ValueError(f"cost: {name}[{self._source(index)}] is no dimension: write {name}[1], or {name}[-1]")
        return lambda values: _limited(_dimension(values[name], place))

    def _source(self, node: ast.expr) -> str:
        return ast.get_source_segment(self._text, node) or self._text

    def _check(self, name: str) -> TypeSpec:
        spec = self._types.get(name)
        if spec is None:
            raise ValueError(f"cost: there is no input {name!r}; there are: {', '.join(self._types)}")
        if spec.kind in _UNKNOWN_LENGTH:
            raise ValueError(f"cost: the input {name!r} is a file, whose contents the server does not read")
        self.names.add(name)
        return spec


def _extreme(name: str, values: Sequence[Value]) -> Value:
    choose: Callable[..., float] = max if name == "max" else min
    return lambda given: choose([value(given) for value in values])


def _limited(number: float) -> float:
    """The number as a float between bounds: products of floats never raise, and large integers do when divided."""
    return float(max(-_MOST, min(number, _MOST)))


def _length(value: Any) -> float:
    if isinstance(value, Tensor):
        return prod(value.shape)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, list):
        return sum(map(_length, value)) if value and isinstance(value[0], list) else len(value)
    return len(value) if isinstance(value, (str, dict)) else 0


def _dimension(value: Any, place: int) -> float:
    shape = value.shape if isinstance(value, Tensor) else _shape(value)
    return shape[place] if -len(shape) <= place < len(shape) else 0


def _shape(value: Any) -> tuple[int, ...]:
    shape = []
    while type(value) is list:
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)
