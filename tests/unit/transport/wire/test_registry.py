"""Who may connect."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.http1 import Connection, ConnectionState
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import Connections
from tests.unit.transport.wire.parts import FakeLoop, FakeTransport, NotingHandler, read_answers


def registry(*, most: int = 0, per_client: int = 0) -> Connections:
    limits = WireLimits(max_connections=most, max_connections_per_client=per_client)
    return Connections(WireContext(NotingHandler(), limits, cast("asyncio.AbstractEventLoop", FakeLoop())))


def connect(connections: Connections, address: str = "a") -> tuple[Connection, FakeTransport]:
    connection = connections.expect(address)
    transport = FakeTransport(address)
    connection.connection_made(transport)
    return connection, transport


def refusal(transport: FakeTransport) -> str:
    """What a client is told for whom there is no place; "" if there is one."""
    if not transport.sent:
        return ""
    (received,) = read_answers(transport.sent)
    assert (received.status, received.headers["connection"], transport.has_eof) == (503, "close", True)
    return received.body.decode()


def test_the_limit_of_all() -> None:
    connections = registry(most=2)
    first, _ = connect(connections)
    assert refusal(connect(connections)[1]) == ""
    third, transport = connect(connections)
    assert "limit of 2 connections (--max-connections)" in refusal(transport)
    assert third.state is ConnectionState.LINGER
    third.connection_lost(None)
    first.connection_lost(None)
    assert refusal(connect(connections)[1]) == ""


def test_those_that_are_being_made_count() -> None:
    connections = registry(most=2)
    being_made = connections.expect("a")
    assert refusal(connect(connections)[1]) == ""
    assert "limit of 2" in refusal(connect(connections)[1])
    connections.drop(being_made)
    list(connections)[1].connection_lost(None)
    assert refusal(connect(connections)[1]) == ""


def test_one_that_breaks_off_when_it_was_made_is_gone() -> None:
    connections = registry()
    connection, _ = connect(connections)
    connections.drop(connection)
    assert connection.state is ConnectionState.CLOSED
    assert not list(connections)
    connections.drop(connection)


def test_a_crowd_is_not_even_told() -> None:
    connections = registry(most=1)
    told = [connect(connections) for _ in range(257)]
    assert len([1 for _, transport in told if refusal(transport)]) == 256
    with pytest.raises(ConnectionRefusedError):
        connections.expect("a")


def test_the_limit_of_one_client() -> None:
    connections = registry(per_client=2)
    first, _ = connect(connections, "a")
    connect(connections, "a")
    assert "limit of 2 connections (--max-connections-per-client)" in refusal(connect(connections, "a")[1])
    assert refusal(connect(connections, "b")[1]) == ""
    list(connections)[2].connection_lost(None)
    first.connection_lost(None)
    assert refusal(connect(connections, "a")[1]) == ""


def test_connections_that_are_made_at_the_same_time_count_each_other() -> None:
    connections = registry(per_client=2)
    together = [connections.expect("a") for _ in range(5)]
    transports = [FakeTransport("a") for _ in together]
    for connection, transport in zip(together, transports, strict=True):
        connection.connection_made(transport)
    assert [bool(refusal(transport)) for transport in transports] == [False, False, True, True, True]


def test_no_limits() -> None:
    connections = registry()
    assert not any(refusal(connect(connections)[1]) for _ in range(500))
    assert len(list(connections)) == 500


def test_clients_that_have_left_are_forgotten() -> None:
    connections = registry(per_client=5)
    for number in range(100):
        connect(connections, str(number))[0].connection_lost(None)
    assert not connections._clients
    assert not connections._addresses


async def test_drained() -> None:
    connections = registry()
    await connections.drained()
    first, second = connect(connections)[0], connect(connections)[0]
    waiting = asyncio.ensure_future(connections.drained())
    first.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    second.connection_lost(None)
    await waiting


async def test_a_connection_that_is_being_made_is_waited_for() -> None:
    connections = registry()
    connection = connections.expect("a")
    waiting = asyncio.ensure_future(connections.drained())
    await asyncio.sleep(0)
    assert not waiting.done()
    connections.drop(connection)
    await waiting
