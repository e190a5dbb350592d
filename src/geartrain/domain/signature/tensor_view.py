"""A model's inputs and outputs as tensors: how the Open Inference Protocol sees any signature.

A tensor is itself. Everything else has a tensor by rule:

    str, a choice of texts, Secret      BYTES [1], UTF-8
    Path, File                          BYTES [1]: a URL, base64, or the file's own bytes
    int, float, bool                    INT64, FP64, BOOL [1]
    list[T] of these                    the datatype of T, [-1]
    anything else                       BYTES [1]: JSON

An output that is a record of named fields is one tensor for each of them; any other is called `output`.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.domain.signature.types import FILE_KINDS, DeclaredTensor, InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import (
    ARRAY_NAMES,
    SIZES,
    VARIABLE,
    Buffer,
    Tensor,
    TensorSpec,
    check,
    check_size,
    check_type,
    count_of,
    join_bytes,
    split_bytes,
    tensor_error,
    unpack,
)

OUTPUT: Final = "output"  # the name of an output without one

_NUMBERS: Final = {"integer": ("INT64", "q"), "number": ("FP64", "d"), "boolean": ("BOOL", "?")}
_TEXTS: Final = frozenset({"string", "secret", "path", "file"})
_URLS: Final = ("data:", "http:", "https:")
_NO_INPUT: Final = b"{}"
_MOST_SIZES: Final = 256

_UNFIT: Final = (struct.error, AttributeError, TypeError, ValueError, OverflowError)  # of a value of another type

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_CONVERTED: Final = frozenset(ARRAY_NAMES) - {"BF16"}  # which numpy does not have


NO_TYPES: Final[Mapping[str, str]] = {}


class Bound(msgspec.Struct, frozen=True):
    """An input of the model: a JSON object of what is no tensor for it, and the tensors."""

    json: bytes
    tensors: tuple[Tensor, ...]


class _Element(msgspec.Struct, frozen=True):
    """Layout of values of one JSON type in a tensor."""

    datatype: str
    read: Callable[[str, Tensor], list[Any]]  # of the input's name
    write: Callable[[Sequence[Any]], bytes]


class _Port(msgspec.Struct, frozen=True):
    """One tensor that is none to the model."""

    spec: TensorSpec
    element: _Element
    is_list: bool

    def value(self, tensor: Tensor) -> Any:
        values = self.element.read(self.spec.name, tensor)
        return values if self.is_list else values[0]

    def tensor(self, value: Any) -> Tensor:
        values = value if self.is_list else (value,)
        return Tensor(self.spec.name, self.spec.datatype, (len(values),), self.element.write(values))

    def output(self, value: Any) -> Tensor:
        try:
            return self.tensor(value)
        except _UNFIT:
            what = f"output '{self.spec.name}' is declared as {self.spec.datatype}, and the model gave something else"
            raise GeartrainError(Code.RUN_FAILED, what) from None


class TensorView:
    """Made once for each signature. `inputs` and `outputs` are what metadata says of them."""

    def __init__(self, signature: Signature) -> None:
        self._ports = {field.name: _port(field) for field in signature.inputs if field.type.kind != "tensor"}
        self._out = _outputs(signature.output)
        self.inputs = tuple(_input_spec(field) for field in signature.inputs)
        self._checks = _Checks({field.name for field in signature.inputs if field.type.text})
        self._specs = {spec.name: spec for spec in self.inputs}
        self._required = tuple(spec.name for spec in self.inputs if not spec.optional)
        mode = signature.output.mode
        self.streams = mode != "value"
        self._joins_text = mode == "concatenate"
        # Of a stream, all that was yielded is one tensor: its first dimension grows.
        self.outputs = tuple(map(_of_stream, self._out.specs)) if mode == "iterator" else self._out.specs
        self.names = tuple(spec.name for spec in self.outputs)
        self.gives_tensors = self._out.has_tensors
        self.makes_outputs = self.streams or self._out.makes_some  # which takes time if they are large
        self.has_tensors = self.gives_tensors or any(field.type.kind == "tensor" for field in signature.inputs)

    # input

    def bind(self, tensors: Sequence[Tensor]) -> Bound:
        """Check the tensors of a request and return the model's input.

        Raises `INVALID_TENSOR`, which names the tensor: unknown, missing, given twice, of another datatype or shape, or
        with contents that do not fit them.
        """
        if len(tensors) == 1 == len(self._specs):  # nearly all, and found good before
            (tensor,) = tensors
            if self._checks.sizes.get((tensor.name, tensor.datatype, tensor.shape)) == len(tensor.data):
                return Bound(_NO_INPUT, (tensor,))
        values, passed = self.divide(tensors)
        if len(values) + len(passed) < len(self._specs):
            self._check_required({*values, *(tensor.name for tensor in passed)})
        return Bound(_encode(values) if values else _NO_INPUT, tuple(passed))

    def divide(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Any], list[Tensor]]:
        """Check tensors, and return the values of those that are none to the model, and the others.

        Raises `INVALID_TENSOR` as `bind` does, but for a missing one.
        """
        values: dict[str, Any] = {}
        passed: list[Tensor] = []
        seen: set[str] = set()
        for tensor in tensors:
            name = tensor.name
            spec = self._specs.get(name)
            if spec is None:
                raise tensor_error(f"unexpected inference input '{clip(name)}'; the inputs are: {_listed(self._specs)}")
            if name in seen:
                raise tensor_error(f"input '{name}' already exists in request")
            seen.add(name)
            port = self._ports.get(name)
            if port is None:
                if self._checks.sizes.get((name, tensor.datatype, tensor.shape)) != len(tensor.data):
                    self._checks.check(spec, tensor)
                passed.append(tensor)
            else:
                check_type(spec, tensor.datatype, tensor.shape)
                values[name] = port.value(tensor)
        return values, passed

    def is_converted(self, name: str) -> bool:
        """True if an input of this name is no tensor to the model."""
        return name in self._ports

    def from_json(self, name: str, value: Any) -> Tensor:
        """Return the tensor of an input that is none to the model, by its value in JSON. Raises `INVALID_TENSOR`."""
        port = self._ports[name]
        try:
            return port.tensor(value)
        except _UNFIT:
            raise tensor_error(f"input '{name}' cannot be sent as a tensor of {port.spec.datatype}") from None

    def bind_nested(self, json: bytes, tensors: Sequence[Tensor] | None) -> tuple[bytes, tuple[Tensor, ...] | None]:
        """Return the input of a prediction that another model asks for: a JSON object, and the arrays beside it.

        An array for an input that is no tensor becomes nested lists, and lists for a tensor become one. The tensors are
        None where the outputs shall be JSON. Raises `INVALID_TENSOR`.
        """
        if not self.has_tensors and tensors is None:
            return json, None
        if json == _NO_INPUT and tensors is not None and len(tensors) == 1 == len(self._specs):  # found good before
            (tensor,) = tensors
            if self._checks.sizes.get((tensor.name, tensor.datatype, tensor.shape)) == len(tensor.data):
                return json, (tensor,)
        values = _decode_members(json)
        passed: dict[str, Tensor] = {}
        for tensor in tensors or ():
            spec = self._specs.get(tensor.name)
            if spec is None:
                msg = f"unexpected inference input '{clip(tensor.name)}'; the inputs are: {_listed(self._specs)}"
                raise tensor_error(msg)
            if tensor.name in self._ports:
                values[tensor.name] = msgspec.Raw(_nested_lists(tensor))
            else:
                self._checks.check(spec, tensor)
                passed[tensor.name] = tensor
        for name, text in tuple(values.items()):
            if name in self._specs and name not in self._ports and bytes(text) != b"null":
                del values[name]
                passed[name] = self._tensor_of(name, bytes(text))
        self._check_required({*values, *passed})
        return _encode(values), tuple(passed.values()) if self.has_tensors else None

    def _tensor_of(self, name: str, text: bytes) -> Tensor:
        """Return the tensor of nested lists. Raises `INVALID_TENSOR`."""
        from geartrain.domain.tensors.array_json import tensor_of  # late: it needs numpy

        spec = self._specs[name]
        try:
            tensor = tensor_of(name, spec.datatype, text, shape=spec.shape)
        except (ValueError, TypeError, OverflowError):
            raise tensor_error(f"input '{name}' is no array of {spec.datatype}") from None
        self._checks.check(spec, tensor)
        return tensor

    def _check_required(self, seen: set[str]) -> None:
        missing = [name for name in self._required if name not in seen]
        if missing:
            msg = (
                f"expected {self._expected()} but got {len(seen)}: missing required input(s) {_listed(missing)}. "
                "Please provide all required inputs."
            )
            raise tensor_error(msg)

    def _expected(self) -> str:
        least, most = len(self._required), len(self._specs)
        return f"{least} input(s)" if least == most else f"between {least} and {most} inputs"

    # output

    @property
    def gives_record(self) -> bool:
        """True if the tensors of an output are fields of a record."""
        return self._out.is_record

    @property
    def gives_one(self) -> bool:
        """True if a run gives one tensor, and nothing else."""
        return self._out.is_one_tensor and not self.streams

    def with_request(  # see `OpenView`
        self,
        json: bytes,
        names: Sequence[str] | None,  # noqa: ARG002
        own_id: str,  # noqa: ARG002
        *,
        content_types: Mapping[str, str] = NO_TYPES,  # noqa: ARG002
    ) -> bytes:
        """Return the input of a model that receives the names of the requested outputs and the id too."""
        return json

    def check_requested(self, names: Sequence[str]) -> None:
        """Raise `INVALID_TENSOR` if one of these is no output of the model."""
        for name in names:
            if name not in self.names:
                msg = f"unexpected inference output '{clip(name)}'; the outputs are: {_listed(self.names)}"
                raise tensor_error(msg)

    def whole(self, output: Buffer, chunks: Sequence[Buffer]) -> list[Tensor]:
        """Return the outputs of a run that is over: `output` and `chunks` as its prediction has them.

        What a stream has yielded is one tensor: of one more dimension, or along the first one; text is joined.
        """
        if not self.streams:
            return self._out.tensors(output)
        if self._joins_text:
            return self._out.tensors(_encode("".join(map(_decode, chunks))))
        parts = [self.one(chunk) for chunk in chunks]
        return [self._join(spec, [t for part in parts for t in part if t.name == spec.name]) for spec in self.outputs]

    def one(self, chunk: Buffer) -> list[Tensor]:
        """Return the outputs of one yield, or those of a run that yields nothing."""
        return self._out.tensors(chunk)

    @staticmethod
    def _join(spec: TensorSpec, tensors: list[Tensor]) -> Tensor:
        """Lay the tensors of the yields one behind the other."""
        inner = [tensor.shape[1:] for tensor in tensors]
        if any(shape != inner[0] for shape in inner):
            msg = f"output '{spec.name}' was yielded in shapes that cannot be joined; read it as a stream"
            raise tensor_error(msg)
        rest = inner[0] if inner else tuple(max(size, 0) for size in spec.shape[1:])
        length = sum(tensor.shape[0] if tensor.shape else 1 for tensor in tensors)
        return Tensor(spec.name, spec.datatype, (length, *rest), b"".join(tensor.data for tensor in tensors))


# inputs


class _Checks:
    """Checks the inputs that are tensors to the model.

    `sizes` has the bytes of those that have been found good, by name, datatype and shape: most requests repeat an
    earlier one. Those whose elements are of any size are not among them.
    """

    __slots__ = ("_texts", "sizes")

    def __init__(self, texts: Collection[str]) -> None:
        """`texts`: the names of those that are text."""
        self._texts = texts
        self.sizes: dict[tuple[str, str, tuple[int, ...]], int] = {}

    def check(self, spec: TensorSpec, tensor: Tensor) -> None:
        """Raise `INVALID_TENSOR` unless a tensor is what the model says of it."""
        check(spec, tensor)
        if tensor.datatype in SIZES:
            self.note(tensor)
        elif spec.name in self._texts:
            _read_texts(spec.name, tensor)

    def note(self, tensor: Tensor) -> None:
        """Remember the size of a tensor that has been found good."""
        if tensor.datatype in SIZES:
            if len(self.sizes) >= _MOST_SIZES:
                self.sizes.clear()
            self.sizes[tensor.name, tensor.datatype, tensor.shape] = len(tensor.data)


def _nested_lists(tensor: Tensor) -> bytes:
    """Return the JSON text of a tensor. Raises `INVALID_TENSOR`."""
    from geartrain.domain.tensors.array_json import text_of  # late: it needs numpy

    try:
        return text_of(tensor)
    except GeartrainError as error:
        raise tensor_error(error.message.replace("output", "input", 1)) from None


def _input_spec(field: InputField) -> TensorSpec:
    kind, optional = field.type, not field.required
    if kind.kind == "tensor":
        return _tensor_spec(field.name, kind, optional=optional)
    return _port(field).spec


def _tensor_spec(name: str, kind: TypeSpec, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, kind.datatype, kind.shape, optional, kind.variadic, kind.variadic_at, kind.names)


def _port(field: InputField) -> _Port:
    return _named_port(field.name, field.type, optional=not field.required)


def _named_port(name: str, kind: TypeSpec, *, optional: bool = False) -> _Port:
    inner = kind.items
    is_list = kind.kind == "array" and inner is not None and not inner.nullable
    element = _element(inner if is_list and inner is not None else kind)
    shape = (VARIABLE,) if is_list else (1,)
    return _Port(TensorSpec(name, element.datatype, shape, optional=optional), element, is_list)


def _element(kind: TypeSpec) -> _Element:
    if kind.kind in _NUMBERS:
        datatype, code = _NUMBERS[kind.kind]
        return _Element(datatype, lambda _, tensor: _read_numbers(code, tensor), lambda v: _write_numbers(code, v))
    if kind.kind in FILE_KINDS:
        return _Element("BYTES", _read_files, _write_texts)
    if kind.kind in _TEXTS:
        return _Element("BYTES", _read_texts, _write_texts)
    return _Element("BYTES", _read_json, lambda values: join_bytes([_encode(value) for value in values]))


def _read_numbers(code: str, tensor: Tensor) -> list[Any]:
    count = count_of(tensor.shape)
    if len(tensor.data) != count * struct.calcsize(f"<{code}"):
        check(TensorSpec(tensor.name, tensor.datatype, tensor.shape), tensor)
    values = list(struct.unpack(f"<{count}{code}", tensor.data))
    if code == "d" and not all(map(math.isfinite, values)):
        raise tensor_error(f"input '{tensor.name}' is NaN or infinite, which a model takes in a tensor only")
    return values


def _write_numbers(code: str, values: Sequence[Any]) -> bytes:
    if code == "q":
        values = list(map(int, values))  # 7.0 is an integer in JSON
    return struct.pack(f"<{len(values)}{code}", *values)


def _read_texts(name: str, tensor: Tensor) -> list[Any]:
    try:
        return [element.decode() for element in split_bytes(name, tensor.data, count_of(tensor.shape))]
    except UnicodeDecodeError:
        raise tensor_error(f"input '{name}' is text, and its bytes are not valid UTF-8") from None


def _write_texts(values: Sequence[Any]) -> bytes:
    return join_bytes([value.encode() for value in values])


def _read_files(name: str, tensor: Tensor) -> list[Any]:
    return [_url_of(element) for element in split_bytes(name, tensor.data, count_of(tensor.shape))]


def _url_of(element: bytes) -> str:
    """A URL is one already; base64 is the body of one; anything else is the contents of the file."""
    if element.lower().startswith(tuple(scheme.encode() for scheme in _URLS)):
        return element.decode(errors="replace")
    try:
        base64.b64decode(element, validate=True)
    except binascii.Error:
        element = base64.b64encode(element)
    return f"data:;base64,{element.decode()}"


def _read_json(name: str, tensor: Tensor) -> list[Any]:
    try:
        return [_decode(element) for element in split_bytes(name, tensor.data, count_of(tensor.shape))]
    except (ValueError, RecursionError) as error:
        raise tensor_error(f"input '{name}' takes JSON, and its bytes are none: {error}") from None


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


# outputs


class _Outputs:
    """The outputs of one value that the run returns or yields."""

    def __init__(self, kind: TypeSpec) -> None:
        fields = kind.fields if kind.kind == "record" else ()
        named = [(field.name, field.type) for field in fields] or [(OUTPUT, kind)]
        self.is_record = bool(fields)
        self.specs = tuple(_output_spec(name, inner) for name, inner in named)
        self._ports = {name: _named_port(name, inner) for name, inner in named if inner.kind != "tensor"}
        self.has_tensors = len(self._ports) < len(named)
        self.is_one_tensor = self.has_tensors and len(named) == 1
        self.makes_some = bool(self._ports)  # of JSON

    def tensors(self, chunk: Buffer) -> list[Tensor]:
        if not self.has_tensors:
            return list(self._plain(_decode(chunk)))
        json, tensors = unpack(chunk)
        if len(tensors) == 1 and not self._ports:
            return tensors
        given = {tensor.name: tensor for tensor in tensors}
        if self._ports:
            given |= {tensor.name: tensor for tensor in self._plain(_decode(json))}
        return [given[spec.name] for spec in self.specs if spec.name in given]

    def _plain(self, value: Any) -> list[Tensor]:
        values = (value or {}) if self.is_record or self.has_tensors else {OUTPUT: value}
        # None is an absent value: the protocol has no tensor for it.
        return [port.output(values[name]) for name, port in self._ports.items() if values.get(name) is not None]


def _outputs(output: OutputSpec) -> _Outputs:
    return _Outputs(output.type)


def _output_spec(name: str, kind: TypeSpec) -> TensorSpec:
    if kind.kind == "tensor":
        return _tensor_spec(name, kind)
    return _named_port(name, kind).spec


def _of_stream(spec: TensorSpec) -> TensorSpec:
    shape = (VARIABLE, *spec.shape[1:])
    return TensorSpec(spec.name, spec.datatype, shape, variadic=spec.variadic, variadic_at=spec.variadic_at)


def view_of(signature: Signature) -> TensorView:
    """Return a model's inputs and outputs as tensors."""
    if signature.takes_tensors or signature.gives_tensors:
        return OpenView(signature)
    return AnyInputView(signature) if signature.takes_any else TensorView(signature)


