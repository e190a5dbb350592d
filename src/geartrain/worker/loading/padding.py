"""Reads which inputs of a batched `run()` are filled up, who is told their lengths, and which outputs are cut again."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from geartrain.domain.predictions.batching import BatchPolicy, Cut, Lengths
from geartrain.domain.signature.types import InputField, Signature, TypeSpec
from geartrain.domain.tensors.tensor import SIZES, VARIABLE
from geartrain.worker.loading.descriptions import strip, type_name
from geartrain.worker.loading.signature import (
    UnsupportedAnnotationError,
    Written,
    class_hints,
    output_mode,
    return_annotation,
)

_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1


class Padding(NamedTuple):
    """The fields of `Batching` that are about inputs that are filled up."""

    lengths: tuple[Lengths, ...] = ()
    cuts: tuple[Cut, ...] = ()


def length_parameters(written: Sequence[Written], policy: BatchPolicy) -> dict[str, str]:
    """Return the parameters that get the lengths of an input which is filled up, with the name of that input."""
    names = {f"{name}_lengths": name for name in policy.pad}
    if len(policy.pad) == 1:
        names["lengths"] = next(iter(policy.pad))
    return {each.name: names[each.name] for each in written if each.name in names and each.name not in policy.pad}


def read_padding(
    run: Callable[..., Any], written: Sequence[Written], signature: Signature, *, policy: BatchPolicy, owner: str
) -> Padding:
    """Read what belongs to the inputs of `policy.pad`. Raises `UnsupportedAnnotationError`."""
    if not policy.pad:
        return Padding()
    fields = {field.name: field for field in signature.inputs}
    for name, fill in policy.pad.items():
        fault = _fault(fields.get(name), fill)
        if fault:
            raise UnsupportedAnnotationError(f"the batching of {owner}: pad names {name!r}, {fault}")
    filled = length_parameters(written, policy)
    lengths = tuple(_lengths(each, fields[filled[each.name]]) for each in written if each.name in filled)
    places = _named_dimensions(written, policy)
    cuts = tuple(
        Cut(field, at, *places[name])
        for field, annotation in _outputs(run, signature.output.type, owner)
        for at, name in enumerate(dimension_names(annotation))
        if at and name in places
    )
    return Padding(lengths, cuts)


def dimension_names(annotation: Any) -> tuple[str, ...]:
    """Return the names of the dimensions of an array of jaxtyping, "" for those without; none of any other type.

    Those behind a `...` are not among them.
    """
    bare, _ = strip(annotation)
    members = [each for each in typing.get_args(bare) if each is not type(None)]
    if len(members) == 1 and len(typing.get_args(bare)) > 1:  # X | None
        bare, _ = strip(members[0])
    dimensions = getattr(bare, "dims", None) if isinstance(bare, type) else None
    if not isinstance(dimensions, tuple):
        return ()
    return tuple(getattr(each, "name", "") or "" for each in dimensions[: bare.index_variadic])


def _fault(field: InputField | None, fill: float) -> str:
    """Say why an input cannot be filled up; empty if it can."""
    if field is None:
        return "and there is no such input"
    kind = field.type
    if kind.kind != "tensor":
        return "which is no tensor: annotate it like Int64[np.ndarray, 'batch length']"
    if kind.datatype not in SIZES:
        return "whose elements are no numbers"
    if kind.variadic or VARIABLE not in kind.shape[1:]:
        return "which needs a dimension of any length behind the first one, as in Int64[np.ndarray, 'batch length']"
    if not _is_in_range(fill, kind.datatype):
        return f"and {fill!r} is no {kind.datatype}"
    return ""


def _is_in_range(fill: float, datatype: str) -> bool:
    if not datatype.startswith(("INT", "UINT")):
        # An array takes no larger integer: it would be one of Python objects.
        return not isinstance(fill, int) or _LEAST <= fill <= _MOST
    is_signed, bits = datatype.startswith("I"), 8 * SIZES[datatype]
    span: int = 1 << bits
    lowest = -(span >> 1) if is_signed else 0
    return bool(fill == fill // 1 and lowest <= fill < lowest + span)


def _lengths(written: Written, field: InputField) -> Lengths:
    dimensions = tuple(at for at, size in enumerate(field.type.shape) if at and size == VARIABLE)
    spec = written.describe().spec
    shapes = {(VARIABLE,)} if len(dimensions) == 1 else {(VARIABLE, VARIABLE), (VARIABLE, len(dimensions))}
    if spec.kind != "tensor" or spec.datatype not in {"INT32", "INT64"} or spec.shape not in shapes:
        shape = "batch" if len(dimensions) == 1 else f"batch {len(dimensions)}"
        raise UnsupportedAnnotationError(
            f"{written.where} gets the lengths of {field.name!r}, and is annotated {type_name(written.annotation)}:"
            f' write Int64[np.ndarray, "{shape}"], or give it another name'
        )
    return Lengths(written.name, field.name, dimensions, spec.datatype)


def _named_dimensions(written: Sequence[Written], policy: BatchPolicy) -> Mapping[str, tuple[str, int]]:
    """Return the input and the dimension of each name of a dimension that is filled up."""
    places: dict[str, tuple[str, int]] = {}
    for each in written:
        if each.name in policy.pad:
            for at, name in enumerate(dimension_names(each.annotation)):
                if at and name:
                    places.setdefault(name, (each.name, at))
    return places


def _outputs(run: Callable[..., Any], spec: TypeSpec, owner: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of the output with their annotations: the output itself, as "", or fields of a record."""
    _, annotation = output_mode(return_annotation(run, owner), owner)
    if spec.kind == "tensor":
        yield "", annotation
    if spec.kind != "record":
        return
    bare, _ = strip(annotation)
    members = [each for each in typing.get_args(bare) if each is not type(None)]
    record = members[0] if members else bare
    hints = class_hints(record, f"{owner}: the fields of {type_name(record)}")
    yield from ((field.name, hints[field.name]) for field in spec.fields if field.name in hints)
