"""The Open Inference Protocol's infer request and response as HTTP bodies: JSON, and the binary tensor extension. Pure.

Source: "Inference" of the protocol document; observed Triton, sections 4, 5, 7, 8 and 10 where it is silent. What
differs: every mistake of a client is refused with its place, and none is passed over (T3, T4, T5, T6, T10, T13).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from geartrain.apis import infer_json, tensor_json
from geartrain.apis.infer_json import (
    InputJson,
    InputParameters,
    OutputJson,
    OutputParameters,
    Repeats,
    RequestJson,
    is_given,
)
from geartrain.apis.infer_parameters import NO_PARAMETERS, take_parameters
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, InferResponse, Parameter, Parameters, SchedulePolicy
from geartrain.domain.rendering import MAX_SHOWN_CHARACTERS, clip
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.tensors.tensor import (
    DATATYPES,
    SIZES,
    VARIABLE,
    Buffer,
    Tensor,
    TensorSpec,
    check_shape,
    count_of,
    head_of,
    join_bytes,
    only_tensor,
    split_bytes,
    tensor_error,
)

Fetch = Callable[[str, int, int], Buffer]  # region, offset, size; raises `GeartrainError`
Store = Callable[[str, int, Buffer], None]  # region, offset, contents; raises `GeartrainError`

_SOURCES: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


_NOTHING: Final = memoryview(b"")


class Place(NamedTuple):
    """Place of a tensor in shared memory. Offset and size in bytes."""

    region: str
    offset: int
    size: int


class OutputForms(msgspec.Struct, frozen=True):
    """Forms in which a client wants its outputs: of all, and of single ones by name."""

    binary: bool = False
    binary_of: dict[str, bool] = {}  # true if it is binary, by name
    places: dict[str, Place] = {}

    def is_binary(self, name: str) -> bool:
        """True if an output shall come as bytes after the JSON."""
        return self.binary_of.get(name, self.binary)


ALL_JSON: Final = OutputForms()
"""All outputs, in JSON."""


# input


def read_request(
    body: Buffer, json_size: int | None, view: TensorView, *, fetch: Fetch
) -> tuple[InferRequest, OutputForms]:
    """Decode a request's body.

    `json_size` is what `Inference-Header-Content-Length` says: None without one, 0 for the bytes of the only input.
    `fetch` reads shared memory. Raises `GeartrainError`: `UNPARSABLE`, `INVALID_INPUT`, `INVALID_TENSOR`, and what
    `fetch` raises.
    """
    if json_size == 0:
        return InferRequest((_raw_input(body, view.inputs),)), OutputForms(binary=True)
    if json_size is None and len(body) < tensor_json.LARGE:
        return _read_small(body if type(body) is bytes else bytes(body), fetch=fetch)
    head, tail = split_body(body, json_size)
    text = bytes(head) if isinstance(head, memoryview) else head
    if len(text) >= tensor_json.LARGE:
        try:
            request, data = _parse_large(text)
            return assemble(request, data, tail, fetch=fetch)
        except tensor_json.SlowPathError:
            pass
    request = infer_json.decode(text)
    return assemble(request, [one.data for one in request.inputs], tail, fetch=fetch)


class _Rest(msgspec.Struct, frozen=True):
    """A request without its inputs."""

    parameters: Parameters
    outputs: tuple[str, ...] | None
    schedule: SchedulePolicy
    forms: OutputForms


_repeats: Final = Repeats[_Rest]()  # of all models: what a text says hangs on nothing else


def _read_small(text: bytes, *, fetch: Fetch) -> tuple[InferRequest, OutputForms]:
    recalled = _repeats.recall(text)
    if recalled is not None:
        tensor, rest = recalled
        return InferRequest((tensor,), "", rest.parameters, rest.outputs, rest.schedule), rest.forms
    json = infer_json.decode(text)
    request, forms = assemble(json, [one.data for one in json.inputs], _NOTHING, fetch=fetch)
    _repeats.remember(text, json, _Rest(request.parameters, request.outputs, request.schedule, forms))
    return request, forms


def split_body(body: Buffer, json_size: int | None) -> tuple[Buffer, memoryview]:
    """Return the JSON, and the bytes behind it; raise `INVALID_INPUT` for a size that cannot be."""
    if json_size is None:
        return body, _NOTHING
    if not 0 < json_size <= len(body):
        msg = f"inference header size should be in range (0, {len(body)}), got: {json_size}"
        raise GeartrainError(Code.INVALID_INPUT, msg)
    whole = memoryview(body)
    return whole[:json_size], whole[json_size:]


def read_contents(text: bytes | bytearray) -> tuple[RequestJson, list[Buffer | None]]:
    """Read the JSON of a request without its model: what it says, and the contents of each input that has `data`.

    `assemble` makes the rest of them. Raises as `read_request` does.
    """
    try:
        request, data = _parse_large(text)
        return request, _contents(request, data)
    except tensor_json.SlowPathError:
        request = infer_json.decode(text)
        return request, _contents(request, [one.data for one in request.inputs])


def _parse_large(text: bytes | bytearray) -> tuple[RequestJson, list[Any]]:
    arrays = tensor_json.arrays()
    if arrays is None:
        raise tensor_json.SlowPathError
    return infer_json.convert(*arrays.parse(text))


def _contents(request: RequestJson, data: list[Any]) -> list[Buffer | None]:
    pairs = zip(request.inputs, data, strict=True)
    return [_data(one, some, _check_input(one)) if is_given(some) else None for one, some in pairs]


def _data(one: InputJson, data: Any, shown: str) -> Buffer:
    if isinstance(data, memoryview):  # read before
        return data
    is_raw = type(data) is msgspec.Raw
    if one.datatype == "BYTES" and (bytes(memoryview(data)[:1]) == b'"' if is_raw else type(data) is str):
        if len(one.shape) == 1:
            one.shape = (1,)  # clients of MLServer tell the length of the text, which is one element there
        if not is_raw:  # of a large body
            tensor_json.check_count(shown, 1, count_of(one.shape))
            return tensor_json.pack(shown, "BYTES", (data,))
        data = msgspec.Raw(b"[%b]" % bytes(data))
    read = tensor_json.decode if is_raw else tensor_json.arrays().decode
    contents: Buffer = read(shown, one.datatype, data, count=count_of(one.shape))
    return contents


class _Tail:
    """The bytes behind the JSON: the contents of binary inputs, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, name: str, size: int) -> memoryview:
        if size > len(self._data):
            missing = clip(str(size - len(self._data)))
            msg = (
                f"unexpected size for input '{name}', expecting {missing} additional bytes after the JSON, "
                "whose length Inference-Header-Content-Length has to tell"
            )
            raise tensor_error(msg)
        data, self._data = self._data[:size], self._data[size:]
        return data

    def check_end(self) -> None:
        if len(self._data):
            raise tensor_error(f"unexpected additional input data: {len(self._data)} bytes that no input has announced")


