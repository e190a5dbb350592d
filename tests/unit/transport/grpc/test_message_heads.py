"""Requests and responses whose beginning is known, against those that are read and written in full."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.apis.open_inference import Place
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferResponse
from geartrain.domain.tensors.tensor import Tensor
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.guard import EVERYTHING, Grant
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc import request_heads
from geartrain.transport.grpc.request_heads import RequestReader, ResponseWriter
from geartrain.transport.grpc.translate import FINAL, Call, parse, read_call
from geartrain.transport.grpc.wire import varint

NO_REGIONS = SharedRegions(enabled=False)

names = st.text(max_size=6)
shapes = st.lists(st.integers(-1, 2**40), max_size=3)
sizes = st.sampled_from([0, 1, 127, 128, 5000, 20_000])
inputs = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=names,
    datatype=st.sampled_from(["FP32", "BYTES"]),
    shape=shapes,
)
parameters = st.dictionaries(st.sampled_from("ab"), st.builds(pb.InferParameter, int64_param=st.integers(0, 9)))
requests = st.builds(
    pb.ModelInferRequest,
    model_name=st.text(min_size=1, max_size=6),
    model_version=st.sampled_from(["", "1", "01"]),
    id=names,
    parameters=parameters,
    inputs=st.lists(inputs, max_size=3),
    outputs=st.lists(st.builds(pb.ModelInferRequest.InferRequestedOutputTensor, name=names), max_size=2),
)


def with_contents(request: pb.ModelInferRequest, size: int) -> bytes:
    data: bytes = request.SerializeToString(deterministic=True)
    return data + b"".join(b"\x3a" + varint(size) + bytes([index]) * size for index in range(len(request.inputs)))


def fully(data: bytes) -> Call:
    return read_call(parse(data), NO_REGIONS.read)


def plain(call: Call) -> Call:
    """The call with tensors of bytes, which can be compared whatever they were viewed as."""
    tensors = tuple(Tensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.request.inputs)
    return call._replace(request=type(call.request)(tensors, *_rest(call)))


def _rest(call: Call) -> tuple[Any, ...]:
    request = call.request
    return request.id, request.parameters, request.outputs, request.schedule


@given(requests, sizes, sizes, names, st.sampled_from([bytes, bytearray, memoryview]))
def test_request_with_a_known_head_is_read_as_any(
    request: pb.ModelInferRequest, size: int, other_size: int, other_id: str, kind: Any
) -> None:
    reader = RequestReader(NO_REGIONS)
    first = with_contents(request, size)
    assert plain(reader.read(kind(b"12345" + first), 5, EVERYTHING)) == plain(fully(first))
    request.id = other_id
    second = with_contents(request, other_size)
    assert plain(reader.read(kind(second), 0, EVERYTHING)) == plain(fully(second))
    assert len(reader._known) == 1


def test_known_request_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RequestReader(NO_REGIONS)
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
    reader.read(with_contents(pb.ModelInferRequest(model_name="m", id="1", inputs=[tensor]), 4), 0, EVERYTHING)
    monkeypatch.delattr(request_heads, "parse")
    call = reader.read(with_contents(pb.ModelInferRequest(model_name="m", inputs=[tensor]), 9), 0, EVERYTHING)
    assert (call.model, call.request.id, len(call.request.inputs[0].data)) == ("m", "", 9)


FIELDS: list[Any] = [
    pb.ModelInferRequest(model_name="m"),
    pb.ModelInferRequest(model_version="2"),
    pb.ModelInferRequest(id="7"),
    pb.ModelInferRequest(id="8"),
    pb.ModelInferRequest(parameters={"a": pb.InferParameter(int64_param=1)}),
    pb.ModelInferRequest(inputs=[{"name": "x", "datatype": "FP32", "shape": [1]}]),
    pb.ModelInferRequest(inputs=[{"name": "y", "datatype": "BYTES", "shape": [2]}]),
    pb.ModelInferRequest(inputs=[{"name": "z", "datatype": "FP32", "contents": {"fp32_contents": [1.5]}}]),
    pb.ModelInferRequest(outputs=[{"name": "o"}]),
    pb.ModelInferRequest(raw_input_contents=[b"1234"]),
    pb.ModelInferRequest(raw_input_contents=[b""]),
    b"\x42\x01a",  # a field that there is not
    b"\x08\x01",  # a number
    b"\x1a\x01\xff",  # an id that is no text
    b"\x3a\x05ab",  # cut off
    b"\x0a",
]
PIECES = [each if isinstance(each, bytes) else each.SerializeToString() for each in FIELDS]


def outcome(read: Any, data: bytes) -> Any:
    try:
        return plain(read(data))
    except GeartrainError as error:
        return error.code, error.message


@given(
    st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.lists(st.sampled_from(PIECES), max_size=8), max_size=3)
)
def test_fields_in_any_order_are_read_as_by_the_parser(pieces: list[bytes], others: list[list[bytes]]) -> None:
    """All that has been read before is known: nothing of it may show in what is read later."""
    reader = RequestReader(NO_REGIONS)
    for data in map(b"".join, (*others, pieces, *others, [*pieces, PIECES[9]], [*pieces, PIECES[5]], pieces)):
        assert outcome(lambda each: reader.read(each, 0, EVERYTHING), data) == outcome(fully, data)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_garbage_is_read_as_by_the_parser(first: bytes, second: bytes) -> None:
    reader = RequestReader(NO_REGIONS)
    for data in (first, first + second, second, first):
        assert outcome(lambda each: reader.read(each, 0, EVERYTHING), data) == outcome(fully, data)


def test_large_contents_are_views_and_small_ones_copies() -> None:
    reader = RequestReader(NO_REGIONS)
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
    for size, kind in ((100, bytes), (100_000, memoryview)):
        data = with_contents(pb.ModelInferRequest(inputs=[tensor]), size)
        reader.read(data, 0, EVERYTHING)
        (found,) = reader.read(data, 0, EVERYTHING).request.inputs
        assert type(found.data) is kind


@pytest.mark.parametrize(
    "request_",
    [
        pb.ModelInferRequest(model_name="m" * 5000),
        pb.ModelInferRequest(inputs=[{"name": "x", "datatype": "FP32", "contents": {"fp32_contents": [1.5]}}]),
    ],
)
def test_what_is_not_worth_remembering(request_: pb.ModelInferRequest) -> None:
    reader = RequestReader(NO_REGIONS)
    data = request_.SerializeToString()
    assert reader.read(data, 0, EVERYTHING) == fully(data)
    assert not reader._known


def test_heads_that_are_remembered_are_few() -> None:
    reader, writer = RequestReader(NO_REGIONS), ResponseWriter()
    for index in range(1000):
        reader.read(pb.ModelInferRequest(model_name=str(index)).SerializeToString(), 0, EVERYTHING)
        writer.write(InferResponse(str(index), "1", "", ()))
    assert len(reader._known) == request_heads.MAX_HEADS == 256
    assert len(writer._heads) == request_heads.MAX_HEADS == 256
    assert reader.read(pb.ModelInferRequest(model_name="999").SerializeToString(), 0, EVERYTHING).model == "999"


def test_known_head_opens_no_model_to_another_key() -> None:
    reader = RequestReader(NO_REGIONS)
    data = pb.ModelInferRequest(model_name="m").SerializeToString()
    assert reader.read(data, 0, EVERYTHING).model == "m"
    with pytest.raises(GeartrainError) as caught:
        reader.read(data, 0, Grant("key 'bob'", frozenset({"predict"}), ("n*",)))
    assert caught.value.code is Code.FORBIDDEN


# responses

tensors = st.builds(
    Tensor,
    name=names,
    datatype=st.sampled_from(["FP32", "BYTES"]),
    shape=st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    data=st.one_of(st.binary(max_size=20), sizes.map(bytes), sizes.map(lambda size: memoryview(bytes(size)))),
)
responses = st.builds(
    InferResponse,
    model_name=names,
    model_version=st.sampled_from(["1", "2"]),
    id=names,
    outputs=st.lists(tensors, max_size=3).map(tuple),
    parameters=st.dictionaries(names, st.one_of(st.booleans(), st.integers(-5, 5), names)),
)


def message_of(response: InferResponse) -> pb.ModelInferResponse:
    """An independent way to the message."""
    message = pb.ModelInferResponse(
        model_name=response.model_name,
        model_version=response.model_version,
        id=response.id,
        outputs=[{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in response.outputs],
        raw_output_contents=[bytes(t.data) for t in response.outputs],
    )
    fields = {bool: "bool_param", int: "int64_param", str: "string_param"}
    for name, value in response.parameters.items():
        setattr(message.parameters[name], fields[type(value)], value)
    return message


@given(st.lists(responses, min_size=1, max_size=3))
def test_response_is_written_as_the_message_is(given_: list[InferResponse]) -> None:
    writer = ResponseWriter()
    for response in (*given_, *given_):  # at the second time all heads are known
        expected = message_of(response)
        assert pb.ModelInferResponse.FromString(b"".join(writer.write(response))) == expected
        for final in (True, False):
            expected.parameters[FINAL].bool_param = final
            parts = writer.write_in_stream(response, final=final)
            found = pb.ModelStreamInferResponse.FromString(b"".join(parts))
            assert found == pb.ModelStreamInferResponse(infer_response=expected)


def test_large_contents_are_parts_of_their_own() -> None:
    data = bytes(100_000)
    outputs = (Tensor("a", "FP32", (1,), bytes(4)), Tensor("b", "FP32", (25_000,), data))
    parts = ResponseWriter().write(InferResponse("m", "1", "", outputs))
    assert parts[-1] is data


def test_response_in_shared_memory_tells_its_place() -> None:
    response = InferResponse("m", "1", "", (Tensor("y", "FP32", (1,), bytes(4)),))
    for parts in (
        ResponseWriter().write(response, {"y": Place("mine", 8, 4)}),
        ResponseWriter().write_in_stream(response, {"y": Place("mine", 8, 4)}, final=True)[1:],
    ):
        message = pb.ModelInferResponse.FromString(b"".join(parts))
        assert message.outputs[0].parameters["shared_memory_offset"].int64_param == 8
        assert list(message.raw_output_contents) == [b""]
