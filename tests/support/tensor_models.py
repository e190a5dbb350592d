"""Signatures with tensors, as the Open Inference Protocol's translators see them."""

from __future__ import annotations

from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, Signature, TypeSpec

INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]


def tensor(datatype: str = "FP32", *shape: int) -> TypeSpec:
    return TypeSpec("tensor", datatype=datatype, shape=shape)


def record(**kinds: TypeSpec) -> TypeSpec:
    return TypeSpec("record", fields=tuple(RecordField(name, kind) for name, kind in kinds.items()))


def signature(output: OutputSpec | TypeSpec, **inputs: TypeSpec | InputField) -> Signature:
    fields = tuple(kind if isinstance(kind, InputField) else InputField(name, kind) for name, kind in inputs.items())
    return Signature(fields, output if isinstance(output, OutputSpec) else OutputSpec(output))


def optional(name: str, kind: TypeSpec) -> InputField:
    return InputField(name, kind, required=False)


# Those of observed Triton.
IDENT = TensorView(signature(record(y=tensor("FP32", -1, -1)), x=tensor("FP32", -1, -1)))
SCALAR = TensorView(signature(record(y=tensor("FP32", 1)), x=tensor("FP32", 1)))
TWO = TensorView(
    signature(record(sum=tensor("INT32", 2), diff=tensor("INT32", 2)), a=tensor("INT32", 2), b=tensor("INT32", 2))
)


def one(datatype: str, *shape: int) -> TensorView:
    """A model of one tensor `x` to one tensor `y`."""
    return TensorView(signature(record(y=tensor(datatype, *shape)), x=tensor(datatype, *shape)))