_NO_TAIL: Final = _Tail(_NOTHING)


def assemble(
    request: RequestJson, data: Sequence[Any], tail: memoryview, *, fetch: Fetch
) -> tuple[InferRequest, OutputForms]:
    """Make a request of what its JSON says, of the `data` of each input, and of the bytes behind the JSON.

    The `data` is as it was parsed, or what `read_contents` has made of it. Raises as `read_request` does.
    """
    rest = _Tail(tail) if len(tail) else _NO_TAIL
    inputs = tuple([_tensor(one, some, rest, fetch=fetch) for one, some in zip(request.inputs, data, strict=True)])
    rest.check_end()
    given = request.parameters
    taken = take_parameters(given) if given else NO_PARAMETERS
    if request.outputs:
        names = tuple([one.name for one in request.outputs])
        forms = _forms_of(request.outputs, binary=taken.binary)
    else:
        names = None
        forms = OutputForms(binary=True) if taken.binary else ALL_JSON
    own_id = request.id or ""
    return InferRequest(inputs, own_id, taken.own, names, taken.schedule, _content_types(request.inputs)), forms


def _content_types(inputs: Sequence[InputJson]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in inputs:
        if one.parameters and isinstance(one.parameters.content_type, str):
            found[one.name] = one.parameters.content_type
    return found


def _tensor(one: InputJson, data: Any, tail: _Tail, *, fetch: Fetch) -> Tensor:
    name, datatype = one.name, one.datatype
    shown = _check_input(one)
    wanted = one.parameters
    if not wanted or not (is_given(wanted.binary_data_size) or is_given(wanted.shared_memory_region)):
        if not is_given(data):
            raise tensor_error(f"{_SOURCES}no field is set for input '{shown}'")
        contents = _data(one, data, shown)
        return Tensor(name, datatype, one.shape, contents)
    _check_sources(shown, wanted, has_data=is_given(data))
    size = wanted.binary_data_size
    if isinstance(size, int):
        return Tensor(name, datatype, one.shape, tail.take(shown, size))
    place = _place(f"input '{shown}'", wanted)
    return Tensor(name, datatype, one.shape, fetch(place.region, place.offset, place.size))


def _check_input(one: InputJson) -> str:
    """Check the datatype and the shape; return the name as errors have it."""
    shown = one.name if len(one.name) <= MAX_SHOWN_CHARACTERS else clip(one.name)
    if one.datatype not in DATATYPES:
        msg = f"invalid datatype for input {shown}: '{clip(one.datatype)}' is none of {', '.join(sorted(DATATYPES))}"
        raise tensor_error(msg)
    check_shape(shown, one.shape)
    return shown


def _check_sources(name: str, wanted: InputParameters, *, has_data: bool) -> None:
    fields = ["'data'"] if has_data else []
    fields += ["'binary_data_size'"] if is_given(wanted.binary_data_size) else []
    fields += ["'shared_memory_region'"] if is_given(wanted.shared_memory_region) else []
    if len(fields) > 1:
        raise tensor_error(f"{_SOURCES}set {' '.join(fields)} for input '{name}'")


def _place(what: str, wanted: InputParameters | OutputParameters) -> Place:
    size = wanted.shared_memory_byte_size
    if not isinstance(size, int):
        raise tensor_error(f"{what} names a shared memory region without 'shared_memory_byte_size'")
    return Place(str(wanted.shared_memory_region), wanted.shared_memory_offset or 0, size)


def _forms_of(outputs: list[OutputJson], *, binary: bool) -> OutputForms:
    binary_of: dict[str, bool] = {}
    places: dict[str, Place] = {}
    for one in outputs:
        wanted = one.parameters
        if not wanted:
            continue
        if wanted.classification:
            msg = f"classification is not supported: leave it out of the parameters of output '{clip(one.name)}'"
            raise tensor_error(msg)
        if isinstance(wanted.binary_data, bool):
            binary_of.setdefault(one.name, wanted.binary_data)
        if is_given(wanted.shared_memory_region):
            if wanted.binary_data is True:
                name = clip(one.name)
                raise tensor_error(f"Output can't set both 'shared_memory_region' and 'binary_data': '{name}'")
            places.setdefault(one.name, _place(f"output '{clip(one.name)}'", wanted))
    return OutputForms(binary, binary_of, places)


def check_forms(view: TensorView, names: tuple[str, ...] | None, forms: OutputForms) -> None:
    """Raise `INVALID_TENSOR` for an output that cannot take the form that was asked for.

    To be called before the run, and after the inputs have been bound: their mistakes come first.
    """
    for spec in view.outputs:
        if spec.datatype not in tensor_json.BINARY_ONLY:
            continue
        name = spec.name
        is_wanted = names is None or name in names
        has_form = forms.is_binary(name) or name in forms.places
        if is_wanted and not has_form:
            raise tensor_json.binary_only("output", spec.name, spec.datatype)


# raw


def _raw_input(body: Buffer, specs: tuple[TensorSpec, ...]) -> Tensor:
    """The only input of a model, whose body is its contents."""
    if len(specs) != 1:
        msg = f"Raw request must only have 1 input (found {len(specs)}) to be deduced; describe them in JSON"
        raise tensor_error(msg)
    (spec,) = specs
    open_sizes = sum(size == VARIABLE for size in spec.shape)
    if spec.variadic or open_sizes > 1:
        msg = (
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension; describe it in JSON"
        )
        raise tensor_error(msg)
    if spec.datatype == "BYTES" and spec.shape == (1,):
        return Tensor(spec.name, spec.datatype, spec.shape, join_bytes([bytes(body)]))
    size = SIZES.get(spec.datatype)
    count = len(split_bytes(spec.name, body)) if size is None else len(body) // size
    known = count_of([each for each in spec.shape if each != VARIABLE])
    length = count // known if known else 0
    return Tensor(spec.name, spec.datatype, tuple(length if s == VARIABLE else s for s in spec.shape), body)


# output


class Answer(msgspec.Struct, frozen=True):
    """A body in parts. `json_size`: how long its JSON is, None if it is nothing else."""

    parts: tuple[Buffer, ...]
    json_size: int | None = None


class _OutputBody(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] = {}
    data: msgspec.Raw | msgspec.UnsetType = UNSET


class _Body(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str = ""
    model_name: str
    model_version: str
    parameters: dict[str, Parameter] = {}
    outputs: list[_OutputBody]


_encode = msgspec.json.Encoder().encode
NO_TEXTS: Final[Mapping[str, Buffer]] = {}
_MARK: Final = b"\x00"  # JSON text has no control characters
_JOINED: Final = 65_536  # bytes up to which it is cheaper to copy a tensor's text than to send it by itself


def encode_response(
    response: InferResponse, forms: OutputForms, *, store: Store, texts: Mapping[str, Buffer] = NO_TEXTS
) -> Answer:
    """Return the body of an answer; raise `INVALID_TENSOR` if an output cannot take the form that was asked for.

    `store` writes shared memory; `texts` are contents of outputs that have been written as JSON already.
    """
    if not texts and forms is ALL_JSON and len(response.outputs) == 1 and not response.id and not response.parameters:
        (tensor,) = response.outputs
        only = _text(tensor)
        if len(only) <= _JOINED:  # nearly all answers in JSON
            model = response.model_name, response.model_version
            before, after = _frame(model, (tensor.name, tensor.datatype, tensor.shape))
            return Answer((b"%b%b%b" % (before, only, after),))
    outputs: list[_OutputBody] = []
    large: list[Buffer] = []  # texts that are not copied
    tail: list[Buffer] = []
    for tensor in response.outputs:
        name, datatype, shape, contents = tensor.name, tensor.datatype, tensor.shape, tensor.data
        place = forms.places.get(name)
        if place is not None:
            put(tensor, place, store)
            outputs.append(_OutputBody(name, datatype, shape))
        elif forms.is_binary(name):
            outputs.append(_OutputBody(name, datatype, shape, {"binary_data_size": len(contents)}))
            if len(contents):
                tail.append(contents)
        else:
            text: Buffer = texts[name] if name in texts else _text(tensor)
            if len(text) > _JOINED:
                large.append(text)
                text = _MARK
            outputs.append(_OutputBody(name, datatype, shape, data=msgspec.Raw(text)))
    head = _encode(
        _Body(
            id=response.id,
            model_name=response.model_name,
            model_version=response.model_version,
            parameters=response.parameters and _finite(response.parameters),
            outputs=outputs,
        )
    )
    json = (head,) if not large else _interleave(head.split(_MARK), large)
    return Answer((*json, *tail), sum(map(len, json))) if tail else Answer(json)


def encode_packed(model: tuple[str, str], packed: Buffer) -> tuple[Buffer, ...] | None:
    """Return the body of an answer that is `ALL_JSON`, and has nothing but the only tensor of a packed piece.

    `model`: name and version. Returns None for what `encode_response` has to write, or to refuse.
    """
    written = _written(model, head_of(packed))
    if written is None:
        return None
    text = _encode(written.unpack(packed, written.offset))
    return None if b"null" in text else (b"%b%b%b" % (written.before, text, written.after),)


class _Written(NamedTuple):
    """Written form of a tensor: the text before and behind its numbers, and the reader of its piece."""

    before: bytes
    after: bytes
    unpack: Callable[[Buffer, int], tuple[Any, ...]]
    offset: int


@lru_cache(maxsize=256)  # see `_frame`
def _written(model: tuple[str, str], head: bytes) -> _Written | None:
    tensor = only_tensor(head)
    if tensor is None or tensor.datatype not in tensor_json.CODES:
        return None
    numbers = struct.Struct(f"<{count_of(tensor.shape)}{tensor_json.CODES[tensor.datatype]}")
    return _Written(*_frame(model, (tensor.name, tensor.datatype, tensor.shape)), numbers.unpack_from, tensor.offset)


@lru_cache(maxsize=256)  # of one model they differ in the shape at most
def _frame(model: tuple[str, str], output: tuple[str, str, tuple[int, ...]]) -> tuple[bytes, bytes]:
    """Return the text before and behind the data of a response with one output.

    `model`: name and version; `output`: name, datatype and shape.
    """
    body = _OutputBody(*output, data=msgspec.Raw(_MARK))
    before, _, after = _encode(_Body(model_name=model[0], model_version=model[1], outputs=[body])).partition(_MARK)
    return before, after


def _text(tensor: Tensor) -> bytes:
    arrays = tensor_json.arrays() if len(tensor.data) >= tensor_json.LARGE else None
    text: bytes = tensor_json.encode(tensor) if arrays is None else arrays.encode(tensor)
    return text


def _interleave(pieces: list[bytes], texts: list[Buffer]) -> tuple[Buffer, ...]:
    joined: list[Buffer] = [pieces[0]]
    for text, piece in zip(texts, pieces[1:], strict=True):
        joined += (text, piece)
    return tuple(joined)


def put(tensor: Tensor, place: Place, store: Store) -> None:
    """Write an output where its client wants it, with `store`; raise `INVALID_TENSOR` when there is too little room."""
    size = len(tensor.data)
    if size > place.size:
        msg = (
            f"shared memory size specified with the request for output '{tensor.name}' ({place.size} bytes) "
            f"should be at least {size} bytes to hold the results"
        )
        raise tensor_error(msg)
    store(place.region, place.offset, tensor.data)


def _finite(given: dict[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that JSON can carry."""
    return {name: value for name, value in given.items() if not _is_odd(value)}


def _is_odd(value: Parameter) -> bool:
    return isinstance(value, float) and value - value != 0  # NaN, Infinity


_LONGEST_FAULT: Final = 2000  # characters of the text of an error


class _ErrorBody(msgspec.Struct, frozen=True):
    error: str


def encode_error(error: GeartrainError) -> bytes:
    """Return the body of a request that failed: one sentence, and what is wrong with which field."""
    return encode_fault(error.reason)


def encode_fault(text: str) -> bytes:
    """Return the body of an error of this text."""
    text = clip(text, _LONGEST_FAULT)
    return _encode(_ErrorBody(text.encode(errors="replace").decode()))
