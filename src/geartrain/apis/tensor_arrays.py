"""Large tensors from and to JSON, with simdjson, numpy and orjson. Imported late, see `tensor_json`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import numpy as np
import orjson
import simdjson
from msgspec import UNSET

from geartrain.apis import infer_json, json_limits, tensor_json
from geartrain.apis.tensor_json import SlowPathError
from geartrain.domain.rendering import clip
from geartrain.domain.tensors.tensor import MAX_RANK, Tensor, too_many_dimensions

_DTYPES: Final[dict[str, str]] = {
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP32": "<f4",
    "FP64": "<f8",
}
_WIDE: Final[dict[str, tuple[Literal["d", "i", "u"], str]]] = {"f": ("d", "<f8"), "i": ("i", "<i8"), "u": ("u", "<u8")}
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY
_OWN: Final = infer_json.RequestJson.__struct_fields__
_INPUT: Final = infer_json.InputJson.__struct_fields__
_OUTPUT: Final = infer_json.OutputJson.__struct_fields__
_FEW: Final = 64  # members of an object that are looked at one by one
_PIECE: Final = 65_536  # elements, which take some 3 ms to be written
_KEPT: Final = 8 * 1024**2  # bytes of text; its parser takes up to ten times as much
_MARK: Final = b"\xef\xbb\xbf"  # of a byte order, which JSON does not have


_decode_parameters: Final = msgspec.json.Decoder(dict[str, Any]).decode
# `as_list`, `as_dict` and `items` are not used: they write beyond their memory for arrays of more than 2**24 elements.
_parser: Final = simdjson.Parser()


def parse(text: bytes | bytearray) -> tuple[dict[str, Any], list[Any]]:
    """Read the JSON of an infer request in one pass.

    Returns its members with `inputs` lacking their `data`, and these: UNSET where there is none, else what `decode`
    takes. Raises `INVALID_INPUT` for a member that stands twice, and `SlowPathError`.
    """
    if bytes(text[:3]) == _MARK:
        raise SlowPathError  # simdjson would pass over it
    try:
        document = _parsed(text)
        if not isinstance(document, simdjson.Object):
            raise SlowPathError
        inputs = document["inputs"]
        if not isinstance(inputs, simdjson.Array):
            raise SlowPathError
        if len(inputs) > json_limits.MAX_INPUTS:
            raise infer_json.too_many(json_limits.MAX_INPUTS)
        data: list[Any] = []
        plain = []
        for one in inputs:
            if not isinstance(one, simdjson.Object):
                raise SlowPathError
            found = _first_members(one, _INPUT)
            shape = found.get("shape")
            if isinstance(shape, simdjson.Array) and len(shape) > MAX_RANK:
                raise too_many_dimensions(clip(str(found.get("name"))), len(shape))
            data.append(found.pop("data", UNSET))
            plain.append(_converted(found))
        request = _converted(_first_members(document, _OWN))
        infer_json.guard(json_limits.check_run, text)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise SlowPathError from error
    request["inputs"] = plain
    return request, data


def _parsed(text: bytes | bytearray) -> Any:
    """Parse in memory that is there already, unless it is in use or the text is unusually large."""
    if len(text) <= _KEPT:
        try:
            return _parser.parse(text)
        except RuntimeError:  # raised also while something of the last text is still held
            pass
    return simdjson.Parser().parse(text)


def _first_members(value: simdjson.Object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the member of each of these names, as it was parsed; raise `INVALID_INPUT` if one stands twice."""
    found: dict[str, Any] = {}
    for name in value:
        if name in names:
            if name in found:
                raise infer_json.duplicate(name)
            found[name] = value[name]
    return found


def _converted(members: dict[str, Any]) -> dict[str, Any]:
    return {name: _CONVERSIONS[name](member) for name, member in members.items()}


