"""Triton's generate extension: bodies to a model's input and back. Pure.

Every model can be asked this way: its inputs by their names, its outputs by theirs. What a language model calls its
prompt and its answer is found for the client, see `text_input_of` and `_output_name`.

Source: the document of the generate extension; observed Triton, section 12, where it is silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis import json_limits, tensor_json
from geartrain.apis.infer_json import check_utf8, guard, unparsable
from geartrain.apis.infer_parameters import check_parameter
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, Parameter, Parameters
from geartrain.domain.predictions.prediction import json_array
from geartrain.domain.rendering import clip
from geartrain.domain.signature.tensor_view import OUTPUT, TensorView
from geartrain.domain.signature.types import InputField, Signature, TypeSpec
from geartrain.domain.tensors.tensor import (
    VARIABLE,
    Buffer,
    Tensor,
    TensorSpec,
    check_shape,
    count_of,
    describe_shape,
    fits,
    tensor_error,
    unpack,
)

_TEXT_INPUT: Final = "text_input"
_TEXT_OUTPUT: Final = "text_output"
_PROMPT: Final = "prompt"
_INPUTS: Final = "inputs"
_INPUTS_MEMBER: Final = b'"inputs"'
_LIST_OF_OBJECTS: Final = re.compile(rb"\[\s*\{")
_OWN: Final = frozenset({"id", "parameters"})
_TEXTS: Final = frozenset({"string", "secret"})
_SCALARS: Final = frozenset({*_TEXTS, "integer", "number", "boolean", "path", "file"})
_NULL: Final = msgspec.Raw(b"null")
_COMPOUND: Final = (b"[", b"{")

_Members = dict[str, msgspec.Raw]
_decode_members = msgspec.json.Decoder(_Members).decode
_decode_one = msgspec.json.Decoder(tuple[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class GenerateRequest(msgspec.Struct, frozen=True):
    """A client's request: an input as JSON, and the tensors beside it if the model has any."""

    values: bytes
    tensors: tuple[Tensor, ...] | None
    request: InferRequest


# input


def read_request(body: bytes | bytearray, signature: Signature, view: TensorView) -> GenerateRequest:
    """Decode a request's body.

    What is no input of the model is a parameter for it (note under "Generate Request JSON Object"); null is absent.
    Raises `GeartrainError`: `UNPARSABLE`, `INVALID_INPUT` for members that can be neither, that are reserved, or that
    stand twice, `INVALID_TENSOR` for values that do not become a tensor and for a model whose outputs JSON cannot
    carry. Other values are checked when the prediction is made.
    """
    return make_request(read_members(body), signature, view)


def holds_tensors(body: bytes | bytearray, signature: Signature, view: TensorView) -> bool:
    """True for an infer request, as clients of MLServer send it to these paths: its `inputs` is a list of objects.

    A model with an input of that name gets it as such.
    """
    if _INPUTS_MEMBER not in body:
        return False
    names = {*(field.name for field in signature.inputs), *(spec.name for spec in view.inputs)}
    if _INPUTS in names:
        return False
    try:
        value = _decode_members(body).get(_INPUTS)
    except (ValueError, RecursionError):
        return False
    return value is not None and _LIST_OF_OBJECTS.match(value) is not None


def make_request(members: _Members, signature: Signature, view: TensorView) -> GenerateRequest:
    """Create the request of a body whose members have been read."""
    own_id = _read_id(members.get("id"))
    _check_outputs(view)
    is_open = signature.takes_tensors
    if is_open:
        signature = _with_tensors(signature, view)
    given, parameters = _sort_members(members, signature)
    specs = {spec.name: spec for spec in view.inputs}
    tensors = []
    for field in signature.inputs:
        name = field.name
        if field.type.kind == "tensor" and name in given:
            tensors.append(_tensor(specs[name], given.pop(name)))
        elif field.type.kind == "tensor" and field.required:
            raise tensor_error(f'missing required input "{name}"')
        elif field.type.kind in _SCALARS and name in given:
            given[name] = _scalar(name, given[name])
    values = view.with_request(_encode(given), None, own_id) if is_open else _encode(given)
    return GenerateRequest(
        values, tuple(tensors) if view.has_tensors else None, InferRequest((), own_id, parameters or {})
    )


