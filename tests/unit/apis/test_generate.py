"""The generate extension's bodies: its document, and observed Triton, section 12, a row for a row."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from geartrain.apis import generate
from geartrain.apis.generate import GenerateRequest, GenerateView
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.signature.types import OutputMode, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Tensor, join_bytes, pack
from tests.support.tensor_models import optional, record, signature, tensor

STRING = TypeSpec("string")
NUMBER = TypeSpec("number")
LLM = signature(
    STRING, prompt=STRING, temperature=optional("temperature", NUMBER), stream=optional("stream", TypeSpec("boolean"))
)


def read(body: Any, model: Signature = LLM) -> GenerateRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return generate.read_request(text, model, TensorView(model))


def values(body: Any, model: Signature = LLM) -> Any:
    return json.loads(read(body, model).values)


def refused(body: Any, model: Signature = LLM) -> str:
    with pytest.raises(GeartrainError) as caught:
        read(body, model)
    assert caught.value.code in {Code.UNPARSABLE, Code.INVALID_INPUT, Code.INVALID_TENSOR}
    return caught.value.message


def test_the_documents_example() -> None:
    body = {"id": "42", "text_input": "client input", "parameters": {"stream": False, "temperature": 0}}
    request = read(body)
    assert json.loads(request.values) == {"prompt": "client input", "stream": False, "temperature": 0}
    assert (request.request.id, request.tensors) == ("42", None)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (signature(STRING, question=STRING, prompt=STRING, text_input=STRING), "text_input"),
        (signature(STRING, question=STRING, prompt=STRING), "prompt"),
        (signature(STRING, n=NUMBER, question=STRING, context=STRING), "question"),
        (signature(STRING, style=optional("style", STRING), question=STRING), "question"),
        (signature(STRING, question=tensor("BYTES", 1)), "question"),
        (signature(STRING, prompt=NUMBER, question=STRING), "question"),
    ],
)
def test_which_input_is_the_text(model: Signature, name: str) -> None:
    assert generate.text_input_of(model) == name


def test_model_without_a_text() -> None:
    model = signature(NUMBER, n=NUMBER, style=optional("style", STRING))
    assert "unexpected 'text_input': the model takes no text. Its inputs are: 'n', 'style'" in refused(
        {"text_input": "a"}, model
    )
    assert values({"n": 5}, model) == {"n": 5}


def test_inputs_by_their_own_names_and_inside_parameters() -> None:
    expected = {"prompt": "a", "temperature": 0.5}
    for body in (
        {"prompt": "a", "temperature": 0.5},
        {"text_input": "a", "temperature": 0.5},
        {"parameters": {"prompt": "a", "temperature": 0.5}},
        {"parameters": {"text_input": "a"}, "temperature": 0.5},
        {"text_input": "a", "parameters": {"temperature": 0.5}},
    ):
        assert values(body) == expected


def test_values_stay_as_they_are_written() -> None:
    body = b'{"text_input":"a\\u00fc\\n","temperature":1.10,"parameters":{}}'
    assert read(body).values == b'{"prompt":"a\\u00fc\\n","temperature":1.10}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"text_input": "a", "extra": [1], "parameters": {"more": {}}}, "unexpected 'extra', 'more': the model has no"),
        ({"text_input": "a", "parameters": {"nested": {"a": 1}}}, "unexpected 'nested'"),
        ({"text_input": "a", "parameters": {"triton_x": 1}}, "parameter 'triton_x' is reserved"),
        ({"text_input": "a", "prompt": "b"}, "input 'prompt' is given more than once"),
        ({"text_input": "a", "parameters": {"prompt": "b"}}, "input 'prompt' is given more than once"),
        ({"text_input": "a", "parameters": 5}, "Expected JSON object for keyword: 'parameters'"),
        ({"text_input": "a", "id": 5}, "Unable to parse 'id'"),
        (b'{"text_input":"a","text_input":"b"}', "member 'text_input' stands more than once"),
        (b'{"text_input":"a","parameters":{"stream":true,"stream":false}}', "member 'stream' stands more than once"),
        (b"", "the body is empty"),
        (b"{", "failed to parse the request JSON buffer"),
        (b'{"text_input":"a"} x', "failed to parse the request JSON buffer"),
        (b'{"text_input":NaN}', "failed to parse the request JSON buffer"),
        (b'{"text_input":"\xff"}', "failed to parse the request JSON buffer"),
        (b'{"text_input":%b}' % (b"[" * 200_000 + b"]" * 200_000), "failed to parse the request JSON buffer"),
        ([], "expected 'object', got 'array'"),
        ("a", "expected 'object', got 'str'"),
    ],
)
def test_t5_what_is_refused(body: Any, text: str) -> None:
    assert text in refused(body)


# null, parameters, lists of one


def test_o1_null_is_absent() -> None:
    body = {"id": None, "text_input": "a", "parameters": None, "temperature": None, "extra": None}
    request = read(body)
    assert (json.loads(request.values), request.request.id, request.request.parameters) == ({"prompt": "a"}, "", {})
    assert values({"parameters": {"stream": None, "other": None}}) == {}
    model = signature(STRING, x=optional("x", tensor("INT32", 1)))
    assert read({"x": None}, model).tensors == ()
    assert 'missing required input "x"' in refused({"x": None}, signature(STRING, x=tensor("INT32", 1)))


def test_o2_what_is_no_input_is_a_parameter() -> None:
    given = {"max_tokens": 2**64 - 1, "top_p": 0.5, "echo": False, "stop": "\n"}
    for body in ({"text_input": "a", **given}, {"text_input": "a", "parameters": given}):
        request = read(body)
        assert (json.loads(request.values), request.request.parameters) == ({"prompt": "a"}, given)


def test_o2_parameters_are_all_the_models() -> None:
    """The extension has none that the server takes for itself, unlike infer."""
    given = {"timeout": 30, "priority": "high"}
    request = read({"text_input": "a", **given}).request
    assert (request.parameters, request.schedule.timeout) == (given, None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"extra": [1]}, "unexpected 'extra': the model has no such input, and only a string, a number or a boolean"),
        ({"extra": {}}, "unexpected 'extra': the model has no such input"),
        ({"extra": []}, "can be a parameter. Its inputs are: 'prompt', 'temperature', 'stream'"),
        ({"extra": 2**64}, "parameter 'extra' is out of range"),
        (b'{"extra":1e999}', "parameter 'extra' is out of range"),
        ({"extra": 1, "parameters": {"extra": 1}}, "parameter 'extra' is given more than once"),
    ],
)
def test_o2_what_can_be_neither_is_refused(body: Any, text: str) -> None:
    assert text in refused(body)


FILE = TypeSpec("path")


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        (STRING, "a"),
        (STRING, ""),
        (TypeSpec("secret"), "a"),
        (TypeSpec("integer"), 3),
        (NUMBER, 1.5),
        (TypeSpec("boolean"), True),
        (FILE, "data:,a"),
    ],
)
def test_o3_list_of_one_is_its_element(kind: TypeSpec, element: Any) -> None:
    assert values({"x": [element]}, signature(STRING, x=kind)) == {"x": element}


def test_o3_list_of_one_for_the_text() -> None:
    assert values({"text_input": ["a"], "parameters": {"temperature": [0]}}) == {"prompt": "a", "temperature": 0}


@pytest.mark.parametrize("value", [[], ["a", "b"], ["a", None]])
def test_o3_another_list_for_a_scalar_is_refused(value: Any) -> None:
    assert "input 'prompt' to tensor with proper shape: it takes a single value" in refused({"text_input": value})


def test_o3_list_for_a_list_stays_one() -> None:
    kinds = {"x": TypeSpec("array", items=STRING), "y": TypeSpec("opaque"), "z": TypeSpec("object")}
    for name, kind in kinds.items():
        assert values({name: ["a"]}, signature(STRING, **{name: kind})) == {name: ["a"]}


# tensors


def shaped(value: Any, datatype: str, *shape: int, variadic: bool = False) -> tuple[tuple[int, ...], bytes]:
    kind = TypeSpec("tensor", datatype=datatype, shape=shape, variadic=variadic)
    request = read({"x": value}, signature(STRING, x=kind))
    assert request.tensors is not None
    (given,) = request.tensors
    assert (given.name, given.datatype, request.values) == ("x", datatype, b"{}")
    return given.shape, bytes(given.data)


def ints(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        (5, (1,), ((1,), ints(5))),
        (5, (-1,), ((1,), ints(5))),
        (5, (1, 1), ((1, 1), ints(5))),
        (5, (), ((), ints(5))),
        ([5], (), ((), ints(5))),
        ([1, 2], (-1,), ((2,), ints(1, 2))),
        ([], (-1,), ((0,), b"")),
        ([1, 2, 3, 4], (2, -1), ((2, 2), ints(1, 2, 3, 4))),
        ([[1, 2], [3, 4]], (-1, 2), ((2, 2), ints(1, 2, 3, 4))),
        ([1, 2], (2,), ((2,), ints(1, 2))),
    ],
)
def test_value_becomes_a_tensor(value: Any, shape: tuple[int, ...], expected: tuple[tuple[int, ...], bytes]) -> None:
    assert shaped(value, "INT32", *shape) == expected


def test_value_of_any_shape_is_flat() -> None:
    assert shaped([[1, 2], [3, 4]], "INT32", -1, variadic=True) == ((4,), ints(1, 2, 3, 4))


def test_o7_value_for_a_variadic_shape_fits_its_fixed_part() -> None:
    kind = TypeSpec("tensor", datatype="INT32", shape=(-1, 3), variadic=True)
    model = signature(STRING, x=kind)
    for value in ([1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]):
        (found,) = read({"x": value}, model).tensors or ()
        assert (found.shape, bytes(found.data)) == ((2, 3), ints(1, 2, 3, 4, 5, 6))
    assert "input 'x' to tensor with proper shape: 4 element(s) for [..., 3]" in refused({"x": [1, 2, 3, 4]}, model)


def test_text_for_a_tensor() -> None:
    assert shaped("ab", "BYTES", 1) == ((1,), b"\2\0\0\0ab")


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "text"),
    [
        ([1, 2], "INT32", (1,), "can not convert input 'x' to tensor with proper shape: 2 element(s) for [1]"),
        ([1, 2, 3], "INT32", (2, -1), "can not convert input 'x' to tensor with proper shape"),
        ([1, 2], "INT32", (-1, -1), "can not convert input 'x' to tensor with proper shape"),
        ([], "INT32", (1,), "can not convert input 'x' to tensor with proper shape"),
        (2**31, "INT32", (1,), "out of range of INT32"),
        (1.5, "INT32", (1,), "INT32 takes an integer, got float"),
        ("1", "INT32", (1,), "INT32 takes an integer, got str"),
        ({"a": 1}, "FP32", (1,), "FP32 takes a number, got object"),
        (1, "FP16", (1,), "receiving FP16 data via JSON is not supported"),
    ],
)
def test_value_that_becomes_no_tensor(value: Any, datatype: str, shape: tuple[int, ...], text: str) -> None:
    assert text in refused({"x": value}, signature(STRING, x=tensor(datatype, *shape)))


def test_tensor_that_is_missing() -> None:
    model = signature(STRING, prompt=STRING, x=tensor("INT32", 1), y=optional("y", tensor("INT32", 1)))
    assert 'missing required input "x"' in refused({"text_input": "a"}, model)
    assert read({"text_input": "a", "x": 1}, model).values == b'{"prompt":"a"}'


# output


def succeeded(output: bytes | None, *chunks: bytes) -> Prediction:
    prediction = Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0)
    prediction.start(0.0)
    for chunk in chunks:
        prediction.add_output(chunk)
    prediction.succeed(output, at=1.0)
    return prediction


def whole(output: TypeSpec, *chunks: bytes, mode: OutputMode = "value") -> Any:
    model = signature(OutputSpec(output, mode))
    view = GenerateView(model, TensorView(model))
    prediction = succeeded(chunks[0]) if mode == "value" else succeeded(None, *chunks)
    return json.loads(generate.encode_response(("m", "1"), "", view.whole(prediction.output, prediction.chunks)))


NAMED = {"model_name": "m", "model_version": "1"}
TEXT_AND_NUMBER = record(text=STRING, n=TypeSpec("integer"))


def test_response_as_documented() -> None:
    outputs = GenerateView(LLM, TensorView(LLM)).whole(b'"model output"', ())
    text = generate.encode_response(("mymodel", "1"), "42", outputs)
    assert text == b'{"id":"42","model_name":"mymodel","model_version":"1","text_output":"model output"}'


@pytest.mark.parametrize(
    ("output", "chunks", "mode", "expected"),
    [
        (STRING, [b'"a"'], "value", {"text_output": "a"}),
        (TypeSpec("integer"), [b"5"], "value", {"output": 5}),
        (TypeSpec("array", items=NUMBER), [b"[1.5]"], "value", {"output": [1.5]}),
        (TypeSpec("object"), [b'{"a":{"b":null}}'], "value", {"output": {"a": {"b": None}}}),
        (TEXT_AND_NUMBER, [b'{"text":"a\\n","n":5}'], "value", {"text": "a\n", "n": 5}),
        (STRING, [b'"a"', b'"b"'], "concatenate", {"text_output": "ab"}),
        (STRING, [], "concatenate", {"text_output": ""}),
        (STRING, [b'"a"', b'"b"'], "iterator", {"text_output": "ab"}),
        (TypeSpec("integer"), [b"1", b"2"], "iterator", {"output": [1, 2]}),
        (TypeSpec("integer"), [], "iterator", {"output": []}),
        (TEXT_AND_NUMBER, [b'{"text":"a","n":1}', b'{"text":"b","n":2}'], "iterator", {"text": "ab", "n": [1, 2]}),
    ],
)
def test_outputs_by_name(output: TypeSpec, chunks: list[bytes], mode: OutputMode, expected: dict[str, Any]) -> None:
    assert whole(output, *chunks, mode=mode) == {**NAMED, **expected}


TEXTS = TypeSpec("array", items=STRING)
TWO_LISTS = record(text_output=TEXTS, lines=TEXTS)


@pytest.mark.parametrize(
    ("output", "chunks", "mode", "expected"),
    [
        (TEXTS, [b'["a","b"]'], "value", {"text_output": "ab"}),
        (TEXTS, [b"[]"], "value", {"text_output": ""}),
        (TEXTS, [b'["a","b"]', b"[]", b'["c"]'], "iterator", {"text_output": "abc"}),
        (TEXTS, [], "iterator", {"text_output": ""}),
        (TypeSpec("string", nullable=True), [b"null"], "value", {"text_output": ""}),
        (
            TWO_LISTS,
            [b'{"text_output":["a","b"],"lines":["c","d"]}'],
            "value",
            {"text_output": "ab", "lines": ["c", "d"]},
        ),
        (
            TWO_LISTS,
            [b'{"text_output":["a"],"lines":["b"]}', b'{"text_output":["c"],"lines":[]}'],
            "iterator",
            {"text_output": "ac", "lines": [["b"], []]},
        ),
        (TypeSpec("array", items=NUMBER), [b"[]"], "value", {"output": []}),
    ],
)
def test_o4_text_output_is_joined(
    output: TypeSpec, chunks: list[bytes], mode: OutputMode, expected: dict[str, Any]
) -> None:
    assert whole(output, *chunks, mode=mode) == {**NAMED, **expected}


@pytest.mark.parametrize("texts", [[], [b"a"], [b"a", b"b"]])
def test_o4_tensor_of_texts_is_joined(texts: list[bytes]) -> None:
    def chunk(name: str) -> bytes:
        return b"".join(pack(b"{}", [Tensor(name, "BYTES", (len(texts),), join_bytes(texts))]))

    joined = b"".join(texts).decode()
    kind = tensor("BYTES", -1)
    assert whole(kind, chunk("output"))["text_output"] == joined
    assert whole(kind, chunk("output"), chunk("output"), mode="iterator")["text_output"] == joined * 2
    elements = [text.decode() for text in texts]
    assert whole(record(t=kind), chunk("t"))["t"] == (elements[0] if len(elements) == 1 else elements)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_o4_output_that_json_has_no_form_for_is_refused_before_the_run(datatype: str) -> None:
    model = signature(record(text=STRING, y=tensor(datatype, -1)), prompt=STRING)
    assert f"output 'y' is {datatype}, which JSON cannot carry: use infer" in refused({"text_input": "a"}, model)


def packed(json_text: bytes = b"{}", **tensors: list[int]) -> bytes:
    given = [Tensor(name, "INT32", (len(numbers),), ints(*numbers)) for name, numbers in tensors.items()]
    return b"".join(pack(json_text, given))


@pytest.mark.parametrize(
    ("output", "chunks", "mode", "expected"),
    [
        (tensor("INT32", -1), [packed(output=[1, 2])], "value", {"output": [1, 2]}),
        (tensor("INT32", -1), [packed(output=[1])], "value", {"output": 1}),
        (record(a=tensor("INT32", -1), t=STRING), [packed(b'{"t":"x"}', a=[1, 2])], "value", {"a": [1, 2], "t": "x"}),
        (tensor("INT32", -1), [packed(output=[1]), packed(output=[2, 3])], "iterator", {"output": [1, 2, 3]}),
        (
            record(a=tensor("INT32", 1), t=STRING),
            [packed(b'{"t":"x"}', a=[1]), packed(b'{"t":"y"}', a=[2])],
            "iterator",
            {"a": [1, 2], "t": "xy"},
        ),
    ],
)
def test_tensors_of_one_element_are_scalars_and_others_flat(
    output: TypeSpec, chunks: list[bytes], mode: OutputMode, expected: dict[str, Any]
) -> None:
    assert whole(output, *chunks, mode=mode) == {**NAMED, **expected}


def test_each_yield_is_a_response() -> None:
    model = signature(OutputSpec(STRING, "concatenate"))
    view = GenerateView(model, TensorView(model))
    event = generate.encode_event(generate.encode_response(("m", "1"), "7", view.one(b'"a\\nb"')))
    assert event == b'data: {"id":"7","model_name":"m","model_version":"1","text_output":"a\\nb"}\n\n'


def test_t6_tensor_that_json_cannot_carry() -> None:
    model = signature(tensor("FP32", 1))
    chunk = b"".join(pack(b"{}", [Tensor("output", "FP32", (1,), struct.pack("<f", float("nan")))]))
    with pytest.raises(GeartrainError, match="NaN"):
        GenerateView(model, TensorView(model)).one(chunk)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"text_input":"a","text\\u005finput":"b"}', "member 'text_input' stands more than once"),
        (b'{"text_input":"a","extra":{"b":{"c":1,"\\u0063":2}}}', "member 'c' stands more than once"),
        (b'{"text_input":"a","x":[%b{}],"x":1}' % (b"{}," * 20_000), "member 'x' stands more than once"),
        (b'{"text_input":%b1%b}' % (b"[" * 64, b"]" * 64), "nested more than 64 deep"),
        ({"text_input": "a", **{f"p{number}": 0 for number in range(10_000)}}, "more than 10000 members"),
        ({"text_input": "a", "parameters": {f"p{n}": 0 for n in range(10_001)}}, "more than 10000 members"),
    ],
)
def test_what_is_too_much_or_stands_twice_is_refused(body: Any, text: str) -> None:
    assert text in refused(body)


def test_colons_and_escapes_in_texts_repeat_nothing() -> None:
    body = b'{"text_input":"a: \\"b\\": 1, \\\\","stop":":","parameters":{"user":"a:b"}}'
    assert read(body).request.parameters == {"stop": ":", "user": "a:b"}


@pytest.mark.parametrize("body", [{"n" * 1_000_000: [1]}, {"parameters": {"triton_" + "n" * 1_000_000: 1}}])
def test_errors_quote_at_most_200_characters(body: Any) -> None:
    assert len(refused({"text_input": "a", **body})) < 500
