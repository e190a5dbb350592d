"""The life and the end of real processes: nothing is left, however it ends. Container runtime; observed Cog, 19, 21."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.support.processes import Server, StartServer, answer, children, start_server

__all__ = ["start_server"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def stop(server: Server, how: str) -> None:
    """Tell it to stop in one of the three ways."""
    if how == "shutdown":
        assert answer(server.ask("/shutdown")) == (200, {})
    else:
        server.process.popen.send_signal(signal.Signals[how])


def nothing_is_left(server: Server) -> bool:
    """Whether the worker, what it has started and the temporary files are gone."""
    return server.watched.all_end() and server.leftovers() == []


# the server is told to stop

HOW = ["SIGTERM", "SIGINT", "shutdown"]


@pytest.mark.parametrize("how", HOW)
def test_stop_while_idle(start_server: StartServer, how: str) -> None:
    server = start_server()
    assert answer(server.ask("/predictions", {}))[1]["status"] == "succeeded"
    idle = server.connect()
    idle.connect()
    stop(server, how)
    assert server.exit_code() == 0
    assert nothing_is_left(server)


@pytest.mark.parametrize("setup", ["wait", "hold"])
@pytest.mark.parametrize("how", HOW)
def test_d21_stop_during_setup(start_server: StartServer, how: str, setup: str) -> None:
    server = start_server(setup=setup)
    assert server.health()["status"] == "STARTING"
    stop(server, how)
    assert server.exit_code() == 0
    assert nothing_is_left(server)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_stop_at_the_very_beginning(start_server: StartServer, how: str) -> None:
    """The signal comes when the worker loads its model; the server may still be importing."""
    server = start_server(setup=how)
    assert server.exit_code() == 0
    assert server.leftovers() == []


def test_d21_setup_timeout_ends_the_worker(start_server: StartServer) -> None:
    server = start_server("--setup-timeout", "2", setup="hold")
    server.process.wait_for("setup-failed")
    assert server.watched.all_end()
    assert server.health()["status"] == "SETUP_FAILED"
    assert children(server.pid) == {}
    assert server.leftovers() == []
    stop(server, "SIGTERM")
    server.exit_code()


@pytest.mark.parametrize("how", ["SIGTERM", "shutdown"])
@pytest.mark.parametrize("prefer", ["", "respond-async"])
def test_stop_lets_a_prediction_finish(start_server: StartServer, how: str, prefer: str) -> None:
    server = start_server()
    running = server.predict("wait", **({"prefer": prefer} if prefer else {}))
    stop(server, how)
    server.go.open()
    status, body = answer(running)
    assert (status, body["status"]) == ((202, "starting") if prefer else (200, "succeeded"))
    assert server.exit_code() == 0
    assert nothing_is_left(server)


def test_interrupt_cancels_a_prediction(start_server: StartServer) -> None:
    server = start_server()
    running = server.predict("wait")
    stop(server, "SIGINT")
    assert answer(running)[1]["status"] == "canceled"
    assert server.exit_code() == 0
    assert nothing_is_left(server)


@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("what", ["wait", "ignore", "hold"])
def test_second_signal_ends_at_once(start_server: StartServer, what: str, second: str) -> None:
    server = start_server()
    server.predict(what)
    stop(server, "SIGTERM")
    refused_from_now_on(server)
    stop(server, second)
    assert server.exit_code() == 0
    assert nothing_is_left(server)


@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
def test_second_signal_ends_at_once_also_without_a_client(start_server: StartServer, second: str) -> None:
    server = start_server()
    running = server.predict("ignore", prefer="respond-async")
    assert answer(running)[0] == 202
    stop(server, "SIGTERM")
    server.process.wait_for("stopping")
    stop(server, second)
    assert server.exit_code() == 0
    assert nothing_is_left(server)


def refused_from_now_on(server: Server) -> None:
    """Wait until it takes no connections any more: it has understood the first signal."""
    while True:
        connection = server.connect()
        try:
            connection.connect()
        except ConnectionError:
            return
        connection.close()


def test_half_a_request_does_not_hold_up_the_end(start_server: StartServer) -> None:
    server = start_server()
    for length in (100, 1_000_000):
        connection = server.connect()
        connection.putrequest("POST", "/predictions")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(length))
        connection.endheaders(b'{"input":')
    assert server.health()["status"] == "READY"
    stop(server, "SIGTERM")
    assert server.exit_code() == 0
    assert nothing_is_left(server)


@pytest.mark.parametrize("how", ["SIGINT", "shutdown"])
def test_d24_awaited_shutdown(start_server: StartServer, how: str) -> None:
    server = start_server("--await-explicit-shutdown", "true")
    stop(server, "SIGTERM")
    server.process.wait_for("SIGTERM ignored: an explicit shutdown is awaited")
    assert server.health()["status"] == "READY"
    stop(server, how)
    assert server.exit_code() == 0
    assert nothing_is_left(server)


# the server is killed


@pytest.mark.parametrize(("setup", "what"), [("", ""), ("", "wait"), ("", "hold"), ("wait", ""), ("hold", "")])
def test_kill_of_the_server_ends_all_that_belongs_to_it(start_server: StartServer, setup: str, what: str) -> None:
    server = start_server(setup=setup)
    if what:
        server.predict(what)
    stop(server, "SIGKILL")
    assert server.exit_code() == -signal.SIGKILL
    assert server.watched.all_end()
    # Nobody was left to remove it: the directory with the address of the slots, and no more.
    left = server.leftovers()
    assert len(left) == 1
    assert sorted(path.name for path in (server.temporary / left[0]).iterdir()) == ["outputs"]


# the worker is killed


@pytest.mark.parametrize("what", ["wait", "hold"])
def test_d17_kill_of_the_worker_in_mid_prediction(start_server: StartServer, what: str) -> None:
    server = start_server()
    running = server.predict(what)
    os.kill(server.worker, signal.SIGKILL)
    status, body = answer(running)
    error = "Worker crashed: killed by SIGKILL (out of memory, or killed from outside)"
    assert (status, body["status"], body["error"]) == (200, "failed", error)
    server.process.wait_for("the worker is gone; no further prediction is possible")
    health = server.health()
    assert health["status"] == "DEFUNCT"
    assert health["setup"]["status"] == "succeeded"
    for _ in range(3):
        status, body = answer(server.ask("/predictions", {"what": ""}))
        assert (status, body["status"]) == (503, "failed")
    assert server.watched.all_end()
    assert children(server.pid) == {}
    assert server.leftovers() == []
    stop(server, "SIGTERM")
    assert server.exit_code() == 0


def test_kill_of_an_idle_worker(start_server: StartServer) -> None:
    server = start_server()
    os.kill(server.worker, signal.SIGKILL)
    server.process.wait_for("the worker is gone; no further prediction is possible")
    assert answer(server.ask("/predictions", {"what": ""}))[0] == 503
    assert server.watched.all_end()
    assert children(server.pid) == {}


@pytest.mark.parametrize("setup", ["wait", "hold"])
def test_kill_of_the_worker_during_setup(start_server: StartServer, setup: str) -> None:
    server = start_server(setup=setup)
    os.kill(server.worker, signal.SIGKILL)
    server.process.wait_for("setup-failed")
    health = server.health()
    assert health["status"] == "SETUP_FAILED"
    assert "killed by SIGKILL" in health["setup"]["logs"]
    assert server.watched.all_end()
    assert children(server.pid) == {}
    assert server.leftovers() == []
