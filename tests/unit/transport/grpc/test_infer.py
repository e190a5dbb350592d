"""`ModelInfer`, from its head to its answer, without a socket."""

from __future__ import annotations

import asyncio
import gzip
import struct
import zlib

import pytest

from geartrain.domain.predictions.lifecycle import Status as Run
from geartrain.transport.access.guard import BearerAuthorizer, Grant
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.status import HEADERS, OK_TRAILERS
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, Accepted, Answer
from tests.support.shared_memory import shared_object
from tests.unit.transport.grpc.conftest import (
    INFER,
    MAX_MESSAGE,
    CallResponder,
    Zoo,
    end_of,
    framed,
    integer,
    outcome,
    request,
    text,
    text_of,
    unframed,
)

GZIP = (b"grpc-encoding", b"gzip")
TAKES_GZIP = (b"grpc-accept-encoding", b"identity, deflate, gzip")


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def row(count: int) -> tuple[str, str, list[int], bytes]:
    """A tensor for the model `echo`, that can be compressed."""
    values = [index % 7 for index in range(count)]
    return "x", "FP32", [1, count], struct.pack(f"<{count}f", *values)


async def test_answer_is_a_message_with_a_prefix_and_trailers(zoo: Zoo) -> None:
    sent = zoo.send(INFER, framed(request("numbers", integer("times", 3), id="7")))
    found = await sent.responder.outcome()
    response = found.message(pb.ModelInferResponse)
    assert (response.model_name, response.model_version, response.id) == ("numbers", "1", "7")
    assert response.raw_output_contents == [struct.pack("<3q", 0, 1, 2)]
    (answer,) = sent.responder.answers
    assert answer.headers is HEADERS
    assert answer.trailers is OK_TRAILERS


async def test_call_is_admitted_and_answered_without_a_task(zoo: Zoo) -> None:
    tasks = asyncio.all_tasks()
    sent = zoo.send(INFER, framed(request("numbers")))
    assert len(zoo.live("numbers")) == 1
    (new,) = asyncio.all_tasks() - tasks
    assert new.get_coro().__qualname__ == "FakeWorker._serve"  # type: ignore[union-attr]
    assert (await sent.responder.outcome()).status == GrpcStatus.OK


async def test_one_head_serves_many_calls(zoo: Zoo) -> None:
    accepted = zoo.begin(INFER)
    assert isinstance(accepted, Accepted)
    assert accepted.is_reusable
    responders = [CallResponder() for _ in range(3)]
    for times, responder in enumerate(responders):
        accepted.new_exchange(responder).receive(framed(request("numbers", integer("times", times), id=str(times))))
    for times, responder in enumerate(responders):
        response = (await responder.outcome()).message(pb.ModelInferResponse)
        assert (response.id, list(response.outputs[0].shape)) == (str(times), [times])


@pytest.mark.parametrize("count", [0, 1, 1000, 20_000, 60_000])
async def test_tensor_comes_back_whatever_its_size(zoo: Zoo, count: int) -> None:
    x = row(count)
    for _ in range(2):  # the second one finds its head known
        response = (await zoo.call(INFER, request("echo", x, id="é"))).message(pb.ModelInferResponse)
        assert response.raw_output_contents == [x[3]]
        assert (response.id, list(response.outputs[0].shape)) == ("é", [1, count])


async def test_body_that_came_in_pieces_is_a_bytearray(zoo: Zoo) -> None:
    x = row(10)
    responders = CallResponder(), CallResponder()
    for responder in responders:
        accepted = zoo.begin(INFER)
        assert isinstance(accepted, Accepted)
        accepted.new_exchange(responder).receive(bytearray(framed(request("echo", x))))
        response = (await responder.outcome()).message(pb.ModelInferResponse)
        assert response.raw_output_contents == [x[3]]


# what is refused


@pytest.mark.parametrize(
    ("message", "status", "text_"),
    [
        (request("nope"), GrpcStatus.NOT_FOUND, "'nope' is not found"),
        (request("numbers", integer("zz", 1)), GrpcStatus.INVALID_ARGUMENT, "unexpected inference input 'zz'"),
        (request("numbers", model_version="x"), GrpcStatus.INVALID_ARGUMENT, "version from 'x'"),
        (request("numbers", integer("times", -1)), GrpcStatus.INTERNAL, "there are no such numbers"),
        (b"\x0a\xff", GrpcStatus.INVALID_ARGUMENT, "Unable to parse request: it is no ModelInferRequest"),
    ],
)
async def test_mistake_has_its_status_in_a_head_alone(zoo: Zoo, message: object, status: int, text_: str) -> None:
    sent = zoo.send(INFER, framed(message))
    found = await sent.responder.outcome()
    assert found.status == status
    assert text_ in found.text
    (answer,) = sent.responder.answers
    assert answer.parts == ()