def _parameters(value: Any) -> Any:
    """Return a value whose members may have any names."""
    if not isinstance(value, simdjson.Object):
        return _scalar(value)
    if len(value) <= _FEW:
        found: dict[str, Any] = {}
        for name in value:
            if name in found:
                raise infer_json.duplicate(name)
            found[name] = _scalar(value[name])
        return found
    if len(value) > json_limits.MAX_MEMBERS:
        raise infer_json.too_many_members()
    members = _decode_parameters(value.mini)
    if len(members) < len(value):  # one of them stands twice
        raise SlowPathError
    return members


def _shape(value: Any) -> Any:
    if not isinstance(value, simdjson.Array):
        return _scalar(value)
    return [_scalar(size) for size in itertools.islice(value, MAX_RANK)]


def _outputs(value: Any) -> Any:
    if not isinstance(value, simdjson.Array):
        return _scalar(value)
    if len(value) > json_limits.MAX_INPUTS:
        raise infer_json.too_many(json_limits.MAX_INPUTS)
    return [_output(one) for one in value]


def _output(value: Any) -> Any:
    return _converted(_first_members(value, _OUTPUT)) if isinstance(value, simdjson.Object) else _scalar(value)


def _scalar(value: Any) -> Any:
    """Return the value of a member that may not be an array or an object; of these it is enough to know the kind."""
    if isinstance(value, simdjson.Object):
        return {}
    return [] if isinstance(value, simdjson.Array) else value


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "id": _scalar,
    "inputs": lambda _: None,
    "name": _scalar,
    "datatype": _scalar,
    "shape": _shape,
    "parameters": _parameters,
    "outputs": _outputs,
}


def decode(name: str, datatype: str, data: Any, *, count: int) -> bytes | memoryview:
    """Decode the result of `parse` like `tensor_json.decode`. Raises `SlowPathError` as well."""
    if datatype in tensor_json.BINARY_ONLY:
        raise tensor_json.binary_only("input", name, datatype)
    if not isinstance(data, simdjson.Array):
        raise SlowPathError
    if datatype == "BOOL":
        return _decode_booleans(name, data, count=count)
    if datatype == "BYTES":
        return tensor_json.decode(name, datatype, msgspec.Raw(data.mini), count=count)
    dtype = np.dtype(_DTYPES[datatype])
    kind, wide_dtype = _WIDE[dtype.kind]
    try:
        wide = np.frombuffer(data.as_buffer(of_type=kind), wide_dtype)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SlowPathError from error
    tensor_json.check_count(name, wide.size, count)
    if wide.dtype == dtype:
        return wide.tobytes()
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    fits = np.isfinite(narrow) if kind == "d" else narrow == wide
    if not fits.all():
        index = int(np.argmin(fits))
        raise tensor_json.out_of_range(name, datatype, index, element=wide[index].item())
    return narrow.tobytes()


def _decode_booleans(name: str, data: Any, *, count: int) -> bytes:
    """Read the words as digits: of the words of JSON, and its punctuation, these are left if there is nothing else."""
    text = data.mini
    digits = text.translate(None, b"[],").replace(b"true", b"1").replace(b"false", b"0")
    if digits.translate(None, b"01") or text.count(b"e") != len(digits):  # each word has one e
        raise SlowPathError
    tensor_json.check_count(name, len(digits), count)
    return (np.frombuffer(digits, "u1") - ord("0")).tobytes()


def encode(tensor: Tensor) -> bytes:
    """Encode a tensor like `tensor_json.encode`."""
    if tensor.datatype == "BOOL":
        return _dumps(np.frombuffer(tensor.data, "u1") != 0)
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is None:
        return tensor_json.encode(tensor)
    values = np.frombuffer(tensor.data, dtype)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise tensor_json.not_finite(tensor)
    return _dumps(values)


def _dumps(values: Any) -> bytes:
    """Return the text of an array, written in pieces: a thread that writes lets others run in between."""
    # The text of a float is that of its value, and not the shortest one that FP32 would tell apart.
    dtype = "<f8" if values.dtype.kind == "f" else values.dtype
    pieces = [
        orjson.dumps(values[at : at + _PIECE].astype(dtype, copy=False), option=_OPTIONS)
        for at in range(0, values.size, _PIECE)
    ]
    return tensor_json.join_lists(pieces)
