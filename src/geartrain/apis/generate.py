"""Triton's generate extension: bodies to a model's input and back. Pure.

Every model can be asked this way: its inputs by their names, its outputs by theirs. What a language model calls its
prompt and its answer is found for the client, see `text_input_of` and `_output_name`.

Source: the document of the generate extension; observed Triton, section 12, where it is silent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis import tensor_json
from geartrain.apis.infer_json import check_utf8, guard, unparsable
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.inference import InferRequest
from geartrain.domain.prediction import Prediction, json_array
from geartrain.domain.signature import InputField, Signature, TypeSpec
from geartrain.domain.tensors import (
    VARIABLE,
    Tensor,
    TensorSpec,
    check_shape,
    count_of,
    tensor_error,
    unpack,
)
from geartrain.domain.tensorview import OUTPUT, TensorView

_TEXT_INPUT: Final = "text_input"
_TEXT_OUTPUT: Final = "text_output"
_PROMPT: Final = "prompt"
_OWN: Final = frozenset({"id", "parameters"})
_TEXTS: Final = frozenset({"string", "secret"})

_Members = dict[str, msgspec.Raw]
_decode_members = msgspec.json.Decoder(_Members).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class GenerateRequest(msgspec.Struct, frozen=True):
    """What a client asks for: an input as JSON, and the tensors beside it if the model has any."""

    values: bytes
    tensors: tuple[Tensor, ...] | None
    request: InferRequest


# in


def read_request(body: bytes | bytearray, signature: Signature, view: TensorView) -> GenerateRequest:
    """Decode a request's body.

    Raises `GeartrainError`: `UNPARSABLE`, `INVALID_INPUT` for members that the model does not know or that stand twice,
    `INVALID_TENSOR` for values that do not become a tensor. Other values are checked when the prediction is made.
    """
    members = _read_members(body)
    own_id = _read_id(members.get("id"))
    fields = {field.name: field for field in signature.inputs}
    specs = {spec.name: spec for spec in view.inputs}
    given: _Members = {}
    unknown = []
    for member, value in _inputs(members):
        name = member
        if name not in fields and member == _TEXT_INPUT:
            name = text_input_of(signature) or member
        if name not in fields:
            unknown.append(member)
        elif name in given:
            raise _invalid(f"input '{name}' is given more than once")
        else:
            given[name] = value
    if unknown:
        msg = f"unexpected {_listed(unknown)}: the model has no such input. Its inputs are: {_listed(fields)}"
        raise _invalid(msg)
    tensors = []
    for name, field in fields.items():
        if field.type.kind == "tensor" and name in given:
            tensors.append(_tensor(specs[name], given.pop(name)))
        elif field.type.kind == "tensor" and field.required:
            raise tensor_error(f"input '{name}' is missing: the model requires it")
    values = _encode(given)
    return GenerateRequest(values, tuple(tensors) if view.has_tensors else None, InferRequest((), own_id))


def text_input_of(signature: Signature) -> str | None:
    """Return the name of the input that `text_input` stands for: itself, `prompt`, or the first required text."""
    texts = [field for field in signature.inputs if _is_text_input(field)]
    for wanted in (_TEXT_INPUT, _PROMPT):
        if any(field.name == wanted for field in texts):
            return wanted
    return next((field.name for field in texts if field.required), None)


def _is_text_input(field: InputField) -> bool:
    kind = field.type
    return kind.kind == "string" or (kind.kind == "tensor" and kind.datatype == "BYTES")


def _read_members(body: bytes | bytearray) -> _Members:
    if not body:
        raise unparsable("the body is empty; it has to be a JSON object")
    check_utf8(body)
    members: _Members = guard(_decode_members, body)
    _refuse_repeated(body)
    return members


def _refuse_repeated(body: bytes | bytearray) -> None:
    """Refuse a member that stands twice: the one of them that counts would not be the one that was meant."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _invalid(f"member '{twice}' stands more than once")

    guard(lambda text: json.loads(text.decode(), object_pairs_hook=check, parse_int=str), body)


def _read_id(value: msgspec.Raw | None) -> str:
    if value is None:
        return ""
    try:
        return _decode_text(value)
    except ValueError:
        raise _invalid("Unable to parse 'id': it takes a string") from None


def _inputs(members: _Members) -> Iterator[tuple[str, msgspec.Raw]]:
    """Yield what is meant for the model: all that is not the protocol's own, and the members of `parameters`."""
    for name, value in members.items():
        if name not in _OWN:
            yield name, value
    parameters = members.get("parameters")
    if parameters is not None:
        try:
            yield from _decode_members(parameters).items()
        except ValueError:
            raise _invalid("Expected JSON object for keyword: 'parameters'") from None