class OpenView(TensorView):
    """A view of a model that takes, or gives, tensors of any names. Those that it declares are checked."""

    def __init__(self, signature: Signature) -> None:
        self._takes_any = signature.takes_tensors
        self._gives_any = signature.gives_tensors
        super().__init__(replace(signature, inputs=()) if self._takes_any else signature)
        self._parts = frozenset(field.name for field in signature.inputs)
        if self._takes_any:
            self.has_tensors = True
            self.inputs = tuple(map(_spec_of, signature.open_inputs))
            self._specs = {spec.name: spec for spec in self.inputs}
            self._required = tuple(spec.name for spec in self.inputs if not spec.optional)
        if self._gives_any:
            self.has_tensors = self.gives_tensors = True
            self.outputs = tuple(map(_spec_of, signature.open_outputs))
            self.names = tuple(spec.name for spec in self.outputs)

    def bind(self, tensors: Sequence[Tensor]) -> Bound:
        """Return all tensors as they are. Raises `INVALID_TENSOR`: given twice, not as declared, or of a wrong size."""
        if not self._takes_any:
            return super().bind(tensors)
        if len(tensors) == 1 and len(self._specs) < 2:  # noqa: PLR2004 - nearly all, and found good before
            (tensor,) = tensors
            if self._checks.sizes.get((tensor.name, tensor.datatype, tensor.shape)) == len(tensor.data):
                return Bound(_NO_INPUT, tuple(tensors))
        seen: set[str] = set()
        for tensor in tensors:
            if tensor.name in seen:
                raise tensor_error(f"input '{clip(tensor.name)}' already exists in request")
            seen.add(tensor.name)
            spec = self._specs.get(tensor.name)
            if spec is not None:
                check_type(spec, tensor.datatype, tensor.shape)
            elif self._specs:
                names = _listed(self._specs)
                raise tensor_error(f"unexpected inference input '{clip(tensor.name)}'; the inputs are: {names}")
            check_size(tensor)
            self._checks.note(tensor)
        self._check_required(seen)
        return Bound(_NO_INPUT, tuple(tensors))

    def divide(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Any], list[Tensor]]:
        """Return no values, and all tensors. Raises as `bind`."""
        return super().divide(tensors) if not self._takes_any else ({}, list(self.bind(tensors).tensors))

    def bind_nested(self, json: bytes, tensors: Sequence[Tensor] | None) -> tuple[bytes, tuple[Tensor, ...] | None]:
        """Return the parts of a request, and its tensors of any names; lists for a declared one become a tensor."""
        if not self._takes_any:
            return super().bind_nested(json, tensors)
        values = _decode_members(json)
        passed = list(tensors or ())
        for name, text in tuple(values.items()):
            if name in self._specs:
                del values[name]
                if bytes(text) != b"null":
                    passed.append(self._tensor_of(name, bytes(text)))
            elif name not in self._parts:
                raise tensor_error(f"input '{clip(name)}' is no array; send it as one, or below `parameters`")
        found = tuple(passed) if "tensors" in values else self.bind(passed).tensors
        return _encode(values), found

    def with_request(
        self, json: bytes, names: Sequence[str] | None, own_id: str, *, content_types: Mapping[str, str] = NO_TYPES
    ) -> bytes:
        """Return the input of the model, with the names of the outputs, the id and the content types of a request."""
        if not self._takes_any or (names is None and not own_id and not content_types):
            return json
        parts: dict[str, Any] = {} if names is None else {"outputs": list(names)}
        if content_types:
            parts["content_types"] = content_types
        return _encode({**parts, "id": own_id} if own_id else parts)

    def check_requested(self, names: Sequence[str]) -> None:
        """Raise `INVALID_TENSOR` if the model declares its outputs, and one of these is none."""
        if not self._gives_any or self.names:
            super().check_requested(names)

    @property
    def gives_record(self) -> bool:
        """True if the tensors of an output have names of their own."""
        return super().gives_record or self._gives_any

    @property
    def gives_one(self) -> bool:
        """True if a run may give one tensor, and nothing else."""
        return len(self.names) < 2 and not self.streams if self._gives_any else super().gives_one  # noqa: PLR2004

    def one(self, chunk: Buffer) -> list[Tensor]:
        """Return the outputs of one yield, or those of a run that yields nothing."""
        return list(unpack(chunk)[1]) if self._gives_any else super().one(chunk)

    def whole(self, output: Buffer, chunks: Sequence[Buffer]) -> list[Tensor]:
        """Return the outputs of a run that is over; those of the yields of a stream are joined by name."""
        if not self._gives_any:
            return super().whole(output, chunks)
        if not self.streams:
            return self.one(output)
        parts = [self.one(chunk) for chunk in chunks]
        names = dict.fromkeys(tensor.name for part in parts for tensor in part)
        same = [[tensor for part in parts for tensor in part if tensor.name == name] for name in names]
        return [self._join(TensorSpec(each[0].name, each[0].datatype, each[0].shape), each) for each in same]


def _spec_of(declared: DeclaredTensor) -> TensorSpec:
    return TensorSpec(declared.name, declared.datatype, declared.shape, optional=declared.optional)


class AnyInputView(TensorView):
    """A view that gives the tensor of a request the name and the datatype of the model's one input."""

    def bind(self, tensors: Sequence[Tensor]) -> Bound:
        """Bind one tensor of any name; it is converted from any datatype.

        Numbers that the datatype of the model cannot hold are rounded, as conversions of numpy do.
        """
        if len(tensors) != 1:
            return super().bind(tensors)
        wanted, tensor = self.inputs[0], tensors[0]
        data, datatype = tensor.data, tensor.datatype
        if datatype != wanted.datatype and {datatype, wanted.datatype} <= _CONVERTED:
            import numpy as np

            check_size(tensor)
            array = np.frombuffer(data, ARRAY_NAMES[datatype])
            with np.errstate(invalid="ignore", over="ignore"):
                data = array.astype(ARRAY_NAMES[wanted.datatype]).tobytes()
            datatype = wanted.datatype
        return super().bind((Tensor(wanted.name, datatype, tensor.shape, data),))
