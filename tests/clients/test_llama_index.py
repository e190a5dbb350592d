"""LlamaIndex, by its classes for servers of OpenAI's API."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from tests.clients.asking import FAULTS, Fault, Server, run, told
from tests.support.gates import Gates
from tests.support.text_apis import CALL, play


def model_of(server: Server, name: str = "player", **options: Any) -> OpenAILike:
    given = {"api_key": server.key, "is_chat_model": True, "is_function_calling_model": True, **options}
    return OpenAILike(model=name, api_base=server.base, **given)


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return city


def test_chat(server: Server) -> None:
    model = model_of(server)
    assert model.chat(user(play("a", "b"))).message.content == "ab"
    assert "".join(chunk.delta or "" for chunk in model.stream_chat(user(play("a", "b")))) == "ab"
    answer = model.chat_with_tools(
        [FunctionTool.from_defaults(weather)], user_msg=play(*CALL), allow_parallel_tool_calls=True
    )
    calls = model.get_tool_calls_from_response(answer)
    assert [call.tool_kwargs for call in calls] == [{"city": "Ulm"}, {"city": "Bonn"}]


def test_asynchronous_chat(server: Server) -> None:
    async def ask() -> tuple[str | None, str]:
        model = model_of(server)
        whole = await model.achat(user(play("a", "b")))
        said = [chunk.delta or "" async for chunk in await model.astream_chat(user(play("a", "b")))]
        return whole.message.content, "".join(said)

    assert run(ask()) == ("ab", "ab")


def test_completions(server: Server) -> None:
    model = model_of(server, "writer", is_chat_model=False, max_tokens=2)
    assert model.complete("a b c").text == "a b "
    assert "".join(chunk.delta or "" for chunk in model.stream_complete("a b")) == "a b "


def test_other_asynchronous_calls(server: Server) -> None:
    async def ask() -> None:
        plain = model_of(server, "writer", is_chat_model=False, max_tokens=2)
        assert (await plain.acomplete("a b c")).text == "a b "
        chunks = await plain.astream_complete("a b")
        assert "".join([chunk.delta or "" async for chunk in chunks]) == "a b "
        model = model_of(server)
        answer = await model.achat_with_tools(
            [FunctionTool.from_defaults(weather)], user_msg=play(*CALL), allow_parallel_tool_calls=True
        )
        calls = model.get_tool_calls_from_response(answer)
        assert [call.tool_kwargs for call in calls] == [{"city": "Ulm"}, {"city": "Bonn"}]
        with pytest.raises(openai.InternalServerError, match="it went wrong"):
            await model.achat(user(play({"fail": "it went wrong"})))

    run(ask())


def test_tools_of_a_stream(server: Server) -> None:
    model = model_of(server)
    *_, last = model.stream_chat_with_tools(
        [FunctionTool.from_defaults(weather)], user_msg=play(*CALL), allow_parallel_tool_calls=True
    )
    calls = model.get_tool_calls_from_response(last)
    assert [call.tool_kwargs for call in calls] == [{"city": "Ulm"}, {"city": "Bonn"}]


def test_run_that_fails_in_the_middle(server: Server, gates: Gates) -> None:
    text = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    texts = (chunk.delta for chunk in model_of(server).stream_chat(user(text)))
    assert next(filter(None, texts)) == "begun"
    gates["gate"].open()
    with pytest.raises(openai.APIError, match="it went wrong later"):
        list(texts)


def test_embeddings(server: Server) -> None:
    vectors = OpenAILikeEmbedding(model_name="embed", api_base=server.base, api_key=server.key)
    assert vectors.get_text_embedding("ab") == [2.0, 0.5, -1.0]
    assert run(vectors.aget_text_embedding_batch(["a", "bcd"])) == [[1.0, 0.5, -1.0], [3.0, 0.5, -1.0]]


# It tries thrice by itself, whatever the server says, and has the client try 3 more times where that would.
REQUESTS = {429: 12, 500: 3, 504: 3}


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name != "not ready"], ids=lambda fault: fault.name
)
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    model = model_of(
        server, fault.model, api_key=fault.key_of(server), additional_kwargs={"temperature": fault.temperature}
    )
    with server.counted() as counted, pytest.raises(openai.APIStatusError) as caught:
        model.chat(user(fault.text_of(server)))
    assert caught.value.status_code == fault.status
    assert fault.said in told(caught.value)
    assert counted.requests == REQUESTS.get(fault.status, 1)
