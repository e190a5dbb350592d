"""Observed Cog, sections 2 to 5: routes and methods, HTTP itself, discovery, health, OpenAPI, docs, shutdown."""

from __future__ import annotations

import asyncio
import gzip
import json
import platform
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from geartrain import __version__
from geartrain.domain.versions import COG_VERSION
from tests.support.cluster import ready
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model
from tests.support.wire import Answer, connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
    import os, time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            print("setting up")

        def run(self, text: str = "", gate: str = "") -> dict:
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            return {"z": {"b": 1, "a": text}, "a": 2}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


# section 2: routes and methods


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/", {"GET", "HEAD"}),
        ("/health-check", {"GET", "HEAD"}),
        ("/openapi.json", {"GET", "HEAD"}),
        ("/docs", {"GET", "HEAD"}),
        pytest.param("/shutdown", {"POST"}, marks=pytest.mark.own_wire(reason="a host ends by itself")),
        pytest.param(
            "/predictions", {"POST"}, marks=pytest.mark.without_store(reason="GET lists what the store knows")
        ),
        ("/predictions/x", {"GET", "HEAD", "PUT"}),  # GET is ours: see test_kept.py
        ("/predictions/x/cancel", {"POST"}),
    ],
)
async def test_wrong_method_is_405(server: LiveServer, path: str, methods: set[str]) -> None:
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"} - methods:
        response = await server.client.request(method, path)
        assert response.status_code == 405, method
        assert set(response.headers["allow"].split(", ")) == methods
        assert response.headers["content-type"] == "application/json"
        if method != "HEAD":
            assert set(response.json()) == {"error"}


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/health-check/",
        "/openapi.json/",
        "/docs/",
        "/predictions/",
        "/predictions//cancel",
        "/predictions/x/",
        "/predictions/x/y",
        "/predictions/x/cancel/",
        "/predictions/x/y/cancel",
        "/Predictions",
        "//predictions",
        "/docs/static/",
        "/docs/static/nope.js",
        "/docs/static/..%2f..%2f__init__.py",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_unknown_path_is_404(server: LiveServer, method: str, path: str) -> None:
    async with connection(server.url) as wire:
        answer = await wire.ask(f"{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n".encode())
        static = path.startswith("/docs/static/")
        assert answer.status == (405 if static and method != "GET" else 404)
        assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("path", ["/", "/health-check", "/openapi.json", "/docs"])
async def test_head_is_get_without_the_body(server: LiveServer, path: str) -> None:
    get = await server.client.get(path)
    async with connection(server.url) as wire:
        await wire.send(f"HEAD {path} HTTP/1.1\r\nhost: test\r\n\r\n".encode())
        head = await wire.answer(to_head=True)
        assert head.status == get.status_code == 200
        for name in ("content-type", "content-length"):
            assert head.headers[name] == get.headers[name]
        # The next answer follows at once: there was no body.
        assert (await wire.ask(b"GET /health-check HTTP/1.1\r\nhost: test\r\n\r\n")).status == 200


async def test_query_is_ignored(server: LiveServer) -> None:
    assert (await server.client.get("/health-check?a=b&c")).json()["status"] == "READY"
    assert (await server.client.put("/predictions/q1?id=other", json={})).json()["id"] == "q1"


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        ("r%2F3%20x", "r/3 x"),
        ("%252F", "%2F"),
        ("cancel", "cancel"),
        ("a%2Fcancel", "a/cancel"),
        ("%C3%A9t%C3%A9", "été"),
        ("a+b", "a+b"),
        ("..%2F..%2Fx", "../../x"),
        ("%3Fq%23f", "?q#f"),
    ],
)
async def test_id_is_percent_decoded_once(server: LiveServer, encoded: str, decoded: str) -> None:
    async with connection(server.url) as wire:
        answer = await wire.ask(f"PUT /predictions/{encoded} HTTP/1.1\r\nhost: test\r\n\r\n".encode())
        assert (answer.status, answer.json()["id"]) == (200, decoded)


# section 3: HTTP itself


