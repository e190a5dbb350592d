"""OpenAI's API on real servers: with the official client, and each answer against OpenAI's own document.

`golden/openai.json` has the schemas of that document. Two are corrected, where the document refuses what its own
clients ask for: the `finish_reason` of a chunk may be null, and an embedding may be a text in base64. Chunks of
completions have no schema of their own; they are held against that of whole ones.
"""

from __future__ import annotations

import asyncio
import json
import struct
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import openai
import pytest
import pytest_asyncio

from tests.support.gates import Gates
from tests.support.openai_client import Official, assert_refused, check, official_clients
from tests.support.servers import LiveServer, Serve, eventually

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = """
    import select
    from geartrain import BaseRunner, ConcatenateIterator, Input, current_scope

    class Runner(BaseRunner):
        def run(
            self,
            prompt: str,
            max_new_tokens: int = Input(default=16, ge=1, le=100),
            seed: int = 0,
            temperature: float = Input(default=1.0, ge=0.0, le=2.0),
        ) -> ConcatenateIterator[str]:
            scope = current_scope()
            if prompt == "fail at once":
                raise ValueError("it went wrong")
            if prompt.startswith("wait "):
                yield "begun"
                with open(prompt.removeprefix("wait "), "rb", buffering=0) as gate:
                    select.select([gate], [], [])
                if temperature == 0:
                    raise ValueError("it went wrong later")
            scope.record_metric("tokens.prompt", len(prompt.split()))
            for number, word in enumerate(prompt.split()[:max_new_tokens]):
                scope.record_metric("tokens.completion", number + 1)
                yield word + (f"#{seed}" if seed else "") + " "
            if len(prompt.split()) > max_new_tokens:
                scope.record_metric("finish_reason", "length")
"""
CHAT = """
    import json
    from collections.abc import Iterator
    from geartrain import BaseRunner, streaming
    from geartrain.openai import Delta, Message

    class Runner(BaseRunner):
        def run(self, messages: list[Message], tools: list[dict] = [], response_format: dict = {}) -> Iterator[Delta]:
            last = messages[-1]["content"]
            if tools:
                name = tools[0]["function"]["name"]
                yield {"reasoning": "hm"}
                yield {"tool_calls": [{"index": 0, "id": "call_1", "name": name, "arguments": '{"city"'}]}
                yield {"tool_calls": [{"index": 0, "arguments": ': "Ulm"}'}]}
                return
            if response_format:
                yield {"content": last}
                return
            top = [{"token": "x", "logprob": -0.1}, {"token": "y", "logprob": -2.5}]
            yield {"content": " ".join(m["role"] for m in messages) + ": "}
            yield {"content": last, "logprobs": [{"token": "x", "logprob": -0.1, "top": top}], "finish_reason": "stop"}
"""
EMBED = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, texts: list[str], dimensions: int = 3) -> list[list[float]]:
            if texts == ["nan"]:
                return [[float("nan")] * dimensions]
            return [[float(len(text)), 0.5, -1.0][:dimensions] for text in texts]
"""
TENSORS = """
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        def run(self, text: list[str]) -> Float32[np.ndarray, "n 2"]:
            return np.array([[len(each), 0.5] for each in text], np.float32)
