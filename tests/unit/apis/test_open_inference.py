"""Infer requests and responses as HTTP bodies: observed Triton, sections 4, 5, 7, 8 and 10, a row for a row."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from geartrain.apis import open_inference, tensor_json
from geartrain.apis.open_inference import Answer, OutputForms, Place
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.inference import NO_SCHEDULE, InferRequest, InferResponse, SchedulePolicy
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.tensors import tensor as tensors
from geartrain.domain.tensors.tensor import Buffer, Tensor, join_bytes
from tests.support.tensor_models import IDENT, SCALAR, TWO, one, optional, record, signature, tensor

REGION = bytes(range(64))
X = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
FOUR = struct.pack("<4f", 1, 2, 3, 4)


@pytest.fixture(params=["small", "large"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every body is read by the reader of small ones, and once more by that of large ones."""
    if request.param == "large":
        tensor_json.load_arrays()
        monkeypatch.setattr(tensor_json, "LARGE", 0)
    yield request.param
    tensor_json._Arrays.module = None


def fetch(region: str, offset: int, size: int) -> Buffer:
    assert region == "r1"
    return memoryview(REGION)[offset : offset + size]


def read(
    body: Any, view: TensorView = IDENT, *, tail: bytes | None = None, size: int | None = None
) -> tuple[InferRequest, OutputForms]:
    """Read a body, and bind it to the model as whoever serves it does; `tail` are the bytes behind the JSON."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    if tail is not None:
        size = len(text) if size is None else size
        text += tail
    request, reply = open_inference.read_request(text, size, view, fetch=fetch)
    if request.outputs is not None:
        view.check_requested(request.outputs)
    view.bind(request.inputs)
    open_inference.check_forms(view, request.outputs, reply)
    return request, reply


def refused(body: Any, view: TensorView = IDENT, **options: Any) -> str:
    """The text of the error; its code is one of a client's mistake."""
    with pytest.raises(GeartrainError) as caught:
        read(body, view, **options)
    assert caught.value.code in {Code.INVALID_TENSOR, Code.INVALID_INPUT, Code.UNPARSABLE}
    body = json.loads(open_inference.encode_error(caught.value))
    assert list(body) == ["error"]
    return str(body["error"])


def x(**changes: Any) -> dict[str, Any]:
    """A request for `ident`, with changes of its input; a value of None takes the member away."""
    return {"inputs": [{name: value for name, value in {**X, **changes}.items() if value is not None}]}


def ab(**changes: Any) -> dict[str, Any]:
    """A request for `two`."""
    two = {"datatype": "INT32", "shape": [2], "data": [1, 2]}
    return {"inputs": [{"name": "a", **two}, {"name": "b", **two}], **changes}


# section 4


def test_the_tensor() -> None:
    request, reply = read(x())
    assert [bytes(t.data) for t in request.inputs] == [FOUR]
    assert (request.inputs[0].name, request.inputs[0].datatype, request.inputs[0].shape) == ("x", "FP32", (2, 2))
    assert (request.id, request.outputs, request.parameters, request.schedule.timeout) == ("", None, {}, None)
    assert reply == OutputForms()


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [1, [2, 3], 4]])
def test_data_flat_or_nested(data: list[Any]) -> None:
    assert bytes(read(x(data=data))[0].inputs[0].data) == FOUR


def test_unknown_members_are_passed_over() -> None:
    body = {**x(parameters={"odd": [1, {"a": None}]}, odd={"b": 1}), "model_name": "z", "odd": [1], "zz": None}
    assert bytes(read(body)[0].inputs[0].data) == FOUR


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[%b],"inputs":[]}',
        b'{"inputs":[%b],"inputs":5}',
        b'{"id":"","inputs":[%b],"id":7}',
        b'{"inputs":[%b],"\\u0069nputs":[]}',
        b'{"inputs":[%b],"zz":"\\"","inputs":null}',
    ],
)
def test_s16_repeated_members_are_refused(text: bytes) -> None:
    assert refused(text % json.dumps(X).encode())


