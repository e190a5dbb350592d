"""`/v1/files` of a server with a store: uploads, their limits, and whose they are."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from geartrain.server.options import StoreOptions
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.openai import stored_files
from tests.support.servers import PATIENCE, LiveServer, Serve

if TYPE_CHECKING:
    import httpx

MODEL = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, prompt: str) -> str:
            return prompt.upper()
"""
LINES = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "model", "prompt": "x"}}\n'


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with serve(MODEL, store=StoreOptions(url=f"sqlite:///{tmp_path}/store.db")) as server:
        yield server


def client_of(server: LiveServer, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, timeout=PATIENCE)


async def upload(server: LiveServer, content: bytes = LINES, **fields: Any) -> httpx.Response:
    form = {"purpose": "batch", **fields}
    return await server.client.post("/v1/files", data=form, files={"file": ("in.jsonl", content)})


async def refused(server: LiveServer, status: int, code: str, **request: Any) -> str:
    answer = await server.client.request(request.pop("method", "POST"), request.pop("path", "/v1/files"), **request)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    message: str = error["message"]
    return message


async def test_official_client_uploads_lists_reads_and_deletes(server: LiveServer) -> None:
    async with client_of(server) as client:
        made = await client.files.create(
            file=("folder/in.jsonl", LINES), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert (made.filename, made.bytes, made.purpose, made.status) == ("in.jsonl", len(LINES), "batch", "processed")
        assert made.expires_at == made.created_at + 3600
        assert await client.files.retrieve(made.id) == made
        other = await client.files.create(file=("other.jsonl", LINES), purpose="batch")
        assert [each.id async for each in client.files.list(limit=1)] == [other.id, made.id]
        assert [each.id async for each in client.files.list(order="asc")] == [made.id, other.id]
        assert (await client.files.content(made.id)).content == LINES
        assert (await client.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await client.files.retrieve(made.id)


async def test_file_may_come_before_its_purpose(server: LiveServer) -> None:
    form: Any = [("file", ("in.jsonl", LINES)), ("purpose", (None, "batch"))]
    answer = await server.client.post("/v1/files", files=form)
    assert answer.status_code == 200, answer.text


async def test_large_file_goes_through_little_memory(server: LiveServer) -> None:
    content = LINES * (40_000_000 // len(LINES))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="large"\r\n\r\n'
        for at in range(0, len(content), 100_000):
            yield content[at : at + 100_000]
        yield b"\r\n--x--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = await server.client.post("/v1/files", content=body(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == len(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kB; the client is in this process
    at = 0
    async with server.client.stream("GET", f"/v1/files/{answer.json()['id']}/content") as stream:
        async for piece in stream.aiter_bytes():
            assert content[at : at + len(piece)] == piece
            at += len(piece)
    assert at == len(content)


async def test_uploads_that_are_wrong(server: LiveServer) -> None:
    data, files = {"purpose": "batch"}, {"file": ("in.jsonl", LINES)}
    assert "purpose" in await refused(server, 400, "invalid_input", files=files)
    wrong = {"purpose": "fine-tune"}
    assert "'batch'" in await refused(server, 400, "invalid_purpose", data=wrong, files=files)
    assert "'file'" in await refused(server, 400, "invalid_input", files={"purpose": (None, "batch")})
    await refused(server, 400, "empty_file", data=data, files={"file": ("in.jsonl", b"")})
    assert "'other'" in await refused(server, 400, "invalid_input", data={**data, "other": "1"}, files=files)
    two = [("file", ("a", LINES)), ("file", ("b", LINES))]
    assert "twice" in await refused(server, 400, "invalid_input", data=data, files=two)
    assert "a file" in await refused(server, 400, "invalid_input", files={"file": (None, "text")})
    await refused(server, 413, "too_large", data={"purpose": "b" * 5000}, files=files)
    await refused(server, 415, "unsupported_media_type", json={"purpose": "batch"})
    cut = {"content-type": "multipart/form-data; boundary=x"}
    await refused(server, 400, "unparsable", content=b"--x\r\nno head", headers=cut)
    for seconds in ("3599", "2592001", "-1", "1e9", "x"):
        life = {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
        assert "seconds" in await refused(server, 400, "invalid_input", data={**data, **life}, files=files)
    life = {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}
    assert "anchor" in await refused(server, 400, "invalid_input", data={**data, **life}, files=files)
    assert (await server.client.get("/v1/files")).json()["data"] == []


async def test_lists_that_are_wrong(server: LiveServer) -> None:
    for query, name in (
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=10001", "limit"),
        ("order=up", "order"),
        ("after=%00", "after"),
        ("purpose=a%00", "purpose"),
    ):
        assert name in await refused(server, 400, "invalid_input", method="GET", path=f"/v1/files?{query}")
    assert (await server.client.get("/v1/files?after=file-unknown")).json()["data"] == []


async def test_ids_that_are_none(server: LiveServer) -> None:
    for name in ("file-x", "%00", "%ff", "a" * 300):
        for path in (f"/v1/files/{name}", f"/v1/files/{name}/content"):
            await refused(server, 404, "file_not_found", method="GET", path=path)
        await refused(server, 404, "file_not_found", method="DELETE", path=f"/v1/files/{name}")


async def test_file_that_is_too_large_leaves_nothing(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "MAX_FILE", 2_000_000)
    answer = await upload(server, b"x" * 2_500_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    answer = await upload(server, b"x" * 5_000_000)  # refused by its head
    assert answer.status_code == 413
    assert (await server.client.get("/v1/files")).json()["data"] == []


async def test_files_of_a_key_are_limited(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "MAX_FILES", 3)
    store = StoreOptions(url=f"sqlite:///{tmp_path}/store.db", max_bytes=1_500_000)
    async with serve(MODEL, store=store) as server:
        first = await upload(server, b"x" * 1_000_000)
        answer = await upload(server, b"x" * 1_000_000)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")
        assert answer.headers["x-should-retry"] == "false"
        assert (await server.client.delete(f"/v1/files/{first.json()['id']}")).json()["deleted"]
        assert [(await upload(server)).status_code for _ in range(4)] == [200, 200, 200, 429]


async def test_client_that_leaves_leaves_nothing(server: LiveServer) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="large"\r\n\r\n' + b"x" * 3_000_000
        raise ConnectionError

    headers = {"content-type": "multipart/form-data; boundary=x"}
    with pytest.raises(ConnectionError):
        await server.client.post("/v1/files", content=body(), headers=headers)
    assert (await server.client.get("/v1/files")).json()["data"] == []


async def test_files_belong_to_keys(serve: Serve, tmp_path: Path) -> None:
    secrets = {name: new_key() for name in ("ada", "bob", "root")}
    for name, secret in secrets.items():
        scopes = ("predict", "read", "admin") if name == "root" else ("predict", "read")
        add_key(tmp_path / "keys", Key(name, scopes, digest_of(secret)))
    store = StoreOptions(url=f"sqlite:///{tmp_path}/store.db")
    async with (
        serve(MODEL, store=store, access=AccessOptions(keys=tmp_path / "keys")) as server,
        client_of(server, secrets["ada"]) as ada,
        client_of(server, secrets["bob"]) as bob,
        client_of(server, secrets["root"]) as root,
    ):
        made = await ada.files.create(file=LINES, purpose="batch")
        for call in (bob.files.retrieve, bob.files.delete, bob.files.content):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        assert [each.id async for each in bob.files.list()] == []
        assert [each.id async for each in root.files.list()] == [made.id]
        assert [each.id async for each in ada.files.list()] == [made.id]


async def test_files_outlive_the_server(serve: Serve, tmp_path: Path) -> None:
    store = StoreOptions(url=f"sqlite:///{tmp_path}/store.db")
    async with serve(MODEL, store=store) as server:
        made = (await upload(server)).json()
    async with serve(MODEL, store=store) as server:
        assert (await server.client.get(f"/v1/files/{made['id']}")).json() == made
        assert (await server.client.get(f"/v1/files/{made['id']}/content")).content == LINES


async def test_server_without_a_store_says_so(serve: Serve) -> None:
    async with serve(MODEL, store=StoreOptions()) as server:
        for method, path in (("GET", "/v1/files"), ("GET", "/v1/files/a"), ("DELETE", "/v1/files/a")):
            assert "--store" in await refused(server, 400, "no_store", method=method, path=path)
        assert "--store" in await refused(server, 400, "no_store", files={"file": LINES})
