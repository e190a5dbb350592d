"""Accepting connections: when there are no descriptors left, and when a handshake comes to nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import Acceptor, Connections
from tests.unit.transport.wire.parts import FakeLoop, Line


class FakeListener:
    """Fails as it is told, and then has nobody."""

    def __init__(self) -> None:
        self.errors: list[OSError] = []
        self.asked = 0
        self.is_closed = False

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        raise self.errors.pop(0) if self.errors else BlockingIOError

    def close(self) -> None:
        self.is_closed = True


class ReaderLoop(FakeLoop):
    """A loop with readers."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[object, Callable[[], None]] = {}

    def add_reader(self, source: object, call: Callable[[], None]) -> None:
        self.readers[source] = call

    def remove_reader(self, source: object) -> None:
        self.readers.pop(source, None)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ReaderLoop:
    fake = ReaderLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: fake)
    return fake


def accepting(loop: ReaderLoop) -> tuple[Acceptor, FakeListener, Callable[[], None]]:
    """Return an acceptor, its listener, and what calls it as if somebody had come."""
    listener = FakeListener()
    acceptor = Acceptor(cast("socket.socket", listener), Connections(Line().context))
    assert not loop.readers, "it begins in the next turn"
    loop.run()

    def come() -> None:
        loop.readers[listener]()

    return acceptor, listener, come


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_it_rests_and_says_so_once_a_minute(
    loop: ReaderLoop, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    _, listener, come = accepting(loop)
    for _ in range(240):  # a minute of failures, each of which is tried again after a quarter of a second
        listener.errors.append(OSError(number, "Too many open files"))
        come()
        assert not loop.readers, "nobody is accepted meanwhile"
        loop.advance(0.25)
        assert loop.readers, "and then it goes on"
    assert len(caplog.records) == 1
    assert "new connections wait: Too many open files" in caplog.records[0].getMessage()
    assert caplog.records[0].levelno == logging.WARNING
    listener.errors.append(OSError(number, "Too many open files"))
    come()
    assert len(caplog.records) == 2


def test_what_is_no_fault_needs_no_rest(loop: ReaderLoop, caplog: pytest.LogCaptureFixture) -> None:
    _, listener, come = accepting(loop)
    for error in (ConnectionAbortedError(), InterruptedError(), BlockingIOError()):
        listener.errors.append(error)
        come()
        assert loop.readers
    assert not caplog.records


def test_other_faults_are_logged(loop: ReaderLoop, caplog: pytest.LogCaptureFixture) -> None:
    _, listener, come = accepting(loop)
    listener.errors.append(OSError(errno.EPERM, "no"))
    come()
    assert not loop.readers
    assert caplog.records[0].exc_info is not None


def test_a_rest_does_not_outlast_its_end(loop: ReaderLoop) -> None:
    acceptor, listener, come = accepting(loop)
    listener.errors.append(OSError(errno.EMFILE, "Too many open files"))
    come()
    acceptor.close()
    assert listener.is_closed
    loop.advance(10)
    assert not loop.readers


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_client_is_accepted(listener: socket.socket) -> None:
    connections = Connections(Line().context)
    acceptor = Acceptor(listener, connections)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    async with asyncio.timeout(40):
        writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        assert len(list(connections)) == 1
        writer.close()
        await connections.drained()
    acceptor.close()


async def test_a_client_for_whom_there_is_no_place_is_closed(listener: socket.socket) -> None:
    connections = Connections(Line(limits=WireLimits(max_connections=1)).context)
    for _ in range(257):
        connections.expect("a")
    acceptor = Acceptor(listener, connections)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    async with asyncio.timeout(40):
        assert await reader.read() == b""
    writer.close()
    acceptor.close()
