"""gRPC without a socket and without processes: a catalogue of a few models behind the handler, and calls of it."""

# ruff: noqa: F722, TC002 - jaxtyping's shapes are strings that are no annotations, and are read at run time
from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pytest

try:
    from jaxtyping import Float32
except ModuleNotFoundError:
    collect_ignore_glob = ["*"]  # no test here works without it

from geartrain.domain.predictions.events import Completed
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.guard import Authorizer, Everybody
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.handler import GrpcHandler
from geartrain.transport.grpc.heads import is_grpc
from geartrain.transport.grpc.options import GrpcOptions
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.wire.exchange import (
    UNKNOWN_LENGTH,
    Accepted,
    AcceptedInParts,
    Answer,
    AnswerStream,
    ClientGoneError,
    Exchange,
    Head,
    Headers,
    PartsExchange,
    Record,
)
from tests.support.responders import Changes, new_record
from tests.support.text_models import TextModels
from tests.support.waiting import event_of

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
STREAM = SERVICE + "ModelStreamInfer"
MAX_MESSAGE = 1_000_000
GRPC = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))

Fields = tuple[tuple[bytes, bytes], ...]
Tensor = tuple[str, str, list[int], bytes]


# the models


class Echo:
    """Gives its tensor back."""

    async def run(self, x: Float32[np.ndarray, "rows columns"]) -> Float32[np.ndarray, "rows columns"]:
        return x


class Zoo(TextModels):
    """The server: its handler, and the runners of its models."""

    def __init__(
        self,
        *,
        authorizer: Authorizer | None = None,
        has_administration: bool = True,
        max_message: int = MAX_MESSAGE,
        slots: int = 4,
    ) -> None:
        super().__init__(SharedRegions(), slots=slots, echo=Echo())
        self.handler: GrpcHandler
        self._bodies = LargeBodies()
        self._authorizer = authorizer or Everybody()
        self._options = GrpcOptions(max_message_bytes=max_message, has_administration=has_administration)

    async def open(self) -> None:
        await super().open()
        self.handler = GrpcHandler(
            self.catalogue, self.regions, self._bodies, authorizer=self._authorizer, options=self._options
        )

    async def close(self) -> None:
        self._bodies.close()
        await super().close()

    # its clients

    def begin(self, path: str, *headers: tuple[bytes, bytes]) -> Accepted | AcceptedInParts | Answer:
        """Have a call decided upon."""
        head = head_of(path, *headers)
        assert is_grpc(head)
        return self.handler.begin(head)

    def send(self, path: str, body: bytes, *headers: tuple[bytes, bytes]) -> Sent:
        """Send a call that is accepted, of one message."""
        accepted = self.begin(path, *headers)
        assert isinstance(accepted, Accepted), accepted
        responder = CallResponder()
        exchange = accepted.new_exchange(responder)
        exchange.receive(body)
        return Sent(exchange, responder)

    async def call(self, path: str, message: Any, *headers: tuple[bytes, bytes]) -> Outcome:
        """Return what becomes of a call of one message."""
        return await self.call_raw(path, framed(message), *headers)

    async def call_raw(self, path: str, body: bytes, *headers: tuple[bytes, bytes]) -> Outcome:
        """As `call`, of a body; one that is too large is refused as a wire does."""
        decision = self.begin(path, *headers)
        if isinstance(decision, Answer):
            return outcome(decision)
        assert isinstance(decision, Accepted)
        announced = decision.announced(body[:5])
        for size in (announced, len(body)):
            if size != UNKNOWN_LENGTH and 0 < decision.max_body < size:
                return outcome(decision.refuse_size(decision.max_body))
        responder = CallResponder()
        decision.new_exchange(responder).receive(body)
        return await responder.outcome()

    def converse(self, path: str, *headers: tuple[bytes, bytes]) -> StreamingCall:
        """Begin a call of many messages, that is accepted."""
        accepted = self.begin(path, *headers)
        assert isinstance(accepted, AcceptedInParts), accepted
        assert accepted.is_bidirectional
        responder, reader = CallResponder(), FakeReader()
        exchange = accepted.new_exchange(responder)
        exchange.receive(reader)
        return StreamingCall(exchange, responder, reader)


@pytest.fixture
async def zoo() -> AsyncIterator[Zoo]:
    made = Zoo()
    await made.open()
    yield made
    await made.close()


# messages


def head_of(path: str, *headers: tuple[bytes, bytes]) -> Head:
    given: Headers = headers if any(name == b"content-type" for name, _ in headers) else (*GRPC, *headers)
    return Head("POST", path.encode(), b"", given, UNKNOWN_LENGTH, has_trailers=True)


def framed(message: Any, flag: int = 0) -> bytes:
    """Return a message, or its bytes, with the prefix."""
    data: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return struct.pack(">BI", flag, len(data)) + data


def unframed(body: bytes) -> tuple[int, bytes]:
    """Return the flag and the bytes of a body that is one message."""
    flag, size = struct.unpack_from(">BI", body)
    assert len(body) == 5 + size
    return flag, body[5:]


