"""What a supervisor such as systemd hears of a server, on a socket of the test."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from geartrain.server.notify import Notifier, ServiceState, Supervision
from geartrain.service.models.catalogue import Readiness
from tests.support.supervisor import Supervisor, supervisor

__all__ = ["supervisor"]


class FakeReadiness(Readiness):
    """Ready unless there are reasons."""

    def __init__(self, *reasons: str) -> None:
        super().__init__({})
        self.found = list(reasons)

    def reasons(self) -> list[str]:
        return self.found


class Bench:
    """A server that is supervised."""

    def __init__(self, notifier: Notifier, *reasons: str) -> None:
        self.readiness = FakeReadiness(*reasons)
        self.is_reloading = self.is_stopping = False
        self.supervision = Supervision(
            notifier,
            self.readiness,
            is_reloading=lambda: self.is_reloading,
            is_stopping=lambda: self.is_stopping,
        )


def test_variables_are_for_the_server_alone() -> None:
    environ = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.from_environ(environ)
    assert (notifier.is_on, notifier.watchdog) == (True, 3.0)
    assert environ == {"A": "b"}


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
def test_a_watchdog_that_is_not_for_this_process_is_none(watchdog: dict[str, str]) -> None:
    assert Notifier.from_environ({"NOTIFY_SOCKET": "@a", **watchdog}).watchdog == float("inf")


def test_without_a_supervisor_nothing_is_sent() -> None:
    notifier = Notifier.from_environ({})
    assert not notifier.is_on
    assert notifier.send("READY=1")


def test_a_socket_may_be_a_path(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        path = os.path.relpath(tmp_path / "notify")  # short enough for an address
        listener.bind(path)
        assert Notifier(path).send("STATUS=a", "READY=1")
        assert listener.recv(100) == b"STATUS=a\nREADY=1"


def test_each_state_is_told_once(supervisor: Supervisor) -> None:
    bench = Bench(Notifier(supervisor.address), "Model 'a':\n1 loading.", "b")
    look = bench.supervision.look
    look()
    look()
    assert supervisor.heard() == [["STATUS=Starting: Model 'a': 1 loading. And 1 more."]]
    bench.is_reloading = True  # it has not been ready yet
    bench.readiness.found = []
    look()
    bench.is_reloading = False
    look()
    assert supervisor.heard() == [["STATUS=Ready.", "READY=1"]]
    bench.readiness.found = ["The worker of 'a' has died."]
    look()
    assert supervisor.heard() == [["STATUS=Not ready: The worker of 'a' has died."]]
    bench.is_reloading = True
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    look()
    look()
    [[status, reloading, clock]] = supervisor.heard()
    assert (status, reloading) == ("STATUS=Reloading.", "RELOADING=1")
    name, _, value = clock.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    bench.is_reloading = False
    look()
    assert supervisor.heard() == [["STATUS=Not ready: The worker of 'a' has died.", "READY=1"]]
    bench.readiness.leave()
    look()
    bench.is_stopping = True
    look()
    assert supervisor.heard() == [["STATUS=Stopping.", "STOPPING=1"]]


def test_a_server_may_stop_before_it_is_ready(supervisor: Supervisor) -> None:
    bench = Bench(Notifier(supervisor.address), "not yet")
    bench.is_stopping = True
    bench.supervision.look()
    assert supervisor.heard() == [["STATUS=Stopping.", "STOPPING=1"]]


def test_a_long_status_is_cut(supervisor: Supervisor) -> None:
    Bench(Notifier(supervisor.address), "x" * 100_000).supervision.look()
    [[status]] = supervisor.heard()
    assert len(status) < 400
    assert status.endswith("xx…")


def test_what_could_not_be_sent_is_sent_with_the_next_look(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(Notifier(supervisor.address))
    supervisor.close()
    bench.supervision.look()
    bench.supervision.look()
    assert (bench.supervision.state, len(caplog.records)) == (ServiceState.STARTING, 1)
    assert "cannot notify the supervisor" in caplog.text
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        again.bind("\0" + supervisor.address[1:])
        bench.supervision.look()
        assert again.recv(100) == b"STATUS=Ready.\nREADY=1"
    assert bench.supervision.state is ServiceState.READY


async def test_the_watchdog_hears_of_the_loop_in_half_of_its_time(supervisor: Supervisor) -> None:
    bench = Bench(Notifier(supervisor.address, watchdog=0.04))
    loop = asyncio.get_running_loop()
    bench.supervision.begin()
    assert await supervisor.next() == ["STATUS=Ready.", "READY=1"]
    for _ in range(5):
        [timer] = bench.supervision._timers
        assert timer.when() - loop.time() <= 0.02
        assert bench.supervision._next_ping - loop.time() <= 0.02
        assert await supervisor.next() == ["WATCHDOG=1"]
    supervisor.heard()
    time.sleep(0.1)  # noqa: ASYNC251 - the loop does not turn meanwhile
    assert supervisor.heard() == []
    bench.supervision.close()


async def test_without_a_watchdog_there_are_no_pings(supervisor: Supervisor) -> None:
    bench = Bench(Notifier(supervisor.address))
    bench.supervision.begin()
    bench.supervision._tick()
    assert supervisor.heard() == [["STATUS=Ready.", "READY=1"]]
    bench.supervision.close()
