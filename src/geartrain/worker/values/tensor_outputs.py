"""The tensors among what `run()` gives: told from the rest, and checked against what the author has declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.domain.tensors.tensor import Tensor, describe_shape
from geartrain.worker.values.faults import OutputError

_OUTPUT: Final = "output"  # the tensor of a value that is no record


class Split(NamedTuple):
    """A value without its tensors: those, and an object of the rest."""

    rest: dict[str, Any]
    tensors: list[Tensor]


class TensorOutputs:
    """The tensors of one runner's output: the value itself, or fields of a record."""

    def __init__(self, kind: TypeSpec) -> None:
        from geartrain.worker import arrays  # a worker without tensors needs no numpy

        self._arrays = arrays
        self._kind = kind
        self._is_record = kind.kind == "record"
        self._types = tensor_types(kind)

    def split(self, value: Any) -> Split:
        """Take the tensors out of a value; raise `OutputError` for one that is not as declared."""
        arrays, fields = self._arrays, self.fields(value)
        if fields is None:
            return Split({}, [])
        tensors = []
        for name, kind in self._types.items():
            given = fields.pop(name)
            if given is None:
                continue
            try:
                tensor = arrays.tensor_of(name, kind.datatype, given)
                arrays.check_shape(tensor.shape, kind)
            except ValueError as error:
                raise self._fault(error, name) from None
            tensors.append(tensor)
        return Split(fields, tensors)

    def plain(self, value: Any) -> Any:
        """Return a value with nested lists in place of its tensors; raise `OutputError` as `split`."""
        arrays, fields = self._arrays, self.fields(value)
        if fields is None:
            return None
        for name, kind in self._types.items():
            if fields[name] is None:
                continue
            try:
                shape, fields[name] = arrays.plain_of(kind.datatype, fields[name])
                arrays.check_shape(shape, kind)
            except ValueError as error:
                raise self._fault(error, name) from None
        return fields if self._is_record else fields[_OUTPUT]

    def fields(self, value: Any) -> dict[str, Any] | None:
        """The fields of a value, a new dict that has every tensor's; None for a value that may be and is None.

        Raises `OutputError`.
        """
        if not self._is_record:
            fields = {_OUTPUT: value}
        elif value is None and self._kind.nullable:
            return None
        else:
            fields = self._record_fields(value)
        for name, kind in self._types.items():
            if fields.setdefault(name) is None and not kind.nullable:
                error = ValueError(f"is None, and {describe(kind)} is declared")
                raise self._fault(error, name)
        return fields

    def _record_fields(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            return dict(value)
        names = [field.name for field in self._kind.fields]
        if not any(hasattr(value, name) for name in self._types):
            listed = ", ".join(names)
            raise OutputError(f"is of type {type(value).__name__}, and a record with the fields {listed} is declared")
        return {name: getattr(value, name) for name in names if hasattr(value, name)}

    def _fault(self, error: ValueError, name: str) -> OutputError:
        fault = OutputError(str(error))
        return fault.inside(name) if self._is_record else fault


def tensor_types(kind: TypeSpec) -> dict[str, TypeSpec]:
    """The tensors of an output by name."""
    if kind.kind == "tensor":
        return {_OUTPUT: kind}
    return {field.name: _optional(field.type, field.required) for field in kind.fields if field.type.kind == "tensor"}


def _optional(kind: TypeSpec, required: bool) -> TypeSpec:  # noqa: FBT001 - one fact of the field
    from msgspec.structs import replace

    return kind if required else replace(kind, nullable=True)


def describe(kind: TypeSpec) -> str:
    """A tensor's type as errors name it: `FP32 [-1, 3]`."""
    return f"{kind.datatype} {describe_shape(kind)}".removesuffix(" [...]")


def tensor_outputs(spec: OutputSpec) -> TensorOutputs | None:
    """Create the extractor of an output's tensors; None if it has none."""
    return TensorOutputs(spec.type) if tensor_types(spec.type) else None
