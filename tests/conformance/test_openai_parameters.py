"""Each parameter of chats, completions and responses, and each error of theirs that another module does not hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from geartrain.apis.openai.growth import Growth
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models.deployment import Limits
from tests.support.clients import asyncio_client
from tests.support.gates import Gates
from tests.support.openai_client import Official, assert_refused, check, official_clients
from tests.support.servers import LiveServer, Serve, eventually, write_model

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Parameters of OpenAI's document, and those of others, that change the text: each goes to an input of its name.
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 3,
    "min_p": 0.125,
    "seed": 11,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"7": -100.0},
    "ignore_eos": True,
    "reasoning_effort": "low",
    "verbosity": "high",
    "stop": ["Ende für heute"],  # which JSON does not repeat as it is, so that the answer is not cut
}
# Those that no model has to have: they are passed over.
OTHERS = {
    "user": "me",
    "safety_identifier": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prediction": {"type": "content", "content": "x"},
    "never_heard_of": 1,
}
TAKER = """
    import json
    from geartrain import BaseRunner, ConcatenateIterator, Input

    class Runner(BaseRunner):
        def run(
            self,
            prompt: str,
            max_tokens_to_sample: int = 100,
            temperature: float = 1.0,
            top_p: float = 1.0,
            top_k: int = 0,
            min_p: float = 0.0,
            seed: int = 0,
            frequency_penalty: float = 0.0,
            presence_penalty: float = 0.0,
            repetition_penalty: float = 1.0,
            logit_bias: dict = {},
            ignore_eos: bool = False,
            reasoning_effort: str = "",
            verbosity: str = "",
            stop: list[str] = [],
            suffix: str = "",
            metadata: dict = {},
        ) -> ConcatenateIterator[str]:
            given = dict(locals())
            yield json.dumps({name: value for name, value in given.items() if name != "self"})
"""
TEXT = """
    import select
    from geartrain import BaseRunner, ConcatenateIterator, current_scope

    class Runner(BaseRunner):
        def run(self, prompt: str, seed: int = 0) -> ConcatenateIterator[str]:
            words = prompt.split()
            if words[0] == "wait":
                yield "begun"
                with open(words[1], "rb", buffering=0) as gate:
                    select.select([gate], [], [])
            if seed == 2 and words[0] == "second":
                raise ValueError("the second fails")
            if seed == 1 and words[0] == "reasons":
                current_scope().record_metric("finish_reason", "length")
            yield "done"
