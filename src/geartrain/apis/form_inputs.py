"""Fields of a form as the body of a request, and as inputs of a model that takes no whole requests. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geartrain.apis.bodies import PLAIN, BodyForm, Inputs, read_plain
from geartrain.authoring.requests import BINARY_TYPE, media_type_of
from geartrain.domain.data_urls import data_url_of
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.multipart import read_parts
from geartrain.domain.rendering import clip
from geartrain.domain.signature.types import FILE_KINDS, InputField, Signature
from geartrain.domain.tensors.tensor import Buffer

_FORM: Final = "multipart/form-data"
_WHOLE: Final = frozenset({"body", "data"})  # the names that TorchServe's clients give to a whole input
_TEXTS: Final = frozenset({"string", "secret"})
_BOUNDARY: Final = f"geartrain-{secrets.token_hex(16)}"  # no client can know it
_encode: Final = msgspec.json.Encoder().encode


def write_form(fields: Mapping[str, Buffer]) -> tuple[bytes, str]:
    """Return a form with these fields, and its content type. Raises `INVALID_INPUT` for a name that none can have."""
    parts: list[Buffer] = []
    for name, value in fields.items():
        if not name.isprintable() or '"' in name or "\\" in name:
            raise _invalid("input", "a name has no quotes, no backslashes and no control characters")
        parts.append(f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'.encode())
        parts += (value, b"\r\n")
    parts.append(f"--{_BOUNDARY}--\r\n".encode())
    return b"".join(parts), f"{_FORM}; boundary={_BOUNDARY}"


def _read(body: bytes, content_type: str, signature: Signature) -> Inputs:
    """Return the inputs of a body: those of a form by the names of its fields, those of any other as `read_plain`."""
    if media_type_of(content_type) != _FORM:
        return read_plain(body, content_type, signature)
    parts = {head.name: (data, head.media_type) for head, data in read_parts(body, content_type)}  # the last of a name
    fields = {field.name: field for field in signature.inputs}
    if len(parts) == 1:
        (name,) = parts
        if name in _WHOLE and name not in fields:
            return _whole(*parts[name], signature)
    values = {name: _value(name, *part, field=fields.get(name)) for name, part in parts.items()}
    return Inputs((_encode(values),))


def _whole(value: bytes, media_type: str, signature: Signature) -> Inputs:
    """Return the inputs in the only field of a form, which has the name of none of them."""
    kinds = {field.type.kind for field in signature.inputs}
    if not media_type and not kinds & FILE_KINDS:
        try:
            return read_plain(value, "", signature)
        except GeartrainError as error:
            if error.code is not Code.UNPARSABLE or "string" not in kinds:
                raise
        return read_plain(value, "text/plain", signature)
    return read_plain(value, media_type or BINARY_TYPE, signature)


def _value(name: str, value: bytes, media_type: str, *, field: InputField | None) -> Any:
    """Return the value of a field as JSON has it. Raises `INVALID_INPUT`."""
    if field is None:
        raise _invalid(clip(name), "the model has no such input")
    try:
        if field.type.kind in FILE_KINDS:
            return data_url_of(value, media_type or BINARY_TYPE)
        if field.type.kind in _TEXTS:
            return value.decode()
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid(name, "it is neither JSON nor a text of UTF-8, as the input needs it") from None


def _invalid(name: str, text: str) -> GeartrainError:
    return GeartrainError(
        Code.INVALID_INPUT, f"{name}: {text}", fields=(FieldError(("body", name), text, "value_error"),)
    )


FORM: Final = BodyForm(_read, PLAIN.write)
