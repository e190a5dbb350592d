"""Bodies of Cog's API that are large: read without a second look at all of it, written without a copy."""

from __future__ import annotations

import json

import pytest

from geartrain.apis import cog
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord, json_array

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
    prediction = Prediction(PredictionRecord("p\x00\x01", 1.0, 1.0), b'{"s":%b}' % text, 1.0)
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
    assert len(parts) == (1 if size == 3 else {"running": 3, "value": 5}.get(end, 9))
    if size > 3:
        assert parts[1] is prediction.input
    if end == "value" and size > 3:
        assert parts[3] is prediction.output
    elif end != "running" and size > 3:
        assert [part is text for part in parts[4:7:2]] == [True, True]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_array_of_texts(count: int) -> None:
    assert json.loads(json_array([b'"a"'] * count)) == ["a"] * count


def refused(body: bytes) -> GeartrainError:
    with pytest.raises(GeartrainError) as caught:
        cog.read_request(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"input":{},"\\u0069nput":{"a":1}}', "input"),
        (b'{"id":"a","i\\u0064":"b"}', "id"),
        (b'{"webhook":"http://a","web\\u0068ook":null}', "webhook"),
        (b'{"output_file_prefix":"a","output\\u005Ffile_prefix":"b"}', "output_file_prefix"),
        (b'{"id":"a","zz":%b,"id":"b"}' % (b"9" * 5000), "id"),
        (b'{"input":{},"input":{},"zz":[%b{}]}' % (b"{}," * 20_000), "input"),
    ],
)
def test_field_given_twice_however_it_is_written(body: bytes, name: str) -> None:
    error = refused(body)
    assert [(field.loc, field.msg) for field in error.fields] == [(("body", name), f"duplicate field `{name}`")]


def test_escapes_elsewhere_repeat_nothing() -> None:
    request = cog.read_request(b'{"input":{"\\u0061":"\\u0069d","a\\u0061":1},"zz\\u0061":1,"zza":2}')
    assert json.loads(cog.input_of(request)) == {"a": "id", "aa": 1}


def test_members_of_the_envelope_are_at_most_10_000_where_they_are_looked_at() -> None:
    more = ",".join(f'"k{number}":1' for number in range(10_001))
    assert cog.read_request(f'{{"id":"a",{more}}}'.encode()).id == "a"
    assert "more than 10000 members" in refused(f'{{{more},"\\u0069d":"a"}}'.encode()).message


def test_empty_id_is_refused() -> None:
    error = refused(b'{"id":"","input":{}}')
    assert (error.code, error.fields[0].loc) == (Code.INVALID_INPUT, ("body", "id"))


@pytest.mark.parametrize("body", [b'{"input":{"a":"\\ud800"}}', b'"\\uD9ab"', b'{"a":"\\\\\\udbff\\n"}'])
def test_lone_surrogate_at_the_end_is_called_one(body: bytes) -> None:
    error = refused(body)
    assert error.code is Code.UNPARSABLE
    assert "is a lone surrogate: the other half of the pair is missing" in error.message


@pytest.mark.parametrize("body", [b'{"a":"\\ud800\\udc0', b'{"a":"\\\\ud800"', b'{"a":1'])
def test_truncated_body_is_called_that(body: bytes) -> None:
    assert "truncated" in refused(body).message


def test_depth_of_a_body_is_64() -> None:
    assert cog.read_request(b'{"input":%b%b}' % (b"[" * 63, b"]" * 63)).id is None
    error = refused(b'{"input":%b%b}' % (b"[" * 64, b"]" * 64))
    assert (error.code, "nested more than 64 deep" in error.message) == (Code.UNPARSABLE, True)


def test_errors_quote_at_most_200_characters() -> None:
    error = refused(b'{"webhook_events_filter":["%b"]}' % (b"x" * 1_000_000))
    assert len(error.message) <= 200
    assert all(len(part) <= 200 for field in error.fields for part in (field.msg, *field.loc))