def _tensor(spec: TensorSpec, value: msgspec.Raw) -> Tensor:
    name, datatype = spec.name, spec.datatype
    if datatype in tensor_json.BINARY_ONLY:
        raise tensor_json.binary_only("input", name, datatype)
    raw = bytes(value).strip()
    if not raw.startswith(b"["):
        raw = b"[%b]" % raw
    elements = tensor_json.read_elements(name, datatype, msgspec.Raw(raw))
    shape = _shape_for(spec, len(elements))
    if shape is None:
        msg = (
            f"The schema can not convert input '{name}' to tensor with proper shape: "
            f"{len(elements)} element(s) for {'any shape' if spec.variadic else list(spec.shape)}"
        )
        raise tensor_error(msg)
    check_shape(name, shape)
    return Tensor(name, datatype, shape, tensor_json.pack(name, datatype, elements))


def _shape_for(spec: TensorSpec, count: int) -> tuple[int, ...] | None:
    """The shape of so many elements, if there is only one that fits."""
    if spec.variadic:
        return (count,)
    known = count_of([size for size in spec.shape if size != VARIABLE])
    open_sizes = spec.shape.count(VARIABLE)
    if open_sizes == 0:
        return spec.shape if count == known else None
    if open_sizes > 1 or not known or count % known:
        return None
    return tuple(count // known if size == VARIABLE else size for size in spec.shape)


# out


def encode_response(model: tuple[str, str], own_id: str, outputs: _Members) -> bytes:
    """Return the JSON of an answer; `model` is its name and version."""
    head: dict[str, Any] = {"id": own_id} if own_id else {}
    head["model_name"], head["model_version"] = model
    return _encode({**head, **{name: value for name, value in outputs.items() if name not in head}})


class GenerateView:
    """A model's outputs as members of JSON objects."""

    def __init__(self, signature: Signature, view: TensorView) -> None:
        self._signature = signature
        self._view = view
        output = signature.output.type
        self._is_record = output.kind == "record" and bool(output.fields)
        named = [(field.name, field.type) for field in output.fields] if self._is_record else [(OUTPUT, output)]
        self._types = dict(named)
        self._names = {name: name if self._is_record else _output_name(kind) for name, kind in named}

    def one(self, chunk: bytes) -> _Members:
        """Return the outputs of one yield, or those of a run that yields nothing; raises `INVALID_TENSOR`."""
        return {self._names.get(name, name): value for name, value in self._values(chunk).items()}

    def whole(self, prediction: Prediction) -> _Members:
        """Return those of a run that is over: of a stream, texts are joined and anything else is listed."""
        if not self._view.streams:
            return self.one(prediction.output or b"null")
        tensors = {}
        if self._view.gives_tensors:
            joined = self._view.whole(b"null", prediction.chunks)
            tensors = {tensor.name: _value(tensor) for tensor in joined}
        chunks = [self._values(chunk) for chunk in prediction.chunks]
        whole: _Members = {}
        for name, kind in self._types.items():
            if kind.kind == "tensor":
                whole[self._names[name]] = tensors[name]
            else:
                parts = [bytes(chunk[name]) for chunk in chunks if name in chunk]
                whole[self._names[name]] = _join(kind, parts)
        return whole

    def _values(self, chunk: bytes) -> _Members:
        tensors: Sequence[Tensor] = ()
        if self._view.gives_tensors:
            chunk, tensors = unpack(chunk)
        values = _decode_members(chunk) if self._is_record or self._view.gives_tensors else {OUTPUT: msgspec.Raw(chunk)}
        values.update((tensor.name, _value(tensor)) for tensor in tensors)
        return values


def _output_name(kind: TypeSpec) -> str:
    is_text = kind.kind in _TEXTS or (kind.kind == "tensor" and kind.datatype == "BYTES")
    return _TEXT_OUTPUT if is_text else OUTPUT


def _value(tensor: Tensor) -> msgspec.Raw:
    """One element is itself, others are a list."""
    text = tensor_json.encode(tensor)
    return msgspec.Raw(text[1:-1] if count_of(tensor.shape) == 1 else text)


def _join(kind: TypeSpec, parts: list[bytes]) -> msgspec.Raw:
    if kind.kind in _TEXTS:
        return msgspec.Raw(_encode("".join(text for text in map(_decode_any, parts) if isinstance(text, str))))
    return msgspec.Raw(json_array(parts))


def encode_event(data: bytes) -> bytes:
    """Return a server-sent event; JSON text has no line breaks of its own."""
    return b"data: %b\n\n" % data


def _invalid(message: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, message)


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
