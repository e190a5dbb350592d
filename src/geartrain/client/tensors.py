"""Tensors of the Open Inference Protocol as arrays of numpy, sent and received as bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from geartrain.client.errors import ClientError
from geartrain.domain.errors import GeartrainError
from geartrain.domain.tensors.tensor import ARRAY_NAMES, join_bytes, split_bytes

HEADER_LENGTH: Final = "Inference-Header-Content-Length"

_DATATYPES: Final = {name: datatype for datatype, name in ARRAY_NAMES.items()}
_BFLOAT: Final = "BF16"


def encode_request(
    inputs: Mapping[str, Any], *, outputs: Sequence[str] | None, parameters: Mapping[str, Any]
) -> tuple[bytes, int]:
    """Return the body of a request, and the length of the JSON it begins with. Raises `TypeError`."""
    described, contents = [], []
    for name, value in inputs.items():
        datatype, shape, data = _tensor(name, value)
        size = {"binary_data_size": len(data)}
        described.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        contents.append(data)
    head: dict[str, Any] = {"inputs": described, "parameters": {**parameters, "binary_data_output": True}}
    if outputs is not None:
        head["outputs"] = [{"name": name} for name in outputs]
    json = msgspec.json.encode(head)
    return b"".join([json, *contents]), len(json)


def decode_response(content: bytes, json_length: int | None) -> dict[str, Any]:
    """Return the arrays of an answer by their names. Raises `ClientError`."""
    try:
        view = memoryview(content)
        head = msgspec.json.decode(view if json_length is None else view[:json_length])
        position = len(content) if json_length is None else json_length
        arrays = {}
        for output in head["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                arrays[output["name"]] = _from_json(output)
                continue
            arrays[output["name"]] = _from_bytes(output, view[position : position + size])
            position += size
    except (GeartrainError, KeyError, TypeError, ValueError) as error:
        raise ClientError(f"the answer has no tensors that can be read: {error}") from error
    return arrays


def _tensor(name: str, value: Any) -> tuple[str, list[int], bytes]:
    """Return the datatype, the shape and the contents of an array; of a plain value an array of one element."""
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu().numpy()
    array = np.asarray([value] if isinstance(value, str | bytes | int | float) else value)
    if array.dtype.kind in "USO":
        elements = [each.encode() if isinstance(each, str) else bytes(each) for each in array.ravel().tolist()]
        return "BYTES", list(array.shape), join_bytes(elements)
    datatype = _DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise TypeError(f"input {name!r} is an array of {array.dtype.name}, for which the protocol has no datatype")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return datatype, list(array.shape), array.tobytes()


def _from_bytes(output: Mapping[str, Any], data: memoryview) -> Any:
    shape, datatype = output["shape"], output["datatype"]
    if datatype == "BYTES":
        elements = np.empty(math.prod(shape), dtype=object)
        elements[:] = split_bytes(output["name"], data)
        return elements.reshape(shape)
    if datatype == _BFLOAT:  # numpy has no such type: widened to float32
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    return np.frombuffer(data, np.dtype(ARRAY_NAMES[datatype])).reshape(shape).copy()


def _from_json(output: Mapping[str, Any]) -> Any:
    if output["datatype"] == "BYTES":
        return np.array([text.encode() for text in output["data"]], dtype=object).reshape(output["shape"])
    kind = "float32" if output["datatype"] == _BFLOAT else ARRAY_NAMES[output["datatype"]]
    return np.array(output["data"], np.dtype(kind)).reshape(output["shape"])
