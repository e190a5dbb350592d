"""Observed Cog, section 6: the request body of POST and PUT, and every way in which it can be wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve
from tests.support.wire import connection

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 4096
MODEL = """
    from geartrain import current_scope

    def run(s: str = "default", n: int = 0) -> list[str]:
        return [s, current_scope().prediction_id, *(f"{k}={v}" for k, v in sorted(current_scope().context.items()))]
"""
JSON = "application/json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL, max_body_bytes=LIMIT) as server:
        yield server


async def post(server: LiveServer, body: bytes | str, content_type: str | None = JSON) -> httpx.Response:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await server.client.post("/predictions", content=body, headers=headers)
    assert response.headers["content-type"] == JSON
    return response


async def output(server: LiveServer, body: bytes | str, content_type: str | None = JSON) -> list[str]:
    response = await post(server, body, content_type)
    assert response.status_code == 200, response.text
    answer: list[str] = response.json()["output"]
    return answer


async def refusal(server: LiveServer, body: bytes | str, content_type: str | None = JSON) -> tuple[int, str]:
    """The status and the sentence of an answer without fields."""
    response = await post(server, body, content_type)
    answer = response.json()
    assert set(answer) == {"error", "status"}
    assert answer["status"] == "failed"
    return response.status_code, answer["error"]


async def places(server: LiveServer, body: bytes | str) -> list[list[str]]:
    """Where a refused body is wrong."""
    response = await post(server, body)
    assert response.status_code == 422, response.text
    assert set(response.json()) == {"detail"}
    for error in response.json()["detail"]:
        assert set(error) == {"loc", "msg", "type"}
        assert error["type"] == "value_error"
        assert error["msg"]
    return [error["loc"] for error in response.json()["detail"]]


# content types


async def test_no_body_and_no_content_type(server: LiveServer) -> None:
    assert (await output(server, b"", None))[0] == "default"


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "APPLICATION/JSON",
        "application/vnd.api+json",
        "application/problem+json; charset=utf-8",
    ],
)
async def test_accepted_content_types(server: LiveServer, content_type: str) -> None:
    assert (await output(server, '{"input":{"s":"x"}}', content_type))[0] == "x"


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/json",
        "multipart/mixed; boundary=x",
        "application/jsonx",
        "application/octet-stream",
        "json",
    ],
)
async def test_other_content_types_are_415(server: LiveServer, content_type: str) -> None:
    expected = 415, "Expected request with `Content-Type: application/json`"
    assert await refusal(server, "{}", content_type) == expected
    assert await refusal(server, "", content_type) == expected


async def test_urlencoded_form_is_415_with_a_hint(server: LiveServer) -> None:
    status, error = await refusal(server, "{}", "application/x-www-form-urlencoded")
    assert status == 415
    assert error.startswith("Expected request with `Content-Type: application/json`. ")
    assert "-H 'Content-Type: application/json'" in error


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_d8_body_without_content_type_is_415(server: LiveServer, method: str) -> None:
    path = "/predictions" if method == "POST" else "/predictions/d8"
    body = '{"input":{"s":"x"}}'
    for framing in (
        f"content-length: {len(body)}\r\n\r\n{body}",
        f"transfer-encoding: chunked\r\n\r\n13\r\n{body}\r\n0\r\n\r\n",
    ):
        async with connection(server.url) as wire:
            answer = await wire.ask(f"{method} {path} HTTP/1.1\r\nhost: t\r\n{framing}".encode())
            assert answer.status == 415
            assert "application/json" in answer.json()["error"]


# text that is no JSON: 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{bad",
        b'{"input":{}',
        b'{"input":{}}x',
        b'{"input":{"s":"\xff"}}',
        b'{"id":"\xff"}',
        b'{"input":{"s":"\\ud800"}}',
        b'{"id":"\\udfff"}',
        b'{"input":{"n":01}}',
        b'{"input":{"n":NaN}}',
        b'{"input":{"s":"\x01"}}',
        b'{"input":{"s":1e999}}',
        b'\xef\xbb\xbf{"input":{}}',
        b"\x80\x04\x95",
        b'{"input":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
async def test_unparsable_body_is_400(server: LiveServer, body: bytes) -> None:
    status, sentence = await refusal(server, body)
    assert status == 400
    assert sentence


async def test_unparsable_body_says_where(server: LiveServer) -> None:
    for body in (b"", b"{bad", b'{"id":"5"'):
        _, sentence = await refusal(server, body)
        assert sentence.startswith("Failed to parse the request body as JSON: ")


# JSON of the wrong shape: 422


@pytest.mark.parametrize("body", ["null", '"x"', "5", "true", "[]", "[{}]"])
async def test_body_that_is_no_object(server: LiveServer, body: str) -> None:
    assert await places(server, body) == [["body"]]


async def test_d9_array_is_no_request(server: LiveServer) -> None:
    assert await places(server, '["arr",{"s":"x"},{},null,["start"]]') == [["body"]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", 5),
        ("id", ["x"]),
        ("context", None),
        ("context", "x"),
        ("context", []),
        ("webhook", 5),
        ("webhook_events_filter", None),
        ("webhook_events_filter", "start"),
        ("created_at", "yesterday"),
        ("created_at", {}),
    ],
)
async def test_field_of_a_wrong_type(server: LiveServer, field: str, value: object) -> None:
    assert await places(server, json.dumps({field: value})) == [["body", field]]


async def test_elements_of_a_wrong_type(server: LiveServer) -> None:
    assert await places(server, '{"webhook_events_filter":["start","finish"]}') == [
        ["body", "webhook_events_filter", "1"]
    ]
    assert await places(server, '{"context":{"a":"b","c":1}}') == [["body", "context"]]


@pytest.mark.parametrize("value", ["[]", '"text"', "5", "true", "1.5"])
async def test_input_that_is_no_object(server: LiveServer, value: str) -> None:
    response = await post(server, f'{{"input":{value}}}')
    assert response.status_code == 422
    assert response.json() == {
        "detail": [
            {"loc": ["body", "input", "__root__"], "msg": f'{value} is not of type "object"', "type": "value_error"}
        ]
    }


@pytest.mark.parametrize("field", ["id", "input", "context", "webhook"])
async def test_field_given_twice(server: LiveServer, field: str) -> None:
    value = {"id": '"a"', "webhook": '"http://127.0.0.1/"'}.get(field, "{}")
    response = await post(server, f'{{"{field}":{value},"{field}":{value}}}')
    assert response.status_code == 422
    [error] = response.json()["detail"]
    assert error["msg"] == f"duplicate field `{field}`"


async def test_input_given_twice_inside_the_input(server: LiveServer) -> None:
    assert (await output(server, '{"input":{"s":"first","s":"last"}}'))[0] == "last"


async def test_field_names_may_stand_elsewhere(server: LiveServer) -> None:
    body = {
        "input": {"s": '"input" "input"'},
        "context": {"id": "id", "input": "input"},
        "x": {"input": 1},
        "id": "own",
    }
    assert await output(server, json.dumps(body)) == ['"input" "input"', "own", "id=id", "input=input"]


# bodies that run


@pytest.mark.parametrize("body", ["{}", '{"input":{}}', '{"input":null}', ' \n{ "input" : { } } \t'])
async def test_input_left_out(server: LiveServer, body: str) -> None:
    assert (await output(server, body))[0] == "default"


async def test_unknown_fields_are_ignored(server: LiveServer) -> None:
    body = {"input": {"s": "x"}, "version": "v", "stream": True, "output_file_prefix": "http://x/", "extra": [1, {}]}
    assert (await output(server, json.dumps(body)))[0] == "x"


async def test_fields_that_may_be_null(server: LiveServer) -> None:
    body = '{"id":null,"input":null,"webhook":null,"created_at":null,"output_file_prefix":null}'
    assert (await output(server, body))[0] == "default"


async def test_context_reaches_the_model_and_no_answer(server: LiveServer) -> None:
    response = await post(server, '{"context":{"b":"2","a":"é"}}')
    assert response.json()["output"][2:] == ["a=é", "b=2"]
    assert "context" not in response.json()


@pytest.mark.parametrize("prediction_id", ["a/b", " ", "日本", "x" * 255, "\n", '"', "../x"])
async def test_id_is_taken_as_it_is(server: LiveServer, prediction_id: str) -> None:
    response = await post(server, json.dumps({"id": prediction_id}))
    assert (response.status_code, response.json()["id"]) == (200, prediction_id)
    assert response.json()["output"][1] == prediction_id


async def test_empty_id_is_refused(server: LiveServer) -> None:
    """No URL could name such a prediction."""
    response = await post(server, json.dumps({"id": ""}))
    assert response.status_code == 422
    (fault,) = response.json()["detail"]
    assert fault["loc"] == ["body", "id"]


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("2024-01-15T10:30:00Z", "2024-01-15T10:30:00.000000+00:00"),
        ("2024-01-15T10:30:00.25+02:00", "2024-01-15T08:30:00.250000+00:00"),
        ("2024-01-15T10:30:00", "2024-01-15T10:30:00.000000+00:00"),
        ("2024-01-15T10:30:00.999999Z", "2024-01-15T10:30:00.999999+00:00"),
        ("1969-12-31T23:59:59.100001Z", "1969-12-31T23:59:59.100001+00:00"),
        ("0001-01-01T00:00:00", "0001-01-01T00:00:00.000000+00:00"),
    ],
)
async def test_created_at_is_the_clients(server: LiveServer, given: str, echoed: str) -> None:
    response = await post(server, json.dumps({"created_at": given}))
    assert response.json()["created_at"] == echoed


@pytest.mark.parametrize(
    "given", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59.999999Z"]
)
async def test_created_at_beyond_the_end_of_time(server: LiveServer, given: str) -> None:
    assert await places(server, json.dumps({"created_at": given})) == [["body", "created_at"]]


# sizes


def body_of(size: int) -> bytes:
    frame = b'{"input":{"s":""}}'
    return frame[:-3] + b"x" * (size - len(frame)) + frame[-3:]


async def test_body_of_the_largest_size(server: LiveServer) -> None:
    assert len((await output(server, body_of(LIMIT)))[0]) > LIMIT - 100


async def test_larger_body_is_413(server: LiveServer) -> None:
    status, sentence = await refusal(server, body_of(LIMIT + 1))
    assert status == 413
    assert str(LIMIT) in sentence


async def test_larger_body_is_413_also_in_chunks(server: LiveServer) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(LIMIT // 64 + 1):
            yield b" " * 64

    response = await server.client.post("/predictions", content=pieces(), headers={"content-type": JSON})
    assert response.status_code == 413
    assert (await server.health())["status"] == "READY"


async def test_larger_body_is_refused_before_it_is_sent(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        head = f"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: {JSON}\r\ncontent-length: 1099511627776\r\n"
        await wire.send(f"{head}expect: 100-continue\r\n\r\n".encode())
        assert (await wire.answer()).status == 413
    async with connection(server.url) as wire:
        await wire.send(f"{head}\r\n".encode())
        assert (await wire.answer()).status == 413


async def test_large_input_arrives_whole(serve: Serve) -> None:
    """It is larger than what goes through the slot's socket."""
    source = "def run(s: str, more: dict = {}) -> list: return [len(s), s[:3], s[-3:], len(more)]"
    async with serve(source) as server:
        body: dict[str, Any] = await server.predict({"s": "ab🙂" * 4_000_000, "more": {"k": 1}})
        assert body["output"] == [12_000_000, "ab🙂", "ab🙂", 1]
