"""Responses of OpenAI's API on real servers: with the official client, and everything against OpenAI's own document.

`golden/openai_responses.json` has the schemas of that document. The seven tests of Open Responses are at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import openai
import pydantic
import pytest
import pytest_asyncio

from tests.support import modes
from tests.support.gates import Gates
from tests.support.openai_client import Official, official_clients
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.text_apis import CALL, PLAYER, WRITER, named_events, play

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOLDEN = Path(__file__).parent / "golden"
RESPONSES: dict[str, Any] = json.loads((GOLDEN / "openai_responses.json").read_text())
ERRORS: dict[str, Any] = json.loads((GOLDEN / "openai.json").read_text())
EVENTS = {
    name: kind["enum"][0]
    for name, schema in RESPONSES["components"]["schemas"].items()
    if name.endswith("Event") and (kind := schema["properties"]["type"])
}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def check(name: str, value: Any, document: dict[str, Any] = RESPONSES) -> None:
    """Hold a body against a schema of OpenAI's document."""
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", **document}, value)


def check_events(events: list[tuple[str, Any]]) -> list[str]:
    """Hold events against their schemas, and their numbers; return their types."""
    by_type = {kind: name for name, kind in EVENTS.items()}
    for number, (name, data) in enumerate(events):
        assert (data["type"], data["sequence_number"]) == (name, number)
        check(by_type[name], data)
    return [name for name, _ in events]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def player(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(PLAYER, name="player") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def writer(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(WRITER, name="writer") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def official() -> AsyncIterator[Official]:
    async with official_clients() as clients:
        yield clients


async def ask(server: LiveServer, given: Any, **body: Any) -> httpx.Response:
    return await server.client.post("/v1/responses", json={"model": server.deployment.name, "input": given, **body})


async def given_to(server: LiveServer, given: Any, **body: Any) -> dict[str, Any]:
    """Return the inputs that the model gets."""
    response = await ask(server, given, **body)
    assert response.status_code == 200, response.text
    inputs: dict[str, Any] = json.loads(response.json()["output"][0]["content"][0]["text"])
    return inputs


def refused(response: httpx.Response, status: int, param: str | None, code: str) -> str:
    """Check a refusal; return its message."""
    assert response.status_code == status, response.text
    check("ErrorResponse", response.json(), ERRORS)
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    return str(error["message"])


# whole answers


async def test_whole_response(player: LiveServer) -> None:
    pieces = ("one ", "two", {"metric": ["tokens.completion", 5]}, {"metric": ["tokens.reasoning", 2]})
    answer = (await ask(player, play(*pieces), metadata={"a": "b"}, user="me")).json()
    check("Response", answer)
    assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", "player")
    (item,) = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "one two", "annotations": [], "logprobs": []}]
    usage = answer["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (5, {"reasoning_tokens": 2})
    assert usage["total_tokens"] == usage["input_tokens"] + 5
    assert (answer["metadata"], answer["user"], answer["store"]) == ({"a": "b"}, "me", False)


async def test_response_of_a_model_that_takes_a_prompt(writer: LiveServer, official: Official) -> None:
    client = official(writer)
    answer = await client.responses.create(model="writer", input="one two three", max_output_tokens=2)
    assert answer.output_text == "one two "
    assert answer.usage is None
    assert answer._request_id
    answer = await client.responses.create(model="writer", input="b c", instructions="a")
    assert answer.output_text == "a b c "


async def test_reasoning_text_and_calls_are_items(player: LiveServer, official: Official) -> None:
    answer = (await ask(player, play(*CALL), tools=[WEATHER])).json()
    check("Response", answer)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert answer["output"][0]["content"] == [{"type": "reasoning_text", "text": "the user wants weather"}]
    by_client = await official(player).responses.create(model="player", input=play(*CALL), tools=[WEATHER])
    calls = [item for item in by_client.output if item.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        ("call_1", "weather", '{"city": "Ulm"}'),
        ("call_2", "weather", '{"city": "Bonn"}'),
    ]


@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_response_that_is_cut_is_incomplete(player: LiveServer, reason: str, told: str) -> None:
    cut = play("half", {"finish_reason": reason})
    answer = (await ask(player, cut)).json()
    check("Response", answer)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": told})
    assert answer["output"][0]["status"] == "incomplete"
    events = await named_events(player, "/v1/responses", model="player", input=cut)
    assert check_events(events)[-1] == "response.incomplete"
    assert events[-1][1]["response"]["incomplete_details"] == {"reason": told}


async def test_logprobs_stand_with_the_text(player: LiveServer) -> None:
    token = {"token": "x", "logprob": -0.1, "top": [{"token": "y", "logprob": -2.5}]}
    include = ["message.output_text.logprobs"]
    said = play({"content": "x", "logprobs": [token]})
    answer = (await ask(player, said, include=include, top_logprobs=1)).json()
    check("Response", answer)
    (told,) = answer["output"][0]["content"][0]["logprobs"]
    assert (told["token"], told["bytes"], told["top_logprobs"][0]["token"]) == ("x", [120], "y")
    check_events(await named_events(player, "/v1/responses", model="player", input=said, include=include))
    inputs = await given_to(player, "hi", include=include, top_logprobs=1)
    assert (inputs["logprobs"], inputs["top_logprobs"]) == (True, 1)


# what the model gets


async def test_items_become_messages(player: LiveServer) -> None:
    items = [
        {"role": "developer", "content": "be"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "so", "annotations": []}],
        },
        {"role": "user", "content": "b"},
    ]
    inputs = await given_to(player, items, instructions="first")
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert inputs["messages"] == [
        {"role": "system", "content": "first"},
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", **call},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "b"},
    ]


