"""A folder with a language model as a server of OpenAI's API."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.text_models.server import Server, serve
from tests.text_models.tiny import ANSWERS

GOLDEN = Path(__file__).parents[1] / "conformance" / "golden" / "openai.json"
COUNTED = "<|user|>count<|end|><|assistant|>"


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    (tiny / "geartrain.yaml").write_text("parameters:\n  threads: 1\n")
    with serve(tiny) as server:
        yield server


def check(name: str, value: Any) -> None:
    """Hold a body against a schema of OpenAI's document."""
    document = json.loads(GOLDEN.read_text())
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", **document}, value)


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_model_is_listed(server: Server) -> None:
    (model,) = server.client.get("/v1/models").json()["data"]
    assert (model["id"], model["endpoints"]) == ("tiny", ["chat", "responses", "messages", "completions"])
    metadata = server.client.get("/v2/models/tiny").json()
    assert metadata["platform"] == "transformers"


def test_responses_and_messages(server: Server) -> None:
    answer = server.post("/v1/responses", input="hello", temperature=0).json()
    assert answer["output"][0]["content"][0]["text"] == ANSWERS["hello"]
    assert answer["usage"]["output_tokens"] > 20
    messages = [{"role": "user", "content": "hello"}]
    answer = server.post("/v1/messages", messages=messages, max_tokens=5, temperature=0).json()
    assert ANSWERS["hello"].startswith(answer["content"][0]["text"])
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 5)


@pytest.mark.parametrize("question", list(ANSWERS))
def test_chat(server: Server, question: str) -> None:
    answer = server.chat(question).json()
    check("CreateChatCompletionResponse", answer)
    assert text_of(answer) == ANSWERS[question]
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] >= 4


def test_stream_gives_whole_characters(server: Server) -> None:
    messages = [{"role": "user", "content": "grüß"}]
    options = {"stream_options": {"include_usage": True}, "temperature": 0}
    *chunks, usage, done = server.events("/v1/chat/completions", messages=messages, **options)
    assert done == "[DONE]"
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == ANSWERS["grüß"]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert len(pieces) > 20
    assert usage["usage"]["completion_tokens"] > 20


def test_most_tokens(server: Server) -> None:
    answer = server.chat("count", max_completion_tokens=5).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    assert ANSWERS["count"].startswith(text_of(answer))
    whole = server.chat("count", ignore_eos=True).json()
    assert whole["usage"]["total_tokens"] == 256  # as many as the model takes
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence(server: Server, stream: bool) -> None:
    given = {"prompt": COUNTED, "temperature": 0, "stop": [" four five"]}
    if stream:
        *chunks, _ = server.events("/v1/completions", **given)
        choices = [chunk["choices"][0] for chunk in chunks]
        text, reason = "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
    else:
        (choice,) = server.post("/v1/completions", **given).json()["choices"]
        text, reason = choice["text"], choice["finish_reason"]
    assert (text, reason) == (" one two three", "stop")


def test_seed_decides_what_is_drawn(server: Server) -> None:
    options = {"temperature": 2, "max_tokens": 30}
    first, second, other = (text_of(server.chat("hello", seed=seed, **options).json()) for seed in (7, 7, 8))
    assert first == second != other
    several = server.chat("hello", seed=7, n=2, **options).json()["choices"]
    assert [choice["message"]["content"] for choice in several] == [first, other]
    unseeded = {text_of(server.chat("hello", **options).json()) for _ in range(3)}
    assert len(unseeded) > 1


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 0}, {"top_p": 0.01}, {"min_p": 1}])
def test_limits_that_leave_the_likeliest_token(server: Server, limit: dict[str, float]) -> None:
    assert text_of(server.chat("count", temperature=2, **limit).json()) == ANSWERS["count"]


@pytest.mark.parametrize(
    ("given", "param"),
    [({"temperature": 3}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"max_tokens": 0}, "max_tokens")],
)
def test_values_out_of_range(server: Server, given: dict[str, float], param: str) -> None:
    response = server.chat("hello", **given)
    assert response.status_code == 400
    check("ErrorResponse", response.json())
    assert response.json()["error"]["param"] == param


def test_logprobs_of_a_chat(server: Server) -> None:
    answer = server.chat("hello", logprobs=True, top_logprobs=3).json()
    check("CreateChatCompletionResponse", answer)
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert len(tokens) == answer["usage"]["completion_tokens"]
    assert "".join(token["token"] for token in tokens).startswith(ANSWERS["hello"])
    for token in tokens:
        assert -1 < token["logprob"] <= 0
        assert len(token["top_logprobs"]) == 3
        assert token["top_logprobs"][0]["token"] == token["token"]
    messages = [{"role": "user", "content": "hello"}]
    given = {"messages": messages, "temperature": 0, "logprobs": True}
    *chunks, _ = server.events("/v1/chat/completions", **given)
    streamed = [
        token["token"]
        for chunk in chunks
        for token in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert streamed == [token["token"] for token in tokens]
    assert "logprobs" not in server.chat("hello").json()["choices"][0]["message"]


def test_logprobs_of_a_completion(server: Server) -> None:
    answer = server.post("/v1/completions", prompt=COUNTED, temperature=0, logprobs=2, max_tokens=4).json()
    check("CreateCompletionResponse", answer)
    told = answer["choices"][0]["logprobs"]
    assert "".join(told["tokens"]) == answer["choices"][0]["text"]
    assert [len(each) for each in told["top_logprobs"]] == [2, 2, 2, 2]
    assert told["text_offset"][0] == 0
    assert told["text_offset"][-1] == len("".join(told["tokens"][:-1]))


def test_prompts_that_are_refused(server: Server) -> None:
    response = server.chat("hello " * 300)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    assert "the model takes 256" in response.json()["error"]["message"]
    response = server.post("/v1/completions", prompt="")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    messages = [{"role": "tool", "content": "x", "tool_call_id": "1"}]
    response = server.post("/v1/chat/completions", messages=messages)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "no tools"


def test_many_at_once(server: Server) -> None:
    questions = [*ANSWERS] * 8
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(lambda question: text_of(server.chat(question).json()), questions))
    assert answers == [ANSWERS[question] for question in questions]


def test_other_protocols(server: Server) -> None:
    given = {"prompt": COUNTED, "temperature": 0, "max_tokens": 10}
    prediction = server.client.post("/predictions", json={"input": given}).json()
    assert prediction["status"] == "succeeded", prediction
    assert ANSWERS["count"].startswith("".join(prediction["output"]))
    assert prediction["metrics"]["tokens"]["completion"] == 10
    answer = server.client.post("/v2/models/tiny/generate", json={"text_input": COUNTED, "temperature": 0}).json()
    assert answer["text_output"] == ANSWERS["count"]


def test_template_of_the_folder_is_that_of_the_tokenizer(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(tiny, folder)
    (folder / "chat_template.jinja").write_text("<|user|>count<|end|><|assistant|>")
    with serve(folder) as server:
        assert text_of(server.chat("hello").json()) == ANSWERS["count"]
