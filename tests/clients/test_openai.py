"""OpenAI's official client for Python, blocking and asynchronous: each endpoint, and the requests for each error."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.asking import EACH_FAULT, Fault, Server, run
from tests.support.gates import Gates
from tests.support.text_apis import CALL, play

ERRORS = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    413: openai.APIStatusError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}, "strict": True},
}
FLAT: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


class Answer(pydantic.BaseModel):
    a: int


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base, api_key=server.key) as client:
        yield client


def running(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base, api_key=server.key)


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


# blocking


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {"player", "writer"} <= set(names)
    assert "late" not in names
    assert client.models.retrieve("player").owned_by == "geartrain"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="player", messages=user(play("one ", "two")), n=2, stop=["w"])
    assert [choice.message.content for choice in answer.choices] == ["one t", "one t"]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage is not None
    assert answer._request_id


def test_chat_as_a_stream(client: openai.OpenAI) -> None:
    options: Any = {"stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="player", messages=user(play("a", "b")), stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "ab"
    assert chunks[-1].usage is not None
    with client.chat.completions.stream(model="player", messages=user(play("a", "b"))) as stream:
        assert stream.get_final_completion().choices[0].message.content == "ab"


def test_tools(client: openai.OpenAI) -> None:
    messages = user(play(*CALL))
    answer = client.chat.completions.create(model="player", messages=messages, tools=[WEATHER]).choices[0]
    assert answer.finish_reason == "tool_calls"
    calls: Any = answer.message.tool_calls
    assert [(call.id, call.function.arguments) for call in calls] == [
        ("call_1", '{"city": "Ulm"}'),
        ("call_2", '{"city": "Bonn"}'),
    ]
    assert answer.message.model_extra is not None
    assert answer.message.model_extra["reasoning_content"] == "the user wants weather"
    with client.chat.completions.stream(model="player", messages=messages, tools=[WEATHER]) as stream:
        streamed: Any = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == ['{"city": "Ulm"}', '{"city": "Bonn"}']


def test_logprobs(client: openai.OpenAI) -> None:
    text = play({"content": "x", "logprobs": [{"token": "x", "logprob": -0.1, "top": []}]})
    answer = client.chat.completions.create(model="player", messages=user(text), logprobs=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].bytes == [120]


def test_forms(client: openai.OpenAI) -> None:
    good = client.chat.completions.parse(model="player", messages=user(play('{"a": ', "5}")), response_format=Answer)
    assert good.choices[0].message.parsed == Answer(a=5)
    cut = play('{"a": ', {"finish_reason": "length"})
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="player", messages=user(cut), response_format=Answer)
    with pytest.raises(openai.InternalServerError, match="response_format"):
        client.chat.completions.parse(model="player", messages=user(play("[]")), response_format=Answer)
    answer = client.responses.parse(model="player", input=play('{"a": ', "5}"), text_format=Answer)
    assert answer.output_parsed == Answer(a=5)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="writer", prompt=["a b c", "d"], max_tokens=2)
    assert [choice.text for choice in answer.choices] == ["a b ", "d "]
    chunks = client.completions.create(model="writer", prompt="a b", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a b "


def test_responses(client: openai.OpenAI) -> None:
    assert client.responses.create(model="player", input=play("a", "b"), instructions="be").output_text == "ab"
    with client.responses.stream(model="player", input=play(*CALL), tools=[FLAT]) as stream:
        kinds = [item.type for item in stream.get_final_response().output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    events = client.responses.create(model="player", input=play("a", "b"), stream=True)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "ab"


def test_vectors_and_scores(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="embed", input=["a", "b c"])
    assert [one.embedding for one in answer.data] == [[1.0, 0.5, -1.0], [3.0, 0.5, -1.0]]
    assert answer.usage.prompt_tokens == 3
    plain = client.embeddings.create(model="embed", input="ab", encoding_format="float")
    assert plain.data[0].embedding == [2.0, 0.5, -1.0]
    judged = client.moderations.create(model="judge", input=["a fight", "a walk"]).results
    assert [one.flagged for one in judged] == [True, False]
    assert judged[0].category_scores.violence == 0.9


def test_sound(client: openai.OpenAI, tmp_path: Path) -> None:
    recording = ("speech.wav", b"good morning")
    assert client.audio.transcriptions.create(model="listener", file=recording).text == "good morning"
    srt: Any = client.audio.transcriptions.create(model="listener", file=recording, response_format="srt")
    assert "00:00:01,000 --> 00:00:01,500" in str(srt)
    verbose = client.audio.transcriptions.create(model="listener", file=recording, response_format="verbose_json")
    assert verbose.segments is not None
    assert [segment.text for segment in verbose.segments] == ["good", "morning"]
    events: Any = client.audio.transcriptions.create(model="listener", file=recording, stream=True)
    assert [event.type for event in events][-1] == "transcript.text.done"
    spoken = client.audio.speech.create(model="speaker", input="hello", voice="bob")
    assert spoken.content == b"bob: hello"
    with client.audio.speech.with_streaming_response.create(model="speaker", input="hi", voice="bob") as stream:
        stream.stream_to_file(tmp_path / "speech.mp3")
    assert (tmp_path / "speech.mp3").read_bytes() == b"bob: hi"


def test_pictures(client: openai.OpenAI) -> None:
    import base64

    made = client.images.generate(model="painter", prompt="a cat", n=2, size="1024x1024")
    assert made.data is not None
    assert [base64.b64decode(each.b64_json or "") for each in made.data] == [b"a cat 1024x1024 "] * 2
    picture = io.BytesIO(b"a dog")
    picture.name = "dog.png"
    changed = client.images.edit(model="painter", prompt="a cat and", image=picture)
    assert changed.data is not None
    assert base64.b64decode(changed.data[0].b64_json or "") == b"a cat and auto a dog"


def test_run_that_fails_in_the_middle(client: openai.OpenAI, gates: Gates) -> None:
    text = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    chunks = client.chat.completions.create(model="player", messages=user(text), stream=True)
    assert [next(chunks).choices[0].delta.content for _ in range(2)] == ["", "begun"]
    gates["gate"].open()
    with pytest.raises(openai.APIError, match="it went wrong later"):
        list(chunks)


def test_parameters(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="player",
        messages=[{"role": "developer", "content": "be"}, *user("what came?")],
        temperature=0.5,
        max_completion_tokens=7,
        reasoning_effort="low",
        verbosity="high",
        seed=3,
        user="me",
        extra_body={"top_k": 3},
    )
    given = json.loads(raw.parse().choices[0].message.content or "")
    assert [message["role"] for message in given["messages"]] == ["system", "user"]
    assert (given["temperature"], given["max_tokens"], given["reasoning_effort"]) == (0.5, 7, "low")
    assert given["verbosity"] == "high"
    assert set(raw.headers["x-geartrain-ignored"].split(", ")) == {"seed", "user", "top_k"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="writer", messages=user("a"), logprobs=True)
    assert (caught.value.param, caught.value.code) == ("logprobs", "unsupported_parameter")


def test_choices_of_a_stream(client: openai.OpenAI) -> None:
    said = {0: "", 1: ""}
    for chunk in client.chat.completions.create(model="player", messages=user(play("a", "b")), n=2, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == {0: "ab", 1: "ab"}


def test_completions_with_usage_echo_and_stops(client: openai.OpenAI) -> None:
    options: Any = {"stream_options": {"include_usage": True}}
    chunks = list(client.completions.create(model="writer", prompt="a b c", stop="b", stream=True, **options))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "a "
    assert chunks[-1].usage is not None
    assert client.completions.create(model="writer", prompt="a b", echo=True, n=2).choices[1].text == "a ba b "


def test_token_ids(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tokens", prompt=[[1, 2], [3]])
    assert [choice.text for choice in answer.choices] == ["[1, 2]", "[3]"]
    vectors = client.embeddings.create(model="embed-tokens", input=[[4, 5], [7]])
    assert [one.embedding for one in vectors.data] == [[2.0, 9.0], [1.0, 7.0]]


def test_pictures_in_chats(client: openai.OpenAI) -> None:
    url = "data:text/plain,a%20cat"
    parts: Any = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": url}}]
    answer = client.chat.completions.create(model="viewer", messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == "see <image> ['a cat']"
    items: Any = [{"type": "input_text", "text": "see "}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    response = client.responses.create(model="viewer", input=[{"role": "user", "content": items}])
    assert response.output_text == "see <image> ['a cat']"


def test_conversation_of_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model="player", input=play(*CALL), tools=[FLAT])
    calls = [item for item in first.output if item.type == "function_call"]
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in calls]
    spoken: Any = [item.model_dump() for item in first.output]
    second = client.responses.create(model="player", input=[*spoken, *results, *user("and then?")], store=False)
    roles = [message["role"] for message in json.loads(second.output_text)["messages"]]
    assert roles == ["assistant", "tool", "tool", "user"]
    with pytest.raises(openai.BadRequestError, match="keeps no responses"):
        client.responses.create(model="player", input="a", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_endpoint_that_a_model_has_not(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.audio.translations.create(model="listener", file=("speech.wav", b"guten Morgen"))


# asynchronous


def test_other_features_of_the_asynchronous_client(server: Server, gates: Gates) -> None:
    async def ask() -> None:
        async with running(server) as client:
            chat = client.chat.completions
            called = await chat.create(model="player", messages=user(play(*CALL)), tools=[WEATHER])
            assert called.choices[0].finish_reason == "tool_calls"
            twice = await chat.create(model="player", messages=user(play("one ", "two")), n=2, stop=["w"])
            assert [choice.message.content for choice in twice.choices] == ["one t", "one t"]
            form = user(play('{"a": ', "5}"))
            parsed = await chat.parse(model="player", messages=form, response_format=Answer)
            assert parsed.choices[0].message.parsed == Answer(a=5)
            assert (await client.completions.create(model="tokens", prompt=[1, 2])).choices[0].text == "[1, 2]"
            events = await client.responses.create(model="player", input=play(*CALL), tools=[FLAT], stream=True)
            kinds = [event.item.type async for event in events if event.type == "response.output_item.done"]
            assert kinds == ["reasoning", "message", "function_call", "function_call"]
            recording = ("speech.wav", b"good morning")
            heard: Any = await client.audio.transcriptions.create(model="listener", file=recording, stream=True)
            assert [event.type async for event in heard][-1] == "transcript.text.done"
            spoken = client.audio.speech.with_streaming_response.create(model="speaker", input="hi", voice="bob")
            async with spoken as stream:
                assert b"".join([part async for part in stream.iter_bytes()]) == b"bob: hi"
            picture = io.BytesIO(b"a dog")
            picture.name = "dog.png"
            changed = await client.images.edit(model="painter", prompt="a cat and", image=picture)
            assert changed.data
            with pytest.raises(openai.InternalServerError, match="it went wrong"):
                await chat.create(model="player", messages=user(play({"fail": "it went wrong"})))
            text = play("begun", {"wait": str(gates["later"].path)}, {"fail": "it went wrong later"})
            chunks = await chat.create(model="player", messages=user(text), stream=True)
            assert [(await anext(chunks)).choices[0].delta.content for _ in range(2)] == ["", "begun"]
            gates["later"].open()
            with pytest.raises(openai.APIError, match="it went wrong later"):
                await anext(chunks)

    run(ask())


def test_asynchronous_client(server: Server) -> None:
    async def ask() -> None:
        async with running(server) as client:
            answer = await client.chat.completions.create(model="player", messages=user(play("a", "b")))
            assert answer.choices[0].message.content == "ab"
            options: Any = {"stream_options": {"include_usage": True}}
            chunks = await client.chat.completions.create(
                model="player", messages=user(play("a", "b")), stream=True, **options
            )
            said = [chunk.choices[0].delta.content async for chunk in chunks if chunk.choices]
            assert "".join(each or "" for each in said) == "ab"
            async with client.chat.completions.stream(
                model="player", messages=user(play(*CALL)), tools=[WEATHER]
            ) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].finish_reason == "tool_calls"
            assert (await client.responses.create(model="player", input=play("a", "b"))).output_text == "ab"
            async with client.responses.stream(
                model="player", input=play('{"a": ', "5}"), text_format=Answer
            ) as events:
                kinds = [event.type async for event in events]
            assert kinds[-1] == "response.completed"
            texts = await client.completions.create(model="writer", prompt="a b", stream=True)
            assert "".join([chunk.choices[0].text async for chunk in texts]) == "a b "
            vectors = await client.embeddings.create(model="embed", input="ab")
            assert vectors.data[0].embedding == [2.0, 0.5, -1.0]
            recording = ("speech.wav", b"good morning")
            heard = await client.audio.transcriptions.create(model="listener", file=recording)
            assert heard.text == "good morning"
            spoken = await client.audio.speech.create(model="speaker", input="hello", voice="bob")
            assert spoken.content == b"bob: hello"
            assert (await client.moderations.create(model="judge", input="a fight")).results[0].flagged
            made = await client.images.generate(model="painter", prompt="a cat")
            assert made.data
            assert "player" in [model.id async for model in client.models.list()]

    run(ask())


def test_many_at_once_on_few_connections(server: Server) -> None:
    async def ask() -> list[str | None]:
        async with running(server) as client:
            asked = [client.chat.completions.create(model="player", messages=user(play(str(n)))) for n in range(30)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert run(ask()) == [str(number) for number in range(30)]


# errors


@EACH_FAULT
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    client = openai.OpenAI(base_url=server.base, api_key=fault.key_of(server))
    with client, server.counted() as counted, pytest.raises(ERRORS[fault.status], match=fault.said) as caught:
        client.chat.completions.create(
            model=fault.model, messages=user(fault.text_of(server)), temperature=fault.temperature
        )
    assert counted.requests == fault.requests
    assert caught.value.status_code == fault.status
    assert caught.value.code
    assert caught.value.type


# files and batches


def test_batch(client: openai.OpenAI) -> None:
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "player", "messages": user(play(name))},
        }
        for name in ("one", "two")
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a test"}
    )
    deadline = time.monotonic() + 60
    while batch.status in {"validating", "in_progress", "finalizing"} and time.monotonic() < deadline:
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [each["response"]["body"]["choices"][0]["message"]["content"] for each in output] == ["one", "two"]
    assert batch.id in [each.id for each in client.batches.list()]
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    for name in (file.id, batch.output_file_id):
        assert client.files.delete(name).deleted
