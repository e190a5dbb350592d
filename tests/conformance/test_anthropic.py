"""Anthropic's API on real servers, with the official client: each answer and event is held against its types."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anthropic
import pydantic
import pytest
import pytest_asyncio
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent, ThinkingBlock, ToolUseBlock

from tests.support import modes
from tests.support.gates import Gates
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.text_apis import CALL, PLAYER, WRITER, named_events, play

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENT: pydantic.TypeAdapter[RawMessageStreamEvent] = pydantic.TypeAdapter(RawMessageStreamEvent)
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def check_events(events: list[tuple[str, Any]]) -> list[str]:
    """Hold events against the client's types, and the order of blocks; return their types without pings."""
    opened: list[int] = []
    is_open = False
    for name, data in events:
        assert data["type"] == name
        if name == "ping":
            continue
        EVENT.validate_python(data, strict=True)
        if name == "content_block_start":
            assert not is_open
            assert data["index"] == len(opened)
            opened.append(data["index"])
            is_open = True
        elif name in ("content_block_delta", "content_block_stop"):
            assert is_open
            assert data["index"] == opened[-1]
            is_open = name != "content_block_stop"
    assert not is_open
    return [name for name, _ in events if name != "ping"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def player(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(PLAYER, name="player") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def writer(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(WRITER, name="writer") as server:
        yield server


Official = Callable[..., anthropic.AsyncAnthropic]


@pytest_asyncio.fixture(loop_scope="module")
async def official() -> AsyncIterator[Official]:
    """The official client of a server, let in as the mode wants it."""
    async with contextlib.AsyncExitStack() as stack:

        def client_of(server: LiveServer, **options: Any) -> anthropic.AsyncAnthropic:
            given = modes.current().credentials
            if given is not None:
                options["http_client"] = anthropic.DefaultAsyncHttpxClient(verify=given.trust)
            key = "none" if given is None else given.key
            client = anthropic.AsyncAnthropic(base_url=server.url, api_key=key, **{"max_retries": 0, **options})
            stack.push_async_callback(client.close)
            return client

        yield client_of


def user(text: Any) -> Any:
    return [{"role": "user", "content": text}]


async def ask(server: LiveServer, content: Any, **body: Any) -> httpx.Response:
    """POST one message of a user."""
    given = {"model": server.deployment.name, "max_tokens": 100, "messages": user(content), **body}
    return await server.client.post("/v1/messages", json=given)


async def given_to(server: LiveServer, **body: Any) -> dict[str, Any]:
    """Return the inputs that the model gets."""
    response = await ask(server, "hi", **body)
    assert response.status_code == 200, response.text
    inputs: dict[str, Any] = json.loads(response.json()["content"][0]["text"])
    return inputs


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """Check a refusal; return its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert (set(body), body["type"]) == ({"type", "error"}, "error")
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind
    return str(body["error"]["message"])


# whole answers


async def test_whole_message(player: LiveServer) -> None:
    metrics = [
        {"metric": [f"tokens.{kind}", count]} for kind, count in (("prompt", 9), ("completion", 5), ("cached", 4))
    ]
    response = await ask(player, play("one ", "two", *metrics))
    message = Message.model_validate(response.json(), strict=True)
    assert response.json()["content"] == [{"type": "text", "text": "one two", "citations": None}]
    assert (message.type, message.role, message.model) == ("message", "assistant", "player")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 4, 5)
    assert response.headers["request-id"] == response.headers["x-request-id"]


async def test_message_of_a_model_that_takes_a_prompt(writer: LiveServer, official: Official) -> None:
    client = official(writer)
    message = await client.messages.create(model="writer", max_tokens=2, messages=user("one two three"))
    assert message.content[0].type == "text"
    assert message.content[0].text == "one two "
    assert message._request_id
    message = await client.messages.create(model="writer", max_tokens=9, system="a", messages=user("b"))
    assert message.content[0].type == "text"
    assert message.content[0].text == "a b "


async def test_thinking_text_and_calls_are_blocks(player: LiveServer, official: Official) -> None:
    message = await official(player).messages.create(
        model="player", max_tokens=9, messages=user(play(*CALL)), tools=[WEATHER]
    )
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.stop_reason == "tool_use"
    thinking, _, call, _ = message.content
    assert isinstance(thinking, ThinkingBlock)
    assert isinstance(call, ToolUseBlock)
    assert thinking.thinking == "the user wants weather"
    assert (call.id, call.name, call.input) == ("call_1", "weather", {"city": "Ulm"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "told"), [("length", "max_tokens"), ("content_filter", "refusal"), ("stop", "end_turn")]
)
async def test_reason_of_the_end(player: LiveServer, reason: str, told: str, stream: bool) -> None:
    said = play("half", {"finish_reason": reason})
    if stream:
        events = await named_events(player, "/v1/messages", model="player", max_tokens=9, messages=user(said))
        assert events[-2][1]["delta"]["stop_reason"] == told
    else:
        assert (await ask(player, said)).json()["stop_reason"] == told


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "left"), [(["two"], "one "), (["zz", "e t"], "on"), (["one"], "")])
async def test_stop_sequences(writer: LiveServer, stop: list[str], left: str, stream: bool) -> None:
    body = {"model": "writer", "max_tokens": 9, "messages": user("one two three"), "stop_sequences": stop}
    if stream:
        events = await named_events(writer, "/v1/messages", **body)
        check_events(events)
        said = "".join(data["delta"].get("text", "") for name, data in events if name == "content_block_delta")
        end = events[-2][1]["delta"]
    else:
        end = (await writer.client.post("/v1/messages", json=body)).json()
        said = end["content"][0]["text"]
    assert (said, end["stop_reason"], end["stop_sequence"]) == (left, "stop_sequence", stop[-1])


# what the model gets


async def test_blocks_become_messages(player: LiveServer) -> None:
    inputs = await given_to(
        player,
        system=[{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "so"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "sun"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "text", "text": "b"},
                ],
            },
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c3", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3", "is_error": True}]},
        ],
    )
    assert inputs["messages"] == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c3", "content": ""},
    ]


async def test_other_blocks_than_text_come_as_parts_of_chats(player: LiveServer, writer: LiveServer) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    blocks = [
        image,
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {
            "type": "document",
            "title": "d",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="},
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
    ]
    inputs = await given_to(player, messages=user(blocks))
    assert inputs["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"filename": "d", "file_data": "data:application/pdf;base64,AA=="}},
        {"type": "text", "text": "plain"},
    ]
    response = await ask(writer, [image])
    assert "messages[0].content" in refused(response, 400, "invalid_request_error")


async def test_parameters_have_the_names_of_chats(player: LiveServer) -> None:
    inputs = await given_to(
        player,
        tools=[{**WEATHER, "type": "custom", "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        max_tokens=7,
        temperature=0.5,
        output_config={"effort": "low"},
    )
    function = {"name": "weather", "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}
    assert inputs["tools"] == [{"type": "function", "function": function}]
    assert inputs["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (inputs["parallel_tool_calls"], inputs["max_tokens"], inputs["temperature"]) == (False, 7, 0.5)
    assert inputs["reasoning_effort"] == "low"


@pytest.mark.parametrize(("kind", "got"), [("auto", "auto"), ("any", "required"), ("none", "none")])
async def test_choice_of_a_tool(player: LiveServer, kind: str, got: str) -> None:
    assert (await given_to(player, tools=[WEATHER], tool_choice={"type": kind}))["tool_choice"] == got


async def test_parameters_that_the_model_does_not_have_are_passed_over_and_named(writer: LiveServer) -> None:
    response = await ask(
        writer,
        "a",
        temperature=0.5,
        top_k=5,
        thinking={"type": "enabled", "budget_tokens": 1024},
        metadata={"user_id": "x"},
        output_config={"effort": "low"},
        n=2,
        service_tier=None,
    )
    assert response.status_code == 200
    ignored = set(response.headers["x-geartrain-ignored"].split(", "))
    assert ignored == {"temperature", "top_k", "thinking", "metadata", "output_config.effort", "n"}


async def test_form_of_the_text_is_checked(player: LiveServer, official: Official) -> None:
    class Answer(pydantic.BaseModel):
        a: int

    form: Any = {"format": {"type": "json_schema", "schema": Answer.model_json_schema()}}
    good = await official(player).messages.parse(
        model="player", max_tokens=9, messages=user(play('{"a": ', "5}")), output_format=Answer
    )
    assert good.parsed_output == Answer(a=5)
    response = await ask(player, play("{}"), output_config=form)
    assert "output_config.format" in refused(response, 500, "api_error")
    assert response.headers["x-should-retry"] == "false"


# streams


async def test_events_of_a_text(player: LiveServer) -> None:
    said = play("one ", "two", {"metric": ["tokens.completion", 2]})
    events = await named_events(player, "/v1/messages", model="player", max_tokens=9, messages=user(said))
    assert events[1][0] == "ping"
    assert check_events(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert start["usage"]["input_tokens"] == events[-2][1]["usage"]["input_tokens"] > 0
    assert events[-2][1]["usage"]["output_tokens"] == 2


async def test_events_of_thinking_and_calls(player: LiveServer) -> None:
    body = {"model": "player", "max_tokens": 9, "messages": user(play(*CALL)), "tools": [WEATHER]}
    events = await named_events(player, "/v1/messages", **body)
    check_events(events)
    kinds = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    parts = [data["delta"].get("partial_json") for name, data in events if name == "content_block_delta"]
    assert [part for part in parts if part] == ['{"city"', ': "Ulm"}', '{"city": "Bonn"}']


async def test_official_client_streams(player: LiveServer, official: Official) -> None:
    client = official(player)
    async with client.messages.stream(model="player", max_tokens=9, messages=user(play("a", "b"))) as stream:
        assert [text async for text in stream.text_stream] == ["a", "b"]
        assert (await stream.get_final_message()).stop_reason == "end_turn"
    async with client.messages.stream(
        model="player", max_tokens=9, messages=user(play(*CALL)), tools=[WEATHER]
    ) as stream:
        final = await stream.get_final_message()
    thinking, _, call, other = final.content
    assert isinstance(thinking, ThinkingBlock)
    assert isinstance(call, ToolUseBlock)
    assert isinstance(other, ToolUseBlock)
    assert (thinking.thinking, call.input, other.input) == ("the user wants weather", {"city": "Ulm"}, {"city": "Bonn"})
    raw = await client.messages.create(model="player", max_tokens=9, messages=user(play("a")), stream=True)
    assert [event.type async for event in raw][-1] == "message_stop"


async def test_official_client_that_blocks(player: LiveServer) -> None:
    given = modes.current().credentials
    options: dict[str, Any] = {}
    if given is not None:
        options["http_client"] = anthropic.DefaultHttpxClient(verify=given.trust)
    key = "none" if given is None else given.key

    def run() -> tuple[Any, str]:
        with anthropic.Anthropic(base_url=player.url, api_key=key, max_retries=0, **options) as client:
            whole = client.messages.create(model="player", max_tokens=9, messages=user(play("a", "b")))
            with client.messages.stream(model="player", max_tokens=9, messages=user(play("a", "b"))) as stream:
                return whole.content[0], stream.get_final_text()

    block, text = await asyncio.to_thread(run)
    assert (block.text, text) == ("ab", "ab")


async def test_a_turn_with_a_tool_goes_round(player: LiveServer, official: Official) -> None:
    client = official(player)
    first = await client.messages.create(model="player", max_tokens=9, messages=user(play(*CALL)), tools=[WEATHER])
    calls = [block for block in first.content if isinstance(block, ToolUseBlock)]
    results: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "sun"} for call in calls]
    turns: Any = [
        *user(play(*CALL)),
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "so?"}]},
    ]
    second = await client.messages.create(model="player", max_tokens=9, messages=turns, tools=[WEATHER])
    assert second.content[0].type == "text"
    got = json.loads(second.content[0].text)["messages"]
    assert [message["role"] for message in got] == ["user", "assistant", "tool", "tool", "user"]
    assert got[1]["reasoning_content"] == "the user wants weather"


async def test_model_that_gives_nothing_answers_with_an_empty_text(player: LiveServer) -> None:
    assert (await ask(player, "[]")).json()["content"] == [{"type": "text", "text": "", "citations": None}]


# faults


@pytest.mark.parametrize("stream", [False, True])
async def test_run_that_fails_at_once_is_not_repeated(player: LiveServer, official: Official, stream: bool) -> None:
    said = play({"fail": "it went wrong"})
    response = await ask(player, said, stream=stream)
    assert "it went wrong" in refused(response, 500, "api_error")
    assert response.headers["request-id"]
    before = len(player._admitted)
    with pytest.raises(anthropic.InternalServerError, match="it went wrong"):
        await official(player, max_retries=2).messages.create(model="player", max_tokens=9, messages=user(said))
    assert len(player._admitted) == before + 1


async def test_run_that_fails_later_ends_the_stream(player: LiveServer, gates: Gates, official: Official) -> None:
    said = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    stream = await official(player).messages.create(model="player", max_tokens=9, messages=user(said), stream=True)
    names: list[str] = []

    async def read() -> None:
        async for event in stream:
            names.append(event.type)
            if event.type == "content_block_delta":
                gates["gate"].open()

    with pytest.raises(anthropic.APIStatusError, match="it went wrong later"):
        await read()
    assert names == ["message_start", "content_block_start", "content_block_delta"]


async def test_calls_that_are_none(player: LiveServer) -> None:
    bad = play({"tool_calls": [{"name": "weather", "arguments": '{"city"'}]})
    assert "no JSON object" in refused(await ask(player, bad, tools=[WEATHER]), 500, "api_error")
    cut = play({"tool_calls": [{"name": "weather", "arguments": '{"city"'}]}, {"finish_reason": "length"})
    (block,) = (await ask(player, cut, tools=[WEATHER])).json()["content"]
    assert block["input"] == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_ends_its_run(serve: Serve, gates: Gates, stream: bool) -> None:
    async with serve(PLAYER) as server:
        said = play("begun", {"wait": str(gates["gate"].path)})
        asking = asyncio.ensure_future(ask(server, said, stream=stream))
        await eventually(lambda: len(server.predictions.live) == 1)
        asking.cancel()
        await eventually(lambda: not server.predictions.live)
        gates["gate"].open()


async def test_full_queue_is_429(serve: Serve, gates: Gates) -> None:
    async with serve(PLAYER, inference_queue=0) as server:
        first = asyncio.ensure_future(ask(server, play({"wait": str(gates["gate"].path)})))
        await eventually(lambda: bool(server.predictions.live))
        response = await ask(server, "a")
        refused(response, 429, "rate_limit_error")
        assert int(response.headers["retry-after"]) >= 1
        gates["gate"].open()
        await first


async def test_unknown_models_paths_and_methods(player: LiveServer, official: Official) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await official(player).messages.create(model="nobody", max_tokens=9, messages=user("a"))
    assert caught.value.type == "not_found_error"
    response = await player.client.get("/v1/messages")
    assert "use POST" in refused(response, 405, "invalid_request_error")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "player", "model": "player"}', b"\xff"])
async def test_bodies_that_are_no_json_object(player: LiveServer, body: bytes) -> None:
    refused(await player.client.post("/v1/messages", content=body), 400, "invalid_request_error")


async def test_model_without_text_has_no_messages(serve: Serve) -> None:
    async with serve("def run(number: float) -> float:\n    return number") as server:
        assert "messages" in refused(await ask(server, "a"), 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"model": None}, "'model'"),
        ({"messages": []}, "'messages'"),
        ({"messages": None}, "'messages'"),
        ({"messages": ["x"]}, "'messages[0]'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "'messages[0].role'"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "'messages[0].role'"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content'"),
        ({"messages": user(5)}, "'messages[0].content'"),
        ({"messages": user(["x"])}, "'messages[0].content[0]'"),
        ({"messages": user([{"type": "text"}])}, "'messages[0].content'"),
        ({"messages": user([{"type": "image"}])}, "'messages[0].content[0]'"),
        ({"messages": user([{"type": "image", "source": {"type": "file"}}])}, "'messages[0].content[0].source'"),
        ({"messages": user([{"type": "search_result"}])}, "'messages[0].content[0]'"),
        ({"messages": user([{"type": "tool_result"}])}, "'messages[0].content[0].tool_use_id'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "'messages[0].content[0]'"),
        ({"messages": [{"role": "assistant", "content": ["x"]}]}, "'messages[0].content[0]'"),
        ({"system": 5}, "'system'"),
        ({"system": [{"type": "image"}]}, "'system[0]'"),
        ({"tools": {}}, "'tools'"),
        ({"tools": [{"type": "web_search_20260209", "name": "web_search"}]}, "'tools[0]'"),
        ({"tools": [{"input_schema": {}}]}, "'tools[0].name'"),
        ({"tool_choice": "auto"}, "'tool_choice'"),
        ({"tool_choice": {"type": "all"}}, "'tool_choice.type'"),
        ({"stop_sequences": "a"}, "'stop_sequences'"),
        ({"stop_sequences": [""]}, "'stop_sequences'"),
        ({"max_tokens": 0}, "max_tokens:"),
        ({"temperature": 5}, "temperature:"),
        ({"stream": "yes"}, "'stream'"),
        ({"mcp_servers": [{"name": "a"}]}, "'mcp_servers'"),
        ({"container": "c"}, "'container'"),
        ({"output_config": "json"}, "'output_config'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "'output_config.format'"),
    ],
)
async def test_wrong_values_are_named(player: LiveServer, body: dict[str, Any], said: str) -> None:
    given = {"model": "player", "max_tokens": 9, "messages": user("a"), **body}
    response = await player.client.post("/v1/messages", json=given)
    assert said in refused(response, 400, "invalid_request_error")


# tokens


async def test_tokens_are_counted_by_the_model(player: LiveServer, writer: LiveServer, official: Official) -> None:
    counted = await official(player).messages.count_tokens(
        model="player", system="d", messages=user("a b c"), tools=[WEATHER]
    )
    assert counted.input_tokens == 4
    raw = await player.client.post("/v1/messages/count_tokens", json={"model": "player", "messages": user("a")})
    MessageTokensCount.model_validate(raw.json(), strict=True)
    response = await writer.client.post("/v1/messages/count_tokens", json={"model": "writer", "messages": user("a")})
    assert "count_tokens" in refused(response, 404, "not_found_error")


async def test_model_that_does_not_count_when_it_is_told_to(serve: Serve) -> None:
    source = """
        def run(prompt: str, count_tokens: bool = False) -> str:
            return prompt
    """
    async with serve(source, name="forgetful") as server:
        given = {"model": "forgetful", "messages": user("a")}
        response = await server.client.post("/v1/messages/count_tokens", json=given)
        assert "tokens.prompt" in refused(response, 500, "api_error")
