"""MCP of servers that are processes of their own: several models, keys, pages of other sites, and stdin and stdout."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import BlobResourceContents

from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support.gates import Gates
from tests.support.servers import PATIENCE, ServerProcess, eventually, write_model

VERSION: Final = "2026-07-28"
MODEL: Final = """
    def run(text: str = "hello") -> str:
        return text
"""
WAITING: Final = """
    import pathlib, select
    from geartrain import CancelationException

    def run(gate: str, mark: str) -> str:
        try:
            pathlib.Path(mark).write_text("begun")
            with open(gate, "rb", buffering=0) as file:
                select.select([file], [], [])
        except CancelationException:
            pathlib.Path(mark).write_text("canceled")
            raise
        return "passed"
"""
PICTURE: Final = """
    import tempfile
    from geartrain import Path

    def run(text: str) -> Path:
        picture = Path(tempfile.mkdtemp()) / "picture.png"
        picture.write_text(text)
        return picture
"""
NOISY: Final = """
    import os, sys

    def run(text: str) -> str:
        print("printed")
        os.write(1, b"written\\n")
        print("failed", file=sys.stderr)
        return text
"""
BROKEN: Final = """
    class Runner:
        def setup(self) -> None:
            raise RuntimeError("no weights")

        def run(self, text: str) -> str: ...
