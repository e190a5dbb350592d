"""`/v1/messages/batches`: the official client's flow, restarts, cancels, expiry, keys and bodies that are wrong."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from geartrain.apis.anthropic import batches as form
from geartrain.server.options import StoreOptions
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.openai import message_batches
from tests.support.batch_bench import Bench
from tests.support.servers import PATIENCE, LiveServer, Serve

MODEL = """
    import os, time
    from geartrain import BaseRunner, current_scope

    class Runner(BaseRunner):
        def run(self, prompt: str) -> str:
            said = prompt.split()[-1]
            with open("runs", "a") as runs:
                runs.write(said + "\\n")
            if said == "fail":
                raise ValueError("it went wrong")
            while said == "wait" and not os.path.exists("gate"):
                time.sleep(0.002)
            current_scope().record_metric("tokens.prompt", 3)
            return said.upper()
"""
PATH = "/v1/messages/batches"


def asked(custom_id: Any, text: str = "x", **params: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return {"custom_id": custom_id, "params": {"model": "model", "max_tokens": 9, "messages": messages, **params}}


def client_of(url: str, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, timeout=PATIENCE, max_retries=0)


async def until(client: anthropic.AsyncAnthropic, name: str, fits: Callable[[Any], bool] | None = None) -> Any:
    """Ask for a batch until it is as wanted, by default until it has ended."""
    is_wanted = fits or (lambda batch: batch.processing_status == "ended")
    async with asyncio.timeout(PATIENCE):
        while not is_wanted(batch := await client.messages.batches.retrieve(name)):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
    return batch


async def results(client: anthropic.AsyncAnthropic, name: str) -> dict[str, Any]:
    found = [each async for each in await client.messages.batches.results(name)]
    assert len({each.custom_id for each in found}) == len(found)
    return {each.custom_id: each.result for each in found}


def counts(batch: Any) -> list[int]:
    told = batch.request_counts
    return [told.processing, told.succeeded, told.errored, told.canceled, told.expired]


@pytest.fixture
def bench(serve: Serve, tmp_path: Path) -> Bench:
    return Bench(serve, tmp_path, MODEL)


@pytest.fixture
async def server(bench: Bench) -> AsyncIterator[LiveServer]:
    async with bench.serve() as server:
        yield server


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(server.url) as client:
        yield client


async def test_official_client_runs_a_batch(client: anthropic.AsyncAnthropic, server: LiveServer) -> None:
    wrong = [
        asked("fail", "fail"),
        asked("type", stop_sequences=[1]),
        asked("model", model="other"),
        asked("s", stream=True),
    ]
    made = await client.messages.batches.create(requests=[asked("a", "one"), *wrong, asked("b", "two")])
    assert (made.type, made.processing_status, made.results_url) == ("message_batch", "in_progress", None)
    assert counts(made) == [6, 0, 0, 0, 0]
    assert (made.expires_at - made.created_at).total_seconds() == 86_400
    ended = await until(client, made.id)
    assert counts(ended) == [0, 2, 4, 0, 0]
    assert ended.ended_at
    assert (ended.cancel_initiated_at, ended.archived_at) == (None, None)
    found = await results(client, made.id)
    assert set(found) == {"a", "b", "fail", "type", "model", "s"}
    assert (found["a"].type, found["a"].message.content[0].text, found["b"].message.content[0].text) == (
        "succeeded",
        "ONE",
        "TWO",
    )
    assert found["a"].message.usage.input_tokens == 3
    errors = {name: (each.type, each.error.type, each.error.error.type) for name, each in found.items() if name > "b"}
    assert errors == {
        "fail": ("errored", "error", "api_error"),
        "type": ("errored", "error", "invalid_request_error"),
        "model": ("errored", "error", "not_found_error"),
        "s": ("errored", "error", "invalid_request_error"),
    }
    assert found["fail"].error.request_id
    for path in ("/v1/files", "/v1/batches"):
        assert (await server.client.get(path)).json()["data"] == []
    for call in (server.client.get(f"/v1/batches/{made.id}"), server.client.post(f"/v1/batches/{made.id}/cancel")):
        assert (await call).status_code == 404
    assert (await client.messages.batches.delete(made.id)).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError, match="No batch of messages"):
        await client.messages.batches.retrieve(made.id)
    assert (await server.client.get(f"{PATH}/{made.id}/results")).status_code == 404


class Proxy(BaseHTTPRequestHandler):
    """Has a path, below which it passes requests on under another name of a host, as proxies do by default."""

    url = ""
    passed: list[str]

    def do_GET(self) -> None:
        path = self.path.removeprefix("/below")
        self.passed.append(path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {"content-type": self.headers.get("content-type", "")}
        answer = httpx.request(self.command, f"{self.url}{path}", content=body, headers=headers, trust_env=False)
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_GET  # noqa: N815 - as the base class wants it

    def log_message(self, *_: object) -> None: ...


async def test_results_are_found_below_the_path_of_a_proxy(server: LiveServer) -> None:
    passed: list[str] = []
    handler = type("Handler", (Proxy,), {"url": server.url, "passed": passed})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            async with client_of(f"http://127.0.0.1:{proxy.server_port}/below") as client:
                made = await client.messages.batches.create(requests=[asked("a", "one")])
                path = (await until(client, made.id)).results_url
                assert path == f"{PATH}/{made.id}/results"
                assert set(await results(client, made.id)) == {"a"}
        finally:
            proxy.shutdown()
    assert passed[-1] == path, "the key of the client goes nowhere else"


async def test_files_of_a_batch_are_hidden_and_go_with_it(
    bench: Bench, client: anthropic.AsyncAnthropic, server: LiveServer
) -> None:
    made = await client.messages.batches.create(requests=[asked("a"), asked("b", "fail")])
    await until(client, made.id)
    batches = server.app.outbound.durability.store.batches  # type: ignore[union-attr]
    stored = await batches.find_batch(made.id)
    assert stored is not None
    names = (stored.new.input_file, stored.progress.output_file, stored.progress.error_file)
    for name in names:
        assert await batches.find_file(name) is not None
        assert (await server.client.get(f"/v1/files/{name}")).status_code == 404
        assert (await server.client.delete(f"/v1/files/{name}")).status_code == 404
    body = {"input_file_id": names[0], "endpoint": "/v1/completions", "completion_window": "24h"}
    assert (await server.client.post("/v1/batches", json=body)).status_code == 404
    await client.messages.batches.delete(made.id)
    assert [await batches.find_file(name, is_used=True) for name in names] == [None, None, None]
    assert await batches.read_piece(names[0], 0) is None
    assert await batches.answered(made.id) == frozenset()


async def test_cancel_and_delete(bench: Bench, client: anthropic.AsyncAnthropic) -> None:
    made = await client.messages.batches.create(requests=[asked("a", "one"), asked("b", "wait"), asked("c", "never")])
    await bench.has_run("wait")
    await until(client, made.id, lambda batch: batch.request_counts.succeeded == 1)
    with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
        await client.messages.batches.delete(made.id)
    with pytest.raises(anthropic.AnthropicError, match="results_url"):
        await client.messages.batches.results(made.id)
    first = await client.messages.batches.cancel(made.id)
    assert first.processing_status == "canceling"
    assert first.cancel_initiated_at
    ended = await until(client, made.id)
    assert counts(ended) == [0, 1, 0, 2, 0]
    found = await results(client, made.id)
    assert {name: each.type for name, each in found.items()} == {"a": "succeeded", "b": "canceled", "c": "canceled"}
    assert "never" not in bench.runs()
    assert (await client.messages.batches.cancel(made.id)).processing_status == "ended"


async def test_results_of_a_cancelled_batch_of_many_pieces(bench: Bench, client: anthropic.AsyncAnthropic) -> None:
    requests = [asked("0", "wait"), *(asked(str(number), "never") for number in range(1, 20_000))]
    made = await client.messages.batches.create(requests=requests)
    await bench.has_run("wait")
    await client.messages.batches.cancel(made.id)
    assert counts(await until(client, made.id)) == [0, 0, 0, 20_000, 0]
    found = await results(client, made.id)
    assert set(found) == {str(number) for number in range(20_000)}
    assert {each.type for each in found.values()} == {"canceled"}


async def test_batch_expires(bench: Bench, client: anthropic.AsyncAnthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batches, "WINDOW", 2.0)
    made = await client.messages.batches.create(requests=[asked("a", "one"), asked("b", "wait"), asked("c", "never")])
    assert counts(await until(client, made.id)) == [0, 1, 0, 0, 2]
    found = await results(client, made.id)
    assert {name: each.type for name, each in found.items()} == {"a": "succeeded", "b": "expired", "c": "expired"}
    assert "never" not in bench.runs()


async def test_results_are_kept_for_a_time(
    client: anthropic.AsyncAnthropic, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_batches, "RESULTS_KEPT", 0.0)
    made = await client.messages.batches.create(requests=[asked("a")])
    ended = await until(client, made.id)
    assert ended.results_url is None
    assert ended.archived_at == ended.ended_at
    answer = await server.client.get(f"{PATH}/{made.id}/results")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_batch_goes_on_after_a_restart(bench: Bench) -> None:
    async with bench.serve() as server, client_of(server.url) as client:
        made = await client.messages.batches.create(
            requests=[asked("a", "one"), asked("b", "wait"), asked("c", "three")]
        )
        await bench.has_run("wait")
        await until(client, made.id, lambda batch: batch.request_counts.succeeded == 1)
    bench.open_gate()
    async with bench.serve() as server, client_of(server.url) as client:
        assert counts(await until(client, made.id)) == [0, 3, 0, 0, 0]
        assert set(await results(client, made.id)) == {"a", "b", "c"}
    assert (bench.runs().count("one"), bench.runs().count("three")) == (1, 1)


async def test_lists_have_pages(client: anthropic.AsyncAnthropic, server: LiveServer) -> None:
    made = [(await client.messages.batches.create(requests=[asked("a")])).id for _ in range(5)]
    newest = made[::-1]
    assert [each.id async for each in client.messages.batches.list(limit=2)] == newest
    page = (await server.client.get(PATH, params={"before_id": newest[4], "limit": 2})).json()
    assert [each["id"] for each in page["data"]] == newest[2:4]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, newest[2], newest[3])
    page = (await server.client.get(PATH, params={"before_id": newest[2], "limit": 2})).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (newest[:2], False)
    wrong: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "1e3"},
        {"after_id": "\x00"},
        {"before_id": "a", "after_id": "b"},
    ]
    for query in wrong:
        answer = await server.client.get(PATH, params=query)
        assert (answer.status_code, answer.json()["type"]) == (400, "error"), query


WRONG: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"no", "JSON"),
    "NUL": (b"\x00", "JSON"),
    "list": (b"[]", "requests"),
    "none": (b"{}", "requests"),
    "empty": (b'{"requests": []}', "requests"),
    "number": (b'{"requests": 1e999}', "requests"),
    "deep": (b'{"requests": ' + b"[" * 100_000, "JSON"),
    "deep params": (b'{"requests": [{"custom_id": "a", "params": ' + b"[" * 100_000, "JSON"),
    "text": (b'{"requests": ["a"]}', "requests[0]"),
    "no id": (json.dumps({"requests": [asked("a"), {"params": {}}]}).encode(), "requests[1].custom_id"),
    "number as id": (json.dumps({"requests": [asked(2**64)]}).encode(), "requests[0].custom_id"),
    "NUL in an id": (json.dumps({"requests": [asked("a\x00")]}).encode(), "requests[0].custom_id"),
    "long id": (json.dumps({"requests": [asked("a" * 65)]}).encode(), "requests[0].custom_id"),
    "twice": (json.dumps({"requests": [asked("a"), asked("b"), asked("a")]}).encode(), "requests[2].custom_id"),
    "no params": (b'{"requests": [{"custom_id": "a"}]}', "requests[0].params"),
    "no model": (b'{"requests": [{"custom_id": "a", "params": {}}]}', "requests[0].params.model"),
    "no UTF-8": (b'{"requests": [{"custom_id": "a", "params": {"model": "m", "x": "\xff"}}]}', ""),
    "many": (b'{"requests": [' + b"{}," * 100_000 + b"{}]}", "100,001"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_bodies_that_are_wrong(bench: Bench, server: LiveServer, name: str) -> None:
    body, place = WRONG[name]
    answer = await server.client.post(PATH, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert place in answer.json()["error"]["message"]
    assert (await server.client.get(PATH)).json()["data"] == []


async def test_bodies_that_are_too_large(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"requests": [asked("a"), asked("b", "x" * 2_000_000)]}).encode()
    monkeypatch.setattr(form, "MAX_LINE", 1_000_000)
    answer = await server.client.post(PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
    assert "requests[1]" in answer.json()["error"]["message"]


async def test_bodies_have_the_limit_of_the_server(bench: Bench) -> None:
    body = json.dumps({"requests": [asked("a", "x" * 2000)]}).encode()
    async with bench.serve(max_body_bytes=1000) as server:
        answer = await server.client.post(PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


async def test_largest_body_is_64_mib(server: LiveServer) -> None:
    address = server.client.base_url
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: {address.host}\r\ncontent-length: {64 * 1024**2 + 1}\r\n\r\n"
    writer.write(head.encode())
    assert b" 413 " in await reader.readline()
    writer.close()


def test_requests_are_read_in_little_memory() -> None:
    body = json.dumps({"requests": [asked(str(number), "x" * 1000) for number in range(10_000)]}).encode()
    tracemalloc.start()
    try:
        lines, total = form.read_requests(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 10_000
    assert lines.count(b"\n") == 10_000
    assert peak < 2 * len(body), peak / len(body)  # beside the body itself


async def test_line_feeds_between_values_and_numbers_at_edges(
    client: anthropic.AsyncAnthropic, server: LiveServer
) -> None:
    texts = [
        b'{\n"model":\n"model",\n"max_tokens": %b, "messages": [{"role": "user", "content": "a\\nb"}]}' % number
        for number in (b"9", b"9223372036854775808", b"-1", b"1e400", b"0")
    ]
    requests = b",\r\n".join(b'{"custom_id": "%d",\n"params": %b}' % pair for pair in enumerate(texts))
    answer = await server.client.post(PATH, content=b'{"requests": [\n' + requests + b"\n]}\n")
    assert answer.status_code == 200, answer.text
    name = answer.json()["id"]
    ended = await until(client, name)
    assert sum(counts(ended)) == 5
    found = await results(client, name)
    assert found["0"].message.content[0].text == "B"
    assert set(found) == {"0", "1", "2", "3", "4"}
    assert {each.type for each in found.values()} <= {"succeeded", "errored"}
    assert all(each.error.error.type == "invalid_request_error" for each in found.values() if each.type == "errored")


async def test_batches_belong_to_keys_and_have_their_rights(bench: Bench, tmp_path: Path) -> None:
    secrets = {name: new_key() for name in ("ada", "bob", "root")}
    models = {"ada": ("model",), "bob": ("other",), "root": ("*",)}
    for name, secret in secrets.items():
        scopes = ("predict", "read", "admin") if name == "root" else ("predict", "read")
        add_key(tmp_path / "keys", Key(name, scopes, digest_of(secret), models[name]))
    async with (
        bench.serve(access=AccessOptions(keys=tmp_path / "keys")) as server,
        client_of(server.url, secrets["ada"]) as ada,
        client_of(server.url, secrets["bob"]) as bob,
        client_of(server.url, secrets["root"]) as root,
    ):
        made = await ada.messages.batches.create(requests=[asked("a")])
        await until(ada, made.id)
        of_bob = bob.messages.batches
        for call in (of_bob.retrieve, of_bob.cancel, of_bob.delete, of_bob.results):
            with pytest.raises(anthropic.NotFoundError):
                await call(made.id)
        assert [each.id async for each in of_bob.list()] == []
        assert [each.id async for each in root.messages.batches.list()] == [made.id]
        assert set(await results(ada, made.id)) == {"a"}
        foreign = await of_bob.create(requests=[asked("a")])
        assert counts(await until(bob, foreign.id)) == [0, 0, 1, 0, 0]
        assert (await results(bob, foreign.id))["a"].error.error.type == "not_found_error"


async def test_batches_of_a_key_are_limited(
    bench: Bench, client: anthropic.AsyncAnthropic, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_batches, "MAX_OPEN", 1)
    await client.messages.batches.create(requests=[asked("a", "wait")])
    with pytest.raises(anthropic.RateLimitError, match="have not ended"):
        await client.messages.batches.create(requests=[asked("a")])
    bench.open_gate()


async def test_server_without_a_store_says_so(serve: Serve) -> None:
    async with serve(MODEL, store=StoreOptions()) as server, client_of(server.url) as client:
        batches = client.messages.batches
        with pytest.raises(anthropic.NotFoundError, match="--store"):
            await batches.create(requests=[asked("a")])
        for call in (batches.retrieve, batches.cancel, batches.delete):
            with pytest.raises(anthropic.NotFoundError, match="--store"):
                await call("msgbatch_a")
        answer = await server.client.get(f"{PATH}/msgbatch_a/results")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
