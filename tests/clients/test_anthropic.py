"""Anthropic's official client, blocking and asynchronous."""

from __future__ import annotations

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