"""
RANK = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, query: str, documents: list[str]) -> list[float]:
            return [float(len(set(query) & set(each))) for each in documents]
"""
ONE_WORD = """
    def run(text: str) -> str:
        return text.upper()
"""
SQUARE = """
    def run(number: float) -> float:
        return number * number
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def text(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(TEXT, name="text") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chat(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(CHAT, name="chat") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embed(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(EMBED, name="embed") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rank(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(RANK, name="rank") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def official() -> AsyncIterator[Official]:
    async with official_clients() as clients:
        yield clients


async def post(server: LiveServer, path: str, **body: Any) -> httpx.Response:
    return await server.client.post(path, json=body)


async def ask(server: LiveServer, content: str, **body: Any) -> httpx.Response:
    """POST a chat completion of one message."""
    given = {"model": server.deployment.name, "messages": [{"role": "user", "content": content}], **body}
    return await server.client.post("/v1/chat/completions", json=given)


async def events_of(server: LiveServer, path: str, **body: Any) -> list[Any]:
    """The data of the events of a stream; `[DONE]` as it is."""
    response = await server.client.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


# models


async def test_models_are_listed(text: LiveServer, official: Official) -> None:
    listed = (await text.client.get("/v1/models")).json()
    check("ListModelsResponse", listed)
    (model,) = listed["data"]
    assert (model["id"], model["owned_by"], model["endpoints"]) == (
        "text",
        "geartrain",
        ["chat", "responses", "messages", "completions"],
    )
    assert [each.id async for each in official(text).models.list()] == ["text"]
    assert (await official(text).models.retrieve("text")).id == "text"
    one = (await text.client.get("/v1/models/text%401")).json()
    check("Model", one)
    for name in ("a%2Fb", "text@7", "text@"):
        await assert_refused(await text.client.get(f"/v1/models/{name}"), 404, "model", "model_not_found", "not exist")


@pytest.mark.parametrize(
    ("source", "endpoints"),
    [
        (TEXT, ["chat", "responses", "messages", "completions"]),
        (CHAT, ["chat", "responses", "messages"]),
        (EMBED, ["embeddings"]),
        (TENSORS, ["embeddings"]),
        (RANK, ["rerank"]),
        (ONE_WORD, ["chat", "responses", "messages", "completions"]),
        (SQUARE, []),
    ],
)
async def test_endpoints_follow_from_the_signature(serve: Serve, source: str, endpoints: list[str]) -> None:
    async with serve(source) as server:
        (model,) = (await server.client.get("/v1/models")).json()["data"]
        assert model["endpoints"] == endpoints


# chat


async def test_chat_of_a_model_that_takes_a_prompt(text: LiveServer) -> None:
    answer = (await ask(text, "one two", max_tokens=5)).json()
    check("CreateChatCompletionResponse", answer)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one two ", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert answer["model"] == "text"


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([("user", "hi")], "hi "),
        ([("system", "be"), ("user", "hi")], "be hi "),
        ([("developer", "be"), ("user", "hi")], "be hi "),
        ([("user", "a"), ("assistant", "b"), ("user", "c")], "User: a Assistant: b User: c Assistant: "),
    ],
)
async def test_messages_become_a_plain_prompt(text: LiveServer, messages: list[tuple[str, str]], prompt: str) -> None:
    told = [{"role": role, "content": content} for role, content in messages]
    answer = await post(text, "/v1/chat/completions", model="text", messages=told)
    assert answer.json()["choices"][0]["message"]["content"] == prompt


async def test_chat_as_a_stream(text: LiveServer) -> None:
    asked = {"model": "text", "messages": [{"role": "user", "content": "one two"}]}
    *chunks, done = await events_of(text, "/v1/chat/completions", **asked)
    assert done == "[DONE]"
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "one "},
        {"content": "two "},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_comes_last_in_a_stream_where_it_is_asked_for(text: LiveServer) -> None:
    asked = {"model": "text", "messages": [{"role": "user", "content": "one two"}]}
    options = {"stream_options": {"include_usage": True}}
    *_, usage, done = await events_of(text, "/v1/chat/completions", **asked, **options)
    assert (done, usage["choices"]) == ("[DONE]", [])
    assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    check("CreateChatCompletionStreamResponse", usage)


async def test_official_client_reads_text_and_streams(text: LiveServer, official: Official) -> None:
    client = official(text)
    answer = await client.chat.completions.create(model="text", messages=[{"role": "user", "content": "a b"}])
    assert answer.choices[0].message.content == "a b "
    assert answer._request_id
    said = ""
    async with client.chat.completions.stream(model="text", messages=[{"role": "user", "content": "a b"}]) as stream:
        async for event in stream:
            said += event.delta if event.type == "content.delta" else ""
        assert (await stream.get_final_completion()).choices[0].message.content == said == "a b "


async def test_messages_as_they_come(chat: LiveServer) -> None:
    messages = [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    answer = (await post(chat, "/v1/chat/completions", model="chat", messages=messages)).json()
    check("CreateChatCompletionResponse", answer)
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "system user: ab"
    (token,) = choice["logprobs"]["content"]
    assert (token["token"], token["bytes"], len(token["top_logprobs"])) == ("x", [120], 2)


async def test_tools_are_called(chat: LiveServer, official: Official) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    messages: Any = [{"role": "user", "content": "weather?"}]
    answer = await official(chat).chat.completions.create(model="chat", messages=messages, tools=tools)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "weather", '{"city": "Ulm"}')
    check("CreateChatCompletionResponse", (await ask(chat, "weather?", tools=tools)).json())
    chunks = await events_of(chat, "/v1/chat/completions", model="chat", messages=messages, tools=tools)
    for chunk in chunks[:-1]:
        check("CreateChatCompletionStreamResponse", chunk)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[1] == {"reasoning_content": "hm"}
    parts = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta]
    assert "".join(parts) == '{"city": "Ulm"}'


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "said", "is_good"),
    [
        ({"type": "json_object"}, '{"x": 1}', True),
        ({"type": "json_object"}, "[1]", False),
        ({"type": "json_object"}, '{"x": 1', False),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, '{"a": 1}', True),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, '{"a": "b"}', False),
        ({"type": "text"}, "anything", True),
    ],
)
async def test_form_of_the_whole_text_is_checked(
    chat: LiveServer, form: dict[str, Any], said: str, is_good: bool
) -> None:
    response = await ask(chat, said, response_format=form)
    asked = {"model": "chat", "messages": [{"role": "user", "content": said}], "response_format": form}
    *_, last = await events_of(chat, "/v1/chat/completions", **asked)
    if is_good:
        assert response.json()["choices"][0]["message"]["content"] == said
        assert last == "[DONE]"
    else:
        await assert_refused(response, 500, "response_format", "invalid_structured_output", "response_format")
        assert response.headers["x-should-retry"] == "false"
        assert last["error"]["code"] == "invalid_structured_output"


@pytest.mark.parametrize(
    "schema", [{"type": "nothing"}, {"$ref": "http://127.0.0.1:1/x"}, {"$ref": "file:///etc/passwd"}]
)
async def test_schema_that_is_none_or_lies_elsewhere(chat: LiveServer, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    response = await ask(chat, "{}", response_format=form)
    await assert_refused(response, 400, "response_format", "invalid_input", "no valid schema")


# parameters


async def test_limit_of_tokens_has_several_names(text: LiveServer) -> None:
    for limit in ({"max_tokens": 1}, {"max_completion_tokens": 1}, {"max_tokens": 9, "max_completion_tokens": 1}):
        (choice,) = (await ask(text, "one two three", **limit)).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one ", "length")
    await assert_refused(
        await ask(text, "x", max_tokens=0), 400, "max_tokens", "invalid_input", "max_tokens: 0 is less"
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "left"),
    [("two", "one "), (["e t"], "on"), (["x", "e two t"], "on"), ("one", ""), ("zzz", "one two three ")],
)
async def test_stop_sequences_cut_across_chunks(text: LiveServer, stream: bool, stop: Any, left: str) -> None:
    if stream:
        asked = {"model": "text", "messages": [{"role": "user", "content": "one two three"}], "stop": stop}
        chunks = (await events_of(text, "/v1/chat/completions", **asked))[:-1]
        said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = (await ask(text, "one two three", stop=stop)).json()["choices"]
        said, reason = choice["message"]["content"], choice["finish_reason"]
    assert (said, reason) == (left, "stop")


async def test_stop_sequence_ends_the_run(text: LiveServer, gates: Gates) -> None:
    response = await ask(text, f"wait {gates['gate'].path}", stop="beg")
    assert response.json()["choices"][0]["message"]["content"] == ""
    await eventually(lambda: text.newest().is_terminal)
    gates["gate"].open()


async def test_several_choices_have_a_seed_each(text: LiveServer) -> None:
    answer = (await ask(text, "a b", n=3, seed=7)).json()
    check("CreateChatCompletionResponse", answer)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a#7 b#7 ", "a#8 b#8 ", "a#9 b#9 "]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
    asked = {"model": "text", "messages": [{"role": "user", "content": "a b"}], "n": 2, "seed": 7}
    chunks = (await events_of(text, "/v1/chat/completions", **asked))[:-1]
    said = {0: "", 1: ""}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        said[choice["index"]] += choice["delta"].get("content", "")
    assert said == {0: "a#7 b#7 ", 1: "a#8 b#8 "}


async def test_parameters_that_nobody_knows_are_passed_over_and_named(text: LiveServer) -> None:
    response = await ask(text, "a", user="me", top_k=5, presence_penalty=None, temperature=0.5)
    assert response.headers["x-geartrain-ignored"] == "user, top_k"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
async def test_parameters_that_would_change_the_answer_are_refused(
    text: LiveServer, body: dict[str, Any], param: str
) -> None:
    await assert_refused(await ask(text, "a", **body), 400, param, "unsupported_parameter", "is not supported")


async def test_values_that_ask_for_nothing_are_taken(text: LiveServer) -> None:
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "logprobs": False,
        "response_format": {"type": "text"},
        "audio": None,
    }
    assert (await ask(text, "a", **nothing)).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": None}, "messages", "at least one message"),
        ({"messages": ["x"]}, "messages[0]", "has to be an object"),
        ({"messages": [{"role": "boss", "content": ""}]}, "messages[0].role", "one of"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "messages[0].role", "one of"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "image_url"),
        ({"n": 0}, "n", "1 to 128"),
        ({"n": 129}, "n", "1 to 128"),
        ({"n": "1"}, "n", "Expected `int`"),
        ({"stream": "yes"}, "stream", "Expected `bool`"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"temperature": 5}, "temperature", "temperature: 5 is greater than the maximum"),
        ({"temperature": "hot"}, "temperature", "temperature:"),
        ({"stop": ["a" * 1001]}, "stop", "longer than 1000 characters"),
        ({"model": None}, "model", "name a model of GET /v1/models"),
        ({"model": 7}, "model", "name a model of GET /v1/models"),
    ],
)
async def test_wrong_values_are_named(text: LiveServer, body: dict[str, Any], param: str, said: str) -> None:
    given = {"model": "text", "messages": [{"role": "user", "content": "a"}], **body}
    response = await text.client.post("/v1/chat/completions", json=given)
    assert response.status_code == 400, response.text
    check("ErrorResponse", response.json())
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert said in error["message"]


@pytest.mark.parametrize("name", ["model", "messages", "n", "stop", "logprobs", "tools", "max_tokens", "seed", "user"])
async def test_numbers_beyond_their_range_are_the_clients_mistake(text: LiveServer, name: str) -> None:
    members = {"model": '"text"', "messages": '[{"role":"user","content":"a"}]', name: "1e400"}
    body = "{" + ",".join(f'"{key}":{value}' for key, value in members.items()) + "}"
    response = await text.client.post("/v1/chat/completions", content=body)
    if name == "user":  # it is passed over
        assert response.status_code == 200
        return
    assert response.status_code == 400, response.text
    check("ErrorResponse", response.json())


async def test_prompts_of_many_choices_take_no_more_than_so_much(text: LiveServer) -> None:
    response = await ask(text, "a" * 1_048_576, n=65)
    assert response.status_code == 413
    assert response.json()["error"]["param"] == "n"


# completions


async def test_completions(text: LiveServer, official: Official) -> None:
    answer = (await post(text, "/v1/completions", model="text", prompt=["a b", "c"], n=2, echo=True)).json()
    check("CreateCompletionResponse", answer)
    assert [choice["text"] for choice in answer["choices"]] == ["a ba b ", "a ba b ", "cc ", "cc "]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    chunks = await events_of(text, "/v1/completions", model="text", prompt="a b")
    for chunk in chunks[:-1]:
        check("CompletionChunk", chunk)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "a b "
    answer = await official(text).completions.create(model="text", prompt="a b")
    assert answer.choices[0].text == "a b "


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"prompt": [1, 2]}, "prompt", "token ids"),
        ({"prompt": [[1, 2]]}, "prompt", "token ids"),
        ({"prompt": []}, "prompt", "empty list"),
        ({}, "prompt", "missing"),
        ({"prompt": ["x"] * 129}, "prompt", "at most 128"),
        ({"prompt": "a", "best_of": 2}, "best_of", "no more than 'n'"),
        ({"prompt": "a", "suffix": "z"}, "suffix", "not supported"),
    ],
)
async def test_completions_that_are_refused(text: LiveServer, body: dict[str, Any], param: str, said: str) -> None:
    response = await post(text, "/v1/completions", model="text", **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert said in response.json()["error"]["message"]


async def test_endpoint_that_a_model_has_not(text: LiveServer, embed: LiveServer) -> None:
    for server, path, body in (
        (text, "/v1/embeddings", {"input": "a"}),
        (text, "/v1/rerank", {"query": "a", "documents": ["b"]}),
        (embed, "/v1/completions", {"prompt": "a"}),
        (embed, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = await post(server, path, model=server.deployment.name, **body)
        await assert_refused(response, 400, "model", "unsupported_model", "The model")


# faults


async def test_run_that_fails_at_once_has_a_status_and_is_not_repeated(text: LiveServer, official: Official) -> None:
    for stream in (False, True):
        response = await ask(text, "fail at once", stream=stream)
        await assert_refused(response, 500, None, "run_failed", "it went wrong")
        assert response.headers["x-should-retry"] == "false"
    before = len(text._admitted)
    client = official(text, max_retries=2)
    with pytest.raises(openai.InternalServerError, match="it went wrong"):
        await client.chat.completions.create(model="text", messages=[{"role": "user", "content": "fail at once"}])
    assert len(text._admitted) == before + 1


async def test_run_that_fails_later_says_so_in_the_stream(text: LiveServer, gates: Gates, official: Official) -> None:
    prompt = f"wait {gates['gate'].path}"
    messages: Any = [{"role": "user", "content": prompt}]
    stream = await official(text).chat.completions.create(model="text", messages=messages, temperature=0, stream=True)
    said = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
    assert said == ["", "begun"]
    gates["gate"].open()
    with pytest.raises(openai.APIError, match="it went wrong later"):
        await anext(stream)


async def test_requests_wait_in_the_queue(text: LiveServer, gates: Gates) -> None:
    gate = gates["gate"].path
    first = asyncio.ensure_future(ask(text, f"wait {gate}"))
    await eventually(lambda: bool(text._admitted) and text.newest().input.find(b"wait") > 0)
    others = [asyncio.ensure_future(ask(text, f"a{number}")) for number in range(5)]
    await eventually(lambda: len(text.predictions.live) == 6)
    gates["gate"].open()
    said = [(await other).json()["choices"][0]["message"]["content"] for other in others]
    assert said == [f"a{number} " for number in range(5)]
    await first


async def test_full_queue_is_429(serve: Serve, gates: Gates) -> None:
    async with serve(TEXT, inference_queue=0) as server:
        first = asyncio.ensure_future(ask(server, f"wait {gates['gate'].path}"))
        await eventually(lambda: bool(server.predictions.live))
        response = await ask(server, "a")
        await assert_refused(response, 429, None, "queue_full", "")
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert int(response.headers["retry-after"]) >= 1
        gates["gate"].open()
        await first


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 2])
async def test_client_that_leaves_ends_its_runs(serve: Serve, gates: Gates, stream: bool, count: int) -> None:
    async with serve(TEXT) as server:
        gate = gates["gate"].path
        asking = asyncio.ensure_future(ask(server, f"wait {gate}", stream=stream, n=count))
        await eventually(lambda: len(server.predictions.live) == count)
        asking.cancel()
        await eventually(lambda: not server.predictions.live)
        gates["gate"].open()


async def test_unknown_paths_and_methods(text: LiveServer) -> None:
    await assert_refused(await text.client.get("/v1/nothing"), 404, None, "unknown_url", "no such path")
    response = await text.client.get("/v1/chat/completions")
    await assert_refused(response, 405, None, "method_not_allowed", "use POST")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "text", "model": "text"}', b"\xff"])
async def test_bodies_that_are_no_json_object(text: LiveServer, body: bytes) -> None:
    response = await text.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    check("ErrorResponse", response.json())


# embeddings


@pytest.mark.parametrize("source", [EMBED, TENSORS])
async def test_embeddings(serve: Serve, source: str, official: Official) -> None:
    async with serve(source) as server:
        name = server.deployment.name
        answer = (await post(server, "/v1/embeddings", model=name, input=["a", "bcd"])).json()
        check("CreateEmbeddingResponse", answer)
        assert [one["embedding"][:2] for one in answer["data"]] == [[1.0, 0.5], [3.0, 0.5]]
        assert [one["index"] for one in answer["data"]] == [0, 1]
        answer = (await post(server, "/v1/embeddings", model=name, input="ab", encoding_format="base64")).json()
        check("CreateEmbeddingResponse", answer)
        raw = b64decode(answer["data"][0]["embedding"])
        assert struct.unpack(f"<{len(raw) // 4}f", raw)[:2] == (2.0, 0.5)
        by_client = await official(server).embeddings.create(model=name, input=["a", "bcd"])
        assert [one.embedding[:2] for one in by_client.data] == [[1.0, 0.5], [3.0, 0.5]]


async def test_texts_of_a_model_that_takes_one_do_not_fill_the_queue(serve: Serve) -> None:
    source = """
        def run(text: str) -> list[float]:
            return [float(text), 0.5]
    """
    async with serve(source) as server:
        name, texts = server.deployment.name, [str(number) for number in range(300)]
        answer = (await post(server, "/v1/embeddings", model=name, input=texts)).json()
        assert [one["embedding"][0] for one in answer["data"]] == [float(number) for number in range(300)]
        response = await post(server, "/v1/embeddings", model=name, input=[*texts, "none", *texts])
        assert response.status_code == 500
        await eventually(lambda: not server.predictions.live)


async def test_dimensions_are_those_of_the_model(embed: LiveServer, serve: Serve) -> None:
    answer = (await post(embed, "/v1/embeddings", model="embed", input="a", dimensions=2)).json()
    assert answer["data"][0]["embedding"] == [1.0, 0.5]
    async with serve(TENSORS) as server:
        name = server.deployment.name
        answer = (await post(server, "/v1/embeddings", model=name, input="a", dimensions=2)).json()
        assert answer["data"][0]["embedding"] == [1.0, 0.5]
        for size in (1, 3):
            response = await post(server, "/v1/embeddings", model=name, input="a", dimensions=size)
            await assert_refused(response, 400, "dimensions", "unsupported_parameter", "not supported")
            assert "have 2 dimensions" in response.json()["error"]["message"]
        for wrong in (0, -1, 2**64, 1.5, "2", True):
            response = await post(server, "/v1/embeddings", model=name, input="a", dimensions=wrong)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, 2], "check_embedding_ctx_length=False"),
        ([[1, 2]], "check_embedding_ctx_length=False"),
        ([], "1 to 2048"),
        (["x"] * 2049, "1 to 2048"),
        ("", "empty string"),
        (["a", ""], "empty string"),
        (5, "is not valid"),
        (None, "missing"),
    ],
)
async def test_texts_that_are_refused(embed: LiveServer, given: Any, said: str) -> None:
    response = await post(embed, "/v1/embeddings", model="embed", input=given)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"
    assert said in response.json()["error"]["message"]


async def test_vectors_that_are_not_finite(embed: LiveServer) -> None:
    response = await post(embed, "/v1/embeddings", model="embed", input="nan")
    assert response.status_code == 500
    check("ErrorResponse", response.json())


# rerank


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_rerank(rank: LiveServer, path: str) -> None:
    documents = ["xyz", "abd", {"text": "cba"}]
    given = {"model": "rank", "query": "abc", "documents": documents}
    answer = (await post(rank, path, **given)).json()
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [(2, 3.0), (1, 2.0), (0, 0.0)]
    answer = (await post(rank, path, **given, top_n=1, return_documents=True)).json()
    assert answer["results"] == [{"index": 2, "relevance_score": 3.0, "document": {"text": "cba"}}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": [{"no": "text"}]}, "documents[0]"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
    ],
)
async def test_rerank_that_is_refused(rank: LiveServer, body: dict[str, Any], param: str) -> None:
    response = await post(rank, "/v1/rerank", model="rank", **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
