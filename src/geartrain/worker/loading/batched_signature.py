"""Reads the signature of a batched `run()`: what one client sends and gets, and what a batch has in common."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from geartrain.authoring.batches import check_settings, cost_rule
from geartrain.authoring.decorators import BATCHED_ATTRIBUTE, Opaque
from geartrain.domain.predictions.batching import Batching, BatchPolicy, policy_of
from geartrain.domain.predictions.costs import CostRule
from geartrain.domain.signature.types import Signature, TypeSpec
from geartrain.domain.tensors.tensor import VARIABLE
from geartrain.worker.loading.annotations import AnnotationReader
from geartrain.worker.loading.callables import decorator_value
from geartrain.worker.loading.descriptions import Described, UnsupportedTypeError, strip, type_name
from geartrain.worker.loading.padding import length_parameters, read_padding
from geartrain.worker.loading.signature import (
    OfOne,
    Parameter,
    UnsupportedAnnotationError,
    Written,
    make_signature,
    read_output,
    written_parameters,
)

_ROWS: Final = 'let the first one be the batch, as in Float32[np.ndarray, "batch 3"]'
_SPLIT: Final = (
    "geartrain gives each request its part: return a list with a result for each, a tensor whose first dimension is"
    " the batch, or a record of these"
)


class BatchedSignature(NamedTuple):
    """A batched `run()`: the parameters and the signature are those of one request."""

    parameters: tuple[Parameter, ...]
    signature: Signature
    batching: Batching


def read_batched(run: Callable[..., Any], *, owner_name: str, settings: Mapping[str, Any]) -> BatchedSignature:
    """Read the signature of a `run()` decorated with `@batched`; `settings` come before those of the decorator.

    Raises `UnsupportedAnnotationError`.
    """
    policy = read_policy(decorator_value(run, BATCHED_ATTRIBUTE), settings, owner_name)
    all_written = written_parameters(run, owner_name=owner_name)
    lengths = length_parameters(all_written, policy)
    written = [each for each in all_written if each.name not in lengths]
    described = [each.describe() for each in written]
    by_rows = any(each.spec.kind == "tensor" for each in described)
    read = _read_rows if by_rows else _read_items
    parameters, shared = read(written, described, owner_name)
    part = _OneOf(owner_name, by_rows=by_rows).part
    output = read_output(run, owner_name=owner_name, of_one=part)
    if by_rows and output.mode == "concatenate":
        raise UnsupportedAnnotationError(
            f"{owner_name} returns ConcatenateIterator, and a request with tensors has rows, not one text:"
            " use Iterator[list[str]]"
        )
    signature = make_signature(run, parameters, output)
    padding = read_padding(run, all_written, signature, policy=policy, owner=owner_name)
    check_cost(policy, signature, owner_name)
    ragged = not by_rows and any(field.type.kind == "tensor" for field in signature.inputs)
    batching = Batching(policy, by_rows, shared, ragged=ragged, lengths=padding.lengths, cuts=padding.cuts)
    return BatchedSignature(parameters, signature, batching)


def read_policy(declared: Mapping[str, Any], settings: Mapping[str, Any], owner: str) -> BatchPolicy:
    """Return the policy of the decorator, with `settings` before it. Raises `UnsupportedAnnotationError`."""
    merged = {**declared, **settings}
    if "preferred_sizes" not in settings and "max_size" in settings:  # a smaller limit leaves fewer of the model's own
        merged["preferred_sizes"] = [size for size in declared["preferred_sizes"] if size <= settings["max_size"]]
    try:
        check_settings(merged)
        if merged.get("pad") and not merged["cost"]:  # the elements of what is filled up
            merged.update(cost=cost_rule(list(merged["pad"])), padded=True)
        return policy_of(merged)
    except (TypeError, ValueError) as error:
        raise UnsupportedAnnotationError(f"the batching of {owner}: {error}") from error


def check_cost(policy: BatchPolicy, signature: Signature, owner: str) -> None:
    """Raise `UnsupportedAnnotationError` for a rule of costs that does not fit the inputs."""
    if not policy.cost:
        return
    try:
        CostRule(policy.cost, signature)
    except ValueError as error:
        raise UnsupportedAnnotationError(f"the batching of {owner}: {error}") from error


# inputs

_Inputs = tuple[tuple[Parameter, ...], tuple[str, ...]]


def _read_rows(written: Sequence[Written], described: Sequence[Described], owner: str) -> _Inputs:
    """The inputs beside tensors, and the names of those that a batch shares."""
    parameters, shared, required = [], [], False
    for each, (spec, *_) in zip(written, described, strict=True):
        if spec.kind == "tensor" and spec.shape[:1] != (VARIABLE,):
            raise UnsupportedAnnotationError(
                f"{each.where} is annotated {type_name(each.annotation)}, and in a batched run() the first dimension of"
                f" a tensor has any size: {_ROWS}"
            )
        parameter = each.read()
        parameters.append(parameter)
        if spec.kind not in {"tensor", "array"}:
            _check_shared(each, spec)
            shared.append(each.name)
        elif parameter.field.has_default and parameter.field.default is not None:
            raise UnsupportedAnnotationError(
                f"{each.where} has a default, which cannot have as many rows as a request has: make it None"
            )
        required = required or (spec.kind == "tensor" and parameter.field.required)
    if not required:
        raise UnsupportedAnnotationError(
            f"{owner} has no tensor that every request brings: let one be without a default, so that its rows count"
        )
    return tuple(parameters), tuple(shared)


def _read_items(written: Sequence[Written], described: Sequence[Described], owner: str) -> _Inputs:
    """The inputs where there is no tensor: those that are lists are read as one element."""
    parameters, shared = [], []
    for each, (spec, *_) in zip(written, described, strict=True):
        if spec.kind != "array":
            _check_shared(each, spec)
            shared.append(each.name)
            parameters.append(each.read())
            continue
        if spec.nullable:
            raise UnsupportedAnnotationError(
                f"{each.where} is annotated {type_name(each.annotation)}, and a batched run() always gets the list:"
                " let its elements be optional, as in list[str | None]"
            )
        if isinstance(each.info.default, list):
            raise UnsupportedAnnotationError(
                f"{each.where} has a list as its default: in a batched run() the default is that of one request, as in"
                " Input(default='en')"
            )
        parameters.append(each._replace(annotation=_element(each.annotation)).read())
    if len(shared) == len(written):
        raise UnsupportedAnnotationError(
            f"{owner} is batched, and none of its inputs is a list or a tensor: annotate what each request brings as"
            " list[...], such as texts: list[str]"
        )
    return tuple(parameters), tuple(shared)


def _check_shared(written: Written, spec: TypeSpec) -> None:
    if spec.kind in {"path", "file"}:
        name = type_name(written.annotation)
        raise UnsupportedAnnotationError(
            f"{written.where} is annotated {name}, and no two requests bring the same file, so none could share a"
            f" batch: write list[{name}]"
        )


def _element(annotation: Any) -> Any:
    """The annotation of one element of a list."""
    bare, is_opaque = strip(annotation)
    element = next(iter(typing.get_args(bare)), Any)
    if element is Any or is_opaque or isinstance(element, TypeVar):
        return Annotated[Any, Opaque]
    return element


# outputs


def part_of(owner: str) -> OfOne:
    """Return the reader of the type of one request's part, of a list with one result for each."""
    return _OneOf(owner, by_rows=False).part


