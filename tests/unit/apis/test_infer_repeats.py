"""Requests that differ from an earlier one in their numbers only are read as if there had been no earlier one."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.apis import infer_json, open_inference
from geartrain.apis.infer_json import Repeats
from geartrain.apis.open_inference import ALL_JSON
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.inference import InferResponse
from geartrain.domain.tensors import tensor as tensors
from geartrain.domain.tensors.tensor import Tensor, join_bytes
from tests.support.tensor_models import IDENT

DATATYPES = ("FP32", "FP64", "INT8", "UINT8", "INT64", "UINT64", "BOOL", "BYTES", "FP16", "other")
NUMBERS = (
    "1",
    "1,2",
    " 1 , 2.5 ",
    "1,2,3,4",
    "-1,0,1e3,-2.5E-2",
    "1e39,2",
    "1e999,1",
    "300,2",
    "1.5,2",
    "1,2,",
    ",1,2",
    "1,,2",
    "",
    " ",
    "01,2",
    "+1,2",
    "1 2",
    "true,false",
    '"a","b"',
    "null,1",
    "NaN,1",
    "1],[2",
    "[1,2]",
    "[1],[2]",
    '1],"data":[2',
    '1,2],"shape":[1',
    "1,2\\u002c3",
    "9" * 400,
)


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    open_inference._repeats._known.clear()


def no_memory(*arguments: object) -> NoReturn:
    raise AssertionError(arguments)


def read(text: str) -> Any:
    try:
        request, reply = open_inference.read_request(text.encode(), None, IDENT, fetch=no_memory)
    except GeartrainError as error:
        return error.code, error.message, error.fields
    return request, reply


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str]:
    """What stands before and behind the numbers of a request, which may be wrong in itself."""
    name = draw(st.sampled_from(["x", "data", 'a"data":[', "ä", "other"]))
    shape = draw(st.sampled_from([[2], [1], [4], [2, 2], [1, 2], [0], []]))
    members = [
        ("name", json.dumps(name, ensure_ascii=draw(st.booleans()))),
        ("shape", json.dumps(shape)),
        ("datatype", json.dumps(draw(st.sampled_from(DATATYPES)))),
        (draw(st.sampled_from(["data", "data", "data", "d\\u0061ta", "Data"])), "[@]"),
    ]
    members += draw(st.lists(st.sampled_from([("parameters", "{}"), ("data", "[7,8]"), ("shape", "[2]")]), max_size=1))
    members = draw(st.permutations(members))
    colon = draw(st.sampled_from([":", ": ", " : "]))
    one = "{" + ",".join(f'"{key}"{colon}{value}' for key, value in members) + "}"
    whole = [f'"inputs"{colon}[{one}]']
    others = ['"id":"7"', '"id":""', '"parameters":{"data":3}', '"parameters":{"a":1,"timeout":5}', '"z":[1]']
    others += ['"outputs":[{"name":"y"}]', '"outputs":[]', '"outputs":[{"name":"y","parameters":{"binary_data":true}}]']
    whole += draw(st.lists(st.sampled_from(others), max_size=2))
    before, _, after = ("{" + ",".join(draw(st.permutations(whole))) + "}").partition("@")
    return before, after


@given(requests(), st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=4))
def test_a_request_is_read_as_if_there_had_been_no_other(request: tuple[str, str], numbers: list[str]) -> None:
    texts = [each.join(request) for each in numbers]
    alone = []
    for text in texts:
        forget()
        alone.append(read(text))
    forget()
    for _ in range(2):
        assert [read(text) for text in texts] == alone


def test_what_is_remembered_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = '{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[', "]}]}"
    read(f"{before}1,2{after}")
    monkeypatch.setattr(infer_json, "decode", no_memory)
    request, _ = read(f"{before}3, 4.5{after}")
    assert request.inputs[0].data == struct.pack("<2f", 3, 4.5)


@pytest.mark.parametrize(
    "text",
    [
        '{"id":"1","inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}]}',
        '{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[[1],[2]]}]}',
        '{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["a"]}]}',
        '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]},{"name":"y","shape":[1],"datatype":"FP32","data":[1]}]}',
        '{"parameters":{"a":"%s"},"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}' % ("a" * 1024),
    ],
)
def test_what_will_not_come_again_is_not_remembered(text: str) -> None:
    read(text)
    assert not open_inference._repeats._known


def test_only_so_many_are_remembered() -> None:
    repeats = Repeats[int]()
    for number in range(600):
        text = b'{"inputs":[{"name":"%d","shape":[1],"datatype":"FP32","data":[1]}]}' % number
        repeats.remember(text, infer_json.decode(text), number)
        recalled = repeats.recall(text)
        assert recalled is not None
        assert (recalled[0].name, recalled[1]) == (str(number), number)
    assert len(repeats._known) <= 256


# answers

CONTENTS = {
    "FP32": struct.pack("<4f", 1, -2.5, 1e-30, 16777217),
    "FP64": struct.pack("<4d", 0.1, 1e300, -0.0, 5),
    "INT8": struct.pack("<4b", -128, 127, 0, 1),
    "UINT64": struct.pack("<4Q", 2**64 - 1, 0, 1, 2),
    "BOOL": b"\x01\x00\x01\x01",
    "BYTES": join_bytes([b"a", b"", "ä".encode(), b'"']),
    "FP16": bytes(8),
}


@pytest.mark.parametrize("datatype", CONTENTS)
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4, 1)])
def test_an_answer_is_as_it_would_be_written_otherwise(datatype: str, shape: tuple[int, ...]) -> None:
    packed = b"".join(tensors.pack(b"{}", [Tensor('y"ä', datatype, shape, CONTENTS[datatype])]))
    for model in (("m", "1"), ("m", "2"), ('n"', "1")):
        parts = open_inference.encode_packed(model, packed)
        if datatype in {"BOOL", "BYTES", "FP16"}:
            assert parts is None
            continue
        response = InferResponse(*model, "", tuple(tensors.unpack(packed)[1]))
        assert parts == open_inference.encode_response(response, ALL_JSON, store=no_memory).parts


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_carry_is_left_to_the_other_way(number: float) -> None:
    packed = b"".join(tensors.pack(b"{}", [Tensor("y", "FP64", (2,), struct.pack("<2d", 1, number))]))
    assert open_inference.encode_packed(("m", "1"), packed) is None


@pytest.mark.parametrize("count", [0, 2])
def test_an_answer_of_no_tensor_or_several_is_left_to_the_other_way(count: int) -> None:
    packed = b"".join(tensors.pack(b"{}", [Tensor(f"y{i}", "FP32", (1,), bytes(4)) for i in range(count)]))
    assert open_inference.encode_packed(("m", "1"), packed) is None
