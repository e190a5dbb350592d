"""Translates messages into requests of the domain, and its responses into messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from geartrain.apis.infer_json import too_many, too_many_members
from geartrain.apis.json_limits import MAX_INPUTS, MAX_MEMBERS
from geartrain.apis.open_inference import Fetch, Place
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, InferResponse
from geartrain.domain.rendering import clip
from geartrain.domain.signature.tensor_view import Bound
from geartrain.domain.tensors.tensor import MAX_TEXTS, Buffer, Tensor, tensor_error
from geartrain.domain.versions import is_version
from geartrain.service.models.admission import CheckedInput, Interface
from geartrain.service.models.catalogue import normal
from geartrain.transport.grpc import contents
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.parameters import FINAL, NO_WISHES, read, read_wishes, write
from geartrain.transport.grpc.regions import OFFSET, REGION, SIZE, read_place
from geartrain.transport.grpc.wire import split_raw, survey, with_raw

_SPLIT_FROM: Final = 16_384  # bytes of a message, from which on looking for the raw contents pays
_MOST_FIELDS: Final = 20 * MAX_INPUTS
_MOST_REST: Final = 8_388_608  # bytes of names, shapes and parameters
_CLASSIFICATION: Final = "classification"

NOWHERE: Final[Mapping[str, Place]] = {}


class BoundInput(NamedTuple):
    """The input of a model, made for one of its interfaces, and perhaps checked."""

    interface: Interface
    bound: Bound
    checked: CheckedInput | None


class Call(NamedTuple):
    """One request, and the model that it names.

    Attributes:
        places: of outputs that are to lie in shared memory, by name.
        bound: the model's input, if it has been made aside.
    """

    model: str
    version: str
    request: InferRequest
    places: Mapping[str, Place] = NOWHERE
    empty_final: bool = False
    bound: BoundInput | None = None


class Message(NamedTuple):
    """A request as it was parsed: the message, and its raw contents."""

    head: pb.ModelInferRequest
    raw: Sequence[Buffer]


def parse(data: Buffer) -> Message:
    """Parse a `ModelInferRequest`; raise `UNPARSABLE`."""
    head = pb.ModelInferRequest()
    split = split_raw(data) if len(data) >= _SPLIT_FROM else None
    try:
        head.ParseFromString(bytes(data) if split is None else split[0])
    except DecodeError:
        raise _unparsable() from None
    return Message(head, head.raw_input_contents if split is None else split[1])


def read_version(version: str) -> str:
    """Return a version as the catalogue knows it, '' for any; raise `INVALID_INPUT` for what can be none."""
    if not version or is_version(version):
        return normal(version)
    raise GeartrainError(
        Code.INVALID_INPUT,
        f"failed to get model version from '{clip(version)}': a version is a number, or begins with one, as in v0.1.0",
    )


def detach(data: Buffer) -> tuple[bytes, list[Buffer]]:
    """Return a serialized `ModelInferRequest` without the contents of its tensors, and these as raw contents.

    Inputs in shared memory have none. Raises as `parse` and `read_call` do, and `INVALID_INPUT` beyond the limits.
    """
    found = survey(data, _MOST_FIELDS, MAX_TEXTS)
    if found is None:
        raise _unparsable()
    if found.texts > MAX_TEXTS:
        raise tensor_error(f"the inputs have more than {MAX_TEXTS} elements of bytes_contents together")
    if found.fields > _MOST_FIELDS or found.rest > _MOST_REST:
        msg = f"a request has at most {_MOST_FIELDS} fields, and {_MOST_REST} bytes beside the contents of its tensors"
        raise GeartrainError(Code.INVALID_INPUT, msg)
    message = parse(data)
    head = message.head
    if len(head.inputs) > MAX_INPUTS or len(head.outputs) > MAX_INPUTS:
        raise too_many(MAX_INPUTS)
    if len(head.parameters) > MAX_MEMBERS:
        raise too_many_members()
    tensors = read_call(message, lambda *_: b"").request.inputs
    raw = [
        tensor.data
        for one, tensor in zip(head.inputs, tensors, strict=True)
        if not one.parameters or read_place("", one.parameters) is None
    ]
    for one in head.inputs:
        one.ClearField("contents")
    del head.raw_input_contents[:]
    head.DiscardUnknownFields()
    return head.SerializeToString(), raw


def _unparsable() -> GeartrainError:
    return GeartrainError(Code.UNPARSABLE, "Unable to parse request: it is no ModelInferRequest")


def read_call(message: Message, fetch: Fetch) -> Call:
    """Read a request; raise `INVALID_TENSOR` or `INVALID_INPUT`. Whether it fits the model is not looked at."""
    head = message.head
    given = head.parameters
    wishes = read_wishes(given) if given else NO_WISHES
    outputs: tuple[str, ...] | None = None
    places = NOWHERE
    if head.outputs:
        outputs = tuple(output.name for output in head.outputs)
        places = _read_places(head)
    request = InferRequest(_read_inputs(message, fetch), head.id, wishes.parameters, outputs, wishes.schedule)
    return Call(head.model_name, read_version(head.model_version), request, places, wishes.empty_final)


def within(request: InferRequest, seconds: float) -> InferRequest:
    """Return the request with what is left until the deadline of its call as a limit."""
    return msgspec.structs.replace(request, schedule=request.schedule.within(seconds))


def _read_inputs(message: Message, fetch: Fetch) -> tuple[Tensor, ...]:
    model, raw = message.head.model_name, message.raw
    tensors: list[Tensor] = []
    taken = 0
    for each in message.head.inputs:
        name = each.name
        place = read_place(f"input '{name}'", each.parameters) if each.parameters else None
        has_contents = each.HasField("contents")
        data: Buffer
        if raw and has_contents and each.contents.ListFields():
            msg = f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            raise tensor_error(msg)
        if place is not None:
            if has_contents and each.contents.ListFields():
                raise tensor_error(f"input '{name}' has both contents and a shared memory region: send one of them")
            data = fetch(*place)
        elif taken < len(raw):
            data = raw[taken]
            taken += 1
        elif has_contents and not raw:
            data = contents.to_bytes(each)
        else:
            raise tensor_error(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        tensors.append(Tensor(name, each.datatype, tuple(each.shape), data))
    if taken < len(raw):
        msg = f"raw_input_contents has {len(raw)} entries, and only {taken} of the inputs take one: one for each input"
        raise tensor_error(msg)
    return tuple(tensors)


def _read_places(head: pb.ModelInferRequest) -> Mapping[str, Place]:
    places: dict[str, Place] = {}
    for output in head.outputs:
        parameters = output.parameters
        if not parameters:
            continue
        if _CLASSIFICATION in parameters and read(_CLASSIFICATION, parameters[_CLASSIFICATION]):
            msg = f"classification is not supported: leave it out of the parameters of output '{output.name}'"
            raise tensor_error(msg)
        place = read_place(f"output '{output.name}'", parameters)
        if place is not None:
            places[output.name] = place
    return places


# responses


def encode(
    response: InferResponse, places: Mapping[str, Place] = NOWHERE, *, final: bool | None = None
) -> list[Buffer]:
    """Return the parts of a serialized `ModelInferResponse`. `final`: of a stream, whether it is the last one.

    What is in `places` has been written there: its raw contents are empty.
    """
    message = pb.ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    raw: list[Buffer] = []
    for tensor in response.outputs:
        output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        place = places.get(tensor.name) if places else None
        if place is not None:
            write(output.parameters[REGION], place.region)
            write(output.parameters[OFFSET], place.offset)
            write(output.parameters[SIZE], len(tensor.data))
        raw.append(tensor.data if place is None else b"")
    for name, value in response.parameters.items():
        write(message.parameters[name], value)
    if final is not None:
        message.parameters[FINAL].bool_param = final
    return with_raw(message.SerializeToString(), raw)


def encode_end(call: Call) -> bytes:
    """Return the response that says no more than that a stream is over."""
    response = pb.ModelInferResponse(model_name=call.model, id=call.request.id)
    response.parameters[FINAL].bool_param = True
    return pb.ModelStreamInferResponse(infer_response=response).SerializeToString()


def encode_error(text: str, request_id: str, model: str | None = None) -> bytes:
    """Return an error as a response of a stream; `model` when it has run, so that nothing more will come of it."""
    response = pb.ModelInferResponse(id=request_id)
    if model is not None:
        response.model_name = model
        response.parameters[FINAL].bool_param = True
    error = text.encode(errors="replace").decode()
    return pb.ModelStreamInferResponse(error_message=error, infer_response=response).SerializeToString()
