"""Beginnings of requests and responses that have been read or written before.

Clients write the fields of a message by their numbers, so the raw contents come last. The fields before them are the
same in most requests for a model, but for the id. The fields of a response may stand in any order, so those that are
the same stand first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

from geartrain.apis.open_inference import Place
from geartrain.domain.predictions.inference import InferRequest, InferResponse, Parameters, SchedulePolicy
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.guard import EVERYTHING, Grant
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.framing import PREFIX_SIZE
from geartrain.transport.grpc.translate import FINAL, NOWHERE, Call, Message, encode, parse, read_call, write
from geartrain.transport.grpc.wire import ID_TAG, RAW_INPUT_TAG, RAW_OUTPUT_TAG, as_stream_response, read_varint, varint
from geartrain.transport.wire.exchange import NOWHERE as UNPLACED
from geartrain.transport.wire.exchange import Body

MAX_HEADS: Final = 256  # heads that are remembered
_LARGEST: Final = 4096  # bytes of one
_SMALL: Final = 4096  # bytes of contents that are cheaper to copy than to view
_MORE: Final = 128  # the bit of a varint that says that another byte follows
# ModelInferRequest: model_name, model_version, parameters, inputs, outputs; all of them have a length.
_HEAD_TAGS: Final = frozenset(number << 3 | 2 for number in (1, 2, 4, 5, 6))
_Inputs = tuple[tuple[str, str, tuple[int, ...]], ...]  # names, datatypes and shapes
_UNKNOWN: Final = b""  # of a request whose head cannot be told from its contents
_ID: Final = bytes((ID_TAG,))


class _Split(NamedTuple):
    """A request cut in two: its head without the id, the id, and where the raw contents begin."""

    head: bytes
    id: str
    contents: int


class _Known(NamedTuple):
    """A decoded head."""

    model: str
    version: str
    inputs: _Inputs
    parameters: Parameters
    outputs: tuple[str, ...] | None
    schedule: SchedulePolicy
    places: Mapping[str, Place]
    empty_final: bool


_NO_SPLIT: Final = _Split(_UNKNOWN, "", 0)


def contents_of(begin: Buffer) -> int:
    """Return the position of the first tensor's contents in a body of one message. See `Accepted.contents_of`.

    `NOWHERE` for a message that is compressed, or whose contents are small, typed, or at an unusual place.
    """
    if begin[:1] != b"\0":
        return UNPLACED
    at = _split(begin, PREFIX_SIZE).contents
    if not at or at >= len(begin) or begin[at] != RAW_INPUT_TAG:
        return UNPLACED
    size, contents = read_varint(begin, at + 1)
    return contents if size > _SMALL else UNPLACED


class RequestReader:
    """Reads messages of the type `ModelInferRequest`.

    What it remembers of a head follows from the bytes of that head alone and from no model, so a reload changes
    nothing in it. Not remembered: heads above 4 KiB, typed contents, and inputs in shared memory. When there are 256,
    the oldest one is forgotten.
    """

    __slots__ = ("_known", "_regions")

    def __init__(self, regions: SharedRegions) -> None:
        self._regions = regions
        self._known: dict[bytes, _Known] = {}

    def read(self, data: Body, begin: int, grant: Grant) -> Call:
        """Read the request that stands in `data` from `begin` to the end, of a client that may do what `grant` says.

        Raises `UNPARSABLE`, `FORBIDDEN`, `INVALID_TENSOR` or `INVALID_INPUT`. Whether it fits the model is not looked
        at.
        """
        split = _split(data, begin)
        known = self._known.get(split.head)
        if known is not None:
            tensors = _read_contents(data, split.contents, known.inputs)
            if tensors is not None:
                if grant is not EVERYTHING:
                    grant.check_model(known.model)
                request = InferRequest(tensors, split.id, known.parameters, known.outputs, known.schedule)
                return Call(known.model, known.version, request, known.places, known.empty_final)
        message = parse(memoryview(data)[begin:])
        grant.check_model(message.head.model_name)
        call = read_call(message, self._regions.read)
        if split.head and _is_memorable(message):
            inputs = tuple((tensor.name, tensor.datatype, tensor.shape) for tensor in call.request.inputs)
            if _read_contents(data, split.contents, inputs) is not None:  # nothing of the request stands behind them
                self._remember(split.head, call, inputs)
        return call

    def _remember(self, head: bytes, call: Call, inputs: _Inputs) -> None:
        if len(self._known) >= MAX_HEADS:
            self._known.pop(next(iter(self._known)))
        request = call.request
        self._known[head] = _Known(
            call.model,
            call.version,
            inputs,
            request.parameters,
            request.outputs,
            request.schedule,
            call.places,
            call.empty_final,
        )


def _is_memorable(message: Message) -> bool:
    """True if each input has raw contents, and nothing but them."""
    inputs = message.head.inputs
    return len(message.raw) == len(inputs) and not any(each.parameters for each in inputs)


def _split(data: Buffer, begin: int) -> _Split:
    """Cut a request where its raw contents begin; `_NO_SPLIT` unless its fields are in the usual order."""
    position, end = begin, len(data)
    id_begin = id_end = text_begin = begin
    try:
        while position < end and position - begin <= _LARGEST:
            tag = data[position]
            if tag == RAW_INPUT_TAG:
                break
            size, after = data[position + 1], position + 2
            if size >= _MORE:
                more, after = data[after], after + 1
                if more >= _MORE:
                    return _NO_SPLIT
                size = size & 127 | more << 7
            if tag == ID_TAG and id_begin == id_end:
                id_begin, text_begin, id_end = position, after, after + size
            elif tag not in _HEAD_TAGS:
                return _NO_SPLIT
            position = after + size
        if position > end or position - begin > _LARGEST:
            return _NO_SPLIT
        if id_begin == id_end:
            return _Split(bytes(data[begin:position]), "", position)
        text = str(data[text_begin:id_end], "utf-8")
        return _Split(bytes(data[begin:id_begin]) + bytes(data[id_end:position]), text, position)
    except (IndexError, UnicodeDecodeError):
        return _NO_SPLIT


def _read_contents(data: Body, position: int, inputs: _Inputs) -> tuple[Tensor, ...] | None:
    """Return the inputs, whose raw contents begin at `position`; None if anything else is there, or too little."""
    tensors: list[Tensor] = []
    end = len(data)
    for name, datatype, shape in inputs:
        if position >= end or data[position] != RAW_INPUT_TAG:
            return None
        size, position = read_varint(data, position + 1)
        after = position + size
        if position < 0 or after > end:
            return None
        contents: Buffer = data[position:after] if size <= _SMALL else memoryview(data)[position:after]
        tensors.append(Tensor(name, datatype, shape, contents))
        position = after
    return tuple(tensors) if position == end else None


def _final(value: bool) -> bytes:  # noqa: FBT001 - it is what the field says
    message = pb.ModelInferResponse()
    message.parameters[FINAL].bool_param = value
    return message.SerializeToString()


_FINALS: Final = {True: _final(True), False: _final(False)}


class ResponseWriter:
    """Writer of messages of the types `ModelInferResponse` and `ModelStreamInferResponse`.

    Its cached heads are keyed by all that they consist of, names, datatypes and shapes, so they stay right after a
    reload of a model. When there are 256, the oldest one is forgotten.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[Hashable, bytes] = {}

    def write(self, response: InferResponse, places: Mapping[str, Place] = NOWHERE) -> list[Buffer]:
        """Return the parts of a `ModelInferResponse`. What is in `places` has been written there."""
        return encode(response, places) if places else self._parts(response, b"")

    def write_in_stream(
        self, response: InferResponse, places: Mapping[str, Place] = NOWHERE, *, final: bool
    ) -> list[Buffer]:
        """Return the parts of a `ModelStreamInferResponse`; `final`: whether its request gets no further one."""
        parts = encode(response, places, final=final) if places else self._parts(response, _FINALS[final])
        return as_stream_response(parts)

    def _parts(self, response: InferResponse, last: bytes) -> list[Buffer]:
        """Return the parts of a `ModelInferResponse`, with the fields of `last` among them."""
        outputs = response.outputs
        key: Hashable
        if len(outputs) == 1:
            only = outputs[0]
            key = response.model_name, response.model_version, only.name, only.datatype, only.shape
        else:
            key = response.model_name, response.model_version, tuple((e.name, e.datatype, e.shape) for e in outputs)
        head = self._heads.get(key)
        if head is None:
            head = self._remember(key, response)
        if response.id:
            text = response.id.encode(errors="replace")
            head += _ID + varint(len(text)) + text
        if response.parameters:
            head += _parameters(response.parameters)
        parts: list[Buffer] = []
        written = head + last
        for each in outputs:
            size = len(each.data)
            written += RAW_OUTPUT_TAG + varint(size)
            if size <= _SMALL:
                written += each.data
            else:
                parts += (written, each.data)
                written = b""
        if written:
            parts.append(written)
        return parts

    def _remember(self, key: Hashable, response: InferResponse) -> bytes:
        message = pb.ModelInferResponse(model_name=response.model_name, model_version=response.model_version)
        for tensor in response.outputs:
            message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if len(self._heads) >= MAX_HEADS:
            self._heads.pop(next(iter(self._heads)))
        head: bytes = message.SerializeToString()
        self._heads[key] = head
        return head


def _parameters(given: Parameters) -> bytes:
    message = pb.ModelInferResponse()
    for name, value in given.items():
        write(message.parameters[name], value)
    return message.SerializeToString()