async def test_other_parts_than_text_come_as_parts_of_chats(player: LiveServer, writer: LiveServer) -> None:
    parts = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
    ]
    inputs = await given_to(player, [{"role": "user", "content": parts}])
    assert inputs["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
    ]
    response = await ask(writer, [{"role": "user", "content": parts}])
    assert "takes text" in refused(response, 400, "input[0].content", "unsupported_parameter")


async def test_parameters_have_the_names_of_chats(player: LiveServer) -> None:
    inputs = await given_to(
        player,
        "hi",
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        max_output_tokens=7,
        temperature=0.5,
        reasoning={"effort": "low", "summary": None},
        text={"format": {"type": "json_object"}, "verbosity": "low"},
    )
    function = {name: WEATHER[name] for name in ("name", "description", "parameters", "strict")}
    assert inputs["tools"] == [{"type": "function", "function": function}]
    assert inputs["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (inputs["parallel_tool_calls"], inputs["max_tokens"], inputs["temperature"]) == (False, 7, 0.5)
    assert (inputs["reasoning_effort"], inputs["verbosity"]) == ("low", "low")
    assert inputs["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("choice", "got"),
    [
        ("required", "required"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
        ),
    ],
)
async def test_choice_of_a_tool(player: LiveServer, choice: Any, got: Any) -> None:
    assert (await given_to(player, "hi", tools=[WEATHER], tool_choice=choice))["tool_choice"] == got


async def test_parameters_that_the_model_does_not_have_are_passed_over_and_named(writer: LiveServer) -> None:
    response = await ask(
        writer,
        "a",
        temperature=0.5,
        reasoning={"effort": "low"},
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content"],
        stop=["x"],
        truncation="auto",
        top_k=None,
    )
    check("Response", response.json())
    ignored = set(response.headers["x-geartrain-ignored"].split(", "))
    assert ignored == {"temperature", "reasoning", "text.verbosity", "include", "stop", "truncation"}
    assert (response.json()["temperature"], response.json()["truncation"]) == (0.5, "auto")


# forms of the text


class Answer(pydantic.BaseModel):
    a: int


async def test_form_is_checked(player: LiveServer, official: Official) -> None:
    client = official(player)
    good = await client.responses.parse(model="player", input=play('{"a": ', "5}"), text_format=Answer)
    assert good.output_parsed == Answer(a=5)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.responses.parse(model="player", input=play('{"a": "b"}'), text_format=Answer)
    assert (caught.value.code, caught.value.param) == ("invalid_structured_output", "text.format")
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_form_of_a_stream_is_checked(player: LiveServer) -> None:
    form = {"format": {"type": "json_schema", "name": "A", "schema": Answer.model_json_schema()}}
    events = await named_events(player, "/v1/responses", model="player", input=play("[]"), text=form)
    assert check_events(events)[-1] == "response.failed"
    error = events[-1][1]["response"]["error"]
    assert error["code"] == "server_error"
    assert "text.format" in error["message"]


async def test_form_that_the_model_cannot_give_is_refused(writer: LiveServer) -> None:
    response = await ask(writer, "a", text={"format": {"type": "json_object"}})
    refused(response, 400, "text.format", "unsupported_parameter")


# streams


async def test_events_of_a_text(player: LiveServer) -> None:
    events = await named_events(player, "/v1/responses", model="player", input=play("one ", "two"))
    assert check_events(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    data = dict(events)
    assert data["response.output_text.done"]["text"] == "one two"
    assert data["response.created"]["response"]["status"] == "in_progress"
    assert "usage" not in data["response.created"]["response"]
    assert data["response.completed"]["response"]["usage"]["input_tokens"] > 0
    assert data["response.completed"]["response"]["output"] == [data["response.output_item.done"]["item"]]


async def test_events_of_reasoning_and_calls(player: LiveServer) -> None:
    events = await named_events(player, "/v1/responses", model="player", input=play(*CALL), tools=[WEATHER])
    names = check_events(events)
    assert names.count("response.reasoning_text.delta") == 2
    assert names.count("response.function_call_arguments.delta") == 3
    done = [data for name, data in events if name == "response.function_call_arguments.done"]
    assert [(each["name"], each["arguments"], each["output_index"]) for each in done] == [
        ("weather", '{"city": "Ulm"}', 2),
        ("weather", '{"city": "Bonn"}', 3),
    ]
    added = [data["item"]["id"] for name, data in events if name == "response.output_item.added"]
    assert [item["id"] for item in events[-1][1]["response"]["output"]] == added


async def test_official_client_streams(player: LiveServer, official: Official) -> None:
    client = official(player)
    async with client.responses.stream(
        model="player", input=play('{"a": ', "5}", {"metric": ["tokens.completion", 2]}), text_format=Answer
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.output_text.delta") == 2
    assert final.output_parsed == Answer(a=5)
    assert final.usage is not None
    assert final.usage.output_tokens == 2
    async with client.responses.stream(model="player", input=play(*CALL), tools=[WEATHER]) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.function_call_arguments.delta"]
        called = await stream.get_final_response()
    assert snapshots == ['{"city"', '{"city": "Ulm"}', '{"city": "Bonn"}']
    assert [item.type for item in called.output] == ["reasoning", "message", "function_call", "function_call"]
    raw = await client.responses.create(model="player", input=play("a", "b"), stream=True)
    assert [event.delta async for event in raw if event.type == "response.output_text.delta"] == ["a", "b"]


async def test_official_client_that_blocks(player: LiveServer) -> None:
    given = modes.current().credentials
    options: dict[str, Any] = {}
    if given is not None:
        options["http_client"] = openai.DefaultHttpxClient(verify=given.trust)
    key = "none" if given is None else given.key

    def run() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{player.url}/v1", api_key=key, max_retries=0, **options) as client:
            whole = client.responses.create(model="player", input=play("a", "b")).output_text
            with client.responses.stream(model="player", input=play("a", "b")) as stream:
                return whole, stream.get_final_response().output_text

    assert await asyncio.to_thread(run) == ("ab", "ab")


async def test_model_that_gives_nothing_answers_with_an_empty_text(player: LiveServer) -> None:
    answer = (await ask(player, "[]")).json()
    check("Response", answer)
    assert answer["output"][0]["content"][0]["text"] == ""
    assert check_events(await named_events(player, "/v1/responses", model="player", input="[]"))


# faults


@pytest.mark.parametrize("stream", [False, True])
async def test_run_that_fails_at_once_has_a_status(player: LiveServer, stream: bool) -> None:
    response = await ask(player, play({"fail": "it went wrong"}), stream=stream)
    assert "it went wrong" in refused(response, 500, None, "run_failed")
    assert response.headers["x-should-retry"] == "false"


async def test_run_that_fails_later_ends_the_stream(player: LiveServer, gates: Gates, official: Official) -> None:
    said = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    stream = await official(player).responses.create(model="player", input=said, stream=True)
    names = []
    async for event in stream:
        names.append(event.type)
        if event.type == "response.output_text.delta":
            gates["gate"].open()
        if event.type == "response.failed":
            assert event.response.error is not None
            assert "it went wrong later" in event.response.error.message
            check("Response", event.response.to_dict(mode="json"))
    assert names[-1] == "response.failed"


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([{"name": "other", "arguments": "{}"}], "not one of the 'tools'"),
        ([{"name": "weather", "arguments": "[]"}], "no JSON object"),
        ([{"name": "weather", "arguments": '{"city"'}], "no JSON object"),
    ],
)
async def test_calls_that_are_none(player: LiveServer, calls: Any, said: str) -> None:
    response = await ask(player, play({"tool_calls": calls}), tools=[WEATHER])
    assert said in refused(response, 500, None, "invalid_tool_call")
    events = await named_events(
        player, "/v1/responses", model="player", input=play({"tool_calls": calls}), tools=[WEATHER]
    )
    assert check_events(events)[-1] == "response.failed"
    messages = [{"role": "user", "content": play({"tool_calls": calls})}]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    chat = {"model": "player", "messages": messages, "tools": tools}
    refused(await player.client.post("/v1/chat/completions", json=chat), 500, None, "invalid_tool_call")


async def test_call_that_goes_on_after_another_one(player: LiveServer) -> None:
    parts = [(0, '{"a"'), (1, "{}"), (0, ": 1}")]
    pieces = [{"tool_calls": [{"index": index, "name": "", "arguments": text}]} for index, text in parts]
    assert "went on with the call" in refused(await ask(player, play(*pieces)), 500, None, "run_failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_ends_its_run(serve: Serve, gates: Gates, stream: bool) -> None:
    async with serve(PLAYER) as server:
        said = play("begun", {"wait": str(gates["gate"].path)})
        asking = asyncio.ensure_future(ask(server, said, stream=stream))
        await eventually(lambda: len(server.predictions.live) == 1)
        asking.cancel()
        await eventually(lambda: not server.predictions.live)
        gates["gate"].open()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "input[0].content[0]"),
    ],
)
async def test_what_would_change_the_answer_is_refused(player: LiveServer, body: dict[str, Any], param: str) -> None:
    response = await player.client.post("/v1/responses", json={"model": "player", "input": "a", **body})
    refused(response, 400, param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "boss", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": ["user"], "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output"}]}, "input[0]"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": 5}]}, "input[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"reasoning": "hard"}, "reasoning"),
        ({"include": "all"}, "include"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 5}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "x"}, "max_output_tokens"),
    ],
)
async def test_wrong_values_are_named(player: LiveServer, body: dict[str, Any], param: str) -> None:
    response = await player.client.post("/v1/responses", json={"model": "player", "input": "a", **body})
    assert response.status_code == 400, response.text
    check("ErrorResponse", response.json(), ERRORS)
    assert response.json()["error"]["param"] == param
    assert param in response.json()["error"]["message"]


