"""Pydantic AI's agents."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.asking import EACH_FAULT, Fault, Server, run
from tests.support.text_apis import play


class Answer(pydantic.BaseModel):
    a: int


def model_of(server: Server, name: str = "player", *, key: str = "", is_responses: bool = False) -> Any:
    provider = OpenAIProvider(base_url=server.base, api_key=key or server.key)
    return (OpenAIResponsesModel if is_responses else OpenAIChatModel)(name, provider=provider)


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": f"call_{name}", "name": name, "arguments": arguments}]}


@pytest.mark.parametrize("is_responses", [False, True])
def test_agent(server: Server, is_responses: bool) -> None:
    agent = Agent(model_of(server, is_responses=is_responses), instructions="be")
    answer = agent.run_sync(play("a", "b"))
    assert answer.output == "ab"
    assert answer.usage.requests == 1 if not callable(answer.usage) else answer.usage().requests == 1

    async def ask() -> tuple[str, str]:
        whole = await agent.run(play("a", "b"))
        async with agent.run_stream(play("a", "b")) as stream:
            return whole.output, "".join([text async for text in stream.stream_text(delta=True, debounce_by=None)])

    assert run(ask()) == ("ab", "ab")


@pytest.mark.parametrize("is_responses", [False, True])
def test_tool_and_structured_output(server: Server, is_responses: bool) -> None:
    cities = []

    def weather(city: str) -> str:
        """Tell the weather of a city."""
        cities.append(city)
        return play(called("final_result", '{"a": 5}'))  # which is what the model does next

    agent = Agent(model_of(server, is_responses=is_responses), output_type=Answer, tools=[weather])

    answer = agent.run_sync(play(called("weather", '{"city": "Ulm"}')))
    assert answer.output == Answer(a=5)
    assert cities == ["Ulm"]


def test_structured_output_as_a_stream(server: Server) -> None:
    async def ask() -> list[Answer]:
        agent = Agent(model_of(server), output_type=Answer)
        async with agent.run_stream(play(called("final_result", '{"a": 5}'))) as stream:
            return [each async for each in stream.stream_output(debounce_by=None)]

    assert run(ask())[-1] == Answer(a=5)


@pytest.mark.parametrize("is_responses", [False, True])
def test_picture(server: Server, is_responses: bool) -> None:
    agent = Agent(model_of(server, "viewer", is_responses=is_responses))
    answer = agent.run_sync(["see ", BinaryContent(b"a cat", media_type="image/png")])
    assert answer.output == "see <image> ['a cat']"


def test_error_of_an_asynchronous_run(server: Server) -> None:
    async def ask() -> None:
        await Agent(model_of(server)).run(play({"fail": "it went wrong"}))

    with pytest.raises(ModelHTTPError, match="it went wrong"):
        run(ask())


@EACH_FAULT
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    agent = Agent(model_of(server, fault.model, key=fault.key_of(server)))
    with server.counted() as counted, pytest.raises(ModelHTTPError, match=fault.said) as caught:
        agent.run_sync(fault.text_of(server), model_settings={"temperature": fault.temperature})
    assert counted.requests == fault.requests
    assert caught.value.status_code == fault.status