async def test_headers_of_an_answer(server: LiveServer) -> None:
    for method, path in (("GET", "/"), ("GET", "/health-check"), ("POST", "/predictions"), ("GET", "/nope")):
        request = f"{method} {path} HTTP/1.1\r\nhost: t\r\naccept-encoding: gzip, br\r\ncontent-length: 0\r\n\r\n"
        async with connection(server.url) as wire:
            answer = await wire.ask(request.encode())
        ids = {"x-request-id", "traceparent"} | ({"x-prediction-id"} if method == "POST" else set())
        choice = {"vary"} if path == "/" else set()  # browsers get a page there
        assert set(answer.headers) == {"content-type", "content-length", "date"} | ids | choice
        assert answer.headers["content-type"] == "application/json"


async def test_keys_are_sorted_at_every_depth(server: LiveServer) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert all(before < after for before, after in pairwise(value))
            for member in value.values():
                check(member)

    check((await server.client.get("/")).json())
    check((await server.client.get("/openapi.json")).json())
    body = await server.predict({"text": "x"})
    check({name: value for name, value in body.items() if name != "input"})
    assert list(body["output"]) == ["a", "z"]
    accepted = await server.start({"text": "x"})
    check(accepted)
    await server.ended(accepted["id"])


async def test_text_is_not_escaped(server: LiveServer) -> None:
    response = await server.client.post("/predictions", json={"input": {"text": "né 語 🙂"}})
    assert '"a":"né 語 🙂"' in response.content.decode()


