"""`ModelStreamInfer`: any number of requests on one call. They run at once, and their responses come as they are made.

A response belongs to its request by the id. What is wrong with one request is said in a response of its own, and the
stream goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import grpc

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import EventReader, LaggedError, completion
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc.access import CallAccess
from geartrain.transport.grpc.errors import Context, abort, as_geartrain_error, describe
from geartrain.transport.grpc.regions import write_outputs
from geartrain.transport.grpc.translate import (
    Call,
    Message,
    encode_end,
    encode_error,
    encode_in_stream,
    parse,
    read_call,
    within,
)

MAX_AT_ONCE: Final = 1024  # requests of one stream; further ones are left in the connection until one is answered


class InferStreams:
    """Answers `ModelStreamInfer`, and ends the streams that wait for requests when the server does."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions, access: CallAccess) -> None:
        self.catalogue = catalogue
        self.regions = regions
        self.access = access
        self._open: set[_Stream] = set()
        self._closing = False

    async def stream(self, _: object, context: Context) -> None:
        """Answer one call."""
        try:
            self.access.grant(context, "predict")
        except GeartrainError as error:
            await abort(context, error)
        stream = _Stream(self, context)
        self._open.add(stream)
        if self._closing:
            stream.close()
        try:
            await stream.serve()
        finally:
            self._open.discard(stream)

    def close(self) -> None:
        """Read no further requests; running ones may end."""
        self._closing = True
        for stream in self._open:
            stream.close()


class _Stream:
    """One call of `ModelStreamInfer`."""

    def __init__(self, owner: InferStreams, context: Context) -> None:
        self._owner = owner
        self._context = context
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._turn = asyncio.Lock()  # one message is written at a time
        self._answers: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] = asyncio.ensure_future(self._read())
        self._closed = False

    def close(self) -> None:
        """Read no further requests."""
        self._closed = True
        self._reader.cancel()

    async def serve(self) -> None:
        """Read and answer requests until the client ends the stream, or disconnects."""
        try:
            await asyncio.wait({self._reader})
            while self._answers:
                await asyncio.wait(set(self._answers))
        finally:  # nothing is left here unless the client has gone
            self._reader.cancel()
            for answer in self._answers:
                answer.cancel()
        if self._closed:
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, "The server is shutting down.")
        self._reader.result()

    async def _read(self) -> None:
        while True:
            await self._places.acquire()
            data = await self._context.read()
            if data is grpc.aio.EOF:
                return
            answer = asyncio.ensure_future(self._answer(data))
            self._answers.add(answer)
            answer.add_done_callback(self._on_answered)

    def _on_answered(self, answer: asyncio.Task[None]) -> None:
        self._answers.discard(answer)
        self._places.release()
        if not answer.cancelled() and answer.exception() is not None:
            self._reader.cancel()  # it could not be written: the client has gone

    async def _answer(self, data: bytes) -> None:
        """Answer one request, whatever comes of it."""
        try:
            message = parse(data)
        except GeartrainError as error:
            await self._write(encode_error(describe(error), ""))
            return
        try:
            # Each request anew: a stream may last longer than its key.
            self._owner.access.grant(self._context, "predict").check_model(message.head.model_name)
            call = read_call(message, self._owner.regions)
            deployment = self._owner.catalogue.find(call.model, call.version)
            request = within(call.request, self._context.time_remaining())
            prediction = inference.create(deployment, request)
        except Exception as error:  # noqa: BLE001 - the border of a request: whatever it is, its client hears of it
            await self._write_error(error, message)
            return
        try:
            if deployment.interface.view.streams:
                await self._answer_each(deployment, prediction, call)
            else:
                await self._answer_once(deployment, prediction, call)
        except asyncio.CancelledError:
            deployment.predictions.abandon(prediction)
            raise
        except grpc.aio.BaseError:
            deployment.predictions.abandon(prediction)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            deployment.predictions.abandon(prediction)
            await self._write_error(error, message, deployment.name)

    async def _answer_once(self, deployment: Deployment, prediction: Prediction, call: Call) -> None:
        if not prediction.is_terminal:
            await completion(prediction)
        response = inference.response(deployment, prediction, call.request)
        write_outputs(self._owner.regions, call.places, response.outputs)
        await self._write(encode_in_stream(response, call.places, final=True))

    async def _answer_each(self, deployment: Deployment, prediction: Prediction, call: Call) -> None:
        reader = EventReader(prediction)
        with contextlib.closing(reader):
            while True:
                try:
                    events = await reader.batch()
                except LaggedError as error:
                    raise GeartrainError(Code.TOO_LARGE, f"Responses were not read in time: {error}") from None
                for event in events:
                    if type(event) is Output:
                        response = inference.response_of(deployment, event.chunk, call.request)
                        write_outputs(self._owner.regions, call.places, response.outputs)
                        await self._write(encode_in_stream(response, call.places, final=False))
                    elif type(event) is Completed:
                        inference.check_success(deployment, prediction)
                        if call.empty_final:
                            await self._write(encode_end(call))
                        return

    async def _write_error(self, error: Exception, message: Message, model: str | None = None) -> None:
        await self._write(encode_error(describe(as_geartrain_error(error)), message.head.id, model))

    async def _write(self, data: bytes) -> None:
        async with self._turn:
            await self._context.write(data)