@pytest.mark.parametrize(
    "text",
    [
        b'{"name":"x","name":"z","shape":[1],"datatype":"FP32","data":[7]}',
        b'{"name":"x","shape":[1],"shape":[2],"datatype":"FP32","data":[7],"data":[1,2]}',
        b'{"name":"x","shape":[1],"datatype":"FP32","data":[7],"parameters":{},"parameters":{"binary_data_size":4}}',
    ],
)
def test_s16_repeated_members_of_an_input_are_refused(text: bytes) -> None:
    assert "duplicate field" in refused(b'{"inputs":[%b]}' % text, SCALAR)


def test_outputs_omitted_or_empty_are_all() -> None:
    assert read({**ab(), "outputs": []}, TWO)[0].outputs is None
    assert read(ab(), TWO)[0].outputs is None
    assert read(ab(outputs=[{"name": "diff"}, {"name": "diff"}]), TWO)[0].outputs == ("diff", "diff")


def test_optional_inputs() -> None:
    view = TensorView(signature(record(y=tensor("FP32", 1)), x=optional("x", tensor("FP32", 1))))
    assert read({"inputs": []}, view)[0].inputs == ()


def test_shape_with_a_zero() -> None:
    assert bytes(read(x(shape=[0, 2], data=[]))[0].inputs[0].data) == b""


def answer(*outputs: Tensor, reply: OutputForms | None = None, **fields: Any) -> Answer:
    response = InferResponse(**{"model_name": "ident", "model_version": "1", "id": "", "outputs": outputs, **fields})
    return open_inference.encode_response(response, reply or OutputForms(), store=lambda *_: None)


def text_of(found: Answer) -> bytes:
    return b"".join(found.parts)


Y = Tensor("y", "FP32", (2, 2), FOUR)


def test_response_as_observed() -> None:
    assert text_of(answer(Y)) == (
        b'{"model_name":"ident","model_version":"1","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[2,2],"data":[1.0,2.0,3.0,4.0]}]}'
    )


def test_id_comes_first_and_parameters_stand_before_the_outputs() -> None:
    body = json.loads(text_of(answer(Y, id="4ü", parameters={"n": 1, "f": 0.5, "b": True, "s": "t"})))
    assert list(body) == ["id", "model_name", "model_version", "parameters", "outputs"]
    assert body["id"] == "4ü"
    assert body["parameters"] == {"n": 1, "f": 0.5, "b": True, "s": "t"}


def test_t6_parameter_that_json_cannot_carry_is_left_out() -> None:
    assert json.loads(text_of(answer(Y, parameters={"n": math.nan, "m": 1})))["parameters"] == {"m": 1}


def test_no_output() -> None:
    assert json.loads(text_of(answer()))["outputs"] == []


def test_large_outputs_are_not_copied_into_the_text() -> None:
    large = Tensor("y", "INT32", (50_000,), bytes(200_000))
    found = answer(large, Y, large)
    assert len(found.parts) == 5
    body = json.loads(text_of(found))
    assert [len(output["data"]) for output in body["outputs"]] == [50_000, 4, 50_000]


# section 5


