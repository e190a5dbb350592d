"""The calls with one message each way that run no model, without a socket."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from geartrain.transport.access.guard import BearerAuthorizer, Grant
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.unary import ADMINISTRATION
from geartrain.transport.wire.exchange import Accepted, Answer
from tests.support.shared_memory import shared_object
from tests.unit.transport.grpc.conftest import SERVICE, Outcome, Zoo, end_of, framed, request, unframed

GZIP = ((b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"gzip"))


async def ask(zoo: Zoo, method: str, /, *headers: tuple[bytes, bytes], **fields: Any) -> Outcome:
    return await zoo.call(SERVICE + method, getattr(pb, f"{method}Request")(**fields), *headers)


async def test_what_the_server_and_its_models_say(zoo: Zoo) -> None:
    assert (await ask(zoo, "ServerLive")).message(pb.ServerLiveResponse).live
    assert (await ask(zoo, "ServerReady")).message(pb.ServerReadyResponse).ready
    assert (await ask(zoo, "ModelReady", name="talk")).message(pb.ModelReadyResponse).ready
    assert not (await ask(zoo, "ModelReady", name="nope")).message(pb.ModelReadyResponse).ready
    assert (await ask(zoo, "ServerMetadata")).message(pb.ServerMetadataResponse).name == "geartrain"
    metadata = (await ask(zoo, "ModelMetadata", name="echo")).message(pb.ModelMetadataResponse)
    assert [each.name for each in metadata.inputs] == ["x"]
    assert (await ask(zoo, "ModelConfig", name="echo")).message(pb.ModelConfigResponse).config.name == "echo"
    statistics = (await ask(zoo, "ModelStatistics")).message(pb.ModelStatisticsResponse)
    assert {each.name for each in statistics.model_stats} == {"echo", "gate", "numbers", "talk"}
    models = (await ask(zoo, "RepositoryIndex")).message(pb.RepositoryIndexResponse).models
    assert {each.name: each.state for each in models}["talk"] == "READY"


async def test_every_method_of_the_service_is_served(zoo: Zoo) -> None:
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        assert not isinstance(zoo.begin(SERVICE + method.name), Answer), method.name


async def test_prompt_call_is_answered_on_the_spot(zoo: Zoo) -> None:
    tasks = asyncio.all_tasks()
    sent = zoo.send(SERVICE + "ServerLive", framed(b""))
    assert sent.responder.answers
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize(
    ("name", "fields", "status", "text"),
    [
        ("ModelMetadata", {"name": "nope"}, GrpcStatus.NOT_FOUND, "'nope' is not found"),
        ("ModelReady", {"name": "talk", "version": "x"}, GrpcStatus.INVALID_ARGUMENT, "version from 'x'"),
        ("RepositoryIndex", {"repository_name": "r"}, GrpcStatus.UNIMPLEMENTED, "repository_name"),
        ("RepositoryModelLoad", {"model_name": "nope"}, GrpcStatus.NOT_FOUND, "nope"),
        ("RepositoryModelUnload", {"model_name": "nope"}, GrpcStatus.NOT_FOUND, "nope"),
        ("ModelStatistics", {"name": "nope"}, GrpcStatus.INVALID_ARGUMENT, "'nope' is not available"),
        ("SystemSharedMemoryStatus", {"name": "nope"}, GrpcStatus.NOT_FOUND, "nope"),
    ],
)
async def test_mistake_has_its_status(zoo: Zoo, name: str, fields: dict[str, str], status: int, text: str) -> None:
    found = await ask(zoo, name, **fields)
    assert found.status == status
    assert text in found.text


@pytest.mark.parametrize("name", ["ModelMetadata", "RepositoryModelLoad"])
async def test_body_that_is_no_message(zoo: Zoo, name: str) -> None:
    path = SERVICE + name
    found = await zoo.call(path, b"\x0a\xff")
    assert (found.status, found.text) == (
        GrpcStatus.INVALID_ARGUMENT,
        f"Unable to parse request: it is no {name}Request",
    )
    for body in (b"", framed(b"") * 2):
        found = await zoo.call_raw(path, body)
        assert (found.status, path in found.text) == (GrpcStatus.UNIMPLEMENTED, True)
    assert (await zoo.call_raw(path, framed(b"abc")[:-1])).status == GrpcStatus.INTERNAL
    assert (await zoo.call_raw(path, framed(b"abc", 1), GZIP[0])).status == GrpcStatus.INTERNAL


async def test_model_is_unloaded_and_loaded_again(zoo: Zoo) -> None:
    assert (await ask(zoo, "RepositoryModelUnload", model_name="talk")).status == GrpcStatus.OK
    assert not (await ask(zoo, "ModelReady", name="talk")).message(pb.ModelReadyResponse).ready
    assert (await ask(zoo, "RepositoryModelLoad", model_name="talk")).status == GrpcStatus.OK
    assert (await ask(zoo, "ModelReady", name="talk")).message(pb.ModelReadyResponse).ready


async def test_unload_goes_on_when_its_time_is_up_or_its_client_gone(zoo: Zoo) -> None:
    zoo.send(SERVICE + "ModelInfer", framed(request("gate")))
    await zoo.gate.began.wait()
    (prediction,) = zoo.live("gate")
    message = framed(pb.RepositoryModelUnloadRequest(model_name="gate"))
    left = zoo.send(SERVICE + "RepositoryModelUnload", message)
    left.exchange.abandon()
    late = await zoo.call_raw(SERVICE + "RepositoryModelUnload", message, (b"grpc-timeout", b"10m"))
    assert late.status == GrpcStatus.DEADLINE_EXCEEDED
    zoo.gate.go.set()
    await end_of(prediction)
    assert (await left.responder.outcome()).status == GrpcStatus.OK
    assert not (await ask(zoo, "ModelReady", name="gate")).message(pb.ModelReadyResponse).ready


async def test_regions_of_shared_memory(zoo: Zoo) -> None:
    with shared_object(64) as memory:
        fields: dict[str, Any] = {"name": "mine", "key": memory.name, "offset": 8, "byte_size": 16}
        assert (await ask(zoo, "SystemSharedMemoryRegister", **fields)).status == GrpcStatus.OK
        assert (await ask(zoo, "SystemSharedMemoryRegister", **fields)).status == GrpcStatus.ALREADY_EXISTS
        status = (await ask(zoo, "SystemSharedMemoryStatus")).message(pb.SystemSharedMemoryStatusResponse)
        region = status.regions["mine"]
        assert (region.name, region.key, region.offset, region.byte_size) == ("mine", memory.name, 8, 16)
        assert (await ask(zoo, "SystemSharedMemoryUnregister")).status == GrpcStatus.OK
        status = (await ask(zoo, "SystemSharedMemoryStatus")).message(pb.SystemSharedMemoryStatusResponse)
        assert not status.regions


async def test_compressed_call_is_answered_as_it_came(zoo: Zoo) -> None:
    for name in ("RepositoryIndex", "ModelStatistics"):
        body = framed(gzip.compress(b""), 1)
        found = await zoo.call_raw(SERVICE + name, body, *GZIP)
        plain = await ask(zoo, name)
        mark, data = unframed(found.body)
        assert (gzip.decompress(data) if mark else data) == unframed(plain.body)[1]
        assert mark == (len(unframed(plain.body)[1]) > 1024)
        assert (found.headers.get(b"grpc-encoding") == b"gzip") == bool(mark)


async def test_administration_is_not_there_where_it_has_a_port_of_its_own() -> None:
    zoo = Zoo(has_administration=False)
    await zoo.open()
    for name in ADMINISTRATION:
        found = await zoo.call(SERVICE + name, b"")
        assert (found.status, name in found.text) == (GrpcStatus.UNIMPLEMENTED, True)
    assert (await ask(zoo, "RepositoryIndex")).status == GrpcStatus.OK
    await zoo.close()


class Keys:
    def find(self, token: str) -> Grant | None:
        return {
            "reader": Grant("key 'eve'", frozenset({"read"}), ("num*",)),
            "token": Grant("token 'kim'", frozenset({"read"}), is_lasting=False),
        }.get(token)


async def test_key_decides() -> None:
    zoo = Zoo(authorizer=BearerAuthorizer([Keys()]))
    await zoo.open()
    reader = (b"authorization", b"Bearer reader")
    assert (await ask(zoo, "ServerLive")).status == GrpcStatus.OK
    assert (await ask(zoo, "ServerMetadata")).status == GrpcStatus.UNAUTHENTICATED
    assert (await ask(zoo, "ServerMetadata", reader)).status == GrpcStatus.OK
    assert (await ask(zoo, "ModelMetadata", reader, name="numbers")).status == GrpcStatus.OK
    assert (await ask(zoo, "ModelMetadata", reader, name="echo")).status == GrpcStatus.PERMISSION_DENIED
    assert (await ask(zoo, "ModelStatistics", reader)).status == GrpcStatus.PERMISSION_DENIED
    assert (await ask(zoo, "RepositoryModelLoad", reader, model_name="numbers")).status == GrpcStatus.PERMISSION_DENIED
    for key, is_reusable in ((b"reader", True), (b"token", False)):
        accepted = zoo.begin(SERVICE + "ModelMetadata", (b"authorization", b"Bearer " + key))
        assert isinstance(accepted, Accepted)
        assert accepted.is_reusable is is_reusable
    await zoo.close()
