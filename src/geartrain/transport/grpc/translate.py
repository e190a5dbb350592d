"""Translates messages into requests of the domain, and its responses into messages.

No element of typed contents passes through a line of Python: floats and booleans lie in a serialized message as they
lie in a tensor, and integers, which do not, go through an array of the machine's own type that refuses values out of
its range.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from geartrain.apis.infer_json import too_many, too_many_members
from geartrain.apis.infer_parameters import take_parameters
from geartrain.apis.json_limits import MAX_INPUTS, MAX_MEMBERS
from geartrain.apis.open_inference import Fetch, Place, put
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import (
    NO_SCHEDULE,
    InferRequest,
    InferResponse,
    Parameter,
    Parameters,
    SchedulePolicy,
)
from geartrain.domain.rendering import clip
from geartrain.domain.signature.tensor_view import Bound
from geartrain.domain.tensors.tensor import DATATYPES, MAX_TEXTS, Buffer, Tensor, join_bytes, tensor_error
from geartrain.domain.versions import is_version
from geartrain.service.models.admission import CheckedInput, Interface
from geartrain.service.models.catalogue import normal
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.wire import split_raw, survey, varint, with_raw

FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of each datatype; FP16 and BF16 have none."""

_ARRAYS: Final = {"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I"}
_ARRAYS["UINT64"] = "Q"
_PACKED: Final = {"BOOL": 1, "FP32": 4, "FP64": 8}  # bytes of an element in a serialized message
EMPTY_FINAL: Final = "triton_enable_empty_final_response"
FINAL: Final = "triton_final_response"

_BINARY: Final = "binary_data_output"  # means something over HTTP only
_LEAST, _MOST, _MOST_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1
REGION: Final = "shared_memory_region"
OFFSET: Final = "shared_memory_offset"
SIZE: Final = "shared_memory_byte_size"
_SPLIT_FROM: Final = 16_384  # bytes of a message, from which on looking for the raw contents pays
_MOST_FIELDS: Final = 20 * MAX_INPUTS
_MOST_REST: Final = 8_388_608  # bytes of names, shapes and parameters
_CLASSIFICATION: Final = "classification"
_CONTENT_TYPE: Final = "content_type"

NOWHERE: Final[Mapping[str, Place]] = {}


def to_bytes(tensor: pb.ModelInferRequest.InferInputTensor) -> Buffer:
    """Return the contents of a tensor whose `contents` are set, as many as they are.

    Raises `INVALID_TENSOR`: the field is that of another datatype, the datatype has none, or a number does not fit it.
    """
    name, datatype, contents = tensor.name, tensor.datatype, tensor.contents
    wanted = FIELDS.get(datatype)
    if wanted is None:
        raise tensor_error(_no_field(name, datatype))
    given = contents.ListFields()
    if not given:
        return b""
    if len(given) > 1 or given[0][0].name != wanted:
        found = " and ".join(field.name for field, _ in given)
        raise tensor_error(f"input '{name}' is {datatype}, whose typed contents are {wanted}; it has {found}")
    values = given[0][1]
    if datatype in _PACKED:
        size = _PACKED[datatype] * len(values)
        begin = 1 + len(varint(size))  # behind the tag and the length: it is the only field that is known
        return memoryview(contents.SerializeToString())[begin : begin + size]
    if datatype == "BYTES":
        return join_bytes(values)
    try:
        return memoryview(array(_ARRAYS[datatype], values)).cast("B")
    except OverflowError:
        raise tensor_error(_out_of_range(name, datatype, values)) from None


def _no_field(name: str, datatype: str) -> str:
    if datatype in DATATYPES:
        return f"input '{name}' is {datatype}, which has no typed contents: send it in raw_input_contents"
    return f"input '{name}' has the unknown datatype '{datatype}'; the datatypes are {', '.join(sorted(DATATYPES))}"