"""


class Asker:
    """A server over HTTP, and requests of the newest revision."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = ServerProcess(str(folder), *arguments)
        self.url = self.process.wait_for("listening")["url"]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def ask(
        self, method: str, params: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        given = params or {}
        named = given.get("name", given.get("uri", ""))
        own = {"mcp-protocol-version": VERSION, "mcp-method": method, "mcp-name": named}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**given, "_meta": meta}}
        return self.client.post("/mcp", json=body, headers=own | (headers or {}))

    def tools(self, headers: dict[str, str] | None = None) -> list[str]:
        listed = self.ask("tools/list", headers=headers).json()["result"]["tools"]
        return [tool["name"] for tool in listed]

    def call(self, name: str, headers: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask("tools/call", {"name": name, "arguments": arguments}, headers).json()
        return answer

    def close(self) -> None:
        self.client.close()
        self.process.end()


def folder_of(root: Path, **sources: str) -> Path:
    for name, source in sources.items():
        write_model(root / name, source)
    return root


@pytest.fixture
def askers() -> Iterator[list[Asker]]:
    opened: list[Asker] = []
    yield opened
    for asker in opened:
        asker.close()


def open_asker(askers: list[Asker], folder: Path, *arguments: str) -> Asker:
    asker = Asker(folder, *arguments)
    askers.append(asker)
    return asker


def text_of(answer: dict[str, Any]) -> str:
    (block,) = answer["result"]["content"]
    text: str = block["text"]
    return text


# over HTTP


def test_each_model_is_a_tool_and_a_failed_one_is_none(tmp_path: Path, askers: list[Asker]) -> None:
    root = folder_of(tmp_path / "models", a=MODEL, b=MODEL, broken=BROKEN)
    write_model(root / "versions" / "1", "def run() -> str:\n    return 'first'")
    write_model(root / "versions" / "2", "def run() -> str:\n    return 'second'")
    (root / "versions" / "geartrain.yaml").write_text("versions: [1, 2]\n")
    asker = open_asker(askers, root)
    for _ in range(5):
        asker.process.wait_for_one("ready", "setup-failed")
    assert asker.tools() == ["a", "b", "versions"]
    assert text_of(asker.call("b", text="x")) == "x"
    assert [text_of(asker.call(name)) for name in ("versions", "versions@1", "versions@02")] == [
        "second",
        "first",
        "second",
    ]
    failed = asker.call("broken", text="x")
    assert failed["result"]["isError"]
    assert "Setup has failed" in text_of(failed)
    metrics = asker.client.get("/metrics").text
    assert 'geartrain_requests_total{protocol="mcp",status="200"}' in metrics
    while (line := asker.process.wait_for("request")).get("model") != "b":
        pass
    assert (line["protocol"], line["outcome"]) == ("mcp", "succeeded")


def test_pages_of_the_list(tmp_path: Path, askers: list[Asker]) -> None:
    names = [f"model-{number:03}" for number in range(101)]
    asker = open_asker(askers, folder_of(tmp_path, **dict.fromkeys(names, MODEL)), "--load", "on-demand")
    first = asker.ask("tools/list").json()["result"]
    assert [tool["name"] for tool in first["tools"]] == names[:100]
    assert "rests" in first["tools"][0]["description"]
    last = asker.ask("tools/list", {"cursor": first["nextCursor"]}).json()["result"]
    assert ([tool["name"] for tool in last["tools"]], "nextCursor" in last) == (names[100:], False)
    assert text_of(asker.call(names[7], text="woken")) == "woken"
    described = asker.ask("tools/list").json()["result"]["tools"][7]
    assert described["inputSchema"]["properties"] == {"text": {"type": "string", "default": "hello"}}


def keys_in(path: Path, *keys: tuple[str, tuple[str, ...], str]) -> dict[str, dict[str, str]]:
    """Write keys, each with its name, scopes and models; return the header fields of a request with each of them."""
    headers = {}
    for name, scopes, models in keys:
        secret = new_key()
        add_key(path, Key(name, scopes, digest_of(secret), (models,)))
        headers[name] = {"authorization": f"Bearer {secret}"}
    return headers


def test_keys_and_their_models(tmp_path: Path, askers: list[Asker]) -> None:
    secrets = keys_in(
        tmp_path / "keys",
        ("all", ("predict",), "*"),
        ("some", ("predict",), "a*"),
        ("reader", ("read",), "*"),
    )
    asker = open_asker(askers, folder_of(tmp_path / "models", a=MODEL, b=MODEL), "--keys", str(tmp_path / "keys"))
    for _ in range(2):
        asker.process.wait_for_one("ready")
    refused = asker.ask("tools/list")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "requires a key" in refused.json()["error"]["message"]
    assert asker.ask("tools/list", headers=secrets["reader"]).status_code == 403
    assert asker.tools(secrets["all"]) == ["a", "b"]
    assert asker.tools(secrets["some"]) == ["a"]
    assert text_of(asker.call("a", secrets["some"], text="x")) == "x"
    for name in ("b", "b@1"):
        hidden = asker.call(name, secrets["some"], text="x")["error"]
        assert (hidden["code"], hidden["message"].startswith("Unknown tool")) == (-32602, True)
    assert text_of(asker.call("b@1", secrets["all"], text="x")) == "x"


def test_files_belong_to_the_key_that_had_them_made(tmp_path: Path, askers: list[Asker]) -> None:
    secrets = keys_in(
        tmp_path / "keys",
        ("maker", ("predict",), "*"),
        ("other", ("predict",), "*"),
        ("narrow", ("predict",), "b*"),
        ("all", ("predict", "admin"), "*"),
        ("part", ("predict", "admin"), "b*"),
        ("reader", ("read",), "*"),
    )
    asker = open_asker(askers, folder_of(tmp_path / "models", a=PICTURE, b=MODEL), "--keys", str(tmp_path / "keys"))
    for _ in range(2):
        asker.process.wait_for_one("ready")
    uri = asker.call("a", secrets["maker"], text="x")["result"]["content"][0]["_meta"]["geartrain/uri"]

    def listed(name: str) -> list[str]:
        found = asker.ask("resources/list", headers=secrets[name]).json()["result"]["resources"]
        return [each["uri"] for each in found]

    for name, sees in (("maker", True), ("all", True), ("other", False), ("narrow", False), ("part", False)):
        assert listed(name) == ([uri] if sees else []), name
        read = asker.ask("resources/read", {"uri": uri}, secrets[name])
        assert read.status_code == (200 if sees else 400), name
        unknown = asker.ask("resources/read", {"uri": "geartrain://predictions/p/files/1"}, secrets[name]).json()
        assert sees or read.json()["error"]["message"] == unknown["error"]["message"]
    assert asker.ask("resources/list", headers=secrets["reader"]).status_code == 403


def test_pages_of_other_sites_and_foreign_hosts_are_refused(tmp_path: Path, askers: list[Asker]) -> None:
    app = "https://app.example.com"
    asker = open_asker(askers, folder_of(tmp_path, a=MODEL), "--cors-origin", app)
    asker.process.wait_for("ready")
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "rebound.example"},
    ):
        refused = asker.ask("tools/list", headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, -32600), headers
    allowed = asker.ask("tools/list", headers={"origin": app})
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, app)
    assert "Mcp-Session-Id" in allowed.headers["access-control-expose-headers"]
    asked = {"origin": app, "access-control-request-method": "POST"}
    preflight = asker.client.options("/mcp", headers=asked)
    assert preflight.status_code == 204
    names = {name.strip().lower() for name in preflight.headers["access-control-allow-headers"].split(",")}
    assert {"mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"} <= names


# over stdin and stdout


