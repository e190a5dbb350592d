"""LangChain, by `langchain-openai`."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from tests.clients.asking import EACH_FAULT, Fault, Server, run, told
from tests.support.gates import Gates
from tests.support.text_apis import CALL, play


class Answer(pydantic.BaseModel):
    """An answer."""

    a: int


def chat(server: Server, model: str = "player", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=server.base, **{"api_key": server.key, **options})


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return city


@pytest.mark.parametrize("is_responses", [False, True])
def test_chat_and_streams(server: Server, is_responses: bool) -> None:
    model = chat(server, use_responses_api=is_responses, stream_usage=True, max_completion_tokens=7)
    answer = model.invoke([SystemMessage("be"), HumanMessage(play("a", "b"))])
    assert answer.text == "ab"
    assert answer.usage_metadata is not None
    assert "".join(chunk.text for chunk in model.stream(play("a", "b"))) == "ab"

    async def ask() -> tuple[str, str]:
        whole = await model.ainvoke(play("a", "b"))
        return whole.text, "".join([chunk.text async for chunk in model.astream(play("a", "b"))])

    assert run(ask()) == ("ab", "ab")
    assert [each.text for each in model.batch([play("a"), play("b")])] == ["a", "b"]


@pytest.mark.parametrize("is_responses", [False, True])
def test_tools(server: Server, is_responses: bool) -> None:
    model = chat(server, use_responses_api=is_responses).bind_tools([weather], tool_choice="weather")
    answer = model.invoke(play(*CALL))
    assert isinstance(answer, AIMessage)
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Ulm"}, {"city": "Bonn"}]
    results = [ToolMessage(content="sun", tool_call_id=call["id"]) for call in answer.tool_calls]
    after = model.invoke([HumanMessage("weather?"), answer, *results, HumanMessage(play("sunny"))])
    assert after.text == "sunny"
    whole: Any = None
    for chunk in model.stream(play(*CALL)):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Ulm"}, {"city": "Bonn"}]


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_structured_output(server: Server, method: Any) -> None:
    call = {"tool_calls": [{"index": 0, "id": "c", "name": "Answer", "arguments": '{"a": 5}'}]}
    text = play(call) if method == "function_calling" else play('{"a": ', "5}")
    assert chat(server).with_structured_output(Answer, method=method).invoke(text) == Answer(a=5)


def test_completions(server: Server) -> None:
    model = OpenAI(model="writer", base_url=server.base, api_key=server.key, max_tokens=3)
    assert model.invoke("a b c d") == "a b c "
    assert "".join(model.stream("a b")) == "a b "


def test_embeddings(server: Server) -> None:
    vectors = OpenAIEmbeddings(
        model="embed", base_url=server.base, api_key=server.key, check_embedding_ctx_length=False
    )
    assert vectors.embed_query("ab") == [2.0, 0.5, -1.0]
    assert run(vectors.aembed_documents(["a", "bcd"])) == [[1.0, 0.5, -1.0], [3.0, 0.5, -1.0]]


def test_logprobs_stops_and_pictures(server: Server) -> None:
    text = play({"content": "x", "logprobs": [{"token": "x", "logprob": -0.1, "top": []}]})
    answer = chat(server, logprobs=True).invoke(text)
    assert answer.response_metadata["logprobs"]["content"][0]["token"] == "x"
    assert chat(server).invoke(play("one ", "two"), stop=["w"]).text == "one t"
    url = "data:text/plain,a%20cat"
    parts: Any = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": url}}]
    assert chat(server, "viewer").invoke([HumanMessage(parts)]).text == "see <image> ['a cat']"


def test_other_features_of_asynchronous_calls(server: Server) -> None:
    async def ask() -> None:
        tools = chat(server).bind_tools([weather])
        called = await tools.ainvoke(play(*CALL))
        assert [call["args"] for call in called.tool_calls] == [{"city": "Ulm"}, {"city": "Bonn"}]
        whole: Any = None
        async for chunk in tools.astream(play(*CALL)):
            whole = chunk if whole is None else whole + chunk
        assert [call["args"] for call in whole.tool_calls] == [{"city": "Ulm"}, {"city": "Bonn"}]
        formed = chat(server).with_structured_output(Answer, method="json_schema")
        assert await formed.ainvoke(play('{"a": ', "5}")) == Answer(a=5)
        plain = OpenAI(model="writer", base_url=server.base, api_key=server.key, max_tokens=3)
        assert await plain.ainvoke("a b c d") == "a b c "
        assert "".join([piece async for piece in plain.astream("a b")]) == "a b "
        with pytest.raises(openai.InternalServerError, match="it went wrong"):
            await chat(server).ainvoke(play({"fail": "it went wrong"}))

    run(ask())


def test_run_that_fails_in_the_middle(server: Server, gates: Gates) -> None:
    text = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    texts = (chunk.text for chunk in chat(server).stream(text))
    assert next(filter(None, texts)) == "begun"
    gates["gate"].open()
    with pytest.raises(openai.APIError, match="it went wrong later"):
        list(texts)


def test_other_forms_of_embeddings(server: Server) -> None:
    vectors = OpenAIEmbeddings(
        model="embed", base_url=server.base, api_key=server.key, check_embedding_ctx_length=False
    )
    assert vectors.embed_documents(["a", "bcd"]) == [[1.0, 0.5, -1.0], [3.0, 0.5, -1.0]]
    assert run(vectors.aembed_query("ab")) == [2.0, 0.5, -1.0]


@EACH_FAULT
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    model = chat(server, fault.model, api_key=fault.key_of(server), temperature=fault.temperature)
    with server.counted() as counted, pytest.raises(openai.APIStatusError) as caught:
        model.invoke(fault.text_of(server))
    assert counted.requests == fault.requests
    assert caught.value.status_code == fault.status
    assert fault.said in told(caught.value)
