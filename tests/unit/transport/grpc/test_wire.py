"""Raw contents taken out of a message and put into one without a copy: the same as the message object says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.wire import as_stream_response, split_raw, varint, with_raw

texts = st.text(max_size=12)
contents = st.lists(st.binary(max_size=300), max_size=5)
tensors = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=texts,
    datatype=texts,
    shape=st.lists(st.integers(-1, 2**40), max_size=4),
)
requests = st.builds(
    pb.ModelInferRequest,
    model_name=texts,
    id=texts,
    inputs=st.lists(tensors, max_size=3),
    raw_input_contents=contents,
)


@given(requests, requests)
def test_what_is_split_is_what_the_parser_finds(first: pb.ModelInferRequest, second: pb.ModelInferRequest) -> None:
    data = (
        first.SerializeToString() + second.SerializeToString()
    )  # one message too: repeated fields with others between
    whole = pb.ModelInferRequest.FromString(data)
    split = split_raw(data)
    assert split is not None
    head, raw = split
    assert list(map(bytes, raw)) == list(whole.raw_input_contents)
    del whole.raw_input_contents[:]
    assert pb.ModelInferRequest.FromString(head) == whole


def test_contents_are_views_of_the_message() -> None:
    data = pb.ModelInferRequest(raw_input_contents=[b"abc"]).SerializeToString()
    split = split_raw(data)
    assert split is not None
    assert split[1][0].obj is data


@given(st.binary(max_size=200))
def test_garbage_is_split_as_the_parser_would_or_not_at_all(data: bytes) -> None:
    split = split_raw(data)
    if split is None:
        return
    try:
        whole = pb.ModelInferRequest.FromString(data)
    except Exception:  # noqa: BLE001 - whatever the parser says: what is left must be refused by it as well
        with pytest.raises(Exception, match="parsing"):
            pb.ModelInferRequest.FromString(split[0])
    else:
        assert list(map(bytes, split[1])) == list(whole.raw_input_contents)


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a\x05abc",  # shorter than it says
        b"\x3a",  # no length
        b"\x3a" + b"\xff" * 11,  # a length without end
        b"\x0b\x0c",  # a group, which only a full parser knows
        b"\x3f",  # no such kind of field
        b"\x39\x00",  # eight bytes, and only one there
    ],
)
def test_broken_message_is_left_to_the_parser(data: bytes) -> None:
    assert split_raw(data) is None


@given(st.integers(0, 2**64 - 1))
def test_varint_is_read_back(value: int) -> None:
    request = pb.ModelRepositoryParameter.FromString(b"\x10" + varint(value))
    assert request.int64_param % 2**64 == value


@given(texts, contents)
def test_response_with_contents_is_one_message(name: str, raw: list[bytes]) -> None:
    head = pb.ModelInferResponse(model_name=name).SerializeToString()
    expected = pb.ModelInferResponse(model_name=name, raw_output_contents=raw)
    parts = with_raw(head, [memoryview(each) for each in raw])
    assert pb.ModelInferResponse.FromString(b"".join(parts)) == expected
    streamed = pb.ModelStreamInferResponse.FromString(b"".join(as_stream_response(parts)))
    assert streamed == pb.ModelStreamInferResponse(infer_response=expected)
