"""Typed contents of tensors: lists of numbers in the message become bytes in row-major order.

No element passes through a line of Python: floats and booleans lie in a serialized message as they lie in a tensor, and
integers, which do not, go through an array of the machine's own type that refuses what is out of its range.
"""

from __future__ import annotations

from array import array
from typing import Final

from geartrain.domain.tensors.tensor import DATATYPES, Buffer, join_bytes, tensor_error
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.wire import varint

FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of each datatype; FP16 and BF16 have none."""

_ARRAYS: Final = {"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I"}
_ARRAYS["UINT64"] = "Q"
_PACKED: Final = {"BOOL": 1, "FP32": 4, "FP64": 8}  # bytes of an element in a serialized message


def to_bytes(tensor: pb.ModelInferRequest.InferInputTensor) -> Buffer:
    """Return the contents of a tensor whose `contents` are set, as many as they are.

    Raises `INVALID_TENSOR`: the field is that of another datatype, the datatype has none, or a number does not fit it.
    """
    name, datatype, contents = tensor.name, tensor.datatype, tensor.contents
    wanted = FIELDS.get(datatype)
    if wanted is None:
        raise tensor_error(_no_field(name, datatype))
    given = contents.ListFields()
    if not given:
        return b""
    if len(given) > 1 or given[0][0].name != wanted:
        found = " and ".join(field.name for field, _ in given)
        raise tensor_error(f"input '{name}' is {datatype}, whose typed contents are {wanted}; it has {found}")
    values = given[0][1]
    if datatype in _PACKED:
        size = _PACKED[datatype] * len(values)
        begin = 1 + len(varint(size))  # behind the tag and the length: it is the only field that is known
        return memoryview(contents.SerializeToString())[begin : begin + size]
    if datatype == "BYTES":
        return join_bytes(values)
    try:
        return memoryview(array(_ARRAYS[datatype], values)).cast("B")
    except OverflowError:
        raise tensor_error(_out_of_range(name, datatype, values)) from None


def _no_field(name: str, datatype: str) -> str:
    if datatype in DATATYPES:
        return f"input '{name}' is {datatype}, which has no typed contents: send it in raw_input_contents"
    return f"input '{name}' has the unknown datatype '{datatype}'; the datatypes are {', '.join(sorted(DATATYPES))}"


def _out_of_range(name: str, datatype: str, values: list[int]) -> str:
    bits = int(datatype.lstrip("UINT"))
    least = 0 if datatype.startswith("U") else -(2 ** (bits - 1))
    most = 2**bits - 1 if datatype.startswith("U") else 2 ** (bits - 1) - 1
    index, value = next((i, value) for i, value in enumerate(values) if not least <= value <= most)
    return f"input '{name}' has {value} at index {index}, which is out of the range of {datatype}: {least} to {most}"
