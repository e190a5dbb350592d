"""Settings of batches: how a model's requests are gathered, and which of them can share one call.

A batch is one call of `run()` for several requests. Sizes count rows: those that a request's tensors bring along their
first dimension, or 1 for a request of a model without tensor inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Tensor, tensor_error

DEFAULT_MAX_SIZE: Final = 32
_AUTO: Final = "auto"
_SIZES: Final = ("preferred_sizes", "pad_to")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode


class BatchPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Policy for gathering requests into batches.

    A free worker waits up to `max_delay` seconds for more. Without one, and with `learn_delay`, it waits where clients
    have been seen to come back together, as long as that pays (`service.scheduling.gathering`). `preferred_sizes`,
    ascending, are the sizes to cut a longer queue at. `pad_to`, ascending, are the only sizes that the model is called
    with: a batch is filled up to the next one, with copies of its last row. `retry_singly`: a batch that raised is run
    again one by one. `refuse_larger`: a request of more than `max_size` rows is an error; otherwise it runs by itself.
    Without `gather`, each request is a batch by itself.

    `cost` is the rule for the cost of a request (`domain.predictions.costs`), empty for none, and `max_cost` the most
    of one call, 0 for any; a request that costs more runs by itself. `auto_cost`: the most is found when a worker
    starts (`service.workers.cost_search`), and is 0 before. `padded`: a call costs as much as if all its requests were
    as costly as the most costly one. `sort` is the number of calls among which requests of similar costs are put
    together, 0 for the order of coming. `pad` are tensor inputs whose requests may differ in other dimensions than the
    first: where they are joined, they are filled up with these numbers.
    """

    max_size: int = DEFAULT_MAX_SIZE
    max_delay: float = 0.0
    preferred_sizes: tuple[int, ...] = ()
    pad_to: tuple[int, ...] = ()
    retry_singly: bool = False
    refuse_larger: bool = True
    learn_delay: bool = True
    gather: bool = True
    cost: str = ""
    max_cost: float = 0.0
    padded: bool = False
    sort: int = 0
    pad: dict[str, int | float] = {}
    auto_cost: bool = False


def policy_of(settings: Mapping[str, Any]) -> BatchPolicy:
    """Return the policy of settings that have been checked; `max_cost` may be "auto", and sizes may be lists."""
    fields = {**settings, **{name: tuple(settings[name]) for name in _SIZES if name in settings}}
    given = settings.get("max_cost", 0.0)
    return BatchPolicy(**{**fields, "auto_cost": given == _AUTO, "max_cost": 0.0 if given == _AUTO else float(given)})


class Lengths(NamedTuple):
    """A parameter of `run()` that gets the lengths of an input that is filled up: INT64 or INT32, one for each row.

    `dimensions` are those of the input that may have any length; with several, a row has a length for each.
    """

    parameter: str
    input: str
    dimensions: tuple[int, ...]
    datatype: str


class Cut(NamedTuple):
    """A dimension of an output, "" for the output itself, that is as long as one of an input that is filled up."""

    output: str
    at: int
    input: str
    dimension: int


