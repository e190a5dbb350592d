"""Calls whose client sends any number of messages, and `ModelStreamInfer`, whose requests run at once.

One task for each call reads its messages, one after the other. Responses come as they are made, and belong to their
requests by the id. A fault of one request is told in a response of its own, and the stream goes on. A request makes no
task unless its model yields.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Sequence
from typing import Final, cast

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Output
from geartrain.domain.predictions.inference import InferResponse
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.service.models import inference
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.waking import when_loaded
from geartrain.service.readers import EventReader, LaggedError
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.context import CallContext
from geartrain.transport.grpc.framing import (
    PREFIX_SIZE,
    MessageAnswer,
    check_flag,
    frame,
    inflate,
    pack,
    pack_aside,
    read_prefix,
    too_large,
)
from geartrain.transport.grpc.heads import NO_TIMEOUT, CallError, CallHead, status_of
from geartrain.transport.grpc.infer import create, is_large, read_large
from geartrain.transport.grpc.translate import Call, encode_end, encode_error, within, write_outputs
from geartrain.transport.grpc.wire import find_id
from geartrain.transport.records import record_of
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Body, BodyReader, ClientGoneError, MessageReader, Responder

SHUTTING_DOWN: Final = "The server is shutting down."
_LONG: Final = 4096  # bytes of a message that takes a turn of its own
BURST: Final = 64  # messages that are there already, after which others have a turn
MAX_AT_ONCE: Final = 1024  # requests of one stream; further ones are left in the connection until one is answered
MAX_HELD: Final = 64 * 1024**2  # bytes of them, beyond which none is begun until one is answered
MAX_UNREAD: Final = 64 * 1024**2
"""Bytes of answers that are expected of what runs, by the size of earlier ones, beyond which no request is begun."""

FEWEST: Final = 16  # requests that run at once at first, when the size of their answers is not known
_PATIENCE: Final = 0.25  # seconds without an answer, after which twice as many may run
_ID_FIELDS: Final = 1000  # of a request that cannot be run: its id is looked for in them
_LARGE: Final = 65_536  # bytes of outputs that take long to compress, or to make of JSON


class StreamingCalls:
    """Those that are open at one server, so that they end when it does."""

    def __init__(self) -> None:
        self._open: set[StreamingCall] = set()
        self._is_closed = False

    def add(self, call: StreamingCall) -> None:
        """Note one that begins; it ends at once if the server does."""
        self._open.add(call)
        if self._is_closed:
            call.close()

    def discard(self, call: StreamingCall) -> None:
        """Forget one that is over."""
        self._open.discard(call)

    def close(self) -> None:
        """Have no further messages read; what runs may end."""
        self._is_closed = True
        for call in tuple(self._open):
            call.close()


class StreamingCall(abc.ABC):
    """One call. See `PartsExchange`.

    It ends when all messages have been read and `is_idle` says that nothing more is owed, when its client has gone,
    when its time is up, or with the status of a fault in how messages are sent.
    """

    def __init__(self, owner: StreamingCalls, head: CallHead, responder: Responder, *, max_message: int) -> None:
        """`max_message`: bytes, `NO_LIMIT` for any."""
        self._owner = owner
        self._head = head
        self._max_message = max_message
        self._status = GrpcStatus.OK
        self._text = ""
        self._reading: asyncio.Task[None] | None = None  # until all messages have been read, or none will be
        self._is_read = False
        self.answer = MessageAnswer(responder, head.timeout, self._drop_all, mirrors=head.mirrors)

    @abc.abstractmethod
    async def take(self, message: Body, *, mirrors: bool) -> None:
        """Take a message: answer it, or begin to. May wait before the next one is read.

        `mirrors`: it was compressed, and what answers it may be.
        """

    @property
    @abc.abstractmethod
    def is_idle(self) -> bool:
        """True if every message that was taken has been answered."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Drop the unfinished call: it has no reader."""

    # calls of the wire and the server

    def receive(self, body: BodyReader) -> None:
        """Begin to read."""
        reader = cast("MessageReader", body)  # which a request with `Head.has_trailers` has
        self._reading = asyncio.ensure_future(self._read(reader))
        self._reading.add_done_callback(self._on_read)
        self._owner.add(self)

    def abandon(self) -> None:
        """Give up everything: the client has gone."""
        self.answer.close()
        self._drop_all()

    def close(self) -> None:
        """Read no further messages; the server is about to end."""
        if self._reading is not None:
            self._status, self._text = GrpcStatus.UNAVAILABLE, SHUTTING_DOWN
            self._reading.cancel()

    # inside

    def settle(self) -> None:
        """End the call if nothing more will come of it; to be called when `is_idle` may have become true."""
        if self._is_read and self.is_idle:
            self.answer.finish(self._status, self._text)
            self._owner.discard(self)

    def _drop_all(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._owner.discard(self)
        self.drop()

    def _on_read(self, reading: asyncio.Task[None]) -> None:
        """Go on when all messages have been read, or none will be read any more."""
        self._reading = None  # its exception has frames that refer to this: a cycle
        self._is_read = True
        if not reading.cancelled():
            error = reading.exception()
            if isinstance(error, ClientGoneError):
                self.abandon()
                return
            if isinstance(error, Exception):
                self._drop_all()
                self.answer.finish(*status_of(error))
                return
        self.settle()

    async def _read(self, reader: MessageReader) -> None:
        count = 0
        while True:
            prefix = await reader.gather(PREFIX_SIZE)
            if not prefix:
                return
            message, is_compressed = await self._read_message(reader, prefix)
            await self.take(message, mirrors=is_compressed and self._head.mirrors)
            await self.answer.drained()
            count += 1
            if count % BURST == 0 or len(message) > _LONG:
                await asyncio.sleep(0)

    async def _read_message(self, reader: MessageReader, prefix: Body) -> tuple[Body, bool]:
        """Return a message, decompressed if it has to be, and whether it had to be."""
        if len(prefix) < PREFIX_SIZE:
            raise _cut_off()
        flag, size = read_prefix(prefix)
        check_flag(flag)
        if 0 < self._max_message < size:
            raise too_large(self._max_message)
        message = await reader.gather(size) if size else b""
        if len(message) < size:
            raise _cut_off()
        return (await inflate(message, self._head, self._max_message), True) if flag else (message, False)


def _cut_off() -> CallError:
    return CallError(GrpcStatus.INTERNAL, "The request ends within a message.")


class InferStream(StreamingCall):
    """One call."""

    def __init__(self, context: CallContext, head: CallHead, responder: Responder, *, owner: StreamingCalls) -> None:
        super().__init__(owner, head, responder, max_message=context.max_message)
        self._record = record_of(responder)
        self._context = context
        self._running: dict[_Run, int] = {}  # bytes of their messages
        self._held = 0  # bytes of all of them
        self._room = asyncio.Event()
        self._at_once = FEWEST  # that may run; one more with each answer
        self._typical = 0  # bytes of an answer; rises at once, falls slowly

    @property
    def is_idle(self) -> bool:
        """True if no request runs."""
        return not self._running

    def drop(self) -> None:
        """End what runs."""
        running, self._running = self._running, {}
        self._held = 0
        for run in running:
            run.abandon()

    async def take(self, message: Body, *, mirrors: bool) -> None:
        """Begin to answer a request, when there are few enough. The client has taken the answers so far."""
        while not self._has_room():
            self._room.clear()
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._room.wait()
            except TimeoutError:  # runs that take long make no large answers quickly
                self._at_once = min(2 * self._at_once, MAX_AT_ONCE)
        self._record.requests += 1
        context = self._context
        try:
            # Each request anew: a stream may last longer than its key.
            grant = context.access.grant(self._head, "predict")
            seconds = self.answer.seconds_left
            limit = None if seconds == NO_TIMEOUT else seconds
            if is_large(message):
                call = await read_large(context, message, grant, time_limit=limit)
            else:
                call = context.requests.read(message, 0, grant)
            await when_loaded(lambda: self._begin(call, len(message), mirrors=mirrors), limit)
        except Exception as error:  # noqa: BLE001 - the border of a request: whatever it is, its client hears of it
            self.send_error(error, find_id(message, _ID_FIELDS))

    def _has_room(self) -> bool:
        running = len(self._running)
        if running >= min(self._at_once, MAX_AT_ONCE) or self._held > MAX_HELD:
            return False
        return not running or (running + 1) * self._typical <= MAX_UNREAD

    def _begin(self, call: Call, size: int, *, mirrors: bool) -> None:
        context = self._context
        deployment = context.catalogue.find(call.model, call.version)
        seconds = self.answer.seconds_left
        request = call.request if seconds == NO_TIMEOUT else within(call.request, seconds)
        origin = self._record.context_for(deployment.settings.forwarded)
        prediction = create(deployment, call, request, origin=origin)
        if deployment.interface.view.streams:
            self._add(_YieldingRun(self, deployment, prediction, call=call, mirrors=mirrors), size)
            return
        run = _PlainRun(self, deployment, prediction, call=call, mirrors=mirrors)
        self._add(run, size)
        if prediction.is_terminal:
            run.finish()
        else:
            prediction.log.listen_for_end(run.finish)

    def _add(self, run: _Run, size: int) -> None:
        self._running[run] = size
        self._held += size

    # calls of its runs

    async def outputs(self, deployment: Deployment, pieces: Sequence[Buffer], *, is_whole: bool) -> list[Tensor] | None:
        """Make large outputs aside; see `LargeBodies.outputs`."""
        return await self._context.bodies.outputs(deployment.interface, pieces, is_whole=is_whole)

    def has(self, run: _Run) -> bool:
        """True if somebody still waits for what a run gives."""
        return run in self._running

    def discard(self, run: _Run) -> None:
        """Note that a run has given its last response, if anybody waits for it."""
        if run in self._running:
            self._held -= self._running.pop(run)
            self._room.set()
            self.settle()

    def write(self, response: InferResponse, call: Call, *, final: bool) -> list[Buffer]:
        """Return the parts of a response, to be packed and sent; raises `GeartrainError`."""
        write_outputs(self._context.regions, call.places, response.outputs)
        return self._context.responses.write_in_stream(response, call.places, final=final)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a response."""
        size = sum(map(len, parts))
        self._typical = max(size, (7 * self._typical + size) // 8)
        self._at_once = min(self._at_once + 1, MAX_AT_ONCE)
        self.answer.send(*parts)

    def send_end(self, call: Call) -> None:
        """Send the response that says no more than that a request gets no further one."""
        self.answer.send(*frame((encode_end(call),)))

    def send_error(self, error: Exception, request_id: str, model: str | None = None) -> None:
        """Send an error as a response; `model` when it has run."""
        self._record.failures += 1
        _, text = status_of(error)
        self.answer.send(*frame((encode_error(text, request_id, model),)))


class _PlainRun:
    """One request whose model gives all of its output at once."""

    __slots__ = ("_call", "_deployment", "_mirrors", "_prediction", "_stream")

    def __init__(
        self, stream: InferStream, deployment: Deployment, prediction: Prediction, *, call: Call, mirrors: bool
    ) -> None:
        """`mirrors`: the response may be compressed."""
        self._stream = stream
        self._deployment = deployment
        self._prediction = prediction
        self._call = call
        self._mirrors = mirrors

    def abandon(self) -> None:
        """End it: the stream has no reader. Nothing more is sent."""
        self._deployment.predictions.abandon(self._prediction)

    def finish(self) -> None:
        """Answer: the prediction is over."""
        stream, call, deployment = self._stream, self._call, self._deployment
        if not stream.has(self):
            return
        may_take_long = self._mirrors or deployment.interface.view.makes_outputs
        if may_take_long and sum(map(len, self._prediction.chunks)) > _LARGE:
            start(self._finish_aside())
            return
        try:
            response = inference.response(deployment, self._prediction, call.request)
            parts = stream.write(response, call, final=True)
            stream.send(pack(parts, mirrors=self._mirrors))
        except Exception as error:  # noqa: BLE001 - the border of a request: whatever it is, its client hears of it
            stream.send_error(error, call.request.id, deployment.name)
        stream.discard(self)

    async def _finish_aside(self) -> None:
        """Answer with a large response."""
        stream, call, deployment, prediction = self._stream, self._call, self._deployment, self._prediction
        try:
            inference.check_success(deployment, prediction)
            outputs = await stream.outputs(deployment, prediction.chunks, is_whole=True)
            parts = stream.write(
                inference.response(deployment, prediction, call.request, outputs=outputs), call, final=True
            )
            stream.send(await pack_aside(parts) if self._mirrors else frame(parts))
        except Exception as error:  # noqa: BLE001 - as above
            stream.send_error(error, call.request.id, deployment.name)
        stream.discard(self)


class _YieldingRun:
    """One request whose model gives its output piece by piece."""

    __slots__ = ("_call", "_deployment", "_mirrors", "_prediction", "_reader", "_stream", "_writing")

    def __init__(
        self, stream: InferStream, deployment: Deployment, prediction: Prediction, *, call: Call, mirrors: bool
    ) -> None:
        """`mirrors`: the responses may be compressed."""
        self._stream = stream
        self._deployment = deployment
        self._prediction = prediction
        self._call = call
        self._mirrors = mirrors
        self._reader = EventReader(prediction)  # before the prediction can change
        self._writing = asyncio.ensure_future(self._write())
        self._writing.add_done_callback(self._on_written)

    def abandon(self) -> None:
        """End it: the stream has no reader. Nothing more is sent."""
        self._writing.cancel()

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        del self._writing  # its exception has frames that refer to this: a cycle
        self._reader.close()
        self._deployment.predictions.abandon(self._prediction)  # which may still run, and has no reader
        if not writing.cancelled():
            error = writing.exception()
            if isinstance(error, Exception) and not isinstance(error, ClientGoneError):
                self._stream.send_error(error, self._call.request.id, self._deployment.name)
        self._stream.discard(self)

    async def _write(self) -> None:
        while not await self._write_batch():
            pass

    async def _write_batch(self) -> bool:
        """Write responses for what the run has given; return whether it is over."""
        stream, call, deployment = self._stream, self._call, self._deployment
        try:
            events = await self._reader.batch()
        except LaggedError as error:
            raise GeartrainError(Code.TOO_LARGE, f"Responses were not read in time: {error}") from None
        for index, event in enumerate(events, 1):
            if type(event) is Output:
                outputs = await stream.outputs(deployment, (event.chunk,), is_whole=False)
                response = inference.response_of(deployment, event.chunk, call.request, outputs=outputs)
                parts = stream.write(response, call, final=False)
                stream.send(await pack_aside(parts) if self._mirrors else frame(parts))
                await stream.answer.drained()
                if index % BURST == 0:
                    await asyncio.sleep(0)
            elif type(event) is Completed:
                inference.check_success(deployment, self._prediction)
                if call.empty_final:
                    stream.send_end(call)
                return True
        return False


_Run = _PlainRun | _YieldingRun