"""
WORDS = """
    import json
    from collections.abc import Iterator
    from geartrain import BaseRunner
    from geartrain.openai import Delta

    class Runner(BaseRunner):
        def run(
            self, prompt: str, logprobs: bool | int = False, top_logprobs: int = 0, response_format: dict = {}
        ) -> Iterator[Delta]:
            top = [{"token": "x", "logprob": -0.1}, {"token": "y", "logprob": -2.5}]
            said = f"{logprobs} {top_logprobs}" if logprobs else '{"a": '
            yield {"content": said, "logprobs": [{"token": said, "logprob": -0.1, "top": top}]}
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def taker(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(TAKER, name="taker") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def text(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(TEXT, name="text") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def words(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(WORDS, name="words") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def official() -> AsyncIterator[Official]:
    async with official_clients() as client_of:
        yield client_of


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]


async def ask(server: LiveServer, path: str, content: str, **body: Any) -> httpx.Response:
    """Send a request for a text to an endpoint."""
    given: dict[str, Any] = {"model": server.deployment.name}
    if path == "/v1/chat/completions":
        given["messages"] = [{"role": "user", "content": content}]
    else:
        given["prompt" if path == "/v1/completions" else "input"] = content
    return await server.client.post(path, json={**given, **body})


def text_of(response: httpx.Response) -> str:
    """Return the text of the answer of any of the endpoints."""
    assert response.status_code == 200, response.text
    answer = response.json()
    if "choices" not in answer:
        return str(answer["output"][0]["content"][0]["text"])
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def data_of(response: httpx.Response) -> list[Any]:
    """Return the data of the events of a stream, but for `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# parameters


@pytest.mark.parametrize("path", PATHS)
async def test_each_parameter_goes_to_the_input_of_its_name(taker: LiveServer, path: str) -> None:
    chosen = {name: value for name, value in SAMPLING.items() if path != "/v1/responses" or name != "stop"}
    response = await ask(taker, path, "a", **chosen, metadata={"a": "b"})
    given = json.loads(text_of(response))
    assert {name: given[name] for name in chosen} == chosen
    assert "x-geartrain-ignored" not in response.headers
    if path != "/v1/responses":
        assert given["metadata"] == {"a": "b"}


@pytest.mark.parametrize("path", PATHS)
async def test_parameters_without_an_input_are_passed_over_and_named(text: LiveServer, path: str) -> None:
    given = {**{name: value for name, value in SAMPLING.items() if name not in {"seed", "stop"}}, **OTHERS}
    response = await ask(text, path, "a", **given, stream_options=None)
    assert text_of(response) == "done"
    named = set(response.headers["x-geartrain-ignored"].split(", "))
    assert named == set(given)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
async def test_limit_of_tokens_fills_the_input_of_the_model(taker: LiveServer, path: str, name: str) -> None:
    assert json.loads(text_of(await ask(taker, path, "a", **{name: 7})))["max_tokens_to_sample"] == 7
    refused = await ask(taker, path, "a", **{name: "many"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_limit_of_tokens_without_an_input_is_passed_over(text: LiveServer) -> None:
    response = await ask(text, "/v1/chat/completions", "a", max_tokens=1, max_completion_tokens=2)
    assert text_of(response) == "done"
    assert "max_completion_tokens" in response.headers["x-geartrain-ignored"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", sorted(SAMPLING))
async def test_null_is_as_good_as_none(taker: LiveServer, path: str, name: str) -> None:
    assert json.loads(text_of(await ask(taker, path, "a", **{name: None})))["prompt"] == "a"


async def test_suffix_goes_to_its_input(taker: LiveServer) -> None:
    assert json.loads(text_of(await ask(taker, "/v1/completions", "a", suffix="z")))["suffix"] == "z"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"functions": [{"name": "f"}]}, "functions"),
        ("/v1/chat/completions", {"function_call": {"name": "f"}}, "function_call"),
        ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema"}}, "response_format"),
        ("/v1/completions", {"logprobs": 2}, "logprobs"),
        ("/v1/responses", {"include": ["message.output_text.logprobs"]}, "include"),
    ],
)
async def test_what_the_model_cannot_do_is_refused(
    text: LiveServer, path: str, body: dict[str, Any], param: str
) -> None:
    await assert_refused(await ask(text, path, "a", **body), 400, param, "unsupported_parameter", "is not supported")


async def test_logprobs_of_each_endpoint(words: LiveServer) -> None:
    chat = (await ask(words, "/v1/chat/completions", "a", logprobs=True, top_logprobs=2)).json()
    check("CreateChatCompletionResponse", chat)
    (token,) = chat["choices"][0]["logprobs"]["content"]
    assert (chat["choices"][0]["message"]["content"], token["token"]) == ("True 2", "True 2")
    assert [each["token"] for each in token["top_logprobs"]] == ["x", "y"]
    whole = (await ask(words, "/v1/completions", "a", logprobs=2)).json()
    check("CreateCompletionResponse", whole)
    assert whole["choices"][0]["text"] == "2 0"
    assert whole["choices"][0]["logprobs"]["tokens"] == ["2 0"]
    assert whole["choices"][0]["logprobs"]["token_logprobs"] == [-0.1]


async def test_form_of_a_stream_that_does_not_fit_is_an_error_event(words: LiveServer) -> None:
    form = {"type": "json_object"}
    response = await ask(words, "/v1/chat/completions", "a", response_format=form, stream=True)
    last = data_of(response)[-1]
    check("ErrorResponse", last)
    assert last["error"]["code"] == "invalid_structured_output"
    assert "[DONE]" not in response.text


async def test_usage_that_nobody_counts(text: LiveServer, official: Official) -> None:
    """The last chunk of a chat has no usage, which is no null in OpenAI's document; that of a completion has zeros."""
    options: Any = {"include_usage": True}
    chat = data_of(await ask(text, "/v1/chat/completions", "a", stream=True, stream_options=options))
    for chunk in chat:
        check("CreateChatCompletionStreamResponse", chunk)
    assert chat[-1]["choices"] == []
    assert "usage" not in chat[-1]
    whole = data_of(await ask(text, "/v1/completions", "a", stream=True, stream_options=options))
    for chunk in whole:
        check("CompletionChunk", chunk)
    assert (whole[-1]["choices"], whole[-1]["usage"]["total_tokens"]) == ([], 0)
    stream = await official(text).chat.completions.create(
        model="text", messages=[{"role": "user", "content": "a"}], stream=True, stream_options=options
    )
    assert [chunk.usage async for chunk in stream][-1] is None


# token ids


IDS = """
    def run({inputs}) -> str:
        return repr({said})
"""
BOTH = IDS.format(inputs="prompt: str | list[int]", said="prompt")
BESIDE = IDS.format(inputs='prompt: str = "", token_ids: list[int] = []', said="token_ids or prompt")


@pytest.mark.parametrize("source", [BOTH, BESIDE])
async def test_token_ids_of_prompts(serve: Serve, source: str, official: Official) -> None:
    async with serve(source) as server:
        assert server.deployment.openai.view.endpoints[:2] == ("chat", "responses")
        client = official(server)
        prompts: list[tuple[Any, list[str]]] = [
            ("a", ["'a'"]),
            (["a", "b"], ["'a'", "'b'"]),
            ([1, 2], ["[1, 2]"]),
            ([[1, 2], [3]], ["[1, 2]", "[3]"]),
        ]
        for prompt, texts in prompts:
            answer = await client.completions.create(model=server.deployment.name, prompt=prompt)
            assert [choice.text for choice in answer.choices] == texts
        answer = await client.completions.create(model=server.deployment.name, prompt=[[1], [2]], n=2)
        assert [choice.text for choice in answer.choices] == ["[1]", "[1]", "[2]", "[2]"]
        assert text_of(await ask(server, "/v1/chat/completions", "a")) == "'a'"
        for wrong, said in (
            (["a", 1], "mixes"),
            ([1, [2]], "mixes"),
            ([[1], []], "empty list of token ids"),
            ([-1], "is not valid"),
            ([[1]] * 129, "at most 128"),
        ):
            refused = await server.client.post(
                "/v1/completions", json={"model": server.deployment.name, "prompt": wrong}
            )
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
            assert said in refused.json()["error"]["message"]
        refused = await ask(server, "/v1/completions", "a", prompt=[1], echo=True)
        await assert_refused(refused, 400, "echo", "unsupported_parameter", "token ids")


async def test_model_of_token_ids_alone(serve: Serve) -> None:
    async with serve(IDS.format(inputs="prompt: list[int]", said="prompt")) as server:
        assert server.deployment.openai.view.endpoints == ("completions",)
        assert text_of(await ask(server, "/v1/completions", "", prompt=[7])) == "[7]"
        refused = await ask(server, "/v1/completions", "a")
        assert "takes token ids" in refused.json()["error"]["message"]
        assert (await ask(server, "/v1/chat/completions", "a")).json()["error"]["code"] == "unsupported_model"


async def test_large_prompt_of_token_ids(serve: Serve) -> None:
    async with serve("def run(prompt: str | list[int]) -> str:\n    return str(sum(prompt))\n") as server:
        ids = [*range(50_000)]
        assert text_of(await ask(server, "/v1/completions", "", prompt=ids)) == str(sum(ids))


async def test_token_ids_that_are_no_prompt(serve: Serve) -> None:
    """An input of ids beside a text that is required takes none."""
    async with serve(IDS.format(inputs="prompt: str, token_ids: list[int] = []", said="prompt")) as server:
        await assert_refused(
            await ask(server, "/v1/completions", "", prompt=[1]), 400, "prompt", "invalid_input", "takes text"
        )


@pytest.mark.parametrize(
    ("inputs", "output", "vector"),
    [
        ("text: str | list[int]", "list[float]", "[len(text), sum(text) if isinstance(text, list) else -1]"),
        (
            "texts: list[str] | list[list[int]]",
            "list[list[float]]",
            "[[len(each), sum(each) if isinstance(each, list) else -1] for each in texts]",
        ),
        (
            "sentences: list[str] = [], input_ids: list[list[int]] = []",
            "list[list[float]]",
            "[[len(each), -1] for each in sentences] + [[len(each), sum(each)] for each in input_ids]",
        ),
    ],
)
async def test_token_ids_to_embed(serve: Serve, official: Official, inputs: str, output: str, vector: str) -> None:
    async with serve(f"def run({inputs}) -> {output}:\n    return {vector}\n") as server:
        client = official(server)
        for given, said in (
            ("abc", [[3, -1]]),
            (["abc", "d"], [[3, -1], [1, -1]]),
            ([4, 5], [[2, 9]]),
            ([[4, 5], [7]], [[2, 9], [1, 7]]),
        ):
            value: Any = given
            answer = await client.embeddings.create(model=server.deployment.name, input=value)
            assert [each.embedding for each in answer.data] == said


@pytest.mark.parametrize("name", ["input", "inputs", "numbers"])
async def test_list_of_numbers_is_no_embedding(serve: Serve, name: str) -> None:
    """A model of tables takes lists of numbers, too."""
    async with serve(f"def run({name}: list[int]) -> list[float]:\n    return [1.0]\n") as server:
        assert server.deployment.openai.view.endpoints == ()


WIDE = """
    from pathlib import Path
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, texts: list[str]) -> Float32[np.ndarray, "n 2"]:
            with Path("{runs}").open("a") as file:
                file.write("x")
            return np.ones((len(texts), 2), np.float32)
"""


async def test_wrong_dimensions_are_refused_before_the_model_runs(serve: Serve, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    async with serve(WIDE.format(runs=runs)) as server:
        body = {"model": server.deployment.name, "input": "a"}
        for wrong in (1, 3):
            response = await server.client.post("/v1/embeddings", json={**body, "dimensions": wrong})
            await assert_refused(response, 400, "dimensions", "unsupported_parameter", "have 2 dimensions")
        assert not runs.exists()
        assert (await server.client.post("/v1/embeddings", json={**body, "dimensions": 2})).status_code == 200
        assert runs.read_text() == "x"


async def test_version_of_a_model(text: LiveServer) -> None:
    for name in ("text", "text@1"):
        response = await ask(text, "/v1/chat/completions", "a", model=name)
        assert (text_of(response), response.json()["model"]) == ("done", name)
    await assert_refused(
        await ask(text, "/v1/chat/completions", "a", model="text@2"), 404, "model", "model_not_found", "text@2"
    )


# several choices


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_has_a_reason_of_its_own(text: LiveServer, stream: bool) -> None:
    response = await ask(text, "/v1/chat/completions", "reasons", n=3, seed=0, stream=stream)
    choices = [each for chunk in data_of(response) for each in chunk["choices"]] if stream else []
    reasons = {each["index"]: each["finish_reason"] for each in choices or response.json()["choices"]}
    assert reasons == {0: "stop", 1: "length", 2: "stop"}


async def test_one_choice_that_fails_fails_all(text: LiveServer, gates: Gates) -> None:
    failed = await ask(text, "/v1/chat/completions", "second", n=3, seed=1)
    await assert_refused(failed, 500, None, "run_failed", "the second fails")
    assert failed.headers["x-should-retry"] == "false"
    await eventually(lambda: not text.predictions.live)


# errors


async def test_run_that_takes_too_long(serve: Serve, gates: Gates) -> None:
    async with serve(TEXT, name="text", limits=Limits(run_timeout=0.2)) as server:
        said = f"wait {gates['gate'].path}"
        for path in PATHS:
            response = await ask(server, path, said)
            await assert_refused(response, 504, None, "timeout", "")
            assert response.json()["error"]["type"] == "server_error"
            assert response.headers["x-should-retry"] == "false"
        streamed = await ask(server, "/v1/chat/completions", said, stream=True)
        assert data_of(streamed)[-1]["error"]["code"] == "timeout"
        assert "[DONE]" not in streamed.text
        gates["gate"].open()


async def test_run_that_is_canceled_by_another_client(text: LiveServer, gates: Gates) -> None:
    asking = asyncio.ensure_future(ask(text, "/v1/chat/completions", f"wait {gates['gate'].path}"))
    await eventually(lambda: len(text.predictions.live) == 1)
    (name,) = text.predictions.live
    assert (await text.client.post(f"/predictions/{name}/cancel")).status_code == 200
    response = await asking
    await assert_refused(response, 500, None, "run_canceled", "")
    assert response.headers["x-should-retry"] == "false"
    gates["gate"].open()


async def test_body_that_is_too_large_or_of_another_type(serve: Serve) -> None:
    async with serve(TEXT, name="text", max_body_bytes=1000) as server, asyncio_client(server.url) as client:
        body = {"model": "text", "messages": [{"role": "user", "content": "x" * 2000}]}
        response = await client.post("/v1/chat/completions", json=body)
        await assert_refused(response, 413, None, "too_large", "1000 bytes")
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_worker_that_ends(serve: Serve) -> None:
    source = "import os\n\ndef run(prompt: str) -> str:\n    os._exit(3)\n"
    async with serve(source, name="text") as server:
        response = await ask(server, "/v1/chat/completions", "a")
        await assert_refused(response, 500, None, "run_failed", "")
        assert response.headers["x-should-retry"] == "false"


async def assert_to_be_sent_again(response: httpx.Response, code: str, said: str) -> None:
    """Hold an answer against the form of a fault that is over soon."""
    await assert_refused(response, 503, None, code, said)
    assert response.json()["error"]["type"] == "server_error"
    assert int(response.headers["retry-after"]) >= 1
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_server_that_ends(serve: Serve, gates: Gates, stream: bool) -> None:
    """New requests are refused while those that run come to their ends."""
    async with serve(TEXT, name="text") as server:
        running = asyncio.ensure_future(ask(server, PATHS[0], f"wait {gates['gate'].path}"))
        await eventually(lambda: len(server.predictions.live) == 1)
        ending = asyncio.ensure_future(server.deployment.close(None))
        await eventually(lambda: server.deployment.executions.is_closed)
        for path in PATHS:
            response = await ask(server, path, "a", stream=stream)
            await assert_to_be_sent_again(response, "shutting_down", "takes no new predictions")
        gates["gate"].open()
        assert text_of(await running) == "begundone"
        await ending


@pytest.mark.parametrize("stream", [False, True])
async def test_request_that_waits_too_long(serve: Serve, gates: Gates, tmp_path: Path, stream: bool) -> None:
    folder = write_model(tmp_path / "text", TEXT)
    (folder / "geartrain.yaml").write_text("priority_levels:\n  - timeout: 0.1\n")
    async with serve(folder) as server:
        running = asyncio.ensure_future(ask(server, PATHS[0], f"wait {gates['gate'].path}"))
        await eventually(lambda: len(server.predictions.live) == 1)
        for path in PATHS:
            response = await ask(server, path, "a", stream=stream)
            await assert_to_be_sent_again(response, "queue_timed_out", "Request timeout expired")
        gates["gate"].open()
        assert text_of(await running) == "begundone"


async def assert_internal(response: httpx.Response) -> None:
    """Hold an answer against the form of a fault of the server, which says nothing about it."""
    await assert_refused(response, 500, None, "internal", "Internal server error")
    assert response.json()["error"]["type"] == "server_error"
    assert response.headers["x-should-retry"] == "false"
    assert "secret" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_fault_of_the_server_before_the_run(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def fail(_: Any) -> Prediction:
        raise RuntimeError("a secret")

    async with serve(TEXT, name="text") as server:
        monkeypatch.setattr(server.deployment, "create", fail)
        for path in PATHS:
            await assert_internal(await ask(server, path, "a", stream=stream))
            assert "a secret" in caplog.text
            caplog.clear()


@pytest.mark.parametrize("path", PATHS)
async def test_fault_of_the_server_behind_the_run(serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def fail(*_: Any) -> bytes:
        raise RuntimeError("a secret")

    async with serve(TEXT, name="text") as server:
        monkeypatch.setattr(Growth, "end", fail)
        await assert_internal(await ask(server, path, "a"))
        assert not server.predictions.live


async def test_fault_of_the_server_in_a_stream(serve: Serve, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bytes:
        raise RuntimeError("a secret")

    async with serve(TEXT, name="text") as server:
        monkeypatch.setattr(Growth, "end", fail)
        body = {"model": "text", "messages": [{"role": "user", "content": f"wait {gates['gate'].path}"}]}
        lines = []
        async with server.client.stream("POST", PATHS[0], json={**body, "stream": True}) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                lines.append(line)
                if "begun" in line:
                    gates["gate"].open()
        last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
        check("ErrorResponse", last)
        assert (last["error"]["code"], last["error"]["message"]) == ("internal", "Internal server error")
        assert not server.predictions.live
