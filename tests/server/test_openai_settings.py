"""`openai:` in a model's `geartrain.yaml`, on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from geartrain.testing import serve
from geartrain.testing.server import Server
from tests.support.servers import PATIENCE, ServerProcess, write_model

# The inputs have names of their own. It says what it got.
OWN_NAMES: Final = """
    import json
    from geartrain import BaseRunner, ConcatenateIterator, Input

    class Runner(BaseRunner):
        def run(
            self,
            topic: str,
            question: str,
            limit: int = Input(default=9, ge=1, le=50),
            enders: list[str] = [],
            dice: int = 0,
        ) -> ConcatenateIterator[str]:
            sizes = [len(each) for each in enders]
            yield json.dumps({"topic": topic, "question": question, "limit": limit, "enders": sizes, "dice": dice})

        def chat_prompt(self, messages: list[dict]) -> str:
            return "+".join(one["content"] for one in messages)
"""
NAMES: Final = """
    openai:
      fields: {prompt: question, max_tokens: limit, stop: enders, seed: dice}
      aliases: [gpt-4o-mini, the writer]
"""
EMBED: Final = """
    def run(phrases: list[str]) -> list[list[float]]:
        return [[float(len(each)), 1.0] for each in phrases]
"""
MATRYOSHKA: Final = """
    def run(texts: list[str]) -> list[list[float]]:
        return [[3.0, 4.0, *[0.0] * 500, float(len(each))] for each in texts]
"""
WRITER: Final = """
    from geartrain import BaseRunner, ConcatenateIterator

    class Runner(BaseRunner):
        def run(self, prompt: str) -> ConcatenateIterator[str]:
            yield prompt
