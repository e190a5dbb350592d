"""TorchServe's inference service: its messages become whole requests, and the answers to these become messages.

The entries of an input come to a model as the fields of a form. Source: `inference.proto`, `InferenceImpl`, `GRPCJob`
and `GRPCUtils` of TorchServe; the last has the statuses of gRPC for those of HTTP.
"""

from __future__ import annotations

import asyncio
import uuid
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

from geartrain.apis.bodies import Whole
from geartrain.apis.form_inputs import FORM, write_form
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.multipart import MAX_PARTS
from geartrain.domain.sequences import Part, sequence_field
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.deployment import Deployment
from geartrain.transport.access.guard import Grant
from geartrain.transport.bodies.exchange import BodyExchange, Contract
from geartrain.transport.bodies.foreign import TORCHSERVE
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc import torchserve_pb2 as pb
from geartrain.transport.grpc.context import CallContext
from geartrain.transport.grpc.framing import MessageAnswer, frame, unpack
from geartrain.transport.grpc.heads import CallHead, status_of
from geartrain.transport.grpc.streams import StreamingCall, StreamingCalls
from geartrain.transport.grpc.wire import read_varint, varint
from geartrain.transport.records import record_of
from geartrain.transport.routing import Params
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Answer, Body, Head, Record, RequestNotes, Responder

SERVICE: Final = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
PING: Final = f"/{SERVICE}/Ping"
PREDICTIONS: Final = f"/{SERVICE}/Predictions"
STREAM: Final = f"/{SERVICE}/StreamPredictions"
STREAM_2: Final = f"/{SERVICE}/StreamPredictions2"

_STATUSES: Final = {
    400: GrpcStatus.INVALID_ARGUMENT,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.NOT_FOUND,
    409: GrpcStatus.ABORTED,
    413: GrpcStatus.RESOURCE_EXHAUSTED,
    416: GrpcStatus.OUT_OF_RANGE,
    429: GrpcStatus.RESOURCE_EXHAUSTED,
    499: GrpcStatus.CANCELLED,
    501: GrpcStatus.UNIMPLEMENTED,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.DEADLINE_EXCEEDED,
}
_FIRST_FAULT: Final = 400
_LAST_OF_CLIENTS: Final = 499
_MOST_FIELDS: Final = MAX_PARTS + 8  # of a message; its entries become parts of a form
_MOST_JOINED: Final = 64 * 1024**2  # bytes of pieces that become one message
_BYTES: Final = 2  # the kind of a field of the wire
_ENTRY: Final = 3  # PredictionsRequest.input
_PREDICTION_TAG: Final = b"\x0a"  # PredictionResponse.prediction: 1 << 3 | 2
_NAMES: Final = {1: "model_name", 2: "model_version", 4: "sequence"}
_TRUE: Final = "true"
_ENDS: Final[tuple[Part, ...]] = ("start", "end")


class _Asked(NamedTuple):
    """A `PredictionsRequest`, whose values are views of the message."""

    model: str
    version: str
    fields: dict[str, memoryview]
    sequence: str


def _read(message: Buffer) -> _Asked:
    """Read a `PredictionsRequest` without a copy of its values. Raises `UNPARSABLE`, `INVALID_INPUT`."""
    texts = dict.fromkeys(_NAMES.values(), "")
    fields: dict[str, memoryview] = {}
    try:
        for number, value in _fields(memoryview(message)):
            if number in _NAMES:
                texts[_NAMES[number]] = bytes(value).decode()
            elif number == _ENTRY:
                entry = dict(_fields(value))
                fields[bytes(entry.get(1, b"")).decode()] = entry.get(2, memoryview(b""))
    except (UnicodeDecodeError, ValueError):
        raise GeartrainError(
            Code.UNPARSABLE, f"Unable to parse request: it is no PredictionsRequest of at most {MAX_PARTS} inputs"
        ) from None
    if not texts["model_name"]:
        raise _MissingError("Parameter model_name is required.")
    return _Asked(texts["model_name"], texts["model_version"], fields, texts["sequence"])


def _fields(data: memoryview) -> list[tuple[int, memoryview]]:
    """Return the fields of a message that hold bytes. Raises `ValueError` for what is no message, and for too many."""
    found: list[tuple[int, memoryview]] = []
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        size, position = read_varint(data, position)
        if tag & 7 != _BYTES or size < 0 or position + size > len(data) or len(found) == _MOST_FIELDS:
            raise ValueError
        found.append((tag >> 3, data[position : position + size]))
        position += size
    return found