def parameters(*words: str, env: dict[str, str] | None = None) -> StdioServerParameters:
    environment = {**os.environ, "LOG_FORMAT": "json", **(env or {})}
    return StdioServerParameters(command=sys.executable, args=["-m", "geartrain", "mcp", *words], env=environment)


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_models_over_stdin_and_stdout(tmp_path: Path, era: str) -> None:
    root = folder_of(tmp_path, noisy=NOISY, plain=MODEL, draw=PICTURE)
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))

    with (tmp_path / "log").open("w") as log:
        transport = stdio_client(parameters(*(str(root / name) for name in ("noisy", "plain", "draw"))), errlog=log)
        async with Client(transport, mode=era) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["draw", "noisy", "plain"]
            await client.call_tool("draw", {"text": "drawn"})
            (resource,) = (await client.list_resources()).resources
            (content,) = (await client.read_resource(resource.uri)).contents
            assert isinstance(content, BlobResourceContents)
            assert base64.b64decode(content.blob) == b"drawn"
            large = await client.call_tool("plain", {"text": "x" * 3_000_000})
            assert getattr(large.content[0], "text", "") == "x" * 3_000_000
            result = await client.call_tool("noisy", {"text": "hi"}, progress_callback=on_progress)
            assert [getattr(block, "text", "") for block in result.content] == ["hi"]
            many = await asyncio.gather(*(client.call_tool("plain", {"text": str(number)}) for number in range(20)))
            assert [getattr(each.content[0], "text", "") for each in many] == [str(number) for number in range(20)]
    assert {"printed", "written"} <= set("\n".join(message or "" for _, message in told).split("\n"))
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"ready", "printed"} <= {record["message"] for record in records}


async def test_cancel_over_stdin(tmp_path: Path) -> None:
    gates, mark = Gates(tmp_path / "gates"), tmp_path / "mark"
    write_model(tmp_path / "waiting", WAITING)
    arguments = {"gate": str(gates["go"].path), "mark": str(mark)}
    async with Client(stdio_client(parameters(str(tmp_path / "waiting")))) as client:
        calling = asyncio.ensure_future(client.call_tool("waiting", arguments))
        await eventually(mark.exists)
        calling.cancel()
        await eventually(lambda: mark.read_text() == "canceled")
        gates["go"].open()
        assert not (await client.call_tool("waiting", arguments)).is_error
    gates.remove()


class Lines:
    """`geartrain mcp`, whose lines a test writes and reads itself."""

    def __init__(self, *words: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "geartrain", "mcp", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout

    def write(self, text: bytes) -> None:
        self.stdin.write(text + b"\n")
        self.stdin.flush()

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.stdout.readline())
        return message

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    write_model(tmp_path / "waiting", WAITING)
    lines = Lines(str(tmp_path / "waiting"))
    yield lines
    lines.close()


def test_lines_that_are_no_messages_are_answered_and_passed_over(lines: Lines) -> None:
    for text, code in (
        (b"{", -32700),
        (b"[]", -32600),
        (b"\xff", -32700),
        (b"{" * 200_000, -32700),
        (b'{"jsonrpc":"2.0","id":3}', -32600),
        (b'{"jsonrpc":"2.0","id":3,"method":"no"}', -32601),
        (b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}', -32602),
        (b'"%b"' % (b"x" * (101 * 1024**2)), -32600),
    ):
        lines.write(text)
        assert lines.read()["error"]["code"] == code
    lines.write(b"")
    lines.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}')
    lines.write(b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
    assert lines.read() == {"jsonrpc": "2.0", "id": "a", "result": {}}


@pytest.mark.parametrize("how", ["eof", "term", "gone"])
def test_a_client_that_leaves_ends_the_server_and_what_runs(lines: Lines, tmp_path: Path, how: str) -> None:
    gates, mark = Gates(tmp_path / "gates"), tmp_path / "mark"
    arguments = {"gate": str(gates["go"].path), "mark": str(mark)}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "waiting", "arguments": arguments}}
    lines.write(json.dumps(call).encode())
    asyncio.run(eventually(mark.exists))
    if how == "eof":
        lines.stdin.close()
    elif how == "term":
        lines.popen.send_signal(signal.SIGTERM)
    else:
        lines.stdout.close()
        lines.write(b'{"jsonrpc":"2.0","id":2,"method":"ping"}')
    assert lines.popen.wait(PATIENCE) == 0
    assert mark.read_text() == "canceled"
    gates.remove()


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    for place in ("x", "y"):
        write_model(tmp_path / place / "same", MODEL)
    words = [sys.executable, "-m", "geartrain", "mcp", str(tmp_path / "x" / "same"), str(tmp_path / "y")]
    done = subprocess.run(words, input=b"", capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"two models are called 'same'" in done.stderr
