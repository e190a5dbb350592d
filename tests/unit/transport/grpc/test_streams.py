"""`ModelStreamInfer`: requests as they come and responses as they are made, without a socket."""

from __future__ import annotations

import asyncio
import gzip
import struct

import pytest

from geartrain.domain.predictions.lifecycle import Status as Run
from geartrain.transport.access.guard import BearerAuthorizer, Grant
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc import streams
from geartrain.transport.grpc.translate import FINAL
from geartrain.transport.wire.exchange import Answer
from tests.support.responders import LIMIT
from tests.unit.transport.grpc.conftest import (
    MAX_MESSAGE,
    STREAM,
    Zoo,
    end_of,
    flag,
    framed,
    integer,
    outcome,
    request,
    text,
    text_of,
    unframed,
)

EMPTY_FINAL = {"triton_enable_empty_final_response": pb.InferParameter(bool_param=True)}


def final(response: pb.ModelStreamInferResponse) -> bool:
    return response.infer_response.parameters[FINAL].bool_param


async def test_each_request_is_answered_and_the_stream_ends_with_a_status(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    for index in range(3):
        stream.send(request("numbers", integer("times", index), id=str(index)))
        response = await stream.response(index)
        assert (response.infer_response.id, final(response)) == (str(index), True)
        assert list(response.infer_response.outputs[0].shape) == [index]
    assert zoo.handler._streaming._open == {stream.exchange}
    stream.reader.end()
    assert (await stream.responder.outcome())[:2] == (GrpcStatus.OK, "")
    assert not zoo.handler._streaming._open


async def test_plain_request_makes_no_task(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    tasks = asyncio.all_tasks()
    stream.send(request("gate"))
    await zoo.gate.began.wait()
    (new,) = asyncio.all_tasks() - tasks
    assert new.get_coro().__qualname__ == "FakeWorker._serve"  # type: ignore[union-attr]
    zoo.gate.go.set()
    await stream.response(0)


async def test_requests_run_at_once_and_are_answered_as_they_end(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("gate", text("text", "held"), id="held"), request("numbers", id="quick"))
    stream.reader.end()
    assert (await stream.response(0)).infer_response.id == "quick"
    assert not stream.responder.is_over
    zoo.gate.go.set()
    held = await stream.response(1)
    assert (held.infer_response.id, text_of(held.infer_response)) == ("held", "held")
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


@pytest.mark.parametrize(
    ("bound", "value"), [("MAX_AT_ONCE", 2), ("MAX_HELD", len(request("gate", id="0").SerializeToString()))]
)
async def test_no_more_run_than_there_is_place_for(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(streams, bound, value)
    stream = zoo.converse(STREAM)
    stream.send(*(request("gate", id=str(index)) for index in range(4)))
    stream.reader.end()
    await zoo.gate.began.wait()
    await stream.reader.asked(6)  # a prefix and a message of each of three
    assert len(zoo.live("gate")) == 2
    zoo.gate.go.set()
    found = [(await stream.response(index)).infer_response.id for index in range(4)]
    assert sorted(found) == ["0", "1", "2", "3"]
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


async def test_stream_without_requests_is_a_head_alone(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.reader.end()
    assert (await stream.responder.outcome()).status == GrpcStatus.OK
    assert stream.responder.answers


async def test_empty_message_is_a_request(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(b"")
    assert "'' is not found" in (await stream.response(0)).error_message


async def test_large_response_is_whole(zoo: Zoo) -> None:
    data = struct.pack("<30000f", *range(30_000))
    stream = zoo.converse(STREAM)
    stream.send(request("echo", ("x", "FP32", [30, 1000], data), id="l"))
    response = (await stream.response(0)).infer_response
    assert (response.id, list(response.raw_output_contents)) == ("l", [data])


async def test_compressed_request_is_read(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM, (b"grpc-encoding", b"gzip"))
    for count in (10, 100_000):
        data = gzip.compress(request("echo", ("x", "FP32", [1, count], bytes(4 * count))).SerializeToString())
        stream.reader.feed(framed(data, 1))
    assert len((await stream.response(1)).infer_response.raw_output_contents[0]) == 400_000


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
async def test_response_is_compressed_as_its_request_was(zoo: Zoo, count: int) -> None:
    """Each by itself: the second request is plain, and so is its response."""
    data = struct.pack(f"<{count}f", *range(count))
    asked = request("echo", ("x", "FP32", [1, count], data))
    stream = zoo.converse(STREAM, (b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"identity, gzip"))
    stream.reader.feed(framed(gzip.compress(asked.SerializeToString()), 1))
    stream.reader.feed(framed(asked))
    stream.reader.end()
    assert (await stream.responder.outcome()).status == GrpcStatus.OK
    assert dict(stream.responder.streams[0].headers)[b"grpc-encoding"] == b"gzip"
    found = sorted(unframed(piece) for piece in stream.responder.pieces)
    assert [mark for mark, _ in found] == [0, int(count > 10)]
    for mark, message in found:
        response = pb.ModelStreamInferResponse.FromString(gzip.decompress(message) if mark else message)
        assert list(response.infer_response.raw_output_contents) == [data]


async def test_response_is_plain_for_a_client_that_does_not_take_gzip(zoo: Zoo) -> None:
    data = bytes(4_000)
    stream = zoo.converse(STREAM, (b"grpc-encoding", b"gzip"))
    asked = request("echo", ("x", "FP32", [1, 1_000], data))
    stream.reader.feed(framed(gzip.compress(asked.SerializeToString()), 1))
    assert list((await stream.response(0)).infer_response.raw_output_contents) == [data]
    assert b"grpc-encoding" not in dict(stream.responder.streams[0].headers)


# models that yield


async def test_each_yield_is_a_response(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("talk", text("prompt", "a"), flag("hold", value=True), id="1"))
    for index in range(2):
        assert len(stream.responder.pieces) == index
        zoo.talk.steps.release()
        response = await stream.response(index)
        assert (text_of(response.infer_response), final(response)) == (f"a {index}", False)
    stream.reader.end()
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


@pytest.mark.parametrize("words", [0, 2])
async def test_end_of_yields_is_told_where_it_is_asked_for(zoo: Zoo, words: int) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("talk", text("prompt", "a"), integer("words", words), id="1", parameters=EMPTY_FINAL))
    last = await stream.response(words)
    assert (last.infer_response.model_name, last.infer_response.id, final(last)) == ("talk", "1", True)
    assert not last.infer_response.outputs


async def test_error_of_a_model_comes_after_what_it_gave(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("talk", text("prompt", "a"), integer("words", 1), flag("fail", value=True), id="1"))
    assert text_of((await stream.response(0)).infer_response) == "a 0"
    last = await stream.response(1)
    assert "the model is lost" in last.error_message
    assert (last.infer_response.model_name, last.infer_response.id, final(last)) == ("talk", "1", True)
    stream.reader.end()
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


async def test_client_that_does_not_read_holds_up_its_requests(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("numbers", id="1"))
    await stream.response(0)
    (sent,) = stream.responder.streams
    sent.reads.clear()
    stream.send(request("numbers", id="2"), request("numbers", id="3"))
    await stream.response(1)
    assert stream.reader.wanted == 4  # a prefix and a message of each of two
    sent.reads.set()
    await stream.response(2)


# what goes wrong


async def test_error_of_a_request_is_its_own(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(
        request("nope", id="a"),
        b"\x0a\xff",
        request("numbers", integer("times", -1), id="c"),
        request("numbers", id="d", parameters={"triton_x": pb.InferParameter(bool_param=True)}),
        request("numbers", id="e"),
    )
    stream.reader.end()
    responses = {r.infer_response.id: r for r in [await stream.response(index) for index in range(5)]}
    assert "'nope' is not found" in responses["a"].error_message
    assert not responses["a"].infer_response.parameters
    assert "Unable to parse request" in responses[""].error_message
    assert "there are no such numbers" in responses["c"].error_message
    assert final(responses["c"])
    assert responses["c"].infer_response.model_name == "numbers"
    assert "'triton_x' is reserved" in responses["d"].error_message
    assert not responses["e"].error_message
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


@pytest.mark.parametrize(
    ("data", "status", "text_"),
    [
        (b"\0\0", GrpcStatus.INTERNAL, "ends within a message"),
        (struct.pack(">BI", 0, 9) + b"abc", GrpcStatus.INTERNAL, "ends within a message"),
        (framed(b"", 7), GrpcStatus.INTERNAL, "the flag 7"),
        (framed(b"", 1), GrpcStatus.INTERNAL, "there is no grpc-encoding"),
        (struct.pack(">BI", 0, MAX_MESSAGE + 1), GrpcStatus.RESOURCE_EXHAUSTED, str(MAX_MESSAGE)),
    ],
)
async def test_fault_in_the_messages_ends_the_call(zoo: Zoo, data: bytes, status: int, text_: str) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("gate", id="running"))
    await zoo.gate.began.wait()
    (prediction,) = zoo.live("gate")
    stream.reader.feed(data)
    stream.reader.end()
    found = await stream.responder.outcome()
    assert found.status == status
    assert text_ in found.text
    await end_of(prediction)
    assert prediction.status is Run.CANCELED


@pytest.mark.parametrize("how", ["abandon", "reader", "writer"])
async def test_client_that_leaves_ends_what_runs(zoo: Zoo, how: str) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("talk", text("prompt", "a"), flag("hold", value=True)), request("gate"))
    zoo.talk.steps.release()
    await stream.response(0)
    await zoo.gate.began.wait()
    predictions = [*zoo.live("gate"), *zoo.live("talk")]
    assert len(predictions) == 2
    if how == "abandon":
        stream.exchange.abandon()
    elif how == "reader":
        stream.reader.break_off()
    else:
        stream.responder.streams[0].has_left = True
        stream.send(request("numbers"))
    for prediction in predictions:
        await end_of(prediction)
        assert prediction.status is Run.CANCELED
    assert len(stream.responder.pieces) == 1
    assert not stream.responder.is_over
    assert not zoo.handler._streaming._open


async def test_time_of_the_call_ends_it(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM, (b"grpc-timeout", b"50m"))
    stream.send(request("gate", id="1"))
    found = await stream.responder.outcome()
    assert found.status == GrpcStatus.DEADLINE_EXCEEDED
    for prediction in zoo.live("gate"):
        await end_of(prediction)


async def test_call_in_time_ends_well(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM, (b"grpc-timeout", b"1H"))
    stream.send(request("numbers", id="1"))
    await stream.response(0)
    stream.reader.end()
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


# the end of the server


async def test_shutdown_ends_a_stream_when_what_runs_is_answered(zoo: Zoo) -> None:
    stream, idle = zoo.converse(STREAM), zoo.converse(STREAM)
    stream.send(request("gate", text("text", "a")))
    await zoo.gate.began.wait()
    zoo.handler.close()
    ended = await idle.responder.outcome()
    assert (ended.status, ended.text) == (GrpcStatus.UNAVAILABLE, "The server is shutting down.")
    assert not stream.responder.is_over
    zoo.gate.go.set()
    assert text_of((await stream.response(0)).infer_response) == "a"
    assert (await stream.responder.outcome()).status == GrpcStatus.UNAVAILABLE


async def test_stream_that_has_all_its_requests_is_no_concern_of_a_shutdown(zoo: Zoo) -> None:
    stream = zoo.converse(STREAM)
    stream.send(request("gate", text("text", "a")))
    stream.reader.end()
    await zoo.gate.began.wait()
    assert isinstance(stream.exchange, streams.InferStream)
    async with asyncio.timeout(LIMIT):
        while not stream.exchange._is_read:  # noqa: ASYNC110
            await asyncio.sleep(0)
    zoo.handler.close()
    zoo.gate.go.set()
    await stream.response(0)
    assert (await stream.responder.outcome()).status == GrpcStatus.OK


async def test_stream_that_begins_too_late_is_ended(zoo: Zoo) -> None:
    zoo.handler.close()
    stream = zoo.converse(STREAM)
    assert (await stream.responder.outcome()).status == GrpcStatus.UNAVAILABLE


# keys


async def test_key_is_asked_for_each_request_anew() -> None:
    grants = {"bob": Grant("key 'bob'", frozenset({"predict"}), ("num*",))}

    class Keys:
        def find(self, token: str) -> Grant | None:
            return grants.get(token)

    zoo = Zoo(authorizer=BearerAuthorizer([Keys()]))
    await zoo.open()
    refused = zoo.begin(STREAM)
    assert isinstance(refused, Answer)
    assert outcome(refused).status == GrpcStatus.UNAUTHENTICATED
    stream = zoo.converse(STREAM, (b"authorization", b"Bearer bob"))
    stream.send(request("numbers"), request("echo"))
    responses = [await stream.response(index) for index in range(2)]
    assert sorted(bool(each.error_message) for each in responses) == [False, True]
    grants.clear()
    stream.send(request("numbers"))
    assert "The key is not known" in (await stream.response(2)).error_message
    stream.exchange.abandon()
    await zoo.close()