class _MissingError(GeartrainError):
    """A field that TorchServe requires, whose status there is INTERNAL."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.INVALID_INPUT, text)


class _Fault(NamedTuple):
    """A failed prediction."""

    status: GrpcStatus
    text: str


def _fault_of(error: Exception) -> _Fault:
    if isinstance(error, _MissingError):
        return _Fault(GrpcStatus.INTERNAL, error.reason)
    return _Fault(*status_of(error))


def _fault_in(answer: Answer, body: bytes) -> _Fault | None:
    """Return the fault that an answer of HTTP tells of, None for an output, whatever its status.

    TorchServe does not pass the statuses that a handler sets on to clients of gRPC.
    """
    status = int(answer.status)
    if status < _FIRST_FAULT:
        return None
    text = answer.error
    if not text:
        try:
            told = msgspec.json.decode(body, type=_Told)
        except msgspec.DecodeError:
            return None
        status, text = told.code, told.message
    elif status == HTTPStatus.NOT_FOUND:  # of a model: TorchServe answers so
        return _Fault(GrpcStatus.INTERNAL, text)
    usual = GrpcStatus.FAILED_PRECONDITION if status <= _LAST_OF_CLIENTS else GrpcStatus.INTERNAL
    return _Fault(_STATUSES.get(status, usual), text)


class _Told(msgspec.Struct):
    """An error as TorchServe's handlers and this server write it for HTTP."""

    code: int
    type: str
    message: str


class _RunAnswer:
    """Responder, and stream of an answer, of a run whose answer becomes messages."""

    def __init__(self, owner: PredictionExchange | SequenceCall, record: Record) -> None:
        self.record = record
        self._owner = owner

    def respond(self, answer: Answer) -> None:
        """Give the output, or tell of the fault."""
        body = b"".join(answer.parts)
        fault = _fault_in(answer, body)
        if fault is None:
            self._owner.give(body)
        self._owner.end(fault)

    def open_stream(self, _status: HTTPStatus, _headers: tuple[tuple[bytes, bytes], ...]) -> _RunAnswer:
        """Give pieces as they come."""
        return self

    async def write(self, data: bytes) -> None:
        """Give a piece."""
        self._owner.give(data)
        await self._owner.drained()

    def end(self) -> None:
        """End the answer."""
        self._owner.end(None)

    def abort(self) -> None:
        """End the answer with the fault that the record has."""
        self._owner.end(_Fault(GrpcStatus.UNAVAILABLE, self.record.error or "Prediction failed"))