def _with_tensors(signature: Signature, view: TensorView) -> Signature:
    """Return the signature of a model that takes any tensors with those that it declares as its inputs."""
    fields = [
        InputField(spec.name, TypeSpec("tensor", datatype=spec.datatype), required=not spec.optional)
        for spec in view.inputs
    ]
    return msgspec.structs.replace(signature, inputs=tuple(fields))


def _sort_members(members: _Members, signature: Signature) -> tuple[_Members, Parameters]:
    """Tell the values of inputs, by the names of the inputs, from the parameters."""
    fields = {field.name for field in signature.inputs}
    given: _Members = {}
    parameters: Parameters = {}
    unknown = []
    for member, value in _inputs(members):
        name = member
        if name not in fields and member == _TEXT_INPUT:
            name = text_input_of(signature) or member
        if value == _NULL:
            continue
        if name in given or name in parameters:
            what = "input" if name in given else "parameter"
            raise _invalid(f"{what} '{clip(name)}' is given more than once")
        if name in fields:
            given[name] = value
        elif name == _TEXT_INPUT:
            raise _invalid(f"unexpected '{name}': the model takes no text. Its inputs are: {_names(signature)}")
        elif _first(value) in _COMPOUND:
            unknown.append(f"'{name}'")
        else:
            parameters[name] = _parameter(name, value)
    if unknown:
        msg = (
            f"unexpected {clip(', '.join(unknown))}: the model has no such input, and only a string, a number or "
            f"a boolean can be a parameter. Its inputs are: {_names(signature)}"
        )
        raise _invalid(msg)
    return given, parameters


def _parameter(name: str, text: msgspec.Raw) -> Parameter:
    try:
        value: Parameter = _decode_any(text)
    except ValueError:  # the whole is JSON, so only a number beyond the range of a double remains
        raise _invalid(f"parameter '{clip(name)}' is out of range: a number has at most 64 bits") from None
    check_parameter(name, value)
    return value


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


def read_members(body: bytes | bytearray) -> _Members:
    """Return the members of a body that is a JSON object, each at most once at any depth. Raises `GeartrainError`."""
    if not body:
        raise unparsable("the body is empty; it has to be a JSON object")
    check_utf8(body)
    members: _Members = guard(_decode_members, body)
    guard(json_limits.check_depth, body)
    guard(json_limits.check_elements, body)
    _check_count(members)
    if body.count(b":") > len(members):  # in strings, in objects, or of a member that stands twice
        _refuse_repeated(body.decode())
    return members


def _check_count(members: _Members) -> None:
    if len(members) > json_limits.MAX_MEMBERS:
        raise _invalid(f"an object has more than {json_limits.MAX_MEMBERS} members")


def _refuse_repeated(text: str) -> None:
    """Refuse a member that stands twice, at any depth: the one that counts would not be the one that was meant."""
    name = json_limits.repeated_member(text)
    if name is not None:
        raise _invalid(f"member '{clip(name)}' stands more than once")


def _read_id(value: msgspec.Raw | None) -> str:
    if value is None or value == _NULL:
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
    if parameters is not None and parameters != _NULL:
        try:
            given = _decode_members(parameters)
        except ValueError:
            raise _invalid("Expected JSON object for keyword: 'parameters'") from None
        _check_count(given)
        yield from given.items()


def _check_outputs(view: TensorView) -> None:
    """Refuse before the run an output that could not be answered after it."""
    for spec in view.outputs:
        if spec.datatype in tensor_json.BINARY_ONLY:
            msg = f"output '{spec.name}' is {spec.datatype}, which JSON cannot carry: use infer, with binary_data"
            raise tensor_error(msg)


def _scalar(name: str, value: msgspec.Raw) -> msgspec.Raw:
    """Return the value of an input that takes one: a list of one element is that element, as in Triton."""
    if _first(value) != b"[":
        return value
    try:
        return _decode_one(value)[0]
    except ValueError:
        msg = (
            f"The schema can not convert input '{name}' to tensor with proper shape: "
            "it takes a single value, so a list must have exactly one element"
        )
        raise _invalid(msg) from None


def _first(value: msgspec.Raw) -> bytes:
    """The first byte of a value, which tells its JSON type."""
    return bytes(memoryview(value)[:1])


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
            f"{len(elements)} element(s) for {describe_shape(spec)}"
        )
        raise tensor_error(msg)
    check_shape(name, shape)
    return Tensor(name, datatype, shape, tensor_json.pack(name, datatype, elements))


