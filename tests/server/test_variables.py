"""The environment of cog.yaml and geartrain.yaml as the lowest layer of what the server reads from variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers import LiveServer, Serve, ServerProcess, write_model
from tests.support.web_server import Server, running_server, unused_port

Start = Callable[..., ServerProcess]

SLOW = """
    import time
    class Runner:
        def setup(self) -> None:
            time.sleep({seconds})
        def run(self) -> str: return "x"
"""
OBSERVER = """
    import os
    from geartrain import Path
    class Runner:
        def setup(self, weights: str | None = None) -> None:
            self.weights = weights
        async def run(self, file: Path) -> list[str]:
            return [file.read_text(), self.weights, os.environ["COG_USER_AGENT"]]
"""


@pytest.fixture
def web() -> Iterator[Server]:
    with running_server() as web:
        yield web


def health(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/health-check").json()
    return found


def seconds_of(setup: dict[str, str]) -> float:
    began, ended = (datetime.fromisoformat(setup[name]) for name in ("started_at", "completed_at"))
    return (ended - began).total_seconds()


async def test_c1_setup_timeout_of_cog_yaml(serve: Serve, setup_ends: Callable[[LiveServer], Awaitable[None]]) -> None:
    cog_yaml = "environment:\n  - COG_SETUP_TIMEOUT=1\n"
    async with serve(SLOW.format(seconds=600), cog_yaml=cog_yaml, ready=False) as server:
        await setup_ends(server)
        report = await server.health()
    assert report["status"] == "SETUP_FAILED"
    assert "worker setup timed out after 1 seconds" in report["setup"]["logs"]
    assert seconds_of(report["setup"]) > 0.9


def test_c1_setup_timeout_of_cog_yaml_from_the_command_line(server_process: Start, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SLOW.format(seconds=600), "environment:\n  - COG_SETUP_TIMEOUT=1\n")
    server = server_process(str(folder))
    url = server.wait_for("listening")["url"]
    assert "timed out after 1 seconds" in server.wait_for("setup-failed")["text"]
    assert health(url)["status"] == "SETUP_FAILED"


@pytest.mark.parametrize(
    ("arguments", "environ"), [(["--setup-timeout", "0"], {}), ([], {"COG_SETUP_TIMEOUT": "60"})], ids=["option", "env"]
)
def test_c1_setup_timeout_of_cog_yaml_is_the_lowest_layer(
    server_process: Start, tmp_path: Path, arguments: list[str], environ: dict[str, str]
) -> None:
    folder = write_model(tmp_path / "model", SLOW.format(seconds=1), "environment: [COG_SETUP_TIMEOUT=0.2]")
    server = server_process(str(folder), *arguments, env=environ)
    assert server.wait_for_one("setup-failed", "ready")["message"] == "ready"


async def test_c1_other_variables_of_cog_yaml(serve: Serve, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    cog_yaml = """
        environment:
          - COG_WEIGHTS=weights.bin
          - COG_USER_AGENT=mine/1
          - COG_MAX_CONCURRENCY=3
          - COG_STREAM_HISTORY_CAPACITY=7
          - COG_THROTTLE_RESPONSE_INTERVAL=0
          - WEBHOOK_AUTH_TOKEN=t0ken
    """
    hook = web.serve("/hook")
    async with serve(OBSERVER, cog_yaml=cog_yaml) as server:
        body = await server.predict({"file": web.serve("/a.txt", b"content")}, webhook=hook)
        assert body["output"] == ["content", "weights.bin", "mine/1"]
        assert (server.workers.permits.size, server.deployment.settings.history) == (3, 7)
        await server.webhooks.drain(10)
    headers = {each.path: each.headers for each in web.received}
    assert headers["/a.txt"]["user-agent"] == "mine/1"
    assert headers["/hook"]["authorization"] == "Bearer t0ken"


async def test_c1_environment_comes_before_cog_yaml(serve: Serve, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"COG_WEIGHTS": "other.bin", "COG_USER_AGENT": "other/1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)  # the worker inherits it
    cog_yaml = "environment: [COG_WEIGHTS=weights.bin, COG_USER_AGENT=mine/1]"
    async with serve(OBSERVER, cog_yaml=cog_yaml, environ=environ) as server:
        body = await server.predict({"file": web.serve("/a.txt", b"content")})
        assert body["output"] == ["content", "other.bin", "other/1"]
    assert web.received[0].headers["user-agent"] == "other/1"


def test_c1_each_model_of_a_repository_has_its_own(server_process: Start, tmp_path: Path) -> None:
    write_model(tmp_path / "quick", SLOW.format(seconds=600), "environment: [COG_SETUP_TIMEOUT=0.2, PORT=1]")
    write_model(tmp_path / "patient", SLOW.format(seconds=0.5), "environment: [COG_SETUP_TIMEOUT=60]")
    write_model(tmp_path / "silent", SLOW.format(seconds=0.5), "environment: [COG_LOG_LEVEL=off]")
    server = server_process(str(tmp_path))
    steps = [server.wait_for_one("setup-failed", "ready") for _ in range(3)]
    assert sorted((step["model"], step["message"]) for step in steps) == [
        ("patient", "ready"),
        ("quick", "setup-failed"),
        ("silent", "ready"),
    ]


def test_c1_port_and_logs_of_cog_yaml(tmp_path: Path) -> None:
    port = unused_port()
    lines = f"environment:\n  - PORT={port}\n  - LOG_FORMAT=console\n  - COG_LOG_LEVEL=error\n"
    folder = write_model(tmp_path / "model", "class Runner:\n    def setup(self): 1 / 0\n    def run(self): ...", lines)
    command = [sys.executable, "-m", "geartrain", "serve", str(folder), "--host", "127.0.0.1", "--grpc-port", "off"]
    environ = {name: value for name, value in os.environ.items() if name not in {"PORT", "LOG_FORMAT", "RUST_LOG"}}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            first = server.stderr.readline()
            assert health(f"http://127.0.0.1:{port}")["status"] == "SETUP_FAILED"
        finally:
            server.kill()
    assert "setup-failed" in first  # neither what is only told, nor JSON
    assert not first.startswith("{")


def test_c1_run_heeds_cog_yaml(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SLOW.format(seconds=600), "environment: [COG_SETUP_TIMEOUT=0.2]")
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", "run", str(folder)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "worker setup timed out" in done.stderr


def test_c1_wrong_value_ends_the_start(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SLOW.format(seconds=0), "environment: [COG_SETUP_TIMEOUT=soon]")
    for name in ("serve", "run", "schema"):
        done = subprocess.run(
            [sys.executable, "-m", "geartrain", name, str(folder)], check=False, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"error: {folder}/cog.yaml: `environment[0]` sets COG_SETUP_TIMEOUT=soon: it is no number of seconds; "
            "write for example COG_SETUP_TIMEOUT=300, or 0 for no limit\n"
        )


def test_c1_doctor_shows_each_value_and_its_origin(tmp_path: Path) -> None:
    port = unused_port()
    lines = f"environment: [COG_SETUP_TIMEOUT=90, COG_WEIGHTS=w, PORT={port}]"
    folder = write_model(tmp_path / "model", SLOW.format(seconds=0), lines)
    ours = ("COG_", "PORT", "LOG_FORMAT", "RUST_LOG", "WEBHOOK_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", "doctor", "-v", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        env={**environ, "COG_WEIGHTS": "other"},
    )
    assert done.returncode == 0, done.stdout
    for line in (
        "✓ COG_MAX_CONCURRENCY: 1, or what @concurrent says (default)",
        "✓ COG_SETUP_TIMEOUT: 90 s (cog.yaml environment)",
        "✓ COG_WEIGHTS: other (environment)",
        f"✓ PORT: {port} (cog.yaml environment)",
        f"✓ port {port}: free",
    ):
        assert line in done.stdout.splitlines()