def _out_of_range(name: str, datatype: str, values: list[int]) -> str:
    bits = int(datatype.lstrip("UINT"))
    least = 0 if datatype.startswith("U") else -(2 ** (bits - 1))
    most = 2**bits - 1 if datatype.startswith("U") else 2 ** (bits - 1) - 1
    index, value = next((i, value) for i, value in enumerate(values) if not least <= value <= most)
    return f"input '{name}' has {value} at index {index}, which is out of the range of {datatype}: {least} to {most}"


class Wishes(NamedTuple):
    """The parameters of a request: those for the model, and those for the server."""

    parameters: Parameters
    schedule: SchedulePolicy
    empty_final: bool  # a stream shall end with a response that holds nothing


NO_WISHES: Final = Wishes({}, NO_SCHEDULE, empty_final=False)


def read_wishes(given: Mapping[str, pb.InferParameter]) -> Wishes:
    """Read the parameters of a request; raise `INVALID_INPUT` for one that is reserved or of the wrong type."""
    values = {name: read(name, each) for name, each in given.items()}
    empty_final = values.pop(EMPTY_FINAL, False)
    if not isinstance(empty_final, bool):
        raise _invalid(f"parameter '{EMPTY_FINAL}' must be a boolean")
    binary = {_BINARY: values.pop(_BINARY)} if _BINARY in values else {}
    taken = take_parameters(values)
    return Wishes({**taken.own, **binary}, taken.schedule, empty_final=empty_final)


def read(name: str, given: pb.InferParameter) -> Parameter:
    """Return the value of a parameter; raise `INVALID_INPUT` if it has none."""
    kind = given.WhichOneof("parameter_choice")
    if kind is None:
        raise _invalid(f"parameter '{name}' has no value")
    value: Parameter = getattr(given, kind)
    return value


def write(to: pb.InferParameter, value: Parameter) -> None:
    """Put a value into a parameter. An integer beyond 64 bits becomes a string of digits."""
    if isinstance(value, bool):
        to.bool_param = value
    elif isinstance(value, float):
        to.double_param = value
    elif isinstance(value, str):
        to.string_param = value.encode(errors="replace").decode()
    elif _LEAST <= value <= _MOST:
        to.int64_param = value
    elif 0 <= value <= _MOST_UNSIGNED:
        to.uint64_param = value
    else:
        to.string_param = str(value)


def _invalid(message: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, message)


def read_place(what: str, parameters: Mapping[str, pb.InferParameter]) -> Place | None:
    """Return the place that the parameters of an input or output name, if any; raise `INVALID_TENSOR`.

    `what` is the input or output, for an error's text.
    """
    values = {name: read(name, parameters[name]) for name in (REGION, OFFSET, SIZE) if name in parameters}
    if not values:
        return None
    region, offset, size = values.get(REGION), values.get(OFFSET, 0), values.get(SIZE)
    if not isinstance(region, str) or not region:
        raise tensor_error(f"{what}: parameter '{REGION}' must be the name of a region")
    if not _is_size(offset):
        raise tensor_error(f"{what}: parameter '{OFFSET}' must be an integer of bytes, 0 or more")
    if size is None or not _is_size(size):
        raise tensor_error(f"{what}: parameter '{SIZE}' must be given, as an integer of bytes, 0 or more")
    return Place(region, int(offset), int(size))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def write_outputs(regions: SharedRegions, places: Mapping[str, Place], outputs: Sequence[Tensor]) -> None:
    """Put outputs where their client wants them; raise `INVALID_TENSOR` when there is too little room for one."""
    for tensor in outputs if places else ():
        place = places.get(tensor.name)
        if place is not None:
            put(tensor, place, regions.write)


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
    inputs = _read_inputs(message, fetch)
    types = {
        each.name: each.parameters[_CONTENT_TYPE].string_param
        for each in head.inputs
        if each.parameters and _CONTENT_TYPE in each.parameters
    }
    request = InferRequest(inputs, head.id, wishes.parameters, outputs, wishes.schedule, types)
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
            data = to_bytes(each)
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
