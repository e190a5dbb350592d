"""LiteLLM, which many others use to ask OpenAI's API."""

from __future__ import annotations

from typing import Any

import litellm
import pytest

from tests.clients.asking import EACH_FAULT, Fault, Server, run, told
from tests.support.gates import Gates
from tests.support.text_apis import CALL, play

ERRORS = {
    400: litellm.BadRequestError,
    401: litellm.AuthenticationError,
    403: litellm.APIError,
    404: litellm.NotFoundError,
    413: litellm.BadRequestError,
    429: litellm.RateLimitError,
    500: litellm.InternalServerError,
    503: litellm.ServiceUnavailableError,
    504: litellm.Timeout,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def asked(server: Server, text: str, model: str = "player", **options: Any) -> dict[str, Any]:
    """Return the options of a chat of one message."""
    messages = [{"role": "user", "content": text}]
    return {"model": f"openai/{model}", "messages": messages, "api_base": server.base, "api_key": server.key, **options}


def test_chat(server: Server) -> None:
    answer: Any = litellm.completion(**asked(server, play({"reasoning": "hm"}, "a", "b"), max_tokens=5))
    assert answer.choices[0].message.content == "ab"
    assert answer.choices[0].message.reasoning_content == "hm"
    chunks: Any = litellm.completion(**asked(server, play("a", "b")), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"
    called: Any = litellm.completion(**asked(server, play(*CALL)), tools=[WEATHER])
    assert [call.function.arguments for call in called.choices[0].message.tool_calls] == [
        '{"city": "Ulm"}',
        '{"city": "Bonn"}',
    ]


def test_asynchronous_chat(server: Server) -> None:
    async def ask() -> tuple[str, str]:
        whole: Any = await litellm.acompletion(**asked(server, play("a", "b")))
        chunks: Any = await litellm.acompletion(**asked(server, play("a", "b")), stream=True)
        said = [chunk.choices[0].delta.content or "" async for chunk in chunks]
        return whole.choices[0].message.content, "".join(said)

    assert run(ask()) == ("ab", "ab")


def test_other_endpoints(server: Server) -> None:
    place = {"api_base": server.base, "api_key": server.key}
    text: Any = litellm.text_completion(model="text-completion-openai/writer", prompt="a b c", max_tokens=2, **place)
    assert text.choices[0].text == "a b "
    vectors: Any = litellm.embedding(model="openai/embed", input=["ab"], **place)
    assert vectors.data[0]["embedding"] == [2.0, 0.5, -1.0]
    response: Any = litellm.responses(model="openai/player", input=play("a", "b"), **place)
    assert response.output[0].content[0].text == "ab"
    ranks: Any = litellm.rerank(
        model="hosted_vllm/rank", query="abc", documents=["xyz", "cba"], api_base=server.url, api_key=server.key
    )
    assert [one["index"] for one in ranks.results] == [1, 0]
    heard: Any = litellm.transcription(model="openai/listener", file=("speech.wav", b"good morning"), **place)
    assert heard.text == "good morning"


def test_more_endpoints(server: Server) -> None:
    place = {"api_base": server.base, "api_key": server.key}
    spoken: Any = litellm.speech(model="openai/speaker", input="hello", voice="bob", **place)
    assert spoken.content == b"bob: hello"
    made: Any = litellm.image_generation(model="openai/painter", prompt="a cat", **place)
    assert made.data[0].b64_json
    judged: Any = litellm.moderation(model="judge", input="a fight", **place)
    assert judged.results[0].flagged
    chunks: Any = litellm.text_completion(
        model="text-completion-openai/writer", prompt="a b c", max_tokens=2, stream=True, **place
    )
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == "a b "
    events: Any = litellm.responses(model="openai/player", input=play("a", "b"), stream=True, **place)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "ab"


def test_features_of_chats(server: Server) -> None:
    cut: Any = litellm.completion(**asked(server, play("one ", "two"), n=2, stop=["w"]))
    assert [choice.message.content for choice in cut.choices] == ["one t", "one t"]
    form: Any = {"type": "json_schema", "json_schema": {"name": "A", "schema": {"type": "object", "required": ["a"]}}}
    formed: Any = litellm.completion(**asked(server, play('{"a": ', "5}"), response_format=form))
    assert formed.choices[0].message.content == '{"a": 5}'
    text = play({"content": "x", "logprobs": [{"token": "x", "logprob": -0.1, "top": []}]})
    counted: Any = litellm.completion(**asked(server, text, logprobs=True))
    assert counted.choices[0].logprobs.content[0].token == "x"
    chunks: Any = litellm.completion(**asked(server, play(*CALL)), tools=[WEATHER], stream=True)
    whole: Any = litellm.stream_chunk_builder(list(chunks))
    assert [call.function.arguments for call in whole.choices[0].message.tool_calls] == [
        '{"city": "Ulm"}',
        '{"city": "Bonn"}',
    ]


def test_other_asynchronous_endpoints(server: Server) -> None:
    async def ask() -> None:
        place = {"api_base": server.base, "api_key": server.key}
        text: Any = await litellm.atext_completion(
            model="text-completion-openai/writer", prompt="a b c", max_tokens=2, **place
        )
        assert text.choices[0].text == "a b "
        vectors: Any = await litellm.aembedding(model="openai/embed", input=["ab"], **place)
        assert vectors.data[0]["embedding"] == [2.0, 0.5, -1.0]
        response: Any = await litellm.aresponses(model="openai/player", input=play("a", "b"), **place)
        assert response.output[0].content[0].text == "ab"
        ranks: Any = await litellm.arerank(
            model="hosted_vllm/rank", query="abc", documents=["xyz", "cba"], api_base=server.url, api_key=server.key
        )
        assert [one["index"] for one in ranks.results] == [1, 0]
        heard: Any = await litellm.atranscription(
            model="openai/listener", file=("speech.wav", b"good morning"), **place
        )
        assert heard.text == "good morning"
        called: Any = await litellm.acompletion(**asked(server, play(*CALL)), tools=[WEATHER])
        assert len(called.choices[0].message.tool_calls) == 2
        with pytest.raises(litellm.InternalServerError, match="it went wrong"):
            await litellm.acompletion(**asked(server, play({"fail": "it went wrong"})))

    run(ask())


def test_streams_in_the_form_of_anthropic(server: Server) -> None:
    place = {"model": "anthropic/player", "api_base": server.url, "stream": True}
    chunks: Any = litellm.completion(**{**asked(server, play("a", "b")), **place})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"

    async def ask() -> str:
        chunks: Any = await litellm.acompletion(**{**asked(server, play("a", "b")), **place})
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    assert run(ask()) == "ab"


def test_form_of_anthropic(server: Server) -> None:
    answer: Any = litellm.completion(
        **{**asked(server, play("a", "b")), "model": "anthropic/player", "api_base": server.url}
    )
    assert answer.choices[0].message.content == "ab"


def test_run_that_fails_in_the_middle(server: Server, gates: Gates) -> None:
    text = play("begun", {"wait": str(gates["gate"].path)}, {"fail": "it went wrong later"})
    chunks: Any = iter(litellm.completion(**asked(server, text), stream=True))
    texts = (chunk.choices[0].delta.content for chunk in chunks)
    assert next(filter(None, texts)) == "begun"
    gates["gate"].open()
    with pytest.raises(Exception, match="it went wrong later"):  # of a kind of its own
        list(chunks)


@EACH_FAULT
def test_each_error_and_its_requests(server: Server, fault: Fault) -> None:
    options = {"api_key": fault.key_of(server), "temperature": fault.temperature}
    with server.counted() as counted, pytest.raises(ERRORS[fault.status]) as caught:
        litellm.completion(**asked(server, fault.text_of(server), fault.model, **options))
    assert fault.said in told(caught.value)
    assert counted.requests == fault.requests