async def test_values_that_ask_for_nothing_are_taken(writer: LiveServer) -> None:
    nothing: dict[str, Any] = {
        "previous_response_id": None,
        "background": False,
        "store": True,
        "tools": [],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "include": [],
        "reasoning": None,
        "instructions": None,
    }
    response = await ask(writer, "a", **nothing)
    assert response.status_code == 200, response.text
    assert response.json()["store"] is False


async def test_no_response_is_kept(player: LiveServer, official: Official) -> None:
    with pytest.raises(openai.NotFoundError, match="keeps none"):
        await official(player).responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="keeps none"):
        await official(player).responses.delete("resp_1")
    with pytest.raises(openai.NotFoundError):
        await official(player).responses.cancel("resp_1")


async def test_model_without_text_has_no_responses(serve: Serve) -> None:
    async with serve("def run(number: float) -> float:\n    return number") as server:
        refused(await ask(server, "a"), 400, "model", "unsupported_model")


async def test_input_tokens_are_counted_by_the_model(
    player: LiveServer, writer: LiveServer, official: Official
) -> None:
    counted = await official(player).responses.input_tokens.count(model="player", input="a b c", instructions="d")
    assert counted.input_tokens == 4
    raw = await player.client.post("/v1/responses/input_tokens", json={"model": "player", "input": "a"})
    check("TokenCountsResource", raw.json())
    response = await writer.client.post("/v1/responses/input_tokens", json={"model": "writer", "input": "a"})
    assert "count_tokens" in refused(response, 404, "model", "unsupported_model")


