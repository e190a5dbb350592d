"""`/v1/batches`: the official client's flow, restarts, cancels, expiry, lost servers and files that are wrong."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from geartrain.apis.openai import batches as lines_of_batches
from geartrain.domain.predictions.batch_jobs import OPEN_BATCH
from geartrain.server.options import StoreOptions
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.openai import batch_lines, batch_runner, stored_batches
from tests.support.batch_bench import Bench
from tests.support.cluster import ready
from tests.support.servers import PATIENCE, LiveServer, Serve, ServerProcess, write_model

if TYPE_CHECKING:
    import httpx

MODEL = """
    import os, time
    from geartrain import BaseRunner, current_scope

    class Runner(BaseRunner):
        def run(self, prompt: str) -> str:
            with open("runs", "a") as runs:
                runs.write(prompt + "\\n")
            if prompt == "fail":
                raise ValueError("it went wrong")
            while prompt.startswith("wait") and not os.path.exists("gate"):
                time.sleep(0.002)
            current_scope().record_metric("tokens.prompt", 3)
            return prompt.upper()
"""
COMPLETIONS: Any = "/v1/completions"


def line(custom_id: str, prompt: str = "x", *, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    asked = {"model": "model", "prompt": prompt, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def client_of(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=PATIENCE, max_retries=0)


async def begin(client: openai.AsyncOpenAI, content: bytes, *, window: Any = "24h", **options: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    options = {"endpoint": COMPLETIONS, "completion_window": window, **options}
    return await client.batches.create(input_file_id=file.id, **options)


async def until(client: openai.AsyncOpenAI, name: str, fits: Callable[[Any], bool] | None = None) -> Any:
    """Ask for a batch until it is as wanted, by default until it has ended."""
    is_wanted = fits or (lambda batch: batch.status not in OPEN_BATCH)
    async with asyncio.timeout(PATIENCE):
        while not is_wanted(batch := await client.batches.retrieve(name)):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
    return batch


async def content(client: openai.AsyncOpenAI, name: str | None) -> list[dict[str, Any]]:
    assert name is not None
    answer = await client.files.content(name)
    return [json.loads(each) for each in answer.text.splitlines()]


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [each["custom_id"] for each in lines]


@pytest.fixture
def bench(serve: Serve, tmp_path: Path) -> Bench:
    return Bench(serve, tmp_path, MODEL)


@pytest.fixture
async def server(bench: Bench) -> AsyncIterator[LiveServer]:
    async with bench.serve() as server:
        yield server


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(server.url) as client:
        yield client


async def test_official_client_runs_a_batch(client: openai.AsyncOpenAI) -> None:
    made = await begin(client, jsonl(line("a", "one"), line("b", "fail"), line("c", "three")), metadata={"k": "v"})
    assert (made.status, made.object, made.endpoint, made.metadata) == ("validating", "batch", COMPLETIONS, {"k": "v"})
    assert made.expires_at == made.created_at + 86_400
    ended = await until(client, made.id)
    assert ended.status == "completed"
    assert (ended.request_counts.total, ended.request_counts.completed, ended.request_counts.failed) == (3, 2, 1)
    assert ended.model == "model"
    assert ended.usage.input_tokens == 6
    assert None not in {ended.in_progress_at, ended.completed_at, ended.finalizing_at}
    assert (ended.errors, ended.failed_at, ended.cancelled_at, ended.expired_at) == (None, None, None, None)
    output = await content(client, ended.output_file_id)
    assert ids(output) == ["a", "c"]
    assert [each["response"]["body"]["choices"][0]["text"] for each in output] == ["ONE", "THREE"]
    assert all(each["id"] and each["error"] is None and each["response"]["status_code"] == 200 for each in output)
    assert all(each["response"]["request_id"] for each in output)
    [failed] = await content(client, ended.error_file_id)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("b", 500)
    assert failed["response"]["body"]["error"]["code"] == "run_failed"
    file = await client.files.retrieve(ended.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{made.id}_output.jsonl")
    assert file.bytes == len((await client.files.content(file.id)).content)
    assert [each.id async for each in client.batches.list(limit=1)] == [made.id]


async def test_lines_with_values_that_are_wrong_are_errors_of_their_own(client: openai.AsyncOpenAI) -> None:
    wrong = [line("stream", stream=True), line("type", prompt=[{}]), line("more", unheard_of=[])]  # type: ignore[arg-type]
    ended = await until(client, (await begin(client, jsonl(*wrong, line("good")))).id)
    assert ended.status == "completed"
    assert ids(await content(client, ended.output_file_id))[-1] == "good"
    errors = {each["custom_id"]: each for each in await content(client, ended.error_file_id)}
    assert errors["stream"]["error"]["code"] == "unsupported_parameter"
    assert errors["type"]["response"]["status_code"] == 400


WRONG = {
    "broken": (b'{"custom_id": "a", \n', "invalid_json_line"),
    "text": (b'"text"\n', "invalid_request"),
    "no utf-8": (b'{"custom_id": "\xff\xfe"}\n', "invalid_json_line"),
    "NUL": (b"\x00\x00\n", "invalid_json_line"),
    "deep": (b"[" * 100_000 + b"\n", "invalid_request"),
    "no custom_id": (jsonl({"method": "POST", "url": COMPLETIONS, "body": {}}), "missing_required_parameter"),
    "empty custom_id": (jsonl(line("")), "invalid_value"),
    "long custom_id": (jsonl(line("a" * 513)), "invalid_value"),
    "twice": (jsonl(line("a"), line("b"), line("a")), "duplicate_custom_id"),
    "method": (jsonl({**line("a"), "method": "GET"}), "invalid_method"),
    "other endpoint": (jsonl(line("a", url="/v1/embeddings")), "invalid_url"),
    "unknown url": (jsonl(line("a", url="/v1/files")), "invalid_url"),
    "body": (jsonl({**line("a"), "body": []}), "invalid_request"),
    "no model": (jsonl({**line("a"), "body": {"prompt": "x"}}), "invalid_value"),
    "unknown model": (jsonl(line("a", model="other")), "model_not_found"),
    "nothing": (b"\n \n\r\n", "empty_file"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_files_that_are_wrong_fail_before_a_line_runs(
    bench: Bench, client: openai.AsyncOpenAI, name: str
) -> None:
    lines, code = WRONG[name]
    good = b"" if code == "empty_file" else jsonl(line("good"))
    ended = await until(client, (await begin(client, good + lines)).id)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("failed", None, None)
    assert ended.failed_at
    fault = ended.errors.data[0]
    assert fault.code == code, fault
    assert fault.message.endswith((".", "it.", "access to it."))
    assert fault.line == (None if code == "empty_file" else (4 if name == "twice" else 2))
    assert bench.runs() == []


async def test_faults_of_a_file_are_few(client: openai.AsyncOpenAI) -> None:
    ended = await until(client, (await begin(client, b"no JSON\n" * 1000)).id)
    assert len(ended.errors.data) == lines_of_batches.MOST_FAULTS


async def test_long_line_fails_the_batch(client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_of_batches, "MAX_LINE", 1_500_000)
    ended = await until(client, (await begin(client, jsonl(line("a"), line("b", "x" * 4_000_000)))).id)
    assert (ended.status, ended.errors.data[0].code, ended.errors.data[0].line) == ("failed", "line_too_long", 2)


async def test_too_many_lines_fail_the_batch(client: openai.AsyncOpenAI) -> None:
    many = jsonl(*(line(str(number)) for number in range(lines_of_batches.MAX_LINES + 1)))
    ended = await until(client, (await begin(client, many)).id)
    assert (ended.status, ended.errors.data[0].code) == ("failed", "too_many_requests")


async def test_line_ends_and_a_byte_order_mark_are_taken(client: openai.AsyncOpenAI) -> None:
    text = b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(line(name)).encode() for name in "abc")
    ended = await until(client, (await begin(client, text)).id)
    assert ids(await content(client, ended.output_file_id)) == ["a", "b", "c"]


async def test_requests_for_batches_that_are_wrong(client: openai.AsyncOpenAI, server: LiveServer) -> None:
    file = await client.files.create(file=("in.jsonl", jsonl(line("a"))), purpose="batch")
    good: dict[str, Any] = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    for wrong, status, param in (
        ({"endpoint": "/v1/files"}, 400, "endpoint"),
        ({"endpoint": 1}, 400, "endpoint"),
        ({"completion_window": "0h"}, 400, "completion_window"),
        ({"completion_window": "31d"}, 400, "completion_window"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"input_file_id": "file-x"}, 404, "id"),
        ({"input_file_id": "\x00"}, 404, "id"),
        ({"input_file_id": None}, 400, "input_file_id"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
    ):
        answer = await server.client.post("/v1/batches", json={**good, **wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    for body in (b"no JSON", b"[]", b"[" * 100_000):
        assert (await server.client.post("/v1/batches", content=body)).status_code == 400
    for name in ("batch_x", "%00"):
        assert (await server.client.get(f"/v1/batches/{name}")).status_code == 404
        assert (await server.client.post(f"/v1/batches/{name}/cancel")).status_code == 404
    ended = await until(client, (await begin(client, jsonl(line("a")))).id)
    answer = await server.client.post("/v1/batches", json={**good, "input_file_id": ended.output_file_id})
    assert answer.json()["error"]["code"] == "invalid_purpose"


async def test_cancel_at_every_state(bench: Bench, client: openai.AsyncOpenAI) -> None:
    made = await begin(client, jsonl(line("a", "one"), line("b", "wait"), line("c", "never")))
    await bench.has_run("wait")
    await until(client, made.id, lambda batch: batch.request_counts.completed == 1)
    first = await client.batches.cancel(made.id)
    assert first.status == "cancelling"
    assert first.cancelling_at
    ended = await until(client, made.id)
    assert ended.status == "cancelled"
    assert ended.cancelled_at
    assert ids(await content(client, ended.output_file_id)) == ["a"]
    assert "never" not in bench.runs()
    assert (await client.batches.cancel(made.id)).status == "cancelled"
    early = await begin(client, jsonl(*(line(str(number)) for number in range(2000))))
    await client.batches.cancel(early.id)
    assert (await until(client, early.id)).status == "cancelled"
    bench.open_gate()
    over = await until(client, (await begin(client, jsonl(line("a")))).id)
    with pytest.raises(openai.ConflictError, match="completed"):
        await client.batches.cancel(over.id)


async def test_batch_expires(bench: Bench, client: openai.AsyncOpenAI) -> None:
    made = await begin(client, jsonl(line("a", "one"), line("b", "wait"), line("c", "never")), window="2s")
    ended = await until(client, made.id)
    assert (ended.status, ended.completed_at) == ("expired", None)
    assert ended.expired_at
    assert ids(await content(client, ended.output_file_id)) == ["a"]
    errors = await content(client, ended.error_file_id)
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [
        ("b", "batch_expired"),
        ("c", "batch_expired"),
    ]
    assert (ended.request_counts.completed, ended.request_counts.failed) == (1, 2)
    assert "never" not in bench.runs()


async def test_file_of_a_running_batch_stays(bench: Bench, client: openai.AsyncOpenAI) -> None:
    made = await begin(client, jsonl(line("a", "wait")))
    with pytest.raises(openai.ConflictError, match="cancel the batch"):
        await client.files.delete(made.input_file_id)
    bench.open_gate()
    ended = await until(client, made.id)
    for name in (made.input_file_id, ended.output_file_id):
        assert (await client.files.delete(name)).deleted
    assert (await client.batches.retrieve(made.id)).status == "completed"


async def test_batch_goes_on_after_a_restart(bench: Bench) -> None:
    async with bench.serve() as server, client_of(server.url) as client:
        made = await begin(client, jsonl(line("a", "one"), line("b", "wait"), line("c", "three")))
        await bench.has_run("wait")
        await until(client, made.id, lambda batch: batch.request_counts.completed == 1)
    bench.open_gate()
    async with bench.serve() as server, client_of(server.url) as client:
        ended = await until(client, made.id)
        assert ended.status == "completed"
        assert ended.error_file_id is None, await content(client, ended.error_file_id)
        assert ids(await content(client, ended.output_file_id)) == ["a", "b", "c"]
    assert (bench.runs().count("one"), bench.runs().count("three")) == (1, 1)


async def test_batch_waits_for_a_model_that_is_being_loaded(bench: Bench) -> None:
    slow = MODEL.replace(
        "        def run(",
        """        def setup(self) -> None:
            while not os.path.exists("gate"):
                time.sleep(0.002)

        def run(""",
    )
    write_model(bench.folder, slow)
    async with bench.serve(ready=False) as server, client_of(server.url) as client:
        made = await begin(client, jsonl(line("a", "one")))
        assert (await client.batches.retrieve(made.id)).status in {"validating", "in_progress"}
        bench.open_gate()
        ended = await until(client, made.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", 1)


async def test_batch_does_not_wait_for_other_models(bench: Bench, server_process: Callable[..., ServerProcess]) -> None:
    """While they are loaded, a name that nobody knows yet may be an alias of one of them."""
    never = """
    import os, time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            while not os.path.exists("gate"):
                time.sleep(0.002)

        def run(self, prompt: str) -> str:
            return prompt
    """
    root = bench.folder.parent / "models"
    write_model(root / "model", MODEL)
    write_model(root / "never", never)
    process = server_process(str(root), "--store", bench.url, "--queue", "10")
    url = (await asyncio.to_thread(process.wait_for, "listening"))["url"]
    async with client_of(url) as client:
        made = await begin(client, jsonl(line("a", "one")))
        assert (await until(client, made.id)).status == "completed"
        unknown = await begin(client, jsonl(line("a", "one", model="nobody")))
        late = await begin(client, jsonl(line("a", "late", model="never")))
        assert (await until(client, (await begin(client, jsonl(line("a", "two")))).id)).status == "completed"
        (root / "never" / "gate").touch()
        assert (await until(client, late.id)).status == "completed"
        ended = await until(client, unknown.id)
        if ended.status == "completed":  # it was looked at while the other model was loaded
            assert (await content(client, ended.error_file_id))[0]["response"]["status_code"] == 404
        else:
            assert (ended.status, ended.errors.data[0].code) == ("failed", "model_not_found")


async def test_batch_of_a_killed_server_goes_on_elsewhere(
    bench: Bench, server_process: Callable[..., ServerProcess]
) -> None:
    options = (str(bench.folder), "--store", bench.url, "--lease", "3s", "--queue", "10")
    process = server_process(*options)
    url = await asyncio.to_thread(ready, process)
    async with client_of(url) as client:
        made = await begin(client, jsonl(line("a", "one"), line("b", "wait"), line("c", "three")))
        await bench.has_run("wait")
        await until(client, made.id, lambda batch: batch.request_counts.completed == 1)
    process.popen.kill()
    await asyncio.to_thread(process.popen.wait)
    bench.open_gate()
    async with bench.serve() as server, client_of(server.url) as client:
        ended = await until(client, made.id)
        assert ids(await content(client, ended.output_file_id)) == ["a", "b", "c"]
        assert (ended.request_counts.total, ended.request_counts.completed) == (3, 3)
    assert bench.runs().count("one") == 1


async def test_requests_of_clients_come_first(bench: Bench, server: LiveServer, client: openai.AsyncOpenAI) -> None:
    made = await begin(
        client, jsonl(line("a", "wait a"), *(line(str(number), f"late {number}") for number in range(5)))
    )
    await bench.has_run("wait a")
    waiting = [
        asyncio.ensure_future(server.client.post(COMPLETIONS, json={"model": "model", "prompt": f"soon {number}"}))
        for number in range(5)
    ]
    async with asyncio.timeout(PATIENCE):
        while server.deployment.scheduler.waiting < len(waiting):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    bench.open_gate()
    answers: list[httpx.Response] = await asyncio.gather(*waiting)
    assert {each.status_code for each in answers} == {200}
    assert (await until(client, made.id)).status == "completed"
    order = bench.runs()
    assert max(order.index(f"soon {number}") for number in range(5)) < min(
        order.index(f"late {number}") for number in range(5)
    )


async def test_batches_of_a_key_are_limited(client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_batches, "MAX_OPEN", 1)
    made = await begin(client, jsonl(line("a", "wait")))
    with pytest.raises(openai.RateLimitError, match="have not ended"):
        await begin(client, jsonl(line("a")))
    await client.batches.cancel(made.id)
    await until(client, made.id)
    assert (await begin(client, jsonl(line("a")))).status == "validating"


async def test_batches_that_run_at_once_are_few(
    bench: Bench, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "MAX_RUNNING", 1)
    first = await begin(client, jsonl(line("a", "wait")))
    await bench.has_run("wait")
    second = await begin(client, jsonl(line("a", "second")))
    assert (await client.batches.retrieve(second.id)).status == "validating"
    bench.open_gate()
    for made in (first, second):
        assert (await until(client, made.id)).status == "completed"


BATCHED = """
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        def run(self, texts: list[str]) -> list[list[float]]:
            with open("sizes", "a") as sizes:
                sizes.write(f"{len(texts)}\\n")
            return [[float(len(text))] for text in texts]
"""


SEES = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, prompt: str, images: list[Path] = []) -> str:
            return f"{prompt} {[image.stat().st_size for image in images]}"
"""


async def test_lines_have_pictures(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SEES)
    chats: Any = "/v1/chat/completions"

    def asked(custom_id: str, *sizes: int) -> dict[str, Any]:
        urls = [f"data:image/png;base64,{b64encode(bytes(size)).decode()}" for size in sizes]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        messages = [{"role": "user", "content": [{"type": "text", "text": custom_id}, *parts]}]
        body = {"model": "model", "messages": messages}
        return {"custom_id": custom_id, "method": "POST", "url": chats, "body": body}

    wrong = asked("wrong")
    wrong["body"]["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})
    lines = [asked("none"), asked("small", 3, 4), asked("large", 3_000_000), wrong]
    store = StoreOptions(url=f"sqlite:///{tmp_path}/store.db")
    async with serve(folder, store=store) as server, client_of(server.url) as client:
        ended = await until(client, (await begin(client, jsonl(*lines), endpoint=chats)).id)
        output = await content(client, ended.output_file_id)
        [failed] = await content(client, ended.error_file_id)
    said = [each["response"]["body"]["choices"][0]["message"]["content"] for each in output]
    assert said == ["none []", "small [3, 4]", "large [3000000]"]
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("wrong", 400)
    assert "no http:, https: or data: URL" in failed["response"]["body"]["error"]["message"]


async def test_lines_share_batches_of_the_model_and_few_are_asked_at_once(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_lines, "MOST_AT_ONCE", 8)
    folder = write_model(tmp_path / "model", BATCHED)
    embeddings: Any = "/v1/embeddings"
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": embeddings,
            "body": {"model": "model", "input": "x" * number},
        }
        for number in range(1, 201)
    ]
    store = StoreOptions(url=f"sqlite:///{tmp_path}/store.db")
    async with serve(folder, store=store) as server, client_of(server.url) as client:
        ended = await until(client, (await begin(client, jsonl(*lines), endpoint=embeddings)).id)
        output = await content(client, ended.output_file_id)
    assert [each["response"]["body"]["data"][0]["embedding"] for each in output] == [[float(n)] for n in range(1, 201)]
    sizes = [int(size) for size in (folder / "sizes").read_text().split()]
    assert sum(sizes) == 200
    assert max(sizes) > 1


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
        made = await begin(ada, jsonl(line("a")))
        for call in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        assert [each.id async for each in bob.batches.list()] == []
        assert [each.id async for each in root.batches.list()] == [made.id]
        assert (await until(ada, made.id)).status == "completed"
        foreign = await until(bob, (await begin(bob, jsonl(line("a")))).id)
        assert (foreign.status, foreign.errors.data[0].code) == ("failed", "model_not_found")


async def test_server_without_a_store_says_so(serve: Serve) -> None:
    async with serve(MODEL, store=StoreOptions()) as server, client_of(server.url) as client:
        with pytest.raises(openai.BadRequestError, match="--store"):
            await client.batches.create(input_file_id="a", endpoint=COMPLETIONS, completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="--store"):
            await client.batches.retrieve("a")
