"""Observed Cog, section 7: what is wrong with an input, told all at once; and what passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
    from __future__ import annotations
    import enum, os, time
    from typing import Any, Literal, Optional
    from geartrain import BaseModel, BaseRunner, Input, Secret

    class Size(enum.Enum):
        SMALL = "s"
        LARGE = "l"

    class Point(BaseModel):
        x: int
        y: int = 0

    class Runner(BaseRunner):
        def run(
            self,
            req: str,
            also: int,
            i: int = 0,
            f: float = 0.0,
            s: str = "",
            b: bool = False,
            limited: int = Input(default=1, ge=1, le=10),
            half: float = Input(default=1.5, ge=0.5, le=2.5),
            name: str = Input(default="abc", min_length=2, max_length=5),
            low: str = Input(default="abc", regex="^[a-z]+$"),
            anywhere: str = Input(default="x", regex="x"),
            color: str = Input(default="red", choices=["red", "blue"]),
            number: int = Input(default=1, choices=[1, 2]),
            size: Size = Size.SMALL,
            kind: Literal["a", "b"] = "a",
            l: list[int] = [],
            union: str | int = "",
            d: dict = {},
            anything: Any = None,
            point: Point = Point(x=1),
            optional: Optional[str] = None,
            new_optional: int | None = None,
            secret: Secret = None,
            gate: str = "",
        ) -> Any:
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            given = {k: v for k, v in locals().items() if k not in ("self", "gate")}
            return {k: [type(v).__name__, v if isinstance(v, (int, float, str, list, dict)) else None]
                    for k, v in given.items()}
"""
GOOD = {"req": "x", "also": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


async def faults(server: LiveServer, values: dict[str, Any], **headers: str) -> list[tuple[str, str, str]]:
    """Place, message and type of every fault, from a 422 of exactly the right form."""
    response = await server.client.post("/predictions", json={"input": values}, headers=headers)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/json"
    detail = response.json().pop("detail")
    for fault in detail:
        assert list(fault) == ["loc", "msg", "type"]
        assert fault["loc"][:2] == ["body", "input"]
    return [(*fault["loc"][2:], fault["msg"], fault["type"]) for fault in detail]


@pytest.mark.parametrize(
    ("values", "place", "message"),
    [
        # wrong type
        ({"i": "7"}, "i", '"7" is not of type "integer"'),
        ({"i": True}, "i", 'true is not of type "integer"'),
        ({"i": 7.5}, "i", '7.5 is not of type "integer"'),
        ({"f": "1.0"}, "f", '"1.0" is not of type "number"'),
        ({"f": False}, "f", 'false is not of type "number"'),
        ({"b": 1}, "b", '1 is not of type "boolean"'),
        ({"b": "true"}, "b", '"true" is not of type "boolean"'),
        ({"s": 5}, "s", '5 is not of type "string"'),
        ({"s": ["a"]}, "s", '["a"] is not of type "string"'),
        ({"d": []}, "d", '[] is not of type "object"'),
        ({"anything": [1]}, "anything", '[1] is not of type "object"'),
        ({"l": {}}, "l", '{} is not of type "array"'),
        ({"l": "1,2"}, "l", '"1,2" is not of type "array"'),
        # ge, le
        ({"limited": 0}, "limited", "0 is less than the minimum of 1"),
        ({"limited": 11}, "limited", "11 is greater than the maximum of 10"),
        ({"half": 0.25}, "half", "0.25 is less than the minimum of 0.5"),
        ({"half": 3}, "half", "3 is greater than the maximum of 2.5"),
        # lengths, regex
        ({"name": "a"}, "name", '"a" is shorter than 2 characters'),
        ({"name": "abcdef"}, "name", '"abcdef" is longer than 5 characters'),
        ({"low": "AB"}, "low", '"AB" does not match "^[a-z]+$"'),
        ({"anywhere": "aaa"}, "anywhere", '"aaa" does not match "x"'),
        # choices
        ({"color": "green"}, "color", '"green" is not one of ["red","blue"]'),
        ({"number": 3}, "number", "3 is not one of [1,2]"),
        ({"size": "m"}, "size", '"m" is not one of ["s","l"]'),
        ({"kind": "c"}, "kind", '"c" is not one of ["a","b"]'),
        # inside a list, a record
        ({"l": [1, "a"]}, "l/1", '"a" is not of type "integer"'),
        ({"point": {"x": "1"}}, "point/x", '"1" is not of type "integer"'),
        # union
        ({"union": []}, "union", "[] is not valid under any of the schemas listed in the 'anyOf' keyword"),
        # null, on a field that is not Optional
        ({"s": None}, "s", 'null is not of type "string"'),
        ({"l": [None]}, "l/0", 'null is not of type "integer"'),
    ],
)
async def test_fault(server: LiveServer, values: dict[str, Any], place: str, message: str) -> None:
    assert await faults(server, {**GOOD, **values}) == [(place, message, "value_error")]


async def test_missing_inputs(server: LiveServer) -> None:
    assert await faults(server, {}) == [
        ("req", "Field required", "value_error.missing"),
        ("also", "Field required", "value_error.missing"),
    ]


async def test_choice_of_a_wrong_type_has_two_faults(server: LiveServer) -> None:
    assert await faults(server, {**GOOD, "color": 5}) == [
        ("color", '5 is not one of ["red","blue"]', "value_error"),
        ("color", '5 is not of type "string"', "value_error"),
    ]


async def test_unknown_input_is_rejected(server: LiveServer) -> None:
    """The documents win over the observation, which drops it."""
    [(place, message, kind)] = await faults(server, {**GOOD, "colour": "red"})
    assert (place, kind) == ("colour", "value_error.extra")
    assert "colour" in message
    assert "color" in message


async def test_every_fault_is_told_in_order(server: LiveServer) -> None:
    """Fields in alphabetical order, then what is missing."""
    values = {"s": 5, "zzz": 1, "l": ["a", 1, "b"], "b": 0, "limited": 99, "color": "green"}
    found = await faults(server, values)
    assert [(place, kind) for place, _, kind in found] == [
        ("b", "value_error"),
        ("color", "value_error"),
        ("l/0", "value_error"),
        ("l/2", "value_error"),
        ("limited", "value_error"),
        ("s", "value_error"),
        ("zzz", "value_error.extra"),
        ("req", "value_error.missing"),
        ("also", "value_error.missing"),
    ]


async def test_secret_is_not_repeated_in_a_fault(server: LiveServer) -> None:
    [(place, message, _)] = await faults(server, {**GOOD, "secret": ["hunter2"]})
    assert place == "secret"
    assert "hunter2" not in message


async def test_same_answer_in_every_mode(server: LiveServer) -> None:
    expected = await faults(server, {"s": 5})
    assert await faults(server, {"s": 5}, prefer="respond-async") == expected
    response = await server.client.put("/predictions/v1", json={"input": {"s": 5}})
    assert [fault["msg"] for fault in response.json()["detail"]] == [message for _, message, _ in expected]


@pytest.mark.one_server(reason="another replica has a free slot")
async def test_validation_comes_before_capacity(server: LiveServer) -> None:
    await server.start({**GOOD, "gate": "capacity"}, id="full")
    assert len(await faults(server, {"s": 5})) == 3
    response = await server.client.post("/predictions", json={"input": GOOD})
    assert response.status_code == 409
    server.open_gate("capacity")
    await server.ended("full")


@pytest.mark.parametrize(
    ("name", "value", "reached"),
    [
        ("i", 7, ["int", 7]),
        ("i", 7.0, ["int", 7]),
        ("f", 1, ["float", 1.0]),
        ("f", 1.5, ["float", 1.5]),
        ("i", 2**70, ["int", 2**70]),
        ("b", True, ["bool", True]),
        ("s", "http://example.com/x.png", ["str", "http://example.com/x.png"]),
        ("anywhere", "axa", ["str", "axa"]),
        ("name", "🙂🙂", ["str", "🙂🙂"]),
        ("limited", 10, ["int", 10]),
        ("half", 2.5, ["float", 2.5]),
        ("l", [], ["list", []]),
        ("l", [1, 2.0], ["list", [1, 2]]),
        ("d", {"k": [None, {}]}, ["dict", {"k": [None, {}]}]),
        ("union", 5, ["int", 5]),
        ("anything", {"k": [1]}, ["dict", {"k": [1]}]),
        ("size", "l", ["Size", None]),
        ("point", {"x": 3}, ["Point", None]),
        ("kind", "b", ["str", "b"]),
        ("optional", "given", ["str", "given"]),
        ("secret", "s3cret", ["Secret", None]),
    ],
)
async def test_good_value_reaches_the_model_as_annotated(
    server: LiveServer, name: str, value: object, reached: list[object]
) -> None:
    body = await server.predict({**GOOD, name: value})
    assert body["status"] == "succeeded", body
    assert body["output"][name] == reached
    assert type(body["output"][name][1]) is type(reached[1])


@pytest.mark.parametrize("name", ["optional", "new_optional", "secret", "anything"])
async def test_a5_null_is_none_where_the_schema_says_nullable(server: LiveServer, name: str) -> None:
    schema = (await server.client.get("/openapi.json")).json()["components"]["schemas"]["Input"]["properties"]
    assert schema[name]["nullable"] is True
    body = await server.predict({**GOOD, name: None})
    assert body["status"] == "succeeded", body
    assert body["output"][name] == ["NoneType", None]


A4_MODEL = """
    from geartrain import BaseModel, BaseRunner

    class Size(BaseModel):
        width: int
        scale: float

    class Runner(BaseRunner):
        def run(
            self, n: int, f: float = 1, sizes: list[Size] = [], rows: list[list[float]] = [], table: dict[str, int] = {}
        ) -> str:
            return repr((list(range(n)), f, [(each.width, each.scale) for each in sizes], rows, table))
"""


async def test_a4_numbers_over_every_protocol(serve: Serve) -> None:
    async with serve(A4_MODEL) as server:
        given = {"n": 2.0, "f": 3, "sizes": [{"width": 4.0, "scale": 5}], "rows": [[1, 2.5]], "table": {"a": 6.0}}
        body = await server.predict(given)
        assert body["output"] == "([0, 1], 3.0, [(4, 5.0)], [[1.0, 2.5]], {'a': 6})"
        answer = await server.client.post("/v2/models/model/generate", json={"n": 2.0, "f": 3, "table": {"a": 6.0}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["text_output"] == "([0, 1], 3.0, [], [], {'a': 6})"
        tensors = [
            {"name": "n", "datatype": "INT64", "shape": [1], "data": [2]},
            {"name": "f", "datatype": "FP64", "shape": [1], "data": [3]},
        ]
        answer = await server.client.post("/v2/models/model/infer", json={"inputs": tensors})
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == ["([0, 1], 3.0, [], [], {})"]


async def test_what_is_absent_has_its_default(server: LiveServer) -> None:
    output = (await server.predict(GOOD))["output"]
    expected = {
        "i": ["int", 0],
        "color": ["str", "red"],
        "size": ["Size", None],
        "point": ["Point", None],
        "l": ["list", []],
        "optional": ["NoneType", None],
        "new_optional": ["NoneType", None],
        "secret": ["NoneType", None],
        "anything": ["NoneType", None],
    }
    assert {name: output[name] for name in expected} == expected


async def test_defaults_are_not_shared_between_predictions(serve: Serve) -> None:
    source = """
        def run(l: list[int] = [], d: dict = {}) -> list[int]:
            l.append(1)
            d["k"] = 1
            return [len(l), len(d)]
    """
    async with serve(source) as server:
        for _ in range(3):
            assert (await server.predict())["output"] == [1, 1]


async def test_function_without_parameters(serve: Serve) -> None:
    async with serve("def run() -> str: return 'no inputs'") as server:
        assert (await server.predict())["output"] == "no inputs"
        [(place, _, kind)] = await faults(server, {"x": 1})
        assert (place, kind) == ("x", "value_error.extra")


STEPS = "def run(steps: int = 2, text: str = 'a') -> str:\n    return text * steps\n"
STRAY = 'passed over "steps", an input of the model: put it inside "input"'


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
async def test_inputs_outside_of_input_are_hinted_at(
    serve: Serve, caplog: pytest.LogCaptureFixture, padding: int
) -> None:
    caplog.set_level("INFO", "geartrain.transport.cog.predictions")
    async with serve(STEPS) as server:
        for method, path, prefer, status in (
            ("POST", "/predictions", "", 200),
            ("PUT", "/predictions/a", "", 200),
            ("POST", "/predictions", "respond-async", 202),
            ("PUT", "/predictions/b", "respond-async", 202),
        ):
            body = {"steps": 3, "x": "x" * padding}
            answer = await server.client.request(method, path, json=body, headers={"prefer": prefer})
            assert answer.status_code == status, answer.text
            assert answer.headers["x-geartrain-hint"] == STRAY
            assert STRAY in caplog.messages
            caplog.clear()
            await server.ended(answer.json()["id"])
        both = await server.client.post("/predictions", json={"steps": 3, "text": "b"})
        assert both.headers["x-geartrain-hint"].startswith('passed over "steps", "text", inputs of the model: put them')


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
async def test_stream_of_inputs_outside_of_input_has_the_hint(serve: Serve, padding: int) -> None:
    model = "from geartrain import streaming\n\n\n@streaming\ndef run(steps: int = 2) -> str:\n    return 'a' * steps\n"
    async with serve(model) as server:
        for method, path, hint in (
            ("POST", "/predictions", STRAY),
            ("PUT", "/predictions/a", STRAY),
            ("PUT", "/predictions/a", None),  # known: nothing of this body is looked at
        ):
            body = {"steps": 3, "x": "x" * padding}
            answer = await server.client.request(method, path, json=body, headers={"accept": "text/event-stream"})
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers.get("x-geartrain-hint") == hint
        right = {"input": {"steps": 3}}
        answer = await server.client.post("/predictions", json=right, headers={"accept": "text/event-stream"})
        assert "x-geartrain-hint" not in answer.headers


@pytest.mark.parametrize("body", [{}, {"input": {}}, {"input": {"steps": 1}, "steps": 3}, {"id": "a1"}, {"other": 1}])
async def test_other_bodies_have_no_hint(serve: Serve, body: dict[str, Any]) -> None:
    async with serve(STEPS) as server:
        answer = await server.client.post("/predictions", json=body)
        assert answer.status_code == 200
        assert "x-geartrain-hint" not in answer.headers


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
async def test_missing_input_that_stands_outside_is_told_where_to_go(serve: Serve, padding: int) -> None:
    async with serve("def run(text: str, more: str) -> str:\n    return text\n") as server:
        answer = await server.client.post("/predictions", json={"text": "a" + "x" * padding})
        assert answer.status_code == 422
        messages = {fault["loc"][-1]: fault["msg"] for fault in answer.json()["detail"]}
        assert messages == {"text": 'Field required: put it inside "input"', "more": "Field required"}


async def test_other_inputs_that_stand_outside_are_named_with_the_missing_one(serve: Serve) -> None:
    async with serve("def run(text: str, times: int = 1) -> str:\n    return text * times\n") as server:
        answer = await server.client.post("/predictions", json={"times": 3})
        (fault,) = answer.json()["detail"]
        assert (answer.status_code, fault["msg"]) == (422, 'Field required: put it inside "input", with times')
        answer = await server.client.post("/predictions", json={"other": 3})
        assert answer.json()["detail"][0]["msg"] == "Field required"


LISTS = """
    from geartrain import BaseRunner, Input

    class Runner(BaseRunner):
        def run(
            self,
            texts: list[str] = Input(default=["ab"], min_length=2, max_length=3),
            words: list[str] | None = Input(default=None, regex="^a"),
            numbers: list[float] = Input(default=[1], ge=1, le=2),
        ) -> str:
            return f"{texts} {words} {numbers}"
"""


async def test_limits_of_a_list_are_those_of_its_elements(serve: Serve) -> None:
    async with serve(LISTS) as server:
        given = {"texts": ["abc", "a", "abcd"], "words": ["b", "ab"], "numbers": [0.5, 1.5, 3]}
        assert [(place, text) for place, text, _ in await faults(server, given)] == [
            ("numbers/0", "0.5 is less than the minimum of 1"),
            ("numbers/2", "3 is greater than the maximum of 2"),
            ("texts/1", '"a" is shorter than 2 characters'),
            ("texts/2", '"abcd" is longer than 3 characters'),
            ("words/0", '"b" does not match "^a"'),
        ]
        right = {"texts": ["abc"], "words": None, "numbers": []}
        assert (await server.predict(right))["output"] == "['abc'] None []"
        schema = (await server.client.get("/openapi.json")).json()["components"]["schemas"]["Input"]["properties"]
        assert schema["texts"]["items"] == {"type": "string", "minLength": 2, "maxLength": 3}
        assert "minLength" not in schema["texts"]
        assert schema["words"]["items"] == {"type": "string", "pattern": "^a"}
        assert schema["numbers"]["items"] == {"type": "number", "minimum": 1, "maximum": 2}
