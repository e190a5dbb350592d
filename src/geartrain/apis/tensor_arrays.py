"""Large tensors from and to JSON, with simdjson, numpy and orjson. Imported late, see `tensor_json`."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import orjson
import simdjson
from msgspec import UNSET

from geartrain.apis import tensor_json
from geartrain.domain.tensors.tensor import Tensor

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
_MOST_MEMBERS: Final = 64
_KEPT: Final = 8 * 1024**2  # bytes of text; its parser takes up to ten times as much
_MARK: Final = b"\xef\xbb\xbf"  # of a byte order, which JSON does not have


_parser: Final = simdjson.Parser()


class SlowPathError(Exception):
    """This text is for the reader of small ones: it is wrong, which that one can explain, or unusual."""


def parse(text: bytes | memoryview) -> tuple[dict[str, Any], list[Any]]:
    """Read the JSON of an infer request in one pass.

    Returns its members with `inputs` lacking their `data`, and these: UNSET where there is none, else what `decode`
    takes. Of a member that stands twice the first one counts. Raises `SlowPathError`.
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
        data: list[Any] = []
        plain = []
        for one in inputs:
            if not isinstance(one, simdjson.Object):
                raise SlowPathError
            plain.append(_members(one, but="data"))
            data.append(one.get("data", UNSET))
        members = _members(document, but="inputs")
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise SlowPathError from error
    return {**members, "inputs": plain}, data


def _parsed(text: bytes | memoryview) -> Any:
    """Parse in memory that is there already, unless it is in use or the text is unusually large."""
    if len(text) <= _KEPT:
        try:
            return _parser.parse(text)
        except RuntimeError:  # raised also while something of the last text is still held
            pass
    return simdjson.Parser().parse(text)


def _members(value: simdjson.Object, *, but: str | None = None) -> dict[str, Any]:
    if len(value) > _MOST_MEMBERS:  # each is looked for from the first one on
        raise SlowPathError
    return {key: _plain(value[key]) for key in value if key != but}


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return _members(value)
    return [_plain(one) for one in value] if isinstance(value, simdjson.Array) else value


def decode(name: str, datatype: str, data: Any, *, count: int) -> bytes | memoryview:
    """As `tensor_json.decode`, of what `parse` has found. Raises `SlowPathError` as well."""
    if datatype in tensor_json.BINARY_ONLY:
        raise tensor_json.binary_only("input", name, datatype)
    if not isinstance(data, simdjson.Array):
        raise SlowPathError
    if datatype in {"BOOL", "BYTES"}:
        return _decode_objects(name, datatype, data, count=count)
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


def _decode_objects(name: str, datatype: str, data: Any, *, count: int) -> bytes:
    elements = tensor_json.flat_list(data.as_list())
    wanted = bool if datatype == "BOOL" else str
    if any(type(element) is not wanted for element in elements):
        raise SlowPathError
    tensor_json.check_count(name, len(elements), count)
    return tensor_json.pack(name, datatype, elements)


def encode(tensor: Tensor) -> bytes:
    """As `tensor_json.encode`."""
    if tensor.datatype == "BOOL":
        return orjson.dumps(np.frombuffer(tensor.data, "u1") != 0, option=_OPTIONS)
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is None:
        return tensor_json.encode(tensor)
    values = np.frombuffer(tensor.data, dtype)
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise tensor_json.not_finite(tensor)
        values = values.astype("<f8")  # the text is that of the value, and not the shortest that FP32 would tell apart
    return orjson.dumps(values, option=_OPTIONS)
