"""Bodies of any type as inputs of a model, and its outputs as bodies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.authoring.requests import BINARY_TYPE, JSON_TYPE, TEXT_TYPE, check_response, is_json, media_type_of
from geartrain.domain.data_urls import data_url_of, read_data_url
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.rendering import clip, json_fault
from geartrain.domain.signature.types import FILE_KINDS, InputField, Signature
from geartrain.domain.tensors.tensor import Buffer, Tensor, join_bytes, unpack

_PREFIX: Final = 4  # bytes of the length of an element of BYTES
_encode: Final = msgspec.json.Encoder().encode


class Whole(NamedTuple):
    """A whole request, without its body."""

    content_type: str
    accept: str
    headers: Mapping[str, str]
    query: str
    method: str
    path: str


class Inputs(NamedTuple):
    """The inputs of a body, each a JSON object. `is_many`: it is a list of them, as is the answer.

    `wrap`: the member that the answer is in; empty for none. `by_rows`: one input has all rows of the body.
    """

    values: Sequence[bytes]
    is_many: bool = False
    wrap: str = ""
    by_rows: bool = False


class Outcome(NamedTuple):
    """A body and its head; a piece of a stream has no status."""

    status: int | None
    content_type: str
    headers: tuple[tuple[str, str], ...]
    body: Buffer


class Wanted(NamedTuple):
    """Wanted form of an answer: the `Accept` header, and what the body was."""

    accept: str
    inputs: Inputs


class BodyForm(NamedTuple):
    """A protocol's bodies for models that do not take whole requests.

    Attributes:
        read: makes the inputs of a body of a content type; raises `GeartrainError`.
        write: makes the body and its type of the outputs in JSON.
        example: makes an example of a body in JSON of one of inputs.
    """

    read: Callable[[bytes, str, Signature], Inputs]
    write: Callable[[Sequence[bytes], Wanted, Signature], tuple[bytes, str]]
    example: Callable[[Mapping[str, Any]], Any] = dict


def request_json(whole: Whole) -> bytes:
    """Return the parts of a whole request beside its body, as the input of a model that takes it."""
    given = {name: value for name, value in whole._asdict().items() if value}
    return _encode(given)


def body_tensor(body: Buffer) -> Tensor:
    """Return a body as the tensor that it is to a model."""
    return Tensor("body", "BYTES", (1,), join_bytes([bytes(body)]))


def outcome_of(chunk: Buffer) -> Outcome:
    """Return a response, or a piece of one. Raises `GeartrainError` for a head that is none."""
    raw, tensors = unpack(chunk)
    body = memoryview(tensors[0].data)[_PREFIX:] if tensors else b""
    head = msgspec.json.decode(raw) if len(raw) > 2 else {}  # noqa: PLR2004 - `{}`
    if "status" not in head:
        return Outcome(None, BINARY_TYPE, (), body)
    headers = tuple((str(name), str(value)) for name, value in head.get("headers") or ())
    try:
        check_response(head["status"], head.get("content_type", ""), headers)
    except (ValueError, TypeError) as error:
        raise GeartrainError(Code.RUN_FAILED, f"The model's response cannot be sent: {error}") from None
    return Outcome(head["status"], head.get("content_type", ""), headers, body)


def read_plain(body: bytes, content_type: str, signature: Signature) -> Inputs:
    """Return the input of a body: a JSON object of inputs, or the value of the only input.

    Raises `UNPARSABLE`, `UNSUPPORTED_MEDIA_TYPE`.
    """
    if not body and not any(field.required for field in signature.inputs):
        return Inputs((b"{}",))
    media_type = media_type_of(content_type)
    if not media_type or is_json(media_type):
        value = decode(body)
        if isinstance(value, dict):
            return Inputs((bytes(body),))
        return Inputs((named(value, signature),))
    if media_type.startswith("text/"):
        field = _only(signature, lambda each: each.type.kind == "string")
        if field is not None:
            return Inputs((_encode({field.name: _text(body)}),))
    field = _only(signature, lambda each: each.type.kind in FILE_KINDS)
    if field is None:
        raise GeartrainError(
            Code.UNSUPPORTED_MEDIA_TYPE,
            f"The model takes no body of the type {clip(media_type)}: send a JSON object with its inputs.",
        )
    return Inputs((_encode({field.name: data_url_of(bytes(body), media_type)}),))


def write_plain(outputs: Sequence[bytes], wanted: Wanted, signature: Signature) -> tuple[bytes, str]:
    """Return an output as a body: JSON, or the file that it is."""
    if wanted.inputs.is_many:
        return b"[" + b",".join(outputs) + b"]", JSON_TYPE
    output = outputs[0]
    kind = signature.output.type.kind
    if signature.output.mode == "value" and kind in FILE_KINDS and output.startswith(b'"data:'):
        content, media_type = read_data_url(msgspec.json.decode(output))
        return content, media_type or BINARY_TYPE
    if kind == "string" and media_type_of(wanted.accept) == "text/plain":
        text = msgspec.json.decode(output)
        return str(text).encode(), TEXT_TYPE
    return output, JSON_TYPE


def decode(body: Buffer) -> Any:
    """Decode JSON. Raises `UNPARSABLE`."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = json_fault(bytes(body), error) if isinstance(error, msgspec.DecodeError) else "not UTF-8, or too deep"
        raise GeartrainError(Code.UNPARSABLE, f"The body is not valid JSON: {text}") from None


def named(value: Any, signature: Signature) -> bytes:
    """Return the input of a model with one input, or one that is required. Raises `INVALID_INPUT`."""
    field = _only(signature, lambda _: True)
    if field is None:
        names = ", ".join(each.name for each in signature.inputs)
        text = f"send an object with the inputs of the model: {names}"
        fault = FieldError(("body",), text, "value_error")
        raise GeartrainError(Code.INVALID_INPUT, f"body: {text}", fields=(fault,))
    return _encode({field.name: value})


def _only(signature: Signature, fits: Callable[[InputField], bool]) -> InputField | None:
    """Return the one input that fits, if it is the one that is required."""
    fitting = [field for field in signature.inputs if fits(field)]
    required = [field for field in signature.inputs if field.required]
    if len(required) == 1:
        return required[0] if required[0] in fitting else None
    return fitting[0] if len(fitting) == 1 and not required else None


def _text(body: bytes) -> str:
    try:
        return bytes(body).decode()
    except UnicodeDecodeError:
        raise GeartrainError(Code.UNPARSABLE, "The body is called text, and is not UTF-8.") from None


PLAIN: Final = BodyForm(read_plain, write_plain)