def _shape_for(spec: TensorSpec, count: int) -> tuple[int, ...] | None:
    """The shape of so many elements, if there is only one that fits; any number of dimensions is taken for one."""
    if spec.variadic and not spec.shape:
        return (count,)
    known = count_of([size for size in spec.shape if size != VARIABLE])
    open_sizes = spec.shape.count(VARIABLE)
    if open_sizes == 0:
        return spec.shape if count == known else None
    if open_sizes > 1 or not known or count % known:
        return None
    shape = tuple(count // known if size == VARIABLE else size for size in spec.shape)
    return shape if fits(shape, spec) else None


# output


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
        self._is_open = output.form == "tensors"
        named = [(field.name, field.type) for field in output.fields] if self._is_record else [(OUTPUT, output)]
        self._types = dict(named)
        self._names = {name: name if self._is_record else _output_name(kind) for name, kind in named}
        # `text_output` is a string in the document: what the model gives in several pieces is joined.
        self._texts = {name for name, kind in named if self._names[name] == _TEXT_OUTPUT and _is_text(kind)}

    def one(self, chunk: Buffer) -> _Members:
        """Return the outputs of one yield, or those of a run that yields nothing; raises `INVALID_TENSOR`."""
        values = self._values(chunk)
        values.update((name, _joined([values.get(name, _NULL)])) for name in self._texts)
        return {self._names.get(name, name): value for name, value in values.items()}

    def whole(self, output: Buffer | None, chunks: Sequence[Buffer]) -> _Members:
        """Return those of a run that is over: of a stream, texts are joined and anything else is listed.

        `output` and `chunks` as its prediction has them; of a stream, only the latter are read.
        """
        if not self._view.streams:
            return self.one(output or b"null")
        tensors = {}
        if self._view.gives_tensors:
            joined = self._view.whole(b"null", chunks)
            tensors = {tensor.name: _value(tensor) for tensor in joined}
        if self._is_open:
            if _TEXT_OUTPUT in tensors:
                tensors[_TEXT_OUTPUT] = _joined([tensors[_TEXT_OUTPUT]])
            return tensors
        yields = [self._values(chunk) for chunk in chunks]
        whole: _Members = {}
        for name, kind in self._types.items():
            if kind.kind == "tensor":
                value = _joined([tensors[name]]) if name in self._texts else tensors[name]
            else:
                parts = [values[name] for values in yields if name in values]
                is_text = name in self._texts or kind.kind in _TEXTS
                value = _joined(parts) if is_text else msgspec.Raw(json_array(list(map(bytes, parts))))
            whole[self._names[name]] = value
        return whole

    def _values(self, chunk: Buffer) -> _Members:
        tensors: Sequence[Tensor] = ()
        if self._view.gives_tensors:
            chunk, tensors = unpack(chunk)
        values = _decode_members(chunk) if self._is_record or self._view.gives_tensors else {OUTPUT: msgspec.Raw(chunk)}
        values.update((tensor.name, _value(tensor)) for tensor in tensors)
        return values


def _output_name(kind: TypeSpec) -> str:
    return _TEXT_OUTPUT if _is_text(kind) else OUTPUT


def _is_text(kind: TypeSpec) -> bool:
    """True if an output is text, or a list of texts."""
    if kind.kind == "tensor":
        return kind.datatype == "BYTES"
    return kind.kind in _TEXTS or (kind.kind == "array" and kind.items is not None and kind.items.kind in _TEXTS)


def _value(tensor: Tensor) -> msgspec.Raw:
    """One element is itself, others are a list."""
    text = tensor_json.encode(tensor)
    return msgspec.Raw(text[1:-1] if count_of(tensor.shape) == 1 else text)


def _joined(parts: Sequence[msgspec.Raw]) -> msgspec.Raw:
    """Join texts and lists of texts to one text. What is null adds nothing."""
    texts: list[Any] = []
    for value in map(_decode_any, parts):
        texts += value if isinstance(value, list) else [value]
    return msgspec.Raw(_encode("".join(text for text in texts if isinstance(text, str))))


def encode_event(data: bytes) -> bytes:
    """Return a server-sent event; JSON text has no line breaks of its own."""
    return b"data: %b\n\n" % data


def event_parts(data: Buffer) -> tuple[Buffer, ...]:
    """Return such an event in parts, without a copy of its data."""
    return b"data: ", data, b"\n\n"


def _invalid(message: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, message)


def _names(signature: Signature) -> str:
    return ", ".join(f"'{field.name}'" for field in signature.inputs)
