"""The official client of OpenAI's API, its published document, and checks of answers against that."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import openai

from tests.support import modes
from tests.support.servers import LiveServer

if TYPE_CHECKING:
    import httpx

_GOLDEN = Path(__file__).parents[1] / "conformance/golden/openai.json"


def _corrected() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_GOLDEN.read_text())
    schemas = document["components"]["schemas"]
    reason = schemas["CreateChatCompletionStreamResponse"]["properties"]["choices"]["items"]["properties"]
    reason["finish_reason"] = {"anyOf": [reason["finish_reason"], {"type": "null"}]}
    chunk = copy.deepcopy(schemas["CreateCompletionResponse"])
    reason = chunk["properties"]["choices"]["items"]["properties"]
    reason["finish_reason"] = {"anyOf": [reason["finish_reason"], {"type": "null"}]}
    schemas["CompletionChunk"] = chunk  # the document has none for streams
    embedding = schemas["Embedding"]["properties"]
    embedding["embedding"] = {"anyOf": [embedding["embedding"], {"type": "string"}]}
    return document


DOCUMENT = _corrected()


def check(name: str, value: Any) -> None:
    """Hold a body against a schema of OpenAI's document."""
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", **DOCUMENT}, value)


async def assert_refused(response: httpx.Response, status: int, param: str | None, code: str, said: str) -> None:
    assert response.status_code == status, response.text
    check("ErrorResponse", response.json())
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert said in error["message"]


Official = Callable[..., openai.AsyncOpenAI]


@contextlib.asynccontextmanager
async def official_clients() -> AsyncIterator[Official]:
    """Make official clients of servers, let in as the mode wants it; close them at the end."""
    async with contextlib.AsyncExitStack() as stack:

        def client_of(server: LiveServer, **options: Any) -> openai.AsyncOpenAI:
            given = modes.current().credentials
            if given is not None:
                options["http_client"] = openai.DefaultAsyncHttpxClient(verify=given.trust)
            key = "none" if given is None else given.key
            client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, **{"max_retries": 0, **options})
            stack.push_async_callback(client.close)
            return client

        yield client_of