class TorchServeCalls:
    """The calls of the service."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self._contract = Contract(TORCHSERVE, FORM, self._find)

    def ping(self, _: pb.Empty) -> pb.TorchServeHealthResponse:
        """Tell if the models are ready."""
        word = "Healthy" if self.context.catalogue.readiness.is_ready else "Unhealthy"
        return pb.TorchServeHealthResponse(health=f'{{\n  "status": "{word}"\n}}')

    def run(
        self, asked: _Asked, owner: PredictionExchange | SequenceCall, responder: Responder, *, grant: Grant
    ) -> BodyExchange:
        """Begin to answer a request. Raises `GeartrainError`."""
        grant.check_model(asked.model)
        body, content_type = write_form(asked.fields)
        path = f"/predictions/{asked.model}"
        notes = RequestNotes("grpc", key=grant.name, principal=grant.principal, check_model=grant.check_model)
        whole = Whole(content_type, "", _sequence_fields(asked), "", "POST", path)
        params = {"id": asked.model, "version": asked.version}
        head = Head("POST", path.encode(), b"", (), notes=notes)
        exchange = BodyExchange(
            self._contract, head, params, whole=whole, responder=_RunAnswer(owner, responder.record)
        )
        exchange.receive(body)
        return exchange

    def _find(self, _head: Head, params: Params) -> Deployment:
        return self.context.catalogue.find_stated(params["id"], params["version"])


def _is_set(asked: _Asked, part: Part) -> bool:
    return bytes(asked.fields.get(sequence_field(part), b"")).lower() == _TRUE.encode()


def _sequence_fields(asked: _Asked) -> dict[str, str]:
    """Return the header fields that tell a handler of a sequence."""
    if not asked.sequence:
        return {}
    ends = {sequence_field(part): _TRUE for part in _ENDS if _is_set(asked, part)}
    return {sequence_field("id"): asked.sequence, **ends}


class PredictionExchange:
    """A call of `Predictions` or `StreamPredictions`. See `Exchange`."""

    def __init__(
        self, calls: TorchServeCalls, head: CallHead, responder: Responder, *, grant: Grant, streams: bool
    ) -> None:
        """`streams`: each piece is a message; otherwise all of them are one."""
        self._calls = calls
        self._head = head
        self._responder = responder
        self._grant = grant
        self._streams = streams
        self._joined = bytearray()
        self._run: BodyExchange | None = None
        self._answer = MessageAnswer(responder, head.timeout, self._leave)

    def receive(self, body: Body) -> None:
        """Read the message, and run the model."""
        start(self._receive(body))

    def abandon(self) -> None:
        """Give the run up: the client has gone."""
        self._answer.close()
        self._leave()

    async def _receive(self, body: Body) -> None:
        path = STREAM if self._streams else PREDICTIONS
        try:
            asked = _read(await unpack(body, path, self._head, limit=self._calls.context.max_message))
            if self._answer.is_over:
                return
            run = self._calls.run(asked, self, self._responder, grant=self._grant)
            if not self._answer.is_over:  # it may have ended at once
                self._run = run
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            self.end(_fault_of(error))

    def _leave(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.abandon()

    # calls of the run

    def give(self, piece: bytes) -> None:
        """Send a piece, or keep it for the one message."""
        if self._streams:
            self._answer.send(*frame(_response(piece)))
        elif len(self._joined) + len(piece) > _MOST_JOINED and self._joined:
            self._leave()
            text = f"The pieces have more than {_MOST_JOINED} bytes: call StreamPredictions."
            self.end(_Fault(GrpcStatus.RESOURCE_EXHAUSTED, text))
        else:
            self._joined += piece

    async def drained(self) -> None:
        """Wait while the client does not read."""
        await self._answer.drained()

    def end(self, fault: _Fault | None) -> None:
        """End the call."""
        self._run = None  # it refers to this
        if fault is not None:
            self._answer.finish(*fault)
            return
        if not self._streams:
            self._answer.send(*frame(_response(self._joined)))
        self._answer.finish(GrpcStatus.OK)


class SequenceCall(StreamingCall):
    """A call of `StreamPredictions2`: its requests run one after the other, and their faults do not end it."""

    def __init__(
        self, calls: TorchServeCalls, head: CallHead, responder: Responder, *, owner: StreamingCalls, grant: Grant
    ) -> None:
        super().__init__(owner, head, responder, max_message=calls.context.max_message)
        self._calls = calls
        self._responder = responder
        self._grant = grant
        self._run: BodyExchange | None = None
        self._sequence = ""
        self._is_free = asyncio.Event()
        self._is_free.set()

    @property
    def is_idle(self) -> bool:
        """True if no request runs."""
        return self._is_free.is_set()

    def drop(self) -> None:
        """Give the run up."""
        run, self._run = self._run, None
        if run is not None:
            run.abandon()

    async def take(self, message: Body, *, mirrors: bool) -> None:  # noqa: ARG002 - answers are not compressed
        """Run the model for the next request, when the one before has been answered."""
        await self._is_free.wait()
        record_of(self._responder).requests += 1
        self._sequence = ""
        self._is_free.clear()
        try:
            asked = _read(message)
            sequence = asked.sequence or (f"ts-seq-{uuid.uuid4()}" if _is_set(asked, "start") else "")
            if not sequence:
                raise _MissingError("Parameter sequenceId is required.")
            self._sequence = sequence
            run = self._calls.run(asked._replace(sequence=sequence), self, self._responder, grant=self._grant)
            if not self.is_idle:  # it may have ended at once
                self._run = run
        except Exception as error:  # noqa: BLE001 - the border of a request: whatever it is becomes a status
            self.end(_fault_of(error))

    # calls of the run

    def give(self, piece: bytes) -> None:
        """Send a piece."""
        self.answer.send(*frame(_response(piece, self._sequence)))

    async def drained(self) -> None:
        """Wait while the client does not read."""
        await self.answer.drained()

    def end(self, fault: _Fault | None) -> None:
        """Take the next request, after a message with the fault of this one."""
        if fault is not None:
            record_of(self._responder).failures += 1
            status = pb.Status(code=fault.status, message=fault.text)
            response = pb.PredictionResponse(status=status, sequenceId=self._sequence or None)
            self.answer.send(*frame((response.SerializeToString(),)))
        self._run = None
        self._is_free.set()
        self.settle()


def _response(piece: Buffer, sequence: str = "") -> tuple[Buffer, ...]:
    """Return the parts of a `PredictionResponse`."""
    rest = pb.PredictionResponse(sequenceId=sequence).SerializeToString() if sequence else b""
    return (_PREDICTION_TAG + varint(len(piece)), piece, rest) if len(piece) else (rest,)
