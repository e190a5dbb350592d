"""`/livez` and `/readyz`, and a server that is no longer ready before it stops."""

from __future__ import annotations

import signal
import threading
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.processes import Server, StartServer, answer, start_server
from tests.support.servers import PATIENCE, Serve, eventually

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


class Client(threading.Thread):
    """Asks for one prediction after the other over one connection, until the server is no longer ready."""

    def __init__(self, server: Server, is_over: threading.Event, answered: threading.Semaphore) -> None:
        """`answered` is released with each answer, and with a fault."""
        super().__init__()
        self._answered = answered
        self._connection = server.connect()
        self._is_over = is_over
        self.answers: list[tuple[int, Any]] = []
        self.faults: list[Exception] = []

    def run(self) -> None:
        """Ask until told to stop; whatever goes wrong is a fault."""
        try:
            while not self._is_over.is_set():
                headers = {"content-type": "application/json"}
                self._connection.request("POST", "/predictions", '{"input": {"what": "x"}}', headers)
                response = self._connection.getresponse()
                self.answers.append((response.status, response.read()))
                self._answered.release()
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.faults.append(error)
            self._answered.release()


def probe(server: Server) -> tuple[int, dict[str, Any]]:
    """GET /readyz, over a connection of its own."""
    connection: HTTPConnection = server.connect()
    connection.request("GET", "/readyz")
    return answer(connection)


def test_no_request_fails_while_a_server_drains(start_server: StartServer) -> None:
    server = start_server("--drain-delay", "3s", "--queue", "100")
    is_over, answered = threading.Event(), threading.Semaphore(0)
    clients = [Client(server, is_over, answered) for _ in range(50)]
    for client in clients:
        client.start()
    while not all(client.answers or client.faults for client in clients):
        assert answered.acquire(timeout=PATIENCE)
    assert probe(server) == (200, {"ready": True})
    begin = time.monotonic()
    server.process.popen.send_signal(signal.SIGTERM)
    while probe(server)[0] != 503:
        assert time.monotonic() - begin < 3
    served = sum(len(client.answers) for client in clients)
    while sum(len(client.answers) for client in clients) < served + 50:  # it goes on serving
        assert answered.acquire(timeout=PATIENCE)
    is_over.set()
    for client in clients:
        client.join()
    assert [client.faults for client in clients if client.faults] == []
    assert {status for client in clients for status, _ in client.answers} == {200}
    assert server.exit_code(20) == 0
    assert time.monotonic() - begin >= 3
    assert server.leftovers() == []


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
