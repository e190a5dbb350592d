"""Metrics and traces of requests for texts: a real server, its /metrics, and a receiver of OTLP."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.gates import Gates
from tests.support.servers import PATIENCE, ServerProcess, write_model
from tests.support.text_apis import PLAYER, WRITER, play
from tests.support.traces import ReceivedSpan, TraceReceiver, receiving_traces

EMBED: Final = """
    from geartrain import BaseRunner, current_scope

    class Runner(BaseRunner):
        def run(self, texts: list[str]) -> list[list[float]]:
            current_scope().record_metric("tokens.prompt", sum(len(text.split()) for text in texts))
            return [[1.0, 2.0] for _ in texts]
"""
CACHED: Final = """
    from geartrain import BaseRunner, metrics

    usage = metrics.gauge("kv_cache_usage_ratio", "Part of the KV cache in use", merge="max")

    class Runner(BaseRunner):
        def run(self, prompt: str) -> str:
            usage.set(0.25)
            return prompt
"""
USAGE: Final = [
    {"metric": ["tokens.prompt", 7]},
    {"metric": ["tokens.completion", 3]},
    {"metric": ["tokens.cached", 5]},
    {"metric": ["tokens.reasoning", 2]},
]
Values = dict[str, float]


class Told:
    """A server whose traces go to a receiver."""

    def __init__(self, root: Path, traces: TraceReceiver) -> None:
        for name, source in (("player", PLAYER), ("writer", WRITER), ("embed", EMBED), ("cached", CACHED)):
            write_model(root / name, source)
        self.traces = traces
        self.numbers = itertools.count(1)
        self.process = ServerProcess(str(root), env=traces.environment)
        waiting = ["listening", *["ready"] * 4]
        while waiting:
            line = self.process.wait_for_one(*waiting)
            waiting.remove(line["message"])
            if line["message"] == "listening":
                self.client = httpx.Client(base_url=line["url"], timeout=PATIENCE)

    def values(self) -> Values:
        """The values of the metrics, by name and labels as they are written."""
        lines = [line for line in self.client.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines)}

    def until(self, is_so: Callable[[Values], bool]) -> Values:
        """Wait until the values are so."""
        end = time.monotonic() + PATIENCE
        while not is_so(seen := self.values()):
            assert time.monotonic() < end, seen
            time.sleep(0.02)
        return seen

    def ask(self, path: str, **body: Any) -> tuple[httpx.Response, ReceivedSpan]:
        """Ask, and wait for the span of the request."""
        number = next(self.numbers)
        response = self.client.post(path, json=body, headers={"traceparent": f"00-{number:032x}-{number:016x}-01"})
        name = f"POST {path}"
        return response, self.traces.trace(f"{number:032x}", name)[name]

    def chat(self, *pieces: Any, **body: Any) -> tuple[httpx.Response, ReceivedSpan]:
        """Ask the player for pieces."""
        messages = [{"role": "user", "content": play(*pieces)}]
        return self.ask("/v1/chat/completions", model="player", messages=messages, **body)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with receiving_traces() as traces:
        server = Told(tmp_path_factory.mktemp("models"), traces)
        yield server
        server.client.close()
        server.process.end()


def key(name: str, model: str, **labels: str) -> str:
    found = {"model": model, "version": "1", **labels}
    pairs = ",".join(f'{label}="{value}"' for label, value in sorted(found.items()))
    return f"{name}{{{pairs}}}"


def grown(before: Values, after: Values, name: str, model: str = "player", **labels: str) -> float:
    return after[key(name, model, **labels)] - before.get(key(name, model, **labels), 0.0)


def strings(value: Any) -> list[str]:
    return [each.string_value for each in value.values]


FIRST: Final = "geartrain_time_to_first_token_seconds"
EACH: Final = "geartrain_time_per_output_token_seconds"


def test_plain_predictions_are_in_no_metric_of_texts(told: Told) -> None:
    told.client.post("/models/writer/predictions", json={"input": {"prompt": "a b"}}).raise_for_status()
    told.client.post("/v2/models/writer/generate", json={"prompt": "a b"}).raise_for_status()
    names = {name for name in told.values() if 'model="writer"' in name}
    assert names
    assert not [name for name in names if name.startswith((FIRST, EACH, "geartrain_tokens"))]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_and_times_of_a_chat(told: Told, stream: bool) -> None:
    before = told.values()
    options: dict[str, Any] = {"temperature": 0.5, "max_tokens": 9, "stop": "###", "stream": stream}
    response, span = told.chat(*USAGE, "one ", "two ", "three", {"metric": ["finish_reason", "length"]}, **options)
    assert response.status_code == 200
    after = told.values()
    counted = {
        kind: grown(before, after, "geartrain_tokens_total", kind=kind)
        for kind in ("prompt", "completion", "cached", "reasoning")
    }
    assert counted == {"prompt": 7, "completion": 3, "cached": 5, "reasoning": 2}
    for name in (FIRST, EACH):
        assert grown(before, after, f"{name}_count") == 1
        assert 0 < grown(before, after, f"{name}_sum") < PATIENCE
    body = json.loads(response.text.removeprefix("data: ").partition("\n\n")[0]) if stream else response.json()
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "geartrain",
        "gen_ai.request.model": "player",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.id": body["id"],
        "gen_ai.response.model": "player",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "http.route": "/v1/chat/completions",
    }
    assert expected.items() <= span.attributes.items()
    assert strings(span.attributes["gen_ai.request.stop_sequences"]) == ["###"]
    assert strings(span.attributes["gen_ai.response.finish_reasons"]) == ["length"]
    assert span.attributes.get("gen_ai.request.stream", False) is stream
    first = span.attributes.get("gen_ai.response.time_to_first_chunk", 0.0)
    assert (0 < first < (span.end - span.start) / 1e9) if stream else not first


def test_time_to_the_first_token_and_between_tokens(told: Told, tmp_path: Path) -> None:
    """The wait before the first piece is in one histogram, that after it in the other, by token."""
    gates = Gates(tmp_path)
    try:
        before = told.values()
        pieces = [{"wait": str(gates["first"].path)}, "a", {"wait": str(gates["second"].path)}, "b", *USAGE]
        messages = [{"role": "user", "content": play(*pieces)}]
        body = {"model": "player", "messages": messages, "stream": True}
        began = time.monotonic()

        def open_first() -> None:  # the answer begins with its first piece
            told.until(lambda values: values[key("geartrain_slots_in_use", "player")] == 1)
            time.sleep(0.2)
            gates["first"].open()

        with ThreadPoolExecutor() as pool:
            opening = pool.submit(open_first)
            with told.client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(line for line in lines if '"content":"a"' in line)
                came = time.monotonic()
                time.sleep(0.2)
                gates["second"].open()
                assert [*lines]
            opening.result()
        after = told.values()
    finally:
        gates.remove()
    assert 0.2 <= grown(before, after, f"{FIRST}_sum") <= came - began
    assert 0.1 <= grown(before, after, f"{EACH}_sum") <= (time.monotonic() - came + 0.1)  # of two steps between three


def test_choices_of_a_completion_count_one_prompt(told: Told) -> None:
    before = told.values()
    response, span = told.ask("/v1/completions", model="writer", prompt="a b c", n=2)
    assert response.status_code == 200
    after = told.values()
    # The model counts no tokens: its pieces stand for them.
    assert grown(before, after, f"{FIRST}_count", "writer") == 2
    assert grown(before, after, f"{EACH}_count", "writer") == 2
    assert grown(before, after, "geartrain_tokens_total", "writer", kind="prompt") == 0
    assert span.attributes["gen_ai.operation.name"] == "text_completion"
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert strings(span.attributes["gen_ai.response.finish_reasons"]) == ["stop", "stop"]
    assert "gen_ai.usage.input_tokens" not in span.attributes


@pytest.mark.parametrize(
    ("path", "more", "prefix"),
    [
        ("/v1/responses", {"input": play(*USAGE, "a", "b"), "max_output_tokens": 5}, "resp_"),
        ("/v1/messages", {"messages": [{"role": "user", "content": play(*USAGE, "a", "b")}], "max_tokens": 5}, "msg_"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_responses_and_messages(told: Told, path: str, more: dict[str, Any], prefix: str, stream: bool) -> None:
    before = told.values()
    response, span = told.ask(path, model="player", stream=stream, **more)
    assert response.status_code == 200, response.text
    assert grown(before, told.values(), "geartrain_tokens_total", kind="prompt") == 7
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.request.max_tokens"] == 5
    assert span.attributes["gen_ai.response.id"].startswith(prefix)
    assert span.attributes["gen_ai.response.id"] in response.text
    assert span.attributes["gen_ai.usage.output_tokens"] == 3


def test_counts_of_tokens_are_no_texts(told: Told) -> None:
    before = told.values()
    messages = [{"role": "user", "content": "a b c"}]
    response, span = told.ask("/v1/messages/count_tokens", model="player", messages=messages)
    assert response.json() == {"input_tokens": 3}
    assert grown(before, told.values(), "geartrain_tokens_total", kind="prompt") == 0
    assert not [name for name in span.attributes if name.startswith("gen_ai")]


def test_embeddings(told: Told) -> None:
    response, span = told.ask("/v1/embeddings", model="embed", input=["a b", "c"], encoding_format="base64")
    assert response.json()["usage"]["prompt_tokens"] == 3
    values = told.values()
    assert values[key("geartrain_tokens_total", "embed", kind="prompt")] == 3
    assert values[key(f"{FIRST}_count", "embed")] == 0
    assert span.attributes["gen_ai.operation.name"] == "embeddings"
    assert span.attributes["gen_ai.usage.input_tokens"] == 3
    assert strings(span.attributes["gen_ai.request.encoding_formats"]) == ["base64"]
    assert "gen_ai.response.finish_reasons" not in span.attributes


def test_failed_and_refused_requests(told: Told) -> None:
    before = told.values()
    response, span = told.chat(*USAGE, "a", {"fail": "no more"})
    assert response.status_code == 500
    assert (span.failed, span.attributes["gen_ai.usage.input_tokens"]) == (True, 7)
    after = told.values()
    assert grown(before, after, "geartrain_tokens_total", kind="completion") == 3  # they were made all the same
    assert grown(before, after, f"{FIRST}_count") == 1
    assert grown(before, after, f"{EACH}_count") == 0
    response, span = told.chat("a", temperature=9)
    assert response.status_code == 400
    assert not [name for name in span.attributes if name.startswith("gen_ai.usage")]
    assert grown(after, told.values(), f"{FIRST}_count") == 0


def test_client_that_leaves(told: Told, tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    try:
        before = told.values()
        number = next(told.numbers)
        messages = [{"role": "user", "content": play(*USAGE, "a", {"wait": str(gates["go"].path)})}]
        body = {"model": "player", "messages": messages, "stream": True}
        headers = {"traceparent": f"00-{number:032x}-{number:016x}-01"}
        with told.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            next(line for line in response.iter_lines() if '"content":"a"' in line)
        name = "POST /v1/chat/completions"
        span = told.traces.trace(f"{number:032x}", name)[name]
    finally:
        gates.remove()
    assert span.attributes["error.type"] == "client_disconnected"
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    after = told.until(lambda values: values[key("geartrain_slots_in_use", "player")] == 0)
    assert grown(before, after, "geartrain_tokens_total", kind="prompt") == 7
    assert grown(before, after, f"{FIRST}_count") == 1
    assert grown(before, after, f"{EACH}_count") == 0


def metric_of(text: str, spec: str) -> float:
    """The value that Kubernetes' endpoint picker reads for `name{label=value}`, whatever other labels there are."""
    match = re.fullmatch(r"(\w+)\{(\w+)=(\w+)\}", spec)
    assert match is not None
    name, label, value = match.groups()
    gauge = f"# TYPE {name} gauge"
    assert gauge in text.splitlines()
    (found,) = [line for line in text.splitlines() if line.startswith(f"{name}{{") and f'{label}="{value}"' in line]
    return float(found.rsplit(" ", 1)[1])


