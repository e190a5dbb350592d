"""Bodies of other servers as inputs of a model: instances, data frames, CSV, and the answers to them. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.bodies import (
    BodyForm,
    Inputs,
    Wanted,
    decode,
    named,
    read_plain,
    write_plain,
)
from geartrain.authoring.requests import JSON_TYPE, is_json, media_type_of
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.signature.types import InputField, Signature
from geartrain.domain.tensors.tensor import VARIABLE

_encode: Final = msgspec.json.Encoder().encode
_PREDICTIONS: Final = "predictions"
_FRAMES: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")


def read_instances(body: bytes, _content_type: str, signature: Signature) -> Inputs:
    """Read `{"instances": […], "parameters": {…}}`. Raises `UNPARSABLE`, `INVALID_INPUT`."""
    value = decode(body)
    if not isinstance(value, dict):
        raise _wrong("body", 'send an object such as {"instances": [...]}')
    parameters = value.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _wrong("parameters", "it is an object")
    if "inputs" in value and "instances" not in value:
        return _columns(value["inputs"], parameters, signature)
    rows = value.get("instances")
    if not isinstance(rows, list) or not rows:
        raise _wrong("instances", "it is a list of at least one instance")
    return _of_rows(rows, parameters, signature)


def read_invocation(body: bytes, content_type: str, signature: Signature) -> Inputs:
    """Read a body of SageMaker or MLflow: a data frame, instances, columns, CSV, or the inputs of the model."""
    media_type = media_type_of(content_type)
    if media_type == "text/csv":
        return _of_csv(body, content_type, signature)
    if media_type and not is_json(media_type):
        return read_plain(body, content_type, signature)
    value = decode(body) if body else {}
    names = {field.name for field in signature.inputs}
    found = [name for name in _FRAMES if isinstance(value, dict) and name in value and name not in names]
    if not found:
        return read_plain(body, content_type, signature)
    if len(found) > 1:
        raise _wrong("body", f"it has {' and '.join(found)}: send one of them")
    parameters = value.get("params") or {}
    if not isinstance(parameters, dict):
        raise _wrong("params", "it is an object")
    return _of_frame(found[0], value[found[0]], parameters, signature=signature)


def _of_frame(kind: str, given: Any, parameters: dict[str, Any], *, signature: Signature) -> Inputs:
    """Read one of `_FRAMES`. Raises `INVALID_INPUT`."""
    if kind == "inputs":
        return _columns(given, parameters, signature)
    if kind == "dataframe_split":
        columns, data = (given.get("columns"), given.get("data")) if isinstance(given, dict) else (None, None)
        if not isinstance(data, list) or not (columns is None or isinstance(columns, list)):
            raise _wrong(kind, "it is an object with the lists columns and data")
        if columns is None:
            return _of_rows(data, parameters, signature)
        if any(not isinstance(row, list) or len(row) != len(columns) for row in data):
            raise _wrong(f"{kind}.data", f"each row is a list of {len(columns)} values, one for each column")
        given = [dict(zip(map(str, columns), row, strict=True)) for row in data]
    if not isinstance(given, list) or not given:
        raise _wrong(kind, "it is a list of at least one row")
    return _of_rows(given, parameters, signature)


def read_inputs(body: bytes, content_type: str, signature: Signature) -> Inputs:
    """Read `{"inputs": …, "parameters": {…}}` of Hugging Face's endpoints, or the inputs of the model."""
    media_type = media_type_of(content_type)
    if media_type and not is_json(media_type):
        return read_plain(body, content_type, signature)
    value = decode(body)
    if not isinstance(value, dict) or "inputs" not in value or any(f.name == "inputs" for f in signature.inputs):
        return read_plain(body, content_type, signature)
    parameters = value.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _wrong("parameters", "it is an object")
    given = value["inputs"]
    own = given if _names_inputs(given, signature) else msgspec.json.decode(named(given, signature))
    return Inputs((_encode({**own, **parameters}),))


def write_predictions(outputs: Sequence[bytes], wanted: Wanted, signature: Signature) -> tuple[bytes, str]:
    """Return `{"predictions": […]}`, or the output itself for a body that was no list of rows."""
    wrapped = wanted.inputs.wrap
    if not wrapped:
        return write_plain(outputs, wanted, signature)
    if wanted.inputs.is_many:
        return b'{"%b":[%b]}' % (wrapped.encode(), b",".join(outputs)), JSON_TYPE
    output = outputs[0]
    if wanted.inputs.by_rows and signature.output.type.kind == "record":
        output = _encode(_rows_of(msgspec.json.decode(output)))
    return b'{"%b":%b}' % (wrapped.encode(), output), JSON_TYPE