"""
MODELS: Final = {
    "own": (OWN_NAMES, NAMES),
    "embed": (EMBED, "openai: {fields: {input: phrases}}"),
    "nested": (MATRYOSHKA, "openai: {matryoshka: true}"),
    "chats": (WRITER, "openai: {serve: [chat], unsupported: refuse}"),
    "hidden": (WRITER, "openai: {serve: []}"),
}

_SCOPES: Final = ("--scope", "predict", "--scope", "read")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, (source, yaml) in MODELS.items():
        write_settings(write_model(folder / name, source), yaml)
    with serve(folder) as server:
        yield server


def write_settings(folder: Path, yaml: str) -> None:
    lines = [line.removeprefix("    ") for line in yaml.splitlines()]
    (folder / "geartrain.yaml").write_text("\n".join(lines).strip() + "\n")


def ask(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=PATIENCE)


def refused(response: httpx.Response, param: str, code: str) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    return str(error["message"])


@pytest.mark.parametrize("model", ["own", "gpt-4o-mini", "the writer"])
def test_parameters_fill_inputs_of_other_names(server: Server, model: str) -> None:
    options: dict[str, Any] = {"max_tokens": 7, "stop": ["###"], "seed": 5, "topic": "sea"}
    done = ask(server, "completions", model=model, prompt="why?", **options)
    assert done.status_code == 200, done.text
    given = json.loads(done.json()["choices"][0]["text"])
    assert given == {"topic": "sea", "question": "why?", "limit": 7, "enders": [3], "dice": 5}
    assert done.json()["model"] == model
    chat = ask(server, "chat/completions", model=model, messages=messages("a", "b"), n=2, **options)
    texts = [json.loads(choice["message"]["content"]) for choice in chat.json()["choices"]]
    assert [(text["question"], text["dice"]) for text in texts] == [("a+b", 5), ("a+b", 6)]


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def test_stop_sequences_cut_all_the_same(server: Server) -> None:
    done = ask(server, "completions", model="own", prompt="why?", topic="x", stop=["question"], stream=True)
    assert '"finish_reason":"stop"' in done.text
    assert "question" not in done.text


def test_errors_name_parameters(server: Server) -> None:
    response = ask(server, "completions", model="own", prompt="why?", topic="x", max_tokens=51)
    assert "max_tokens: " in refused(response, "max_tokens", "invalid_input")
    assert "'topic' is missing" in refused(
        ask(server, "completions", model="own", prompt="a"), "topic", "invalid_input"
    )
    large = ask(server, "completions", model="own", prompt="x" * 100_000, topic="x", max_tokens=51)
    assert "max_tokens: " in refused(large, "max_tokens", "invalid_input")


def test_large_inputs_reach_their_names(server: Server) -> None:
    done = ask(server, "completions", model="own", prompt="x" * 100_000, topic="y" * 100_000)
    assert len(json.loads(done.json()["choices"][0]["text"])["question"]) == 100_000
    chat = ask(server, "chat/completions", model="own", messages=messages("x" * 100_000), topic="y")
    assert len(json.loads(chat.json()["choices"][0]["message"]["content"])["question"]) == 100_000


def test_other_apis_have_the_inputs_names(server: Server) -> None:
    values = {"topic": "sea", "question": "why?", "limit": 7}
    answer = httpx.post(f"{server.url}/models/own/predictions", json={"input": values}, timeout=PATIENCE).json()
    assert answer["status"] == "succeeded"


def test_embeddings_of_an_input_of_any_name(server: Server) -> None:
    answer = ask(server, "embeddings", model="embed", input=["a", "bcd"]).json()
    assert [row["embedding"] for row in answer["data"]] == [[1.0, 1.0], [3.0, 1.0]]


def test_endpoints_are_switched_off(server: Server) -> None:
    assert ask(server, "chat/completions", model="chats", messages=messages("a")).status_code == 200
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("responses", {"input": "a"}),
        ("responses/input_tokens", {"input": "a"}),
    ):
        assert "switched off" in refused(ask(server, path, model="chats", **body), "model", "unsupported_model")
    message = ask(server, "messages", model="chats", max_tokens=1, messages=messages("a"))
    assert (message.status_code, message.json()["type"]) == (400, "error")
    assert "switched off" in message.json()["error"]["message"]


def test_unsupported_parameters_are_refused(server: Server) -> None:
    body: dict[str, Any] = {"model": "chats", "messages": messages("a")}
    assert ask(server, "chat/completions", **body, stream=False, n=1).status_code == 200
    response = ask(server, "chat/completions", **body, temperature=0.5)
    assert "temperature" in refused(response, "temperature", "unsupported_parameter")
    ignored = ask(server, "chat/completions", model="own", messages=messages("a"), topic="x", temperature=0.5)
    assert (ignored.status_code, ignored.headers["x-geartrain-ignored"]) == (200, "temperature")


def test_models_are_listed_with_their_endpoints_and_aliases(server: Server) -> None:
    listed = {each["id"]: each["endpoints"] for each in httpx.get(f"{server.url}/v1/models").json()["data"]}
    texts = ["chat", "responses", "messages", "completions"]
    assert listed == {
        "own": texts,
        "gpt-4o-mini": texts,
        "the writer": texts,
        "embed": ["embeddings"],
        "nested": ["embeddings"],
        "chats": ["chat"],
        "hidden": [],
    }
    assert httpx.get(f"{server.url}/v1/models/the%20writer").json()["id"] == "the writer"


def test_aliases_of_models_that_a_key_is_not_for(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_settings(write_model(tmp_path / "models" / name, WRITER), f"openai: {{aliases: [alias-{name}]}}")
    keys = tmp_path / "keys"
    made = subprocess.run(
        [sys.executable, "-m", "geartrain", "keys", "new", "ada", "--keys", str(keys), "--model", "one", *_SCOPES],
        check=False,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    key = made.stdout.split()[-1]
    with serve(tmp_path / "models", keys=keys) as server:
        headers = {"authorization": f"Bearer {key}"}
        for model, status in (("alias-one", 200), ("alias-two", 404)):
            body = {"model": model, "messages": messages("a")}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)
            assert answer.status_code == status, answer.text
        listed = httpx.get(f"{server.url}/v1/models", headers=headers).json()["data"]
        assert [each["id"] for each in listed] == ["one", "alias-one"]


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        (
            "openai: {fields: {prompt: nothing}}",
            "`openai.fields.prompt` names no input: nothing; the inputs are prompt",
        ),
        ("openai: {matryoshka: true}", "`openai.matryoshka` is for models of embeddings, and this one has none"),
        ("openai: {serve: [embeddings]}", "`openai.serve` has embeddings, which the model does not fit"),
    ],
)
def test_settings_that_the_model_does_not_fit_end_the_setup(tmp_path: Path, yaml: str, said: str) -> None:
    folder = write_model(tmp_path / "writer", WRITER)
    write_settings(folder, yaml)
    process = ServerProcess(str(folder))
    try:
        assert said in json.dumps(process.wait_for("setup-failed"))
    finally:
        process.end()


@pytest.mark.parametrize("count", [1, 400], ids=["small", "large"])
def test_vectors_are_cut(server: Server, count: int) -> None:
    answer = ask(server, "embeddings", model="nested", input=["text"] * count, dimensions=2).json()
    assert [one["embedding"] for one in answer["data"]] == [pytest.approx([0.6, 0.8])] * count
    whole = ask(server, "embeddings", model="nested", input="text", dimensions=503).json()["data"][0]["embedding"]
    assert (whole[:2], whole[-1]) == ([3.0, 4.0], 4.0)


@pytest.mark.parametrize("count", [1, 400], ids=["small", "large"])
def test_vectors_are_not_made_longer(server: Server, count: int) -> None:
    response = ask(server, "embeddings", model="nested", input=["text"] * count, dimensions=504)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "dimensions", "unsupported_parameter")
    assert "at most 503 dimensions" in error["message"]