# the tests of Open Responses: a response has all that its schema requires, which is more than OpenAI's does

REQUIRED = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": int,
    "status": str,
    "incomplete_details": None,
    "model": str,
    "previous_response_id": None,
    "instructions": None,
    "output": list,
    "error": None,
    "tools": list,
    "tool_choice": str,
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "top_logprobs": int,
    "temperature": float,
    "reasoning": None,
    "usage": dict,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
HELLO = [{"type": "message", "role": "user", "content": play("Hello over there")}]
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param({"input": HELLO}, "message", id="basic, and streaming"),
        pytest.param(
            {"input": [{"type": "message", "role": "system", "content": "a pirate"}, *HELLO]}, "message", id="system"
        ),
        pytest.param(
            {"input": [{"type": "message", "role": "user", "content": play(*CALL)}], "tools": [WEATHER]},
            "function_call",
            id="tools, and streaming",
        ),
        pytest.param(
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, IMAGE]}]},
            "message",
            id="image",
        ),
        pytest.param(
            {"input": [*HELLO, {"type": "message", "role": "assistant", "content": "Hello!"}, *HELLO]},
            "message",
            id="turns",
        ),
    ],
)
async def test_open_responses(player: LiveServer, body: dict[str, Any], kind: str, stream: bool) -> None:
    if stream:
        events = await named_events(player, "/v1/responses", model="player", **body)
        names = check_events(events)
        answer = events[-1][1]["response"]
        if kind == "function_call":
            added = [data["item"]["type"] for name, data in events if name == "response.output_item.added"]
            done = [data["item"]["type"] for name, data in events if name == "response.output_item.done"]
            assert kind in added
            assert kind in done
            assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(names)
    else:
        answer = (await player.client.post("/v1/responses", json={"model": "player", **body})).json()
    assert answer["status"] == "completed"
    assert kind in [item["type"] for item in answer["output"]]
    for name, type_ in REQUIRED.items():
        assert answer[name] is None if type_ is None else type(answer[name]) is type_, name