class Batching(msgspec.Struct, frozen=True, omit_defaults=True):
    """Batching of a model: the policy, and the reading of its signature.

    `by_rows`: it has tensor inputs. Their first dimension is the batch, which a client sees too: a request may bring
    several rows, and the lists among its inputs and outputs have an element for each. Otherwise a request is one item,
    and clients see neither dimension nor list. `shared` are the inputs that a whole batch has in common: only requests
    in which they are equal are run together. `takes_singles`: a request by itself may come as a plain prediction, since
    `run()` does nothing else with a batch of one. `apart`: the requests of a batch are a list, and their tensors are
    not joined; with `by_rows` the first dimension of their tensors counts, and has to be all that differs. `ragged`:
    inputs are lists with a tensor of each request, of any shape, so that these tensors are not joined either. `lengths`
    and `cuts` belong to the inputs of `policy.pad`.
    """

    policy: BatchPolicy
    by_rows: bool = False
    shared: tuple[str, ...] = ()
    takes_singles: bool = False
    apart: bool = False
    ragged: bool = False
    lengths: tuple[Lengths, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def travels_apart(self) -> bool:
        """True if each request's tensors come to the worker by themselves, and are joined there, or not at all."""
        return self.apart or self.ragged or bool(self.policy.pad)


class BatchItems:
    """Measures the requests of one model that takes batches: made once for its signature."""

    def __init__(self, signature: Signature, batching: Batching) -> None:
        self._shared = batching.shared
        self._is_apart, self._counts_rows = batching.apart, batching.by_rows
        policy = batching.policy
        self._limit = policy.max_size if policy.refuse_larger else None
        self._padded = frozenset(policy.pad)
        stacked = [field for field in signature.inputs if batching.by_rows and field.name not in batching.shared]
        self._tensors = tuple(field.name for field in stacked if field.type.kind == "tensor")
        self._lists = tuple(field.name for field in stacked if field.type.kind == "array")
        self._is_tensors_only = len(self._tensors) == len(signature.inputs)

    def measure(self, json: bytes, tensors: Sequence[Tensor] | None) -> tuple[Hashable, int]:
        """Return the key that requests in one batch must have in common, and the rows of this one.

        `json` and `tensors` as in `domain.predictions.calls.ItemInput`; they fit the signature. Raises `GeartrainError`
        when the inputs do not have equally many rows, or the model takes no batch as large: `INVALID_TENSOR`, or
        `INVALID_INPUT` for a request of JSON alone.
        """
        if self._is_apart:
            return self._measure_apart(tensors) if self._counts_rows and tensors else ((), 1)
        if not self._tensors:
            return self._shared_part(json), 1
        if self._is_tensors_only and tensors is not None and len(tensors) == 1:
            tensor = tensors[0]
            rows = _rows(tensor.name, tensor.shape, tensors)
            self._check(tensor.name, rows, tensors)
            return ((tensor.name, self._row(tensor.name, tensor.shape)),), rows
        return self._measure(json, tensors)

    def _measure_apart(self, tensors: Sequence[Tensor]) -> tuple[Hashable, int]:
        first = tensors[0]
        rows = _rows(first.name, first.shape, tensors)
        if len(tensors) == 1:
            self._check(first.name, rows, tensors)
            return ((first.name, first.datatype, first.shape[1:]),), rows
        for tensor in tensors:
            if _rows(tensor.name, tensor.shape, tensors) != rows:
                text = f"has {tensor.shape[0]} rows along its first dimension, and '{first.name}' has {rows}"
                raise tensor_error(f"input '{tensor.name}' {text}: all inputs of a batch have equally many")
        self._check(first.name, rows, tensors)
        return tuple(sorted((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in tensors)), rows

    def _measure(self, json: bytes, tensors: Sequence[Tensor] | None) -> tuple[Hashable, int]:
        given = {tensor.name: tensor.shape for tensor in tensors or ()}
        raw = _decode(json) if len(json) > 2 else {}  # noqa: PLR2004 - `{}`
        for name in self._tensors:
            value = _decode_any(raw[name]) if name in raw else None
            if value is not None:
                given[name] = _shape(value)
        key: list[Hashable] = [(name, self._row(name, given[name])) for name in self._tensors if name in given]
        for name in self._lists:
            value = _decode_any(raw[name]) if name in raw else None
            if value is not None:
                given[name] = (len(value),)
                key.append(name)
        names = [name for name in (*self._tensors, *self._lists) if name in given]
        rows = _rows(names[0], given[names[0]], tensors) if names else 1
        for name in names:
            if _rows(name, given[name], tensors) != rows:
                raise _refusal(
                    name,
                    f"has {given[name][0]} rows along its first dimension, and '{names[0]}' has {rows}: "
                    "all inputs of a batch have equally many",
                    tensors,
                )
        if names:
            self._check(names[0], rows, tensors)
        if self._shared:
            key.append(self._values_of(raw))
        return tuple(key), rows

    def _row(self, name: str, shape: tuple[int, ...]) -> Hashable:
        """The part of the key that is about one input: the shape of its rows, or the rank if they are filled up."""
        return len(shape) if name in self._padded else shape[1:]

    def _check(self, name: str, rows: int, tensors: Sequence[Tensor] | None) -> None:
        limit = self._limit
        if limit is not None and rows > limit:
            raise _refusal(name, f"has {rows} rows, and the model takes at most {limit} at once: split it", tensors)

    def _shared_part(self, json: bytes) -> Hashable:
        return self._values_of(_decode(json)) if self._shared else ()

    def _values_of(self, raw: dict[str, msgspec.Raw]) -> Hashable:
        """The values of the shared inputs as they were written: what only looks different runs apart, no more."""
        return tuple(bytes(raw[name]) if name in raw else None for name in self._shared)


def _rows(name: str, shape: tuple[int, ...], tensors: Sequence[Tensor] | None) -> int:
    if not shape:
        raise _refusal(
            name, "has no dimension, and the first one is the batch: send it as an array of one row", tensors
        )
    return shape[0]


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of nested arrays of equally long rows."""
    shape = []
    while type(value) is list:
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _refusal(name: str, fault: str, tensors: Sequence[Tensor] | None) -> GeartrainError:
    if tensors is not None:
        return tensor_error(f"input '{name}' {fault}")
    field = FieldError(("body", "input", name), fault, "value_error")
    return GeartrainError(Code.INVALID_INPUT, "The input does not fit the model's batches.", fields=(field,))