@pytest.mark.parametrize(
    ("body", "status", "text_"),
    [
        (b"", GrpcStatus.UNIMPLEMENTED, "requires exactly one request message"),
        (framed(request("numbers")) * 2, GrpcStatus.UNIMPLEMENTED, "requires exactly one request message"),
        (framed(request("numbers"))[:-1], GrpcStatus.INTERNAL, "ends within a message"),
        (b"\0\0\0", GrpcStatus.INTERNAL, "ends within a message"),
        (framed(request("numbers"), 2), GrpcStatus.INTERNAL, "the flag 2"),
        (framed(request("numbers"), 1), GrpcStatus.INTERNAL, "there is no grpc-encoding"),
    ],
    ids=["none", "two", "cut off", "prefix cut off", "unknown flag", "unknown encoding"],
)
async def test_body_that_is_not_one_message(zoo: Zoo, body: bytes, status: int, text_: str) -> None:
    found = await zoo.call_raw(INFER, body)
    assert found.status == status
    assert text_ in found.text


async def test_message_above_the_limit_is_refused_by_its_prefix(zoo: Zoo) -> None:
    accepted = zoo.begin(INFER)
    assert isinstance(accepted, Accepted)
    assert accepted.announced(b"\0\0\0\0") == UNKNOWN_LENGTH
    assert accepted.announced(struct.pack(">BI", 0, MAX_MESSAGE)) == accepted.max_body
    assert accepted.announced(struct.pack(">BI", 0, MAX_MESSAGE + 1)) > accepted.max_body
    found = await zoo.call_raw(INFER, framed(bytes(MAX_MESSAGE + 1)))
    assert found.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert str(MAX_MESSAGE) in found.text
    assert "--grpc-max-message-size" in found.text


async def test_server_without_a_limit_has_none() -> None:
    zoo = Zoo(max_message=0)
    await zoo.open()
    accepted = zoo.begin(INFER)
    assert isinstance(accepted, Accepted)
    assert accepted.max_body == 0
    assert (await zoo.call(INFER, request("echo", row(500_000)))).status == GrpcStatus.OK
    compressed = framed(packed(request("echo", row(500_000)).SerializeToString()), 1)
    assert (await zoo.call_raw(INFER, compressed, GZIP)).status == GrpcStatus.OK
    await zoo.close()


# compression


@pytest.mark.parametrize("count", [10, 5_000, 100_000])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_message_is_read(zoo: Zoo, encoding: str, count: int) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    x = row(count)
    body = framed(compress(request("echo", x).SerializeToString()), 1)
    found = await zoo.call_raw(INFER, body, (b"grpc-encoding", encoding.encode()))
    assert found.message(pb.ModelInferResponse).raw_output_contents == [x[3]]
    assert b"grpc-encoding" not in found.headers


async def test_encoding_is_for_flagged_messages_alone(zoo: Zoo) -> None:
    found = await zoo.call(INFER, request("numbers"), GZIP, TAKES_GZIP)
    assert found.message(pb.ModelInferResponse).model_name == "numbers"


@pytest.mark.parametrize("count", [1_000, 100_000])
async def test_answer_is_compressed_as_the_request_was(zoo: Zoo, count: int) -> None:
    x = row(count)
    body = framed(packed(request("echo", x).SerializeToString()), 1)
    found = await zoo.call_raw(INFER, body, GZIP, TAKES_GZIP)
    assert found.status == GrpcStatus.OK
    assert found.headers[b"grpc-encoding"] == b"gzip"
    mark, data = unframed(found.body)
    assert mark == 1
    assert pb.ModelInferResponse.FromString(gzip.decompress(data)).raw_output_contents == [x[3]]


async def test_small_answer_stays_as_it_is(zoo: Zoo) -> None:
    body = framed(packed(request("numbers").SerializeToString()), 1)
    found = await zoo.call_raw(INFER, body, GZIP, TAKES_GZIP)
    assert found.message(pb.ModelInferResponse).model_name == "numbers"
    assert b"grpc-encoding" not in found.headers


@pytest.mark.parametrize(
    ("data", "status", "text_"),
    [
        pytest.param(b"no gzip", GrpcStatus.INTERNAL, "could not be decompressed", id="another format"),
        pytest.param(packed(bytes(100))[:-4], GrpcStatus.INTERNAL, "could not be decompressed", id="cut off"),
        pytest.param(
            packed(bytes(MAX_MESSAGE + 1)), GrpcStatus.RESOURCE_EXHAUSTED, "--grpc-max-message-size", id="too large"
        ),
        pytest.param(packed(bytes(10 * MAX_MESSAGE)), GrpcStatus.RESOURCE_EXHAUSTED, str(MAX_MESSAGE), id="a bomb"),
        pytest.param(packed(b"\x0a\xff"), GrpcStatus.INVALID_ARGUMENT, "Unable to parse request", id="no request"),
    ],
)
async def test_compressed_message_that_cannot_be(zoo: Zoo, data: bytes, status: int, text_: str) -> None:
    found = await zoo.call_raw(INFER, framed(data, 1), GZIP)
    assert found.status == status
    assert text_ in found.text


# a client that gives up


async def test_client_that_leaves_cancels_its_run(zoo: Zoo) -> None:
    sent = zoo.send(INFER, framed(request("gate")))
    await zoo.gate.began.wait()
    (prediction,) = zoo.live("gate")
    sent.exchange.abandon()
    await end_of(prediction)
    assert prediction.status is Run.CANCELED
    assert not sent.responder.is_over