def test_gauges_that_a_gateway_asks_for(told: Told, tmp_path: Path) -> None:
    told.client.post("/v1/completions", json={"model": "cached", "prompt": "a"}).raise_for_status()
    told.until(lambda values: values.get(key("kv_cache_usage_ratio", "cached")) == 0.25)
    gates = Gates(tmp_path)
    messages = [{"role": "user", "content": play("a", {"wait": str(gates["go"].path)})}]
    body = {"model": "player", "messages": messages, "stream": True}
    base = told.client.base_url
    clients = [httpx.Client(base_url=base, timeout=PATIENCE) for _ in range(3)]
    try:
        requests = [each.build_request("POST", "/v1/chat/completions", json=body) for each in clients]
        first = clients[0].send(requests[0], stream=True)  # its head comes with its first piece
        with ThreadPoolExecutor() as pool:
            others = [pool.submit(each.send, request) for each, request in zip(clients[1:], requests[1:], strict=True)]
            told.until(lambda values: values[key("geartrain_predictions_waiting", "player")] == 2)
            text = told.client.get("/metrics").text
            assert metric_of(text, "geartrain_predictions_waiting{model=player}") == 2
            assert metric_of(text, "geartrain_predictions_running{model=player}") == 1
            assert metric_of(text, "kv_cache_usage_ratio{model=cached}") == 0.25
            gates["go"].open()
            first.read()
            assert [each.result().status_code for each in others] == [200, 200]
    finally:
        gates.remove()
        for each in clients:
            each.close()
