"""Instructor, which asks for objects."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pydantic
import pytest
from instructor import Mode

from tests.clients.asking import FAULTS, Fault, Server, run, told
from tests.support.text_apis import play


class Answer(pydantic.BaseModel):
    a: int
    b: str


CALL = {"tool_calls": [{"index": 0, "id": "c", "name": "Answer", "arguments": '{"a": 5, "b": "x"}'}]}
FORMS = [
    (Mode.TOOLS, play(CALL)),
    (Mode.JSON, play('{"a": 5, ', '"b": "x"}')),
    (Mode.JSON_SCHEMA, play('{"a": 5, "b": "x"}')),
]


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(("mode", "text"), FORMS)
def test_object(server: Server, mode: Mode, text: str) -> None:
    plain = openai.OpenAI(base_url=server.base, api_key=server.key)
    client = instructor.from_openai(plain, mode=mode)
    answer = client.chat.completions.create(model="player", messages=user(text), response_model=Answer)
    assert answer.model_dump() == {"a": 5, "b": "x"}
    if mode is Mode.TOOLS:  # in parts, its tool has another name
        text = text.replace("Answer", "PartialAnswer")
    *_, last = client.chat.completions.create_partial(model="player", messages=user(text), response_model=Answer)
    assert last.model_dump() == {"a": 5, "b": "x"}


@pytest.mark.parametrize(("mode", "text"), FORMS)
def test_asynchronous_client(server: Server, mode: Mode, text: str) -> None:
    async def ask() -> Answer:
        async with openai.AsyncOpenAI(base_url=server.base, api_key=server.key) as plain:
            client = instructor.from_openai(plain, mode=mode)
            answer: Answer = await client.chat.completions.create(
                model="player", messages=user(text), response_model=Answer
            )
            return answer

    assert run(ask()).model_dump() == {"a": 5, "b": "x"}


@pytest.mark.parametrize(("mode", "text"), FORMS)
def test_parts_of_the_asynchronous_client(server: Server, mode: Mode, text: str) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.base, api_key=server.key) as plain:
            client = instructor.from_openai(plain, mode=mode)
            said = text.replace("Answer", "PartialAnswer") if mode is Mode.TOOLS else text
            parts = client.chat.completions.create_partial(model="player", messages=user(said), response_model=Answer)
            return [part async for part in parts]

    assert run(ask())[-1].model_dump() == {"a": 5, "b": "x"}


def test_error_of_the_asynchronous_client(server: Server) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=server.base, api_key=server.key) as plain:
            client = instructor.from_openai(plain)
            text = play({"fail": "it went wrong"})
            await client.chat.completions.create(model="player", messages=user(text), response_model=Answer)

    with pytest.raises(Exception, match="it went wrong"):  # of a kind of its own
        run(ask())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    plain = openai.OpenAI(base_url=server.base, api_key=fault.key_of(server))
    client = instructor.from_openai(plain)
    with server.counted() as counted, pytest.raises(Exception) as caught:  # noqa: PT011 - its own kinds
        client.chat.completions.create(
            model=fault.model,
            messages=user(fault.text_of(server)),
            response_model=Answer,
            temperature=fault.temperature,
        )
    assert fault.said in told(caught.value)
    assert counted.requests == fault.requests