async def test_run_is_ended_when_the_time_is_up(zoo: Zoo) -> None:
    sent = zoo.send(INFER, framed(request("gate")), (b"grpc-timeout", b"20m"))
    (prediction,) = zoo.live("gate")
    found = await sent.responder.outcome()
    assert found.status == GrpcStatus.DEADLINE_EXCEEDED
    await end_of(prediction)
    assert prediction.status is not Run.SUCCEEDED


async def test_time_that_is_up_at_once(zoo: Zoo) -> None:
    found = await zoo.call(INFER, request("gate"), (b"grpc-timeout", b"0n"))
    assert found.status == GrpcStatus.DEADLINE_EXCEEDED


async def test_answer_in_time_is_the_only_one(zoo: Zoo) -> None:
    sent = zoo.send(INFER, framed(request("gate", text("text", "a"))), (b"grpc-timeout", b"1H"))
    zoo.gate.go.set()
    assert text_of((await sent.responder.outcome()).message(pb.ModelInferResponse)) == "a"


async def test_client_that_leaves_before_its_time_is_up(zoo: Zoo) -> None:
    sent = zoo.send(INFER, framed(request("gate")), (b"grpc-timeout", b"1H"))
    (prediction,) = zoo.live("gate")
    sent.exchange.abandon()
    await end_of(prediction)
    assert not sent.responder.is_over


async def test_longest_timeout_is_one(zoo: Zoo) -> None:
    found = await zoo.call(INFER, request("numbers"), (b"grpc-timeout", b"99999999H"))
    assert found.status == GrpcStatus.OK


# keys


class Keys:
    def __init__(self) -> None:
        self.grants = {
            "all": Grant("key 'ada'", frozenset({"predict"})),
            "some": Grant("key 'bob'", frozenset({"predict"}), ("num*",)),
            "reader": Grant("key 'eve'", frozenset({"read"})),
            "token": Grant("token 'kim'", frozenset({"predict"}), is_lasting=False),
        }

    def find(self, token: str) -> Grant | None:
        return self.grants.get(token)


@pytest.mark.parametrize(
    ("key", "model", "status"),
    [
        ("all", "echo", GrpcStatus.INVALID_ARGUMENT),  # it is let in, and has no input
        ("some", "numbers", GrpcStatus.OK),
        ("some", "echo", GrpcStatus.PERMISSION_DENIED),
        ("some", "nope", GrpcStatus.PERMISSION_DENIED),  # whether there is one is none of its business
        ("reader", "numbers", GrpcStatus.PERMISSION_DENIED),
        ("nobody", "numbers", GrpcStatus.UNAUTHENTICATED),
    ],
)
async def test_key_decides(key: str, model: str, status: int) -> None:
    zoo = Zoo(authorizer=BearerAuthorizer([Keys()]))
    await zoo.open()
    for _ in range(2):  # the second one finds its head known
        found = await zoo.call(INFER, request(model), (b"authorization", b"Bearer " + key.encode()))
        assert found.status == status
    assert (await zoo.call(INFER, request(model))).status == GrpcStatus.UNAUTHENTICATED
    await zoo.close()


async def test_decision_for_a_key_that_expires_is_not_remembered() -> None:
    zoo = Zoo(authorizer=BearerAuthorizer([Keys()]))
    await zoo.open()
    for key, is_reusable in {"all": True, "token": False}.items():
        accepted = zoo.begin(INFER, (b"authorization", b"Bearer " + key.encode()))
        assert isinstance(accepted, Accepted)
        assert accepted.is_reusable is is_reusable
    refused = zoo.begin(INFER)
    assert isinstance(refused, Answer)
    assert outcome(refused).status == GrpcStatus.UNAUTHENTICATED
    await zoo.close()


# shared memory


async def test_tensors_in_shared_memory(zoo: Zoo) -> None:
    x = row(4)
    with shared_object(64) as memory:
        zoo.regions.register("mine", memory.name, offset=0, byte_size=64)
        zoo.regions.write("mine", 16, x[3])
        place = {
            "shared_memory_region": pb.InferParameter(string_param="mine"),
            "shared_memory_byte_size": pb.InferParameter(int64_param=16),
        }
        given = pb.ModelInferRequest.InferInputTensor(
            name="x",
            datatype="FP32",
            shape=[1, 4],
            parameters={**place, "shared_memory_offset": pb.InferParameter(int64_param=16)},
        )
        asked = pb.ModelInferRequest(
            model_name="echo", inputs=[given], outputs=[{"name": "output", "parameters": place}]
        )
        for value in (x[3], bytes(16)):  # what lies there may have changed
            zoo.regions.write("mine", 16, value)
            response = (await zoo.call(INFER, asked)).message(pb.ModelInferResponse)
            assert response.raw_output_contents == [b""]
            assert response.outputs[0].parameters["shared_memory_region"].string_param == "mine"
            assert bytes(zoo.regions.read("mine", 0, 16)) == value