async def test_keep_alive_carries_many_requests(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        for _ in range(3):
            assert (await wire.post("/predictions", b"{}", "content-type: application/json")).status == 200
            assert (await wire.post("/predictions", b"{", "content-type: application/json")).status == 400
            assert (await wire.post("/nope", b"body nobody reads")).status == 404


async def test_pipelined_requests_are_answered_in_order(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        await wire.send(b"".join(f"PUT /predictions/{i} HTTP/1.1\r\nhost: t\r\n\r\n".encode() for i in range(5)))
        assert [(await wire.answer()).json()["id"] for _ in range(5)] == ["0", "1", "2", "3", "4"]


async def test_connection_close_is_honoured(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        assert (await wire.ask(b"GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")).status == 200
        assert await wire.at_end()


async def test_http_1_0(server: LiveServer) -> None:
    async with connection(server.url) as wire:
        body = b'{"input":{"text":"old"}}'
        head = f"POST /predictions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        answer = await wire.ask(head.encode() + body)
        assert answer.json()["output"]["z"]["a"] == "old"
        assert "transfer-encoding" not in answer.headers
        assert await wire.at_end()


async def test_chunked_body(server: LiveServer) -> None:
    body = b'{"input":{"text":"in pieces"}}'
    async with connection(server.url) as wire:
        await wire.send(
            b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for byte in body:
            await wire.send(b"1\r\n%c\r\n" % byte)
        await wire.send(b"0\r\n\r\n")
        assert (await wire.answer()).json()["output"]["z"]["a"] == "in pieces"


async def test_expect_100_continue(server: LiveServer) -> None:
    body = b'{"input":{"text":"expected"}}'
    async with connection(server.url) as wire:
        await wire.send(
            b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % len(body)
        )
        assert (await wire.head()).status == 100
        answer = await wire.ask(body)
        assert answer.json()["output"]["z"]["a"] == "expected"


async def test_compressed_body_is_not_decoded(server: LiveServer) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await server.client.post("/predictions", content=gzip.compress(b"{}"), headers=headers)
    assert response.status_code == 400


@pytest.mark.parametrize(
    "request_line",
    [
        *(b"nonsense", b"GET", b"GET /\x00 HTTP/1.1"),
        pytest.param(b"POST /predictions HTTP/9.9", marks=pytest.mark.own_wire(reason="a proxy may take any version")),
    ],
)
async def test_nonsense_gets_an_answer_or_an_end(server: LiveServer, request_line: bytes) -> None:
    async with connection(server.url) as wire:
        answer = await wire.ask(request_line + b"\r\nhost: t\r\n\r\n")
        assert 400 <= answer.status < 500
    assert (await server.health())["status"] == "READY"


# section 4: discovery and health


@pytest.mark.own_wire(reason="it names the shutdown, which is a host's")
async def test_discovery_document(server: LiveServer) -> None:
    response = await server.client.get("/")
    assert response.json() == {
        "cog_version": COG_VERSION,
        "docs_url": "/docs",
        "healthcheck_url": "/health-check",
        "openapi_url": "/openapi.json",
        "predictions_cancel_url": "/predictions/{prediction_id}/cancel",
        "predictions_idempotent_url": "/predictions/{prediction_id}",
        "predictions_url": "/predictions",
        "shutdown_url": "/shutdown",
    }


@pytest.mark.without_store(reason="it tells how the store is, too")
async def test_health_when_ready(server: LiveServer) -> None:
    health = await server.health()
    assert list(health) == ["status", "setup", "version"]
    assert health["status"] == "READY"
    assert health["setup"]["status"] == "succeeded"
    assert health["setup"]["logs"] == "setting up\n"
    began, ended = (datetime.fromisoformat(health["setup"][name]) for name in ("started_at", "completed_at"))
    assert began <= ended
    assert health["setup"]["started_at"].endswith("+00:00")
    assert {"coglet", "cog", "python"} <= set(health["version"])


async def test_c7_health_has_the_versions_that_clients_of_cog_read(server: LiveServer) -> None:
    assert (await server.health())["version"] == {
        "coglet": "0.23.1",
        "cog": "0.23.1",
        "python_sdk": "0.23.1",
        "python": platform.python_version(),
        "geartrain": __version__,
    }


@pytest.mark.one_server(reason="another replica is not busy")
async def test_health_when_busy(server: LiveServer) -> None:
    await server.start({"gate": "busy"}, id="b")
    assert (await server.health())["status"] == "BUSY"
    server.open_gate("busy")
    await server.ended("b")
    assert (await server.health())["status"] == "READY"


SLOW_SETUP = """
    import os, time

    class Runner:
        def setup(self):
            print("step one")
            while not os.path.exists("go"):
                time.sleep(0.002)
            print("step two")
            if os.path.exists("fail"):
                raise RuntimeError("boom in setup")

        def run(self, n: int) -> int:
            return n
"""
SetupEnds = Callable[[LiveServer], Awaitable[None]]


async def test_before_setup_ends(serve: Serve, setup_ends: SetupEnds) -> None:
    async with serve(SLOW_SETUP, ready=False) as server:
        await eventually(lambda: "step one" in server.workers.setup.logs)
        health = await server.health()
        assert health["status"] == "STARTING"
        assert health["setup"] == {**health["setup"], "status": "starting", "logs": "step one\n"}
        assert "completed_at" not in health["setup"]

        openapi = await server.client.get("/openapi.json")
        assert openapi.status_code == 200
        assert list(openapi.json()["components"]["schemas"]["Input"]["properties"]) == ["n"]
        assert (await server.client.get("/")).status_code == 200
        assert (await server.client.get("/docs")).status_code == 200
        for method, path in (("POST", "/predictions"), ("PUT", "/predictions/x")):
            for values in ({"n": 1}, {"n": "one"}, {}):
                for accept in ("*/*", "text/event-stream"):
                    response = await server.client.request(
                        method, path, json={"input": values}, headers={"accept": accept}
                    )
                    assert response.status_code == 503
                    assert response.json() == {
                        "error": "Setup has not finished yet. "
                        "Wait until it has finished, or GET /health-check for status.",
                        "status": "failed",
                    }
        assert (await server.client.post("/predictions/x/cancel")).status_code == 404

        server.open_gate()
        await setup_ends(server)
        health = await server.health()
        assert (health["status"], health["setup"]["logs"]) == ("READY", "step one\nstep two\n")
        assert (await server.client.get("/openapi.json")).json() == openapi.json()
        assert (await server.predict({"n": 1}))["output"] == 1


async def test_after_setup_failed(serve: Serve, setup_ends: SetupEnds) -> None:
    async with serve(SLOW_SETUP, ready=False) as server:
        server.open_gate("fail")
        server.open_gate()
        await setup_ends(server)
        health = await server.health()
        assert health["status"] == health["setup"]["status"].replace("failed", "SETUP_FAILED")
        assert health["setup"]["completed_at"] >= health["setup"]["started_at"]
        openapi = await server.client.get("/openapi.json")
        assert openapi.status_code == 200
        assert list(openapi.json()["components"]["schemas"]["Input"]["properties"]) == ["n"]
        for values in ({"n": 1}, {"n": "one"}):
            response = await server.client.post("/predictions", json={"input": values})
            assert response.status_code == 503
            assert set(response.json()) == {"error", "status"}


async def test_model_that_cannot_be_loaded_has_no_document(serve: Serve, setup_ends: SetupEnds) -> None:
    async with serve("def run(n: int) -> int: 1 1", ready=False) as server:
        await setup_ends(server)
        openapi = await server.client.get("/openapi.json")
        assert (openapi.status_code, openapi.json()) == (503, {"error": "OpenAPI schema not available"})


# section 5: OpenAPI, and the page made of it


async def test_openapi_document(server: LiveServer) -> None:
    response = await server.client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert document["openapi"] == "3.0.2"
    properties = document["components"]["schemas"]["Input"]["properties"]
    assert {name: each["x-order"] for name, each in properties.items()} == {"text": 0, "gate": 1}
    assert "/predictions/{prediction_id}/cancel" in document["paths"]
    assert (await server.client.get("/openapi.json")).content == response.content


@pytest.mark.one_server(reason="links begin with the route prefix, which the tests' client adds too")
async def test_docs_page_needs_nothing_from_elsewhere(server: LiveServer) -> None:
    page = await server.client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text)
    assert re.findall(r"<script[^>]*>(?!</script>)|<style| on\w+=", page.text) == []
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    parts = set(re.findall(r'(?:src|href)="([^"]*/docs/static/[^"]*)"', page.text))
    assert len(parts) == 7
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for part in parts:
        response = await server.client.get(part)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kinds[Path(part).suffix])
        assert len(response.content) > (10_000 if "swagger" in part else 100)
    icon = await server.client.get("/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    found = re.findall(r'data-document="([^"]*)"', page.text)
    document = (await server.client.get(found[0])).json()
    assert {"/predictions", "/v2", "/metrics"} <= set(document["paths"])


async def test_docs_page_shows_the_models_name_as_text(serve: Serve, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "<script>alert(1)<", MODEL)
    async with serve(folder, ready=False) as server:
        page = await server.client.get("/docs")
        assert "<script>alert" not in page.text
        assert "&lt;script&gt;alert(1)&lt; - geartrain</title>" in page.text


# section 21: shutdown


async def listening(process: ServerProcess) -> str:
    """Wait until a server of its own is ready; return its URL."""
    return await asyncio.to_thread(ready, process)


async def post(url: str, path: str, values: dict[str, Any]) -> Answer:
    async with connection(url) as wire:
        return await wire.post(path, json.dumps({"input": values}).encode(), "content-type: application/json")


@pytest.mark.own_wire(reason="a proxy goes on listening")
async def test_shutdown_lets_open_requests_finish(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", MODEL)
    process = server_process(str(folder))
    url = await listening(process)
    async with connection(url) as wire, connection(url) as idle:
        assert (await idle.ask(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n")).status == 200
        await wire.send(
            b"PUT /predictions/open HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            b'content-length: 25\r\n\r\n{"input":{"gate":"stop"}}'
        )
        while (await post(url, "/predictions", {})).status != 409:  # until it runs
            pass
        async with connection(url) as other:
            answer = await other.post("/shutdown", b"")
            assert (answer.status, answer.body) == (200, b"{}")
        assert await idle.at_end()
        with pytest.raises(ConnectionRefusedError):
            await post(url, "/predictions", {})
        (folder / "stop").touch()
        answer = await wire.answer()
        assert (answer.status, answer.json()["status"]) == (200, "succeeded")
    assert await asyncio.to_thread(process.popen.wait, 10) == 0


async def test_d24_await_explicit_shutdown_false_is_false(
    server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)), "--await-explicit-shutdown", "false")
    await listening(process)
    process.popen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.popen.wait, 10) == 0
