"""The standard health service, without a socket."""

from __future__ import annotations

import gzip

import pytest

from geartrain.transport.access.guard import BearerAuthorizer
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.health_pb2 import HealthCheckRequest, HealthCheckResponse
from geartrain.transport.grpc.services import CHECK, WATCH
from tests.unit.transport.grpc.conftest import CallResponder, Zoo, framed, unframed

NOT_SERVING, SERVING = HealthCheckResponse.NOT_SERVING, HealthCheckResponse.SERVING


async def told(responder: CallResponder, index: int) -> int:
    await responder.changes.until(lambda: len(responder.pieces) > index)
    status: int = HealthCheckResponse.FromString(unframed(responder.pieces[index])[1]).status
    return status


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "numbers"])
async def test_check(zoo: Zoo, service: str) -> None:
    found = await zoo.call(CHECK, HealthCheckRequest(service=service))
    assert found.message(HealthCheckResponse).status == SERVING
    zoo.handler.close()
    found = await zoo.call(CHECK, HealthCheckRequest(service=service))
    assert found.message(HealthCheckResponse).status == NOT_SERVING


async def test_check_of_what_there_is_not(zoo: Zoo) -> None:
    found = await zoo.call(CHECK, HealthCheckRequest(service="n" * 100_000))
    assert found.status == GrpcStatus.NOT_FOUND
    assert "unknown service 'nnn" in found.text
    assert len(found.text) < 400


async def test_watch_tells_each_change(zoo: Zoo) -> None:
    sent = zoo.send(WATCH, framed(HealthCheckRequest(service="talk")))
    assert await told(sent.responder, 0) == SERVING
    await zoo.catalogue.unload("talk")
    assert await told(sent.responder, 1) == NOT_SERVING
    await zoo.catalogue.load("talk")
    assert await told(sent.responder, 2) == SERVING
    zoo.handler.close()
    assert await told(sent.responder, 3) == NOT_SERVING
    ended = await sent.responder.outcome()
    assert (ended.status, ended.text) == (GrpcStatus.UNAVAILABLE, "The server is shutting down.")


async def test_watch_of_what_is_yet_to_come(zoo: Zoo) -> None:
    sent = zoo.send(WATCH, framed(HealthCheckRequest(service="nope")))
    assert await told(sent.responder, 0) == HealthCheckResponse.SERVICE_UNKNOWN
    sent.exchange.abandon()
    zoo.handler.close()
    assert not sent.responder.is_over


async def test_watch_is_compressed_or_cut_off_as_any_call(zoo: Zoo) -> None:
    body = framed(gzip.compress(HealthCheckRequest(service="talk").SerializeToString()), 1)
    sent = zoo.send(WATCH, body, (b"grpc-encoding", b"gzip"))
    assert await told(sent.responder, 0) == SERVING
    sent.exchange.abandon()
    assert (await zoo.send(WATCH, b"").responder.outcome()).status == GrpcStatus.UNIMPLEMENTED
    assert (await zoo.send(WATCH, framed(b"\x0a\xff")).responder.outcome()).status == GrpcStatus.INVALID_ARGUMENT


async def test_watch_ends_when_its_time_is_up(zoo: Zoo) -> None:
    sent = zoo.send(WATCH, framed(HealthCheckRequest()), (b"grpc-timeout", b"50m"))
    assert (await sent.responder.outcome()).status == GrpcStatus.DEADLINE_EXCEEDED


async def test_health_needs_no_key() -> None:
    zoo = Zoo(authorizer=BearerAuthorizer([]))
    await zoo.open()
    assert (await zoo.call(CHECK, HealthCheckRequest())).status == GrpcStatus.OK
    sent = zoo.send(WATCH, framed(HealthCheckRequest()))
    assert await told(sent.responder, 0) == SERVING
    sent.exchange.abandon()
    await zoo.close()