@pytest.mark.parametrize(
    ("body", "view", "text"),
    [
        (x(shape=[4]), SCALAR, "unexpected shape for input 'x'. Expected [1], got [4]"),
        (x(shape=[1, 1], data=[1]), SCALAR, "unexpected shape for input 'x'. Expected [1], got [1, 1]"),
        (x(datatype="INT32"), IDENT, "input 'x' has datatype INT32; the model expects FP32"),
        (x(datatype="FLOAT"), IDENT, "invalid datatype for input x"),
        (x(datatype="fp32"), IDENT, "invalid datatype for input x"),
        ({"inputs": []}, TWO, "expected 2 input(s) but got 0: missing required input(s) ['a', 'b']"),
        ({"inputs": ab()["inputs"][:1]}, TWO, "missing required input(s) ['b']"),
        ({"inputs": [*ab()["inputs"], {**ab()["inputs"][0], "name": "c"}]}, TWO, "unexpected inference input 'c'"),
        ({"inputs": [X, X]}, IDENT, "input 'x' already exists in request"),
        ({**x(), "outputs": [{"name": "zz"}]}, IDENT, "unexpected inference output 'zz'"),
        (x(data=None), IDENT, "'shared_memory_region' in 'parameters'. But no field is set"),
        (x(parameters={"binary_data_size": 4}), IDENT, "But set 'data' 'binary_data_size'"),
        (
            x(parameters={"binary_data_size": 4, "shared_memory_region": "r1", "shared_memory_byte_size": 1}),
            IDENT,
            "But set 'data' 'binary_data_size' 'shared_memory_region'",
        ),
    ],
)
def test_what_does_not_fit_the_model(body: Any, view: TensorView, text: str) -> None:
    assert text in refused(body, view)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Unable to parse 'inputs': the field is missing"),
        (x(name=None), "Unable to parse 'inputs[0].name': the field is missing"),
        (x(shape=None), "Unable to parse 'inputs[0].shape': the field is missing"),
        (x(datatype=None), "Unable to parse 'inputs[0].datatype': the field is missing"),
        ({"inputs": 5}, "Unable to parse 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs'"),
        ({"inputs": [5]}, "Unable to parse 'inputs[0]'"),
        ({"inputs": [None]}, "Unable to parse 'inputs[0]'"),
        (x(name=5), "Unable to parse 'inputs[0].name'"),
        (x(datatype=5), "Unable to parse 'inputs[0].datatype'"),
        (x(shape=5), "Unable to parse 'inputs[0].shape'"),
        (x(shape=[-1, 2]), "Unable to parse 'inputs[0].shape[0]'"),
        (x(shape=[2.0, 2]), "Unable to parse 'inputs[0].shape[0]'"),
        (x(shape=["2", 2]), "Unable to parse 'inputs[0].shape[0]'"),
        (x(shape=[True, 2]), "Unable to parse 'inputs[0].shape[0]'"),
        (x(data=5), "Unable to parse 'data' of input 'x': expected an array"),
        (x(data={}), "Unable to parse 'data' of input 'x': expected an array"),
        (x(data=["a", 2, 3, 4]), "Unable to parse 'data' of input 'x': FP32 takes a number, got str at [0]"),
        (x(data=[1, 2, 3]), "Shape does not match true shape of 'data' field"),
        (x(parameters=5), "Unable to parse 'inputs[0].parameters'"),
        ({**x(), "id": 5}, "Unable to parse 'id'"),
        ({**x(), "outputs": 5}, "Unable to parse 'outputs'"),
        ({**x(), "outputs": [{}]}, "Unable to parse 'outputs[0].name'"),
        ({**x(), "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data'"),
        ({**x(), "parameters": 5}, "Unable to parse 'parameters'"),
        ([], "Unable to parse the request: expected 'object', got 'array'"),
        (None, "Unable to parse the request: expected 'object', got 'null'"),
        ("x", "Unable to parse the request: expected 'object', got 'str'"),
    ],
)
def test_t5_wrong_json_is_a_clients_mistake(body: Any, text: str) -> None:
    assert text in refused(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{x",
        b"{'inputs':[]}",
        json.dumps(x()).encode() + b" x",
        json.dumps(x()).encode() * 2,
        b'{"inputs":[],}',
        b'{"inputs":[]',
        b'{"inputs":[],"zz":tru}',
        b'{"inputs":[],"zz":01}',
        json.dumps(x()).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(x()).encode(),
    ],
)
def test_t5_malformed_json_is_a_clients_mistake(body: bytes) -> None:
    assert "failed to parse the request JSON buffer" in refused(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[],"id":"\xff"}',
        b'{"inputs":[],"zz":"\xff"}',
        b'{"inputs":[],"\xc3\x28":1}',
        b'{"inputs":[],"id":"\\ud800"}',
        b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[NaN]}]}',
        b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[Infinity]}]}',
        b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[-Infinity]}]}',
        b'{"inputs":[],"zz":NaN}',
    ],
)
def test_t6_what_is_no_json_is_refused_wherever_it_stands(body: bytes) -> None:
    assert "failed to parse the request JSON buffer" in refused(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":%b}]}' % (b"[" * 200_000 + b"]" * 200_000),
        b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":%b' % (b"[" * 200_000),
        b'{"inputs":[],"zz":%b}' % (b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
        b"[" * 200_000,
    ],
)
def test_t1_deep_nesting_is_refused(body: bytes) -> None:
    refused(body)


@pytest.mark.parametrize(
    "shape",
    [
        [1099511627776, 1099511627776],
        [2**32, 2**32, 0],
        [2**64 - 1],
        [2**70, 0],
        [0] * 65,
        [2**63] * 1000,
    ],
)
def test_t3_shapes_that_no_memory_holds(shape: list[int]) -> None:
    view = TensorView(signature(record(y=tensor("FP32", 1)), x=tensor("FP32", *[-1] * len(shape))))
    for data in ([1, 2, 3, 4], []):
        assert re.search(r"too many elements|dimensions; at most 64", refused(x(shape=shape, data=data), view))


def test_t10_surplus_elements_of_an_empty_shape() -> None:
    assert "Shape does not match" in refused(x(shape=[0, 2], data=[1]))


def test_many_members_are_read_in_time() -> None:
    body = {**x(), **{f"zz{number}": number for number in range(9_000)}}
    assert bytes(read(body)[0].inputs[0].data) == FOUR


def test_unknown_members_cost_nothing_where_nobody_looks_at_them(path: str) -> None:
    body = {**x(), **{f"zz{number}": 0 for number in range(10_001)}}
    if path == "large":
        assert bytes(read(body)[0].inputs[0].data) == FOUR
    else:
        assert "more than 10000 members" in refused(body)


def test_inputs_and_outputs_are_at_most_10_000() -> None:
    assert "at most 10000 inputs" in refused({"inputs": [X] * 10_001})
    assert "at most 10000 inputs" in refused({**x(), "outputs": [{"name": "y"}] * 10_001})


def test_parameters_are_at_most_10_000() -> None:
    assert "'parameters' has more than 10000 members" in refused(
        {**x(), "parameters": {f"p{number}": 0 for number in range(10_001)}}
    )
    many = {f"p{n}": n for n in range(100)}
    assert read({**x(), "parameters": many})[0].parameters == many


def test_a_body_that_is_cut_off_anywhere_is_refused() -> None:
    """Also where a field is missing, or a member stands twice, in front of the end."""
    whole = b'{"inputs":[{"name":"x","datatype":"INT64","data":[[5]]}],"parameters":{"a":1,"a":2},"more":{"q":[1]}}'
    for size in range(len(whole)):
        assert "failed to parse the request JSON" in refused(whole[:size]), whole[:size]
    assert "duplicate field 'a'" in refused(whole)


def test_s16_repeated_parameters_are_refused() -> None:
    few = b'{"inputs":[%b],"parameters":{"a":1,"b":2,"\\u0061":3}}' % json.dumps(X).encode()
    assert "duplicate field 'a'" in refused(few)
    names = b",".join(b'"p%d":%d' % (number % 70, number) for number in range(140))
    many = b'{"inputs":[%b],"parameters":{%b}}' % (json.dumps(X).encode(), names)
    assert "duplicate field 'p0'" in refused(many)


@pytest.mark.parametrize("member", [{"a": [[1]]}, [1, 2], {}])
def test_parameter_that_is_no_single_value_is_refused(member: Any) -> None:
    assert "parameter 'odd' has invalid type" in refused({**x(), "parameters": {"odd": member}})


def test_shape_of_many_dimensions_is_refused_before_it_is_read() -> None:
    assert "has 100000 dimensions; at most 64 are accepted" in refused(x(shape=[1] * 100_000))


def test_deep_data_is_refused() -> None:
    body = b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":%b1%b}]}' % (b"[" * 70, b"]" * 70)
    assert "nested more than 64 deep" in refused(body)


@pytest.mark.parametrize("data", ["[[],[1,2],[],[],[3],[[4]]]", "[ [ ] ,1, [ [ ],2 ] , [3,4 ] ,[\t]]"])
def test_empty_lists_among_the_data_hold_nothing(data: str) -> None:
    body = '{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":%s}]}' % data  # noqa: UP031 - JSON has braces
    assert bytes(read(body.encode())[0].inputs[0].data) == FOUR


def test_elements_of_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_TEXTS", 3)
    monkeypatch.setattr(tensor_json, "MAX_TEXTS", 3)
    view = one("BYTES", -1)
    too_many: list[list[Any]] = [["a"] * 4, [["a"], ["b"], ["c"], ["d"]], [[], [], [], []]]
    for data in too_many:
        assert "more than 3 elements" in refused(x(datatype="BYTES", shape=[4], data=data), view)
    body = x(datatype="BYTES", shape=[4], data=None, parameters={"binary_data_size": 16})
    assert "more than 3 elements" in refused(body, view, tail=bytes(16))
    assert read(x(datatype="BYTES", shape=[3], data=["a,", "[b,", "c"]), view)[0].inputs[0].shape == (3,)


LONG = "n" * 1_000_000


@pytest.mark.parametrize(
    "body",
    [
        x(name=LONG),
        x(name=LONG, shape=[1] * 65),
        x(name=LONG, datatype=LONG),
        x(name=LONG, data=["a"]),
        x(name=LONG, data=None),
        x(datatype=LONG),
        x(shape=[10**30] * 60),
        {**x(), "parameters": {LONG: [1]}},
        {**x(), "parameters": {f"triton_{LONG}": 1}},
        {**x(), "outputs": [{"name": LONG}]},
        {**x(), "outputs": [{"name": LONG, "parameters": {"classification": 1}}]},
        x(data=[LONG, 1, 2, 3]),
    ],
    ids=range(12),
)
def test_errors_quote_at_most_200_characters(body: Any) -> None:
    text = refused(body)
    assert "n" * 201 not in text
    assert len(text) < 800


# section 6: what only the request as a whole shows


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_16_bit_floats_are_refused_before_the_run(datatype: str) -> None:
    view = one(datatype, 1)
    given = {"name": "x", "shape": [1], "datatype": datatype}
    assert f"receiving {datatype} data via JSON is not supported" in refused({"inputs": [{**given, "data": [1]}]}, view)
    binary = {"inputs": [{**given, "parameters": {"binary_data_size": 2}}]}
    assert f"sending {datatype} data via JSON is not supported" in refused(binary, view, tail=b"\0\0")
    wanted = {**binary, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    assert read(wanted, view, tail=b"\0\0")[1].is_binary("y")


# section 7


def binary(size: int = 16, **more: Any) -> dict[str, Any]:
    return {**x(data=None, parameters={"binary_data_size": size}), **more}


def test_binary_input() -> None:
    request, _ = read(binary(), tail=FOUR)
    assert bytes(request.inputs[0].data) == FOUR


def test_json_and_binary_inputs_mix() -> None:
    a, b = ab()["inputs"]
    raw = {"name": "b", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}
    assert [bytes(t.data) for t in read({"inputs": [raw, a]}, TWO, tail=struct.pack("<2i", 5, 6))[0].inputs] == [
        struct.pack("<2i", 5, 6),
        struct.pack("<2i", 1, 2),
    ]
    raws = [{**raw, "name": "a"}, raw]
    assert [bytes(t.data) for t in read({"inputs": raws}, TWO, tail=bytes(range(16)))[0].inputs] == [
        bytes(range(8)),
        bytes(range(8, 16)),
    ]
    assert b["name"] == "b"


def test_header_is_legal_when_nothing_is_binary() -> None:
    assert bytes(read(x(), tail=b"")[0].inputs[0].data) == FOUR


@pytest.mark.parametrize(
    ("body", "tail", "text"),
    [
        (binary(12), FOUR[:12], "input byte size mismatch for input 'x'. Expected 16 bytes"),
        (binary(), FOUR[:12], "unexpected size for input 'x', expecting 4 additional bytes"),
        (binary(), FOUR + b"\0", "unexpected additional input data"),
        (x(), b"\0", "unexpected additional input data"),
        (binary(-1), FOUR, "Unable to parse 'inputs[0].parameters.binary_data_size'"),
        (binary(), b"", "expecting 16 additional bytes"),
        ({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": "16"}}]}, FOUR, "binary_data_size'"),
        ({"inputs": [{**X, "data": None, "parameters": {"binary_data_size": 16.0}}]}, FOUR, "binary_data_size'"),
    ],
)
def test_binary_sizes_that_do_not_fit(body: Any, tail: bytes, text: str) -> None:
    assert text in refused(body, tail=tail)


def test_header_length_that_is_missing_or_wrong() -> None:
    text = json.dumps(binary()).encode()
    assert "Inference-Header-Content-Length" in refused(text)
    assert "failed to parse" in refused(text + FOUR)
    assert "failed to parse" in refused(text + FOUR, size=len(text) - 1)
    assert f"should be in range (0, {len(text)}), got: 99999" in refused(text, size=99_999)
    assert "got: -5" in refused(text, size=-5)


@pytest.mark.parametrize(
    ("data", "shape", "text"),
    [
        (b"\x0a\0\0\0abc", [1], "incomplete string data for input 'x': a string of 10 bytes, but 3 bytes left"),
        (b"\x0a\0\0", [1], "incomplete string length indicator for input 'x'"),
        (join_bytes([b"a", b"b"]), [1], "unexpected number of string elements for input 'x': 2 for 1"),
        (join_bytes([b"a"]), [2], "unexpected number of string elements for input 'x': 1 for 2"),
    ],
)
def test_binary_strings_that_do_not_fit(data: bytes, shape: list[int], text: str) -> None:
    body = {
        "inputs": [{"name": "x", "shape": shape, "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}]
    }
    assert text in refused(body, one("BYTES", -1), tail=data)


def wanted(*, binary: Any = None, **outputs: Any) -> OutputForms:
    """How outputs would come; each is named with its `binary_data`, None for no parameters."""
    body = ab(
        outputs=[
            {"name": name} if value is None else {"name": name, "parameters": {"binary_data": value}}
            for name, value in outputs.items()
        ]
    )
    if binary is not None:
        body["parameters"] = {"binary_data_output": binary}
    return read(body, TWO)[1]


def test_outputs_of_either_form() -> None:
    assert not wanted().is_binary("sum")
    assert wanted(binary=True).is_binary("sum")
    assert wanted(sum=True).is_binary("sum")
    assert not wanted(sum=True, diff=None).is_binary("diff")
    assert not wanted(binary=True, sum=False).is_binary("sum")
    assert not wanted(binary=False, sum=None).is_binary("sum")


def test_t13_binary_data_output_covers_listed_outputs() -> None:
    assert wanted(binary=True, sum=None).is_binary("sum")


def test_binary_response_as_observed() -> None:
    found = answer(Y, reply=OutputForms(binary=True))
    head = (
        b'{"model_name":"ident","model_version":"1","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}]}'
    )
    assert (text_of(found), found.json_size) == (head + FOUR, len(head))


def test_response_of_both_forms() -> None:
    found = answer(Y, Tensor("z", "INT8", (1,), b"\7"), reply=OutputForms(binary_of={"y": True}))
    assert found.json_size is not None
    body = json.loads(text_of(found)[: found.json_size])
    assert body["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
        {"name": "z", "datatype": "INT8", "shape": [1], "data": [7]},
    ]
    assert text_of(found)[found.json_size :] == FOUR


def test_binary_response_of_no_bytes_is_json() -> None:
    found = answer(Tensor("y", "FP32", (0, 2), b""), reply=OutputForms(binary=True))
    assert found.json_size is None
    assert json.loads(text_of(found))["outputs"][0]["parameters"] == {"binary_data_size": 0}


# section 8


@pytest.mark.parametrize(
    ("view", "body", "shape", "data"),
    [
        (SCALAR, b"\0\0\x80\x3f", (1,), b"\0\0\x80\x3f"),
        (one("INT16", -1, 2), b"\1\0\2\0\3\0\4\0", (2, 2), b"\1\0\2\0\3\0\4\0"),
        (one("INT16", -1, 2), b"", (0, 2), b""),
        (one("BYTES", 1), b"hello", (1,), join_bytes([b"hello"])),
        (one("BYTES", -1), join_bytes([b"a", b"bc"]), (2,), join_bytes([b"a", b"bc"])),
    ],
)
def test_raw_request(view: TensorView, body: bytes, shape: tuple[int, ...], data: bytes) -> None:
    request, reply = read(body, view, size=0)
    assert (request.inputs[0].shape, bytes(request.inputs[0].data)) == (shape, data)
    assert reply.is_binary("y")


@pytest.mark.parametrize(
    ("view", "body", "text"),
    [
        (SCALAR, b"\0\0\x80", "input byte size mismatch for input 'x'"),
        (SCALAR, bytes(8), "input byte size mismatch for input 'x'"),
        (SCALAR, b"", "input byte size mismatch for input 'x'"),
        (one("INT16", -1, 2), b"\1\0", "input byte size mismatch for input 'x'"),
        (IDENT, FOUR, "can not be deduced because there are more than one variable-sized dimension"),
        (TWO, FOUR, "Raw request must only have 1 input"),
    ],
)
def test_raw_request_that_does_not_fit(view: TensorView, body: bytes, text: str) -> None:
    assert text in refused(body, view, size=0)


# section 10


def with_parameters(**parameters: Any) -> dict[str, Any]:
    return {**x(), "parameters": parameters}


def test_parameters_reach_the_model() -> None:
    own = {"s": "t", "": -5, "u": 2**64 - 1, "f": 0.5, "b": False}
    assert read(with_parameters(**own))[0].parameters == own


def test_parameters_that_the_server_takes() -> None:
    request, reply = read(
        with_parameters(
            timeout=1_500_000,
            priority=1,
            sequence_id="s",
            sequence_start=True,
            sequence_end=False,
            binary_data_output=True,
            own=1,
        )
    )
    assert (request.schedule, reply.binary) == (SchedulePolicy(1.5, 1), True)
    assert request.parameters == {"sequence_id": "s", "sequence_start": True, "sequence_end": False, "own": 1}
    assert read(with_parameters(priority=0))[0].schedule is NO_SCHEDULE
    assert read(with_parameters(timeout=0, sequence_id=7))[0].schedule.timeout is None


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"n": [1]}, "parameter 'n' has invalid type. It should be either 'int', 'float', 'bool', or 'string'."),
        ({"n": {"a": 1}}, "parameter 'n' has invalid type"),
        ({"n": 2**64}, "parameter 'n' is out of range"),
        ({"n": -(2**63) - 1}, "parameter 'n' is out of range"),
        ({"triton_x": 1}, "parameter 'triton_x' is reserved"),
        ({"timeout": "1"}, "parameter 'timeout' has an invalid value"),
        ({"timeout": 1.5}, "parameter 'timeout' has an invalid value"),
        ({"timeout": True}, "parameter 'timeout' has an invalid value"),
        ({"timeout": -1}, "parameter 'timeout' has an invalid value"),
        ({"priority": "high"}, "parameter 'priority' has an invalid value"),
        ({"sequence_id": True}, "parameter 'sequence_id' has an invalid value"),
        ({"sequence_start": 1}, "parameter 'sequence_start' has an invalid value"),
        ({"binary_data_output": 1}, "parameter 'binary_data_output' has an invalid value"),
    ],
)
def test_t5_parameters_that_are_refused(parameters: dict[str, Any], text: str) -> None:
    assert text in refused(with_parameters(**parameters))


@pytest.mark.parametrize(("count", "is_fine"), [(0, True), (1, False), (2**40, False), (-1, False), ("1", False)])
def test_t1_classification_is_off_or_refused(count: Any, is_fine: bool) -> None:
    body = {**x(), "outputs": [{"name": "y", "parameters": {"classification": count}}]}
    if is_fine:
        read(body)
    else:
        assert "classification" in refused(body)


def test_other_parameters_of_inputs_and_outputs_are_passed_over() -> None:
    body = {**x(parameters={"a": {"b": 1}}), "outputs": [{"name": "y", "parameters": {"a": [1]}}]}
    assert read(body)[0].outputs == ("y",)


# section 15


def shared(**parameters: Any) -> dict[str, Any]:
    return x(data=None, parameters={"shared_memory_region": "r1", **parameters})


def test_input_in_shared_memory() -> None:
    request, _ = read(shared(shared_memory_byte_size=16, shared_memory_offset=4))
    assert bytes(request.inputs[0].data) == REGION[4:20]
    assert bytes(read(shared(shared_memory_byte_size=16))[0].inputs[0].data) == REGION[:16]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (shared(), "input 'x' names a shared memory region without 'shared_memory_byte_size'"),
        (shared(shared_memory_byte_size=8), "input byte size mismatch for input 'x'"),
        (shared(shared_memory_byte_size=-8), "shared_memory_byte_size'"),
        (shared(shared_memory_byte_size=16, shared_memory_offset=-1), "shared_memory_offset'"),
    ],
)
def test_input_in_shared_memory_that_does_not_fit(body: Any, text: str) -> None:
    assert text in refused(body)