def _of_rows(rows: list[Any], parameters: dict[str, Any], signature: Signature) -> Inputs:
    """Return one input of all rows for a model whose tensors have a row for each, else an input for each row."""
    tensors = [field for field in signature.inputs if _takes_rows(field)]
    wanted = [field for field in signature.inputs if field.required] or list(signature.inputs)
    if tensors and all(field in tensors for field in wanted):
        names = {field.name for field in tensors}
        if all(isinstance(row, dict) for row in rows):
            names = {name for name in names if any(name in row for row in rows)}
            unknown = sorted({name for row in rows for name in row} - {field.name for field in tensors})
            missing = [name for name in names if any(name not in row for row in rows)]
            if not unknown and not missing:
                columns = {name: [row[name] for row in rows] for name in names}
                return Inputs((_encode({**columns, **parameters}),), wrap=_PREDICTIONS, by_rows=True)
            rows = [list(row.values()) for row in rows]  # the columns of one table
        if len(wanted) == 1:
            return Inputs((_encode({wanted[0].name: rows, **parameters}),), wrap=_PREDICTIONS, by_rows=True)
    values = [_one(row, parameters, signature) for row in rows]
    return Inputs(values, is_many=True, wrap=_PREDICTIONS)


def _columns(given: Any, parameters: dict[str, Any], signature: Signature) -> Inputs:
    return Inputs((_one(given, parameters, signature),), wrap=_PREDICTIONS)


def _one(row: Any, parameters: dict[str, Any], signature: Signature) -> bytes:
    if _names_inputs(row, signature):
        return _encode({**row, **parameters})
    return _encode({**msgspec.json.decode(named(row, signature)), **parameters})


def _names_inputs(row: Any, signature: Signature) -> bool:
    """True if an object has the names of inputs; where the one input is an object itself, it may have others."""
    if not isinstance(row, dict):
        return False
    names = {field.name for field in signature.inputs}
    if names.intersection(row):
        return True
    required = [field for field in signature.inputs if field.required]
    return not (len(required) == 1 and required[0].type.kind in {"object", "record", "opaque"})


def _takes_rows(field: InputField) -> bool:
    kind = field.type
    return kind.kind == "tensor" and (kind.shape[:1] == (VARIABLE,) or (kind.variadic and kind.variadic_at == 0))


def _rows_of(output: Any) -> Any:
    """Return an object of equally long lists as a list of objects."""
    if not isinstance(output, Mapping) or not all(isinstance(value, list) for value in output.values()):
        return output
    return [dict(zip(output, row, strict=True)) for row in zip(*output.values(), strict=False)]


def _of_csv(body: bytes, content_type: str, signature: Signature) -> Inputs:
    try:
        lines = [line for line in csv.reader(io.StringIO(body.decode("utf-8-sig"))) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise GeartrainError(Code.UNPARSABLE, f"The body is no CSV in UTF-8: {error}") from None
    if not lines:
        raise _wrong("body", "the CSV has no row")
    names = {field.name for field in signature.inputs}
    has_head = "header=present" in content_type.replace(" ", "").lower() or names.issuperset(lines[0])
    head = lines.pop(0) if has_head else None
    rows: list[Any] = [[_number(text) for text in line] for line in lines]
    if not rows:
        raise _wrong("body", "the CSV has no row")
    if head is not None:
        if any(len(row) != len(head) for row in rows):
            raise _wrong("body", f"each row of the CSV has {len(head)} fields, as its head")
        rows = [dict(zip(head, row, strict=True)) for row in rows]
    return _of_rows(rows, {}, signature)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _wrong(place: str, text: str) -> GeartrainError:
    fault = FieldError(("body", place), text, "value_error")
    return GeartrainError(Code.INVALID_INPUT, f"{place}: {text}", fields=(fault,))


def _as_instances(inputs: Mapping[str, Any]) -> Any:
    return {"instances": [inputs]}


def _as_inputs(inputs: Mapping[str, Any]) -> Any:
    return {"inputs": inputs}


INSTANCES: Final = BodyForm(read_instances, write_predictions, _as_instances)
INVOCATIONS: Final = BodyForm(read_invocation, write_predictions, _as_instances)
HUGGING_FACE: Final = BodyForm(read_inputs, write_plain, _as_inputs)