def request(model: str, *inputs: Tensor, **fields: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(
        model_name=model,
        inputs=[{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape, _ in inputs],
        raw_input_contents=[data for *_, data in inputs],
        **fields,
    )


def integer(name: str, value: int) -> Tensor:
    return name, "INT64", [1], struct.pack("<q", value)


def flag(name: str, *, value: bool) -> Tensor:
    return name, "BOOL", [1], bytes([value])


def text(name: str, value: str) -> Tensor:
    return name, "BYTES", [1], struct.pack("<I", len(value.encode())) + value.encode()


def text_of(response: pb.ModelInferResponse) -> str:
    return response.raw_output_contents[0][4:].decode()


# the wire's side


class Outcome(NamedTuple):
    """What a client sees of a call: status and text, and the body with its head."""

    status: int
    text: str
    body: bytes
    headers: dict[bytes, bytes]

    def message(self, kind: Any) -> Any:
        """Parse the one message."""
        assert (self.status, self.text) == (0, "")
        mark, data = unframed(self.body)
        assert mark == 0
        return kind.FromString(data)


def outcome(answer: Answer) -> Outcome:
    """Read a whole answer, and hold it against the rules."""
    assert answer.status is HTTPStatus.OK
    headers = dict(answer.headers)
    assert headers[b"content-type"] == b"application/grpc"
    if answer.parts:
        assert answer.trailers
        assert b"grpc-status" not in headers
        return _ended(answer.trailers, b"".join(answer.parts), headers)
    assert not answer.trailers
    return _ended(answer.headers, b"", headers)


def _ended(trailers: Fields, body: bytes, headers: dict[bytes, bytes]) -> Outcome:
    fields = dict(trailers)
    message = fields.get(b"grpc-message", b"")
    assert all(0x20 <= byte <= 0x7E for byte in message)
    return Outcome(int(fields[b"grpc-status"]), unquote(message.decode()), body, headers)


class FakeStream:
    """A `MessageStream` whose client reads all, until it is told not to."""

    def __init__(self, headers: Fields, changes: Changes) -> None:
        self.headers = headers
        self.pieces: list[bytes] = []
        self.trailers: Fields = ()
        self.is_ended = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.has_left = False
        self._changes = changes

    async def write(self, data: bytes) -> None:
        raise AssertionError("a call sends messages")

    def send(self, *parts: Buffer) -> None:
        assert not self.is_ended
        if not self.has_left:
            self.pieces.append(b"".join(parts))
            self._changes.note()

    async def drained(self) -> None:
        await self.reads.wait()
        if self.has_left:
            raise ClientGoneError

    def end(self, trailers: Fields = ()) -> None:
        assert not self.is_ended
        self.is_ended = True
        self.trailers = trailers
        self._changes.note()

    def abort(self) -> None:
        raise AssertionError("a call ends with its status")


class CallResponder:
    """A `Responder` that keeps the one answer to its call."""

    def __init__(self) -> None:
        self.record: Record = new_record()
        self.answers: list[Answer] = []
        self.streams: list[FakeStream] = []
        self.changes = Changes()

    def respond(self, answer: Answer) -> None:
        assert not self.streams
        assert not self.answers
        self.answers.append(answer)
        self.changes.note()

    def open_stream(self, status: HTTPStatus, headers: Fields) -> AnswerStream:
        assert status is HTTPStatus.OK
        assert not self.streams
        assert not self.answers
        stream = FakeStream(headers, self.changes)
        self.streams.append(stream)
        return stream

    @property
    def pieces(self) -> Sequence[bytes]:
        return self.streams[0].pieces if self.streams else ()

    @property
    def is_over(self) -> bool:
        return bool(self.answers) or any(stream.is_ended for stream in self.streams)

    async def outcome(self) -> Outcome:
        """Wait for the end."""
        await self.changes.until(lambda: self.is_over)
        if self.answers:
            return outcome(self.answers[0])
        stream = self.streams[0]
        return _ended(stream.trailers, b"".join(stream.pieces), dict(stream.headers))


class FakeReader:
    """A `MessageReader`, fed by a test."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._is_whole = False
        self._is_broken = False
        self._changes = Changes()
        self._asked = Changes()
        self.wanted = 0  # messages and prefixes that have been asked for

    async def read(self) -> bytes:
        raise AssertionError("a call gathers messages")

    async def gather(self, size: int) -> bytes | bytearray:
        self.wanted += 1
        self._asked.note()
        await self._changes.until(lambda: len(self._data) >= size or self._is_whole or self._is_broken)
        if self._is_broken:
            raise ClientGoneError
        taken = self._data[:size]
        del self._data[:size]
        return bytes(taken)

    async def asked(self, times: int) -> None:
        """Wait until so many messages and prefixes have been asked for."""
        await self._asked.until(lambda: self.wanted >= times)

    def feed(self, data: bytes) -> None:
        self._data += data
        self._changes.note()

    def end(self) -> None:
        self._is_whole = True
        self._changes.note()

    def break_off(self) -> None:
        self._is_broken = True
        self._changes.note()


class Sent(NamedTuple):
    """A call of one message that has been handed over."""

    exchange: Exchange
    responder: CallResponder


class StreamingCall(NamedTuple):
    """A call of many messages."""

    exchange: PartsExchange
    responder: CallResponder
    reader: FakeReader

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.reader.feed(framed(message))

    async def message(self, index: int, kind: Any) -> Any:
        """Wait for a message of the answer."""
        await self.responder.changes.until(lambda: len(self.responder.pieces) > index)
        return kind.FromString(unframed(self.responder.pieces[index])[1])

    async def response(self, index: int) -> pb.ModelStreamInferResponse:
        """Wait for a response of a stream of inference."""
        found: pb.ModelStreamInferResponse = await self.message(index, pb.ModelStreamInferResponse)
        return found


async def end_of(prediction: Prediction) -> None:
    """Wait for the end of a prediction."""
    await event_of(prediction, Completed)
