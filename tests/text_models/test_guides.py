"""Texts that are made to fit a schema, by a model that knows nothing of JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from geartrain.backends import transformers
from geartrain.backends.text import PromptError, Sampling
from geartrain.backends.transformers import TransformersBackend
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.backend_runner import load_backend
from tests.text_models.server import Server, serve

pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "mood": {"enum": ["glad", "sad"]}},
    "required": ["name", "mood"],
    "additionalProperties": False,
}
PROMPT = "<|user|>hello<|end|><|assistant|>"


@pytest.fixture(scope="module")
def backend(tiny: Path) -> Iterator[TransformersBackend]:
    backend = TransformersBackend(tiny, {"threads": 1})
    backend.load()
    yield backend
    backend.close()


async def texts_of(backend: TransformersBackend, *samplings: Sampling) -> list[str]:
    async def ask(sampling: Sampling) -> str:
        return "".join([piece.text async for piece in backend.generate(PROMPT, sampling)])

    return [*await asyncio.gather(*map(ask, samplings))]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_each_text_fits_its_own_schema(backend: TransformersBackend, *, ignore_eos: bool) -> None:
    assert backend.constrains
    free = Sampling(temperature=0, max_tokens=60)
    guided = [
        Sampling(temperature=1.5, seed=seed, schema=json.dumps(SCHEMA), ignore_eos=ignore_eos) for seed in range(4)
    ]
    number = Sampling(temperature=0, schema='{"type": "integer", "minimum": 10, "maximum": 99}')
    plain, tens, *found = asyncio.run(texts_of(backend, free, number, *guided))
    assert plain == "Good morning! The sun is shining today."  # its neighbours change nothing in it
    assert 10 <= int(tens) <= 99
    for text in found:
        jsonschema_rs.validate(SCHEMA, json.loads(text))
    assert len(set(found)) > 1


@pytest.mark.parametrize("schema", ['{"type": "nonsense"}', '{"$ref": "http://example.com/schema"}'])
def test_schemas_that_are_none_are_refused(backend: TransformersBackend, schema: str) -> None:
    with pytest.raises(PromptError, match="'response_format' has a schema that no text can be made for"):
        asyncio.run(texts_of(backend, Sampling(schema=schema)))


def test_input_is_there_with_the_library_alone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = BackendChoice("transformers", str(tiny), {"threads": 1})
    assert "response_format" in {field.name for field in load_backend(choice).signature.inputs}
    monkeypatch.setattr(transformers, "is_installed", lambda: False)
    assert "response_format" not in {field.name for field in load_backend(choice).signature.inputs}


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    (tiny / "geartrain.yaml").write_text("parameters:\n  threads: 1\n")
    with serve(tiny) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_forms_of_all_apis(server: Server, path: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "hello"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        },
        "/v1/responses": {"input": "hello", "text": {"format": {"name": "person", **form}}},
        "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "output_config": {"format": form}},
    }
    response = server.post(path, **bodies[path])
    assert response.status_code == 200, response.text
    answer = response.json()
    if path == "/v1/chat/completions":
        text = answer["choices"][0]["message"]["content"]
    else:
        text = (answer["content"] if path == "/v1/messages" else answer["output"][0]["content"])[0]["text"]
    jsonschema_rs.validate(SCHEMA, json.loads(text))


def test_any_object(server: Server) -> None:
    body = server.chat("hello", response_format={"type": "json_object"}, max_tokens=200).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


def test_streams_fit_too(server: Server) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    messages = [{"role": "user", "content": "hello"}]
    *chunks, end = server.events("/v1/chat/completions", messages=messages, response_format=shape)
    assert end == "[DONE]"
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    jsonschema_rs.validate(SCHEMA, json.loads(text))