def test_output_to_shared_memory() -> None:
    parameters = {"shared_memory_region": "r1", "shared_memory_byte_size": 20, "shared_memory_offset": 8}
    _, reply = read({**x(), "outputs": [{"name": "y", "parameters": parameters}]})
    assert reply.places == {"y": Place("r1", 8, 20)}
    stored = []
    response = InferResponse("ident", "1", "", (Y,))
    found = open_inference.encode_response(response, reply, store=lambda *given: stored.append(given))
    assert stored == [("r1", 8, FOUR)]
    assert json.loads(text_of(found))["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 2]}]


def test_output_that_is_too_large_for_its_place() -> None:
    with pytest.raises(GeartrainError, match=r"output 'y' \(8 bytes\) should be at least 16 bytes") as caught:
        answer(Y, reply=OutputForms(places={"y": Place("r1", 0, 8)}))
    assert caught.value.code is Code.INVALID_TENSOR


def test_output_of_two_forms() -> None:
    parameters = {"shared_memory_region": "r1", "shared_memory_byte_size": 16, "binary_data": True}
    body = {**x(), "outputs": [{"name": "y", "parameters": parameters}]}
    assert "Output can't set both 'shared_memory_region' and 'binary_data'" in refused(body)


# null is absent


SHARED = {"shared_memory_region": "r1", "shared_memory_byte_size": 16}


@pytest.mark.parametrize(
    "body",
    [
        {**x(), "id": None},
        {**x(), "parameters": None},
        {**x(), "outputs": None},
        {**x(), "id": None, "parameters": None, "outputs": None},
        {**x(), "parameters": {"timeout": None, "own": None, "binary_data_output": None}},
        {"inputs": [{**X, "parameters": None}]},
        x(parameters={"binary_data_size": None, "shared_memory_region": None}),
        x(parameters={"shared_memory_offset": None, "shared_memory_byte_size": None}),
        {**x(), "outputs": [{"name": "y", "parameters": None}]},
        {**x(), "outputs": [{"name": "y", "parameters": dict.fromkeys(["binary_data", "classification"])}]},
        {**x(), "outputs": [{"name": "y", "parameters": dict.fromkeys([*SHARED, "shared_memory_offset"])}]},
    ],
)
def test_o1_null_is_absent(body: dict[str, Any]) -> None:
    request, reply = read(body)
    assert (bytes(request.inputs[0].data), request.id, request.parameters) == (FOUR, "", {})
    assert request.outputs == (("y",) if body.get("outputs") else None)
    assert (request.schedule.timeout, reply) == (None, OutputForms())


def test_o1_null_data_is_absent() -> None:
    binary_input = {**X, "data": None, "parameters": {"binary_data_size": 16, "shared_memory_region": None}}
    assert bytes(read({"inputs": [binary_input]}, tail=FOUR)[0].inputs[0].data) == FOUR
    shared_input = {**X, "data": None, "parameters": {**SHARED, "shared_memory_offset": None}}
    assert bytes(read({"inputs": [shared_input]})[0].inputs[0].data) == REGION[:16]
    assert "But no field is set for input 'x'" in refused({"inputs": [{**X, "data": None}]})


@pytest.mark.parametrize("member", ["inputs", "name", "shape", "datatype"])
def test_o1_null_of_a_required_member_is_refused(member: str) -> None:
    body = {**x(), "inputs": None} if member == "inputs" else {"inputs": [{**X, member: None}]}
    assert f"{member}': expected '" in refused(body)


@pytest.mark.parametrize("name", ["parameters", "outputs", "id"])
def test_s16_null_after_the_same_member_is_refused(name: str) -> None:
    values = {"parameters": '{"own":1}', "outputs": '[{"name":"y"}]', "id": '"7"'}
    text = f'{{"inputs":[{json.dumps(X)}],"{name}":{values[name]},"{name}":null}}'
    assert f"duplicate field '{name}'" in refused(text.encode())


def test_error_names_every_field() -> None:
    fields = (
        FieldError(("body", "input", "n"), "5 is less than 6", "value_error"),
        FieldError(("body", "input", "s"), "Field required", "value_error.missing"),
    )
    error = GeartrainError(Code.INVALID_INPUT, "The input does not fit.", fields=fields)
    assert json.loads(open_inference.encode_error(error)) == {
        "error": 'n: 5 is less than 6; missing required input "s"'
    }


def test_t6_error_is_json_whatever_its_text() -> None:
    error = GeartrainError(Code.NOT_FOUND, "bad \ud800 text")
    assert json.loads(open_inference.encode_error(error)) == {"error": "bad ? text"}
