"""`/livez` and `/readyz`, and a server that is no longer ready before it stops."""

from __future__ import annotations

import signal
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.processes import Server, StartServer, answer, start_server
from tests.support.servers import Serve, eventually

__all__ = ["start_server"]

WAITING = """
    import pathlib, time
    class Runner:
        def setup(self):
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
        def run(self) -> str:
            return "x"
"""
BROKEN = """
    class Runner:
        def setup(self):
            raise ValueError("no weights")
        def run(self) -> str:
            return "x"
"""


async def test_probes_of_a_model_that_starts(serve: Serve) -> None:
    async with serve(WAITING, ready=False) as server:
        assert (await server.client.get("/livez")).json() == {"live": True}
        probed = await server.client.get("/readyz")
        assert probed.status_code == 503
        [reason] = probed.json()["reasons"]
        assert server.deployment.name in reason
        assert "loading" in reason
        server.open_gate()
        await eventually(lambda: server.app.catalogue.readiness.is_ready)
        probed = await server.client.get("/readyz")
        assert (probed.status_code, probed.json()) == (200, {"ready": True})
        assert (await server.client.head("/readyz")).status_code == 200


async def test_readiness_tells_why_a_setup_failed(serve: Serve) -> None:
    async with serve(BROKEN, ready=False) as server:
        await eventually(lambda: "no weights" in " ".join(server.app.catalogue.readiness.reasons()))
        probed = await server.client.get("/readyz")
        assert probed.status_code == 503
        assert probed.json()["ready"] is False
        assert "no weights" in probed.json()["reasons"][0]
        assert (await server.client.get("/livez")).status_code == 200


async def test_server_that_is_about_to_stop_is_not_ready(serve: Serve) -> None:
    async with serve("def run() -> str: return 'x'") as server:
        server.app.catalogue.readiness.leave()
        probed = await server.client.get("/readyz")
        assert (probed.status_code, probed.json()["reasons"]) == (503, ["The server is about to stop."])
        assert (await server.client.get("/v2/health/ready")).status_code == 400
        assert (await server.client.get("/livez")).status_code == 200
        assert (await server.predict())["output"] == "x"


def probe(server: Server) -> tuple[int, dict[str, Any]]:
    """GET /readyz, over a connection of its own."""
    connection: HTTPConnection = server.connect()
    connection.request("GET", "/readyz")
    return answer(connection)


@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
def test_second_signal_does_not_wait_for_the_delay(start_server: StartServer, second: str) -> None:
    server = start_server("--drain-delay", "10m")
    server.process.popen.send_signal(signal.SIGTERM)
    while probe(server)[0] != 503:
        pass
    server.process.popen.send_signal(signal.Signals[second])
    assert server.exit_code(20) == 0
    assert server.watched.all_end()
    assert server.leftovers() == []


def test_interrupt_does_not_wait_for_the_delay(start_server: StartServer) -> None:
    server = start_server("--drain-delay", "10m")
    server.process.popen.send_signal(signal.SIGINT)
    assert server.exit_code(20) == 0


def test_probes_are_on_the_port_of_administration_too(start_server: StartServer) -> None:
    server = start_server("--admin-port", "0")
    url = next(line["url"] for line in server.process.lines if "listening-admin" in line.values())
    for path in ("/livez", "/readyz"):
        for connection in (HTTPConnection(urlsplit(url).netloc, timeout=20), server.connect()):
            connection.request("GET", path)
            assert answer(connection)[0] == 200