class _OneOf:
    """Makes, of the type of a call's output, that of one request's part."""

    def __init__(self, owner: str, *, by_rows: bool) -> None:
        self._owner = owner
        self._by_rows = by_rows

    def part(self, spec: TypeSpec, annotation: Any) -> TypeSpec:
        """Raises `UnsupportedAnnotationError` for a type that has no parts."""
        bare, _ = strip(annotation)
        if bare is Any:
            return TypeSpec("opaque")
        members = [member for member in typing.get_args(bare) if member is not type(None)]
        cls = members[0] if spec.nullable and len(members) == 1 else bare
        if spec.kind == "array" and isinstance(cls, type) and hasattr(cls, "_fields"):
            spec = replace(self._named_tuple(cls), nullable=spec.nullable)
        return self._part(spec, type_name(annotation))

    def _part(self, spec: TypeSpec, name: str, place: str = "") -> TypeSpec:
        match spec.kind:
            case "opaque":
                return spec
            case "tensor":
                return self._tensor(spec, name, place)
            case "array":
                items = spec.items or TypeSpec("opaque")
                return spec if self._by_rows else replace(items, nullable=items.nullable or spec.nullable)
            case "record":
                fields = tuple(
                    replace(field, type=self._part(field.type, name, f", and its field {field.name!r} is {{}}"))
                    for field in spec.fields
                )
                return replace(spec, fields=fields)
            case "union":
                return replace(spec, members=tuple(self._part(member, name, place) for member in spec.members))
        what = place.format(f"a single {spec.kind}") or ", which has no parts"
        advice = " (for several values each, a TypedDict of lists)" if spec.kind == "object" else ""
        raise UnsupportedAnnotationError(f"{self._owner}: what it returns is annotated {name}{what}; {_SPLIT}{advice}")

    def _tensor(self, spec: TypeSpec, name: str, place: str) -> TypeSpec:
        if spec.shape[:1] != (VARIABLE,):
            what = place.format(f"a tensor of the fixed shape {list(spec.shape)}") or ", whose first dimension is fixed"
            raise UnsupportedAnnotationError(f"{self._owner}: what it returns is annotated {name}{what}: {_ROWS}")
        if self._by_rows or (spec.variadic and spec.variadic_at == 0):
            return spec
        at = max(spec.variadic_at - 1, 0)
        return replace(spec, shape=spec.shape[1:], variadic_at=at, names=spec.names[1:])

    def _named_tuple(self, cls: type) -> TypeSpec:
        from geartrain.worker.loading.annotations import read_named_tuple

        try:
            return read_named_tuple(cls, AnnotationReader(output=True, batched=True)).spec
        except UnsupportedTypeError as error:
            message = f"{self._owner}: what it returns is annotated {cls.__name__}; {error}"
            raise UnsupportedAnnotationError(message) from error
