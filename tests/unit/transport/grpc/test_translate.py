"""Requests and responses of gRPC against the domain's words, without a server."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, InferResponse, Parameter
from geartrain.domain.tensors.tensor import DATATYPES, Tensor, join_bytes
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.errors import GRPC_STATUS
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.status import shorten
from geartrain.transport.grpc.translate import FIELDS, Call, encode, parse, read_call, read_version, to_bytes

Input = pb.ModelInferRequest.InferInputTensor

# An independent way to the same bytes.
CODES = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP32": "f",
    "FP64": "d",
}


def limits(datatype: str) -> tuple[int, int]:
    bits = int(datatype.lstrip("UINT"))
    return (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def elements(datatype: str) -> st.SearchStrategy[Any]:
    match datatype:
        case "BOOL":
            return st.booleans()
        case "FP32":
            return st.floats(width=32)
        case "FP64":
            return st.floats()
        case "BYTES":
            return st.binary(max_size=20)
    return st.integers(*limits(datatype))


def raw(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return join_bytes(values)
    if datatype == "BOOL":
        return bytes(values)
    return array(CODES[datatype], values).tobytes()


def typed(datatype: str, values: Sequence[Any]) -> Input:
    contents = pb.InferTensorContents(**{FIELDS[datatype]: values})
    return Input(name="x", datatype=datatype, shape=[len(values)], contents=contents)


def read(request: pb.ModelInferRequest) -> Call:
    return read_call(parse(request.SerializeToString()), SharedRegions(enabled=False).read)


@pytest.mark.parametrize("datatype", sorted(FIELDS))
@given(data=st.data())
def test_typed_contents_are_the_raw_ones(datatype: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(elements(datatype), max_size=30))
    from_typed = read(pb.ModelInferRequest(inputs=[typed(datatype, values)]))
    bare = Input(name="x", datatype=datatype, shape=[len(values)])
    from_raw = read(pb.ModelInferRequest(inputs=[bare], raw_input_contents=[raw(datatype, values)]))
    (one,), (other,) = from_typed.request.inputs, from_raw.request.inputs
    assert (one.name, one.datatype, one.shape) == (other.name, other.datatype, other.shape)
    assert bytes(one.data) == bytes(other.data)


def test_large_contents_are_the_same() -> None:
    values = [index * 0.5 for index in range(100_000)]
    assert bytes(to_bytes(typed("FP32", values))) == raw("FP32", values)
    assert bytes(to_bytes(typed("INT16", [7] * 100_000))) == raw("INT16", [7] * 100_000)


def test_every_datatype_is_typed_or_raw_only() -> None:
    assert {*FIELDS, "FP16", "BF16"} == DATATYPES
    for datatype in ("FP16", "BF16"):
        wrong = Input(name="x", datatype=datatype, shape=[1], contents=pb.InferTensorContents(fp32_contents=[1]))
        with pytest.raises(GeartrainError, match=f"{datatype}, which has no typed contents: send it in raw_input"):
            to_bytes(wrong)


@pytest.mark.parametrize("datatype", ["INT8", "INT16", "UINT8", "UINT16"])
@pytest.mark.parametrize("which", [0, 1])
def test_t4_integer_out_of_range_is_refused(datatype: str, which: int) -> None:
    limit = limits(datatype)[which]
    beyond = limit + (1 if which else -1)
    if beyond < 0 and datatype.startswith("U"):
        return  # the field itself is unsigned
    assert bytes(to_bytes(typed(datatype, [0, limit]))) == raw(datatype, [0, limit])
    with pytest.raises(GeartrainError, match=rf"'x' has {beyond} at index 1, which is out of the range") as caught:
        to_bytes(typed(datatype, [0, beyond]))
    assert caught.value.code is Code.INVALID_TENSOR


# requests


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"inputs": [Input(name="x", datatype="FP32", shape=[1])]}, "unable to find data for input tensor 'x'"),
        (
            {"inputs": [typed("FP32", [1]), Input(name="y", datatype="FP32")], "raw_input_contents": [b"1234"] * 2},
            "contents field must not be specified when using raw_input_contents for 'x' for model 'm'",
        ),
        (
            {"inputs": [Input(name="x"), Input(name="y")], "raw_input_contents": [b"1234"]},
            "unable to find data for input tensor 'y' for model 'm'",
        ),
        (
            {"inputs": [Input(name="x", datatype="INT32", contents=pb.InferTensorContents(fp32_contents=[1]))]},
            "'x' is INT32, whose typed contents are int_contents; it has fp32_contents",
        ),
        (
            {
                "inputs": [
                    Input(
                        name="x", datatype="INT8", contents=pb.InferTensorContents(fp32_contents=[1], int_contents=[1])
                    )
                ]
            },
            "it has int_contents and fp32_contents",
        ),
        (
            {"inputs": [Input(name="x", datatype="FLOAT", contents=pb.InferTensorContents(fp32_contents=[1]))]},
            "unknown datatype 'FLOAT'; the datatypes are BF16, BOOL",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": pb.InferParameter(int64_param=1)}}]},
            "classification is not supported",
        ),
    ],
)
def test_wrong_request_names_the_tensor(request_: dict[str, Any], text: str) -> None:
    with pytest.raises(GeartrainError, match=text) as caught:
        read(pb.ModelInferRequest(model_name="m", **request_))
    assert caught.value.code is Code.INVALID_TENSOR


def test_t10_surplus_raw_contents_are_refused() -> None:
    one = Input(name="x", datatype="FP32", shape=[1])
    with pytest.raises(GeartrainError, match="has 2 entries, and only 1 of the inputs take one"):
        read(pb.ModelInferRequest(inputs=[one], raw_input_contents=[b"1234", b"1234"]))


def test_empty_tensor_has_an_empty_entry_or_an_empty_list() -> None:
    bare = Input(name="x", datatype="FP32", shape=[0])
    assert read(pb.ModelInferRequest(inputs=[bare], raw_input_contents=[b""])).request.inputs[0].data == b""
    assert bytes(read(pb.ModelInferRequest(inputs=[typed("FP32", [])])).request.inputs[0].data) == b""


@pytest.mark.parametrize("size", [10, 100_000])
def test_unparsable_request_is_the_clients_mistake(size: int) -> None:
    with pytest.raises(GeartrainError) as caught:
        parse(b"\x2a" + b"\xff" * size)
    assert caught.value.code is Code.UNPARSABLE


@pytest.mark.parametrize(
    ("given_", "known"),
    [("", ""), ("1", "1"), ("01", "1"), ("10", "10"), ("0", "0"), ("v0.1.0", "v0.1.0"), ("0.1", "0.1")],
)
def test_version_begins_with_a_number(given_: str, known: str) -> None:
    assert read_version(given_) == known


@pytest.mark.parametrize("version", ["abc", "-1", " 1", "²", "v", "1/2", "1_0"])
def test_version_that_has_no_number_is_refused(version: str) -> None:
    with pytest.raises(GeartrainError) as caught:
        read_version(version)
    assert caught.value.code is Code.INVALID_INPUT


# parameters


def test_parameters_of_every_type_are_read_and_the_servers_own_taken() -> None:
    call = read(
        pb.ModelInferRequest(
            parameters={
                "b": pb.InferParameter(bool_param=True),
                "i": pb.InferParameter(int64_param=-(2**63)),
                "u": pb.InferParameter(uint64_param=2**64 - 1),
                "s": pb.InferParameter(string_param="é"),
                "d": pb.InferParameter(double_param=0.5),
                "binary_data_output": pb.InferParameter(bool_param=True),
                "timeout": pb.InferParameter(int64_param=1_500_000),
                "triton_enable_empty_final_response": pb.InferParameter(bool_param=True),
            }
        )
    )
    expected = {"b": True, "i": -(2**63), "u": 2**64 - 1, "s": "é", "d": 0.5, "binary_data_output": True}
    assert call.request.parameters == expected
    assert call.request.schedule.timeout == pytest.approx(1.5)
    assert call.empty_final


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("triton_other", pb.InferParameter(bool_param=True)),
        ("triton_enable_empty_final_response", pb.InferParameter(string_param="yes")),
        ("timeout", pb.InferParameter(string_param="1")),
        ("timeout", pb.InferParameter(int64_param=-1)),
        ("nothing", pb.InferParameter()),
    ],
)
def test_wrong_parameter_is_named(name: str, value: pb.InferParameter) -> None:
    with pytest.raises(GeartrainError, match=name) as caught:
        read(pb.ModelInferRequest(parameters={name: value}))
    assert caught.value.code is Code.INVALID_INPUT


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (True, "bool_param"),
        (5, "int64_param"),
        (2**63, "uint64_param"),
        (2**64, "string_param"),
        (-(2**64), "string_param"),
        (0.5, "double_param"),
        ("a", "string_param"),
        ("\ud800", "string_param"),
    ],
)
def test_recorded_value_becomes_a_parameter(value: Parameter, field: str) -> None:
    response = InferResponse("m", "1", "", (), {"metric": value})
    message = pb.ModelInferResponse.FromString(b"".join(encode(response)))
    assert message.parameters["metric"].WhichOneof("parameter_choice") == field
    if value != "\ud800":
        assert str(getattr(message.parameters["metric"], field)) == str(value)


# responses


def test_response_is_raw_always() -> None:
    outputs = (Tensor("y", "FP32", (2,), memoryview(raw("FP32", [1, math.nan]))), Tensor("z", "BYTES", (0,), b""))
    message = pb.ModelInferResponse.FromString(b"".join(encode(InferResponse("m", "3", "id", outputs))))
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "id")
    assert [(each.name, each.datatype, list(each.shape)) for each in message.outputs] == [
        ("y", "FP32", [2]),
        ("z", "BYTES", [0]),
    ]
    assert list(message.raw_output_contents) == [raw("FP32", [1, math.nan]), b""]
    assert not any(each.HasField("contents") for each in message.outputs)


def test_default_call_wants_all_outputs() -> None:
    call = read(pb.ModelInferRequest(model_name="m", id="7"))
    assert call == Call("m", "", InferRequest((), "7"))


# errors


def test_every_code_has_a_status() -> None:
    assert set(GRPC_STATUS) == set(Code) == set(GRPC_STATUS)


def test_wrong_fields_are_all_told() -> None:
    fields = (FieldError(("body", "input", "a"), "too small", "x"), FieldError(("body", "input", "b"), "too big", "x"))
    text = GeartrainError(Code.INVALID_INPUT, "It does not fit.", fields=fields).reason
    assert text == "a: too small; b: too big"


@given(st.text(max_size=50), st.integers(0, 500))
def test_status_text_is_short_enough_for_headers(text: str, times: int) -> None:
    short = shorten(text * times)
    assert len(short.encode()) <= 6_100
    if len(text) * times * 12 < 6_000:
        assert short == (text * times).encode(errors="replace").decode()
