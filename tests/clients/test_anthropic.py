"""Anthropic's official client, blocking and asynchronous."""

from __future__ import annotations

import time
from typing import Any

import anthropic
import pytest

from tests.clients.asking import EACH_FAULT, Fault, Server, run
from tests.support.gates import Gates
from tests.support.text_apis import CALL, play

WEATHER: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def user(text: str) -> Any:
    return {"model": "player", "max_tokens": 100, "messages": [{"role": "user", "content": text}]}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_messages(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key=server.key) as client:
        answer = client.messages.create(**user(play("a", "b")), system="be")
        assert text_of(answer) == "ab"
        assert answer.stop_reason == "end_turn"
        with client.messages.stream(**user(play("a", "b"))) as stream:
            assert "".join(stream.text_stream) == "ab"
        with client.messages.stream(**user(play(*CALL)), tools=[WEATHER]) as stream:
            called = stream.get_final_message()
        assert called.stop_reason == "tool_use"
        assert [block.type for block in called.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert client.messages.count_tokens(model="player", messages=user("a b c")["messages"]).input_tokens == 3


def test_asynchronous_client(server: Server) -> None:
    async def ask() -> tuple[str, str]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key=server.key) as client:
            whole = await client.messages.create(**user(play("a", "b")))
            async with client.messages.stream(**user(play("a", "b"))) as stream:
                return text_of(whole), "".join([text async for text in stream.text_stream])

    assert run(ask()) == ("ab", "ab")


def test_tools_counts_and_pictures_of_the_asynchronous_client(server: Server) -> None:
    async def ask() -> None:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key=server.key) as client:
            called = await client.messages.create(**user(play(*CALL)), tools=[WEATHER])
            assert [block.type for block in called.content] == ["thinking", "text", "tool_use", "tool_use"]
            async with client.messages.stream(**user(play(*CALL)), tools=[WEATHER]) as stream:
                assert (await stream.get_final_message()).stop_reason == "tool_use"
            counted = await client.messages.count_tokens(model="player", messages=user("a b c")["messages"])
            assert counted.input_tokens == 3
            source = {"type": "base64", "media_type": "image/png", "data": "YSBjYXQ="}
            parts: Any = [{"type": "text", "text": "see "}, {"type": "image", "source": source}]
            seen = await client.messages.create(
                model="viewer", max_tokens=9, messages=[{"role": "user", "content": parts}]
            )
            assert text_of(seen) == "see <image> ['a cat']"
            with pytest.raises(anthropic.InternalServerError, match="it went wrong"):
                await client.messages.create(**user(play({"fail": "it went wrong"})))

    run(ask())


def test_models_stops_and_results_of_tools(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key=server.key) as client:
        assert "player" in [model.id for model in client.models.list()]
        cut = client.messages.create(**user(play("one ", "two")), stop_sequences=["w"])
        assert (text_of(cut), cut.stop_reason, cut.stop_sequence) == ("one t", "stop_sequence", "w")
        first = client.messages.create(**user(play(*CALL)), tools=[WEATHER])
        results: Any = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "sun"}
            for block in first.content
            if block.type == "tool_use"
        ]
        said: Any = [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = client.messages.create(
            model="player",
            max_tokens=100,
            messages=[*user("weather?")["messages"], *said, *user(play("sun"))["messages"]],
        )
        assert text_of(second) == "sun"


def test_batch_of_messages(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key=server.key) as client:
        batches = client.messages.batches
        failing = user(play({"fail": "it went wrong"}))
        made = batches.create(
            requests=[{"custom_id": "a", "params": user(play("a", "b"))}, {"custom_id": "b", "params": failing}]
        )
        assert made.id in [each.id for each in batches.list(limit=1)]
        while (found := batches.retrieve(made.id)).processing_status != "ended":
            time.sleep(0.01)
        assert (found.request_counts.succeeded, found.request_counts.errored) == (1, 1)
        results = {each.custom_id: each.result for each in batches.results(made.id)}
        assert results["a"].type == "succeeded"
        assert text_of(results["a"].message) == "ab"
        assert results["b"].type == "errored"
        assert batches.cancel(made.id).processing_status == "ended"
        assert batches.delete(made.id).id == made.id
        with pytest.raises(anthropic.NotFoundError):
            batches.retrieve(made.id)


def test_run_that_fails_in_the_middle(server: Server, gates: Gates) -> None:
    text = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    client = anthropic.Anthropic(base_url=server.url, api_key=server.key)
    with client, client.messages.stream(**user(text)) as stream:
        assert next(iter(stream.text_stream)) == "begun"
        gates["gate"].open()
        with pytest.raises(anthropic.APIStatusError, match="it went wrong later"):
            stream.until_done()


@EACH_FAULT
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key=fault.key_of(server))
    with client, server.counted() as counted, pytest.raises(anthropic.APIStatusError, match=fault.said) as caught:
        client.messages.create(
            **{**user(fault.text_of(server)), "model": fault.model}, extra_body={"temperature": fault.temperature}
        )
    assert counted.requests == fault.requests
    assert caught.value.status_code == fault.status
