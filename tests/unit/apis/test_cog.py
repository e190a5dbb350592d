"""Bodies of Cog's API that are large: read without a second look at all of it, written without a copy."""

from __future__ import annotations

import json

import pytest

from geartrain.apis import cog
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.prediction import Prediction, json_array

LARGE = "x" * 1_000_000


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize(
    "body",
    [
        '{"id":"a","id":"b","input":{"s":"%s"}}',
        '{"id":"a","input":{"s":"%s"},"id":"b"}',
        '{"input":{"s":"%s"},"id":"a","id":"b"}',
        '{"input":{"s":"%s"},"input":{},"id":"a"}',
        '{"input":{},"input":{"s":"%s"},"id":"a"}',
        '{"context":{"id":"%s"},"id":"a","id":"b","input":{}}',
        '{"id":"a", "other":"%s", "id":"b"}',
    ],
)
def test_field_given_twice_beside_a_large_value(body: str, kind: type[bytes | bytearray]) -> None:
    with pytest.raises(GeartrainError, match="duplicate field"):
        cog.read_request(kind((body % LARGE).encode()))


@pytest.mark.parametrize(
    "body",
    [
        '{"id":"a","input":{"id":"%s","context":{"id":1}}}',
        '{"input":{"a":{"id":1},"b":{"id":2},"s":"%s"},"id":"a"}',
        '{"id":"a","input":{"s":"%s","b":{"id":2}},"context":{"input":"x"}}',
        '{"id":"a","input":{"s":"\\"id\\" \\"id\\" %s \\"id\\" \\"id\\""}}',
    ],
)
def test_names_of_fields_inside_of_a_large_input(body: str) -> None:
    request = cog.read_request((body % LARGE).encode())
    assert request.id == "a"
    assert json.loads(cog.input_of(request)) == json.loads(body % LARGE)["input"]


@pytest.mark.parametrize("size", [3, 300_000])
@pytest.mark.parametrize("end", ["running", "streaming", "value", "chunks", "failed"])
def test_parts_are_the_whole(size: int, end: str) -> None:
    text = json.dumps("é\x00\x01 " + "x" * size).encode()
    prediction = Prediction("p\x00\x01", b'{"s":%b}' % text, 1.0)
    prediction.start(1.5)
    prediction.add_log("stdout", "said \x00\x01\n")
    if end == "value":
        prediction.succeed(text, at=2)
    elif end != "running":
        prediction.add_output(text)
        prediction.add_output(text)
    if end == "chunks":
        prediction.succeed(None, at=2)
    elif end == "failed":
        prediction.fail("no \x00", at=2)
    whole = cog.encode_prediction(prediction)
    parts = cog.encode_in_parts(prediction)
    assert b"".join(parts) == whole
    assert json.loads(whole)["input"]["s"] == json.loads(text)
    assert len(parts) == (1 if size == 3 else 3 if end == "running" else 5)
    if size > 3:
        assert parts[1] is prediction.input
    if end == "value" and size > 3:
        assert parts[3] is prediction.output


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_array_of_texts(count: int) -> None:
    assert json.loads(json_array([b'"a"'] * count)) == ["a"] * count
