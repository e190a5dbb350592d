"""The generate extension: `POST v2/models/{name}[/versions/{version}]/generate`, `…/generate_stream`, `…/infer_stream`.

The outputs of a run are one JSON object, or one event each as they come.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.apis import generate, open_inference
from geartrain.apis.generate import GenerateView
from geartrain.apis.open_inference import ALL_JSON
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Event, Output
from geartrain.domain.predictions.inference import InferResponse
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models import inference
from geartrain.service.models.admission import CheckedInput, Interface
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import EventReader, LaggedError
from geartrain.transport.errors import BUG
from geartrain.transport.large_bodies import GenerateBody, InferBody, LargeBodies, read_aside
from geartrain.transport.open_inference.exchanges import ModelExchange, RunHead, ServerContext
from geartrain.transport.runs import DIRECT_LIMIT, start
from geartrain.transport.wire.exchange import Answer, AnswerStream, Body, ClientGoneError, Responder

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long
logger = logging.getLogger(__name__)

_EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_PIECE: Final = 65_536  # bytes: more than that a connection does not take at once


class Generation:
    """A prediction for a client that wants text, whole or as it comes."""

    def __init__(self, deployment: Deployment, body: Body | GenerateBody, origin: RequestContext) -> None:
        """Start the prediction that a request's body asks for; raises `GeartrainError`."""
        deployment.workers.check_ready()
        signature, view = deployment.interface.signature, deployment.interface.view
        checked: CheckedInput | None = None
        if isinstance(body, GenerateBody):
            asked, checked = body.request, body.checked
        else:
            asked = generate.read_request(body, signature, view)
        self._deployment = deployment
        self._interface = deployment.interface
        self._is_stream = view.streams
        self._view = GenerateView(signature, view)
        self._model = (deployment.name, deployment.version)
        self._id = asked.request.id
        self.prediction: Prediction = inference.create_from_json(
            deployment, asked.values, asked.request, origin=origin, tensors=asked.tensors, checked=checked
        )

    def whole(self) -> bytes:
        """Return the one response of a run that is over; raises `GeartrainError` if it failed."""
        prediction = self.prediction
        inference.check_success(self._deployment, prediction)
        output = None if self._is_stream else prediction.output  # that of a stream would be joined for nothing
        return generate.encode_response(self._model, self._id, self._view.whole(output, prediction.chunks))

    @property
    def is_large(self) -> bool:
        """True if the one response takes long to write."""
        return sum(map(len, self.prediction.chunks)) > DIRECT_LIMIT

    async def whole_aside(self, bodies: LargeBodies) -> Buffer:
        """Make the whole answer, without holding the loop."""
        inference.check_success(self._deployment, self.prediction)
        return await bodies.generated(self._interface, self.prediction.chunks, (*self._model, self._id))

    async def event(self, event: Event, bodies: LargeBodies) -> tuple[Buffer, ...]:
        """Return the response for an event of the run, if there is one; raises `GeartrainError` if the run failed."""
        if type(event) is Output:
            if len(event.chunk) > DIRECT_LIMIT:
                asked = (*self._model, self._id)
                response = await bodies.generated(self._interface, (event.chunk,), asked, is_whole=False)
                return generate.event_parts(response)
            written = generate.encode_response(self._model, self._id, self._view.one(event.chunk))
            return (generate.encode_event(written),)
        if type(event) is Completed:
            inference.check_success(self._deployment, self.prediction)
        return ()

    def abandon(self) -> None:
        """Cancel the prediction if it still runs: no client waits for it any more."""
        self._deployment.predictions.abandon(self.prediction)


class TensorGeneration(Generation):
    """A prediction for a client of MLServer: it sends an infer request, and gets infer responses."""

    def __init__(
        self, deployment: Deployment, body: Body | InferBody, origin: RequestContext, *, context: ServerContext
    ) -> None:
        """Start the prediction that a request's body asks for; raises `GeartrainError`."""
        interface = deployment.interface
        view = interface.view
        if isinstance(body, InferBody):
            request, forms, bound, checked = body.request, body.forms, body.bound, body.checked
        else:
            request, forms = open_inference.read_request(body, None, view, fetch=context.regions.read)
            bound, checked = view.bind(request.inputs), None
        if forms.binary or forms.places or any(forms.binary_of.values()):
            msg = "outputs come in JSON here: leave out binary_data and shared memory, or use infer"
            raise GeartrainError(Code.INVALID_INPUT, msg)
        open_inference.check_forms(view, request.outputs, forms)
        self._deployment = deployment
        self._interface = interface
        self._context = context
        self._request = request
        self.prediction = inference.create_bound(deployment, request, bound, origin=origin, checked=checked)

    def whole(self) -> bytes:
        """Return the one response of a run that is over; raises `GeartrainError` if it failed."""
        return self._written(inference.response(self._deployment, self.prediction, self._request))

    async def whole_aside(self, bodies: LargeBodies) -> Buffer:
        """Make the whole answer, without holding the loop."""
        inference.check_success(self._deployment, self.prediction)
        outputs = await bodies.outputs(self._interface, self.prediction.chunks)
        response = inference.response(self._deployment, self.prediction, self._request, outputs=outputs)
        return await self._written_aside(response, bodies)

    async def event(self, event: Event, bodies: LargeBodies) -> tuple[Buffer, ...]:
        """Return the response for an event of the run, if there is one; raises `GeartrainError` if the run failed."""
        if type(event) is Output:
            outputs = await bodies.outputs(self._interface, (event.chunk,), is_whole=False)
            response = inference.response_of(self._deployment, event.chunk, self._request, outputs=outputs)
            if len(event.chunk) > DIRECT_LIMIT:
                return generate.event_parts(await self._written_aside(response, bodies))
            return generate.event_parts(self._written(response))
        if type(event) is Completed:
            inference.check_success(self._deployment, self.prediction)
        return ()

    async def _written_aside(self, response: InferResponse, bodies: LargeBodies) -> bytes:
        await self._context.arrays.load()
        texts = await bodies.texts(response.outputs)
        return await read_aside(lambda: self._written(response, texts))

    def _written(self, response: InferResponse, texts: Mapping[str, Buffer] = open_inference.NO_TEXTS) -> bytes:
        store = self._context.regions.write
        return b"".join(open_inference.encode_response(response, ALL_JSON, store=store, texts=texts).parts)


class GenerateExchange(ModelExchange):
    """One request that is answered with exactly one response, whatever the model gives.

    It is one of Triton's extension, or an infer request, which MLServer takes at these paths.
    """

    __slots__ = ("_generation", "_read_for")

    _generation: Generation
    _read_for: Interface

    async def prepare(self, body: Body) -> Body | GenerateBody | InferBody:
        """Decompress a body, and read a large one."""
        body = await super().prepare(body)
        if len(body) <= DIRECT_LIMIT:
            return body
        deployment = self._context.catalogue.find(self._head.name, self._head.version)
        deployment.workers.check_ready()
        bodies, interface = self._context.bodies, deployment.interface
        if not await read_aside(lambda: self.holds_tensors(body, interface)):
            return await bodies.read_generate(body, interface)
        await self._context.arrays.load()
        self._read_for = interface
        return await bodies.read_infer(body, None, interface, fetch=self._context.regions.read)

    def holds_tensors(self, body: Body, interface: Interface) -> bool:
        """True if a body is an infer request."""
        return generate.holds_tensors(body, interface.signature, interface.view)

    def admit(self, body: Any) -> Prediction:
        """Start the prediction; raises `GeartrainError`."""
        deployment = self._context.catalogue.find(self._head.name, self._head.version)
        deployment.workers.check_ready()
        interface, origin = deployment.interface, self.record.context_for(deployment.settings.forwarded)
        if isinstance(body, InferBody) and interface is not self._read_for:  # the model has been reloaded
            body = msgspec.structs.replace(body, bound=interface.view.bind(body.request.inputs), checked=None)
        if isinstance(body, InferBody) or (type(body) is not GenerateBody and self.holds_tensors(body, interface)):
            self._generation = TensorGeneration(deployment, body, origin, context=self._context)
        else:
            self._generation = Generation(deployment, body, origin)
        return self._generation.prediction

    def answer(self) -> Answer:
        """Return the response; raises `GeartrainError` if the run failed."""
        return Answer(_OK, (self._generation.whole(),))

    def is_answered_aside(self) -> bool:
        """True if the outputs are large."""
        return self._generation.is_large

    async def answer_aside(self) -> Answer:
        """Return the answer, made beside the loop."""
        return Answer(_OK, (await self._generation.whole_aside(self._context.bodies),))

    def forsake(self, prediction: Prediction) -> None:  # noqa: ARG002 - it is that of the generation
        """Cancel the prediction: its client has disconnected."""
        self._generation.abandon()


class GenerateStreamExchange(GenerateExchange):
    """One request that is answered with one event for each output, as it comes.

    The status is that of the first response (the document of the extension), so the head waits for it.
    """

    __slots__ = ("_reader", "_stream")

    def __init__(self, context: ServerContext, head: RunHead, responder: Responder) -> None:
        super().__init__(context, head, responder)
        self._reader: EventReader | None = None  # before the prediction has been admitted
        self._stream: AnswerStream | None = None

    def follow(self, prediction: Prediction) -> None:
        """Write what the prediction gives from now on."""
        self._reader = reader = EventReader(prediction)  # before the prediction can change
        start(self._follow(reader))

    def abandon(self) -> None:
        """Cancel the prediction and stop writing: the client has disconnected."""
        super().abandon()
        if self._reader is not None:
            self._generation.abandon()
            self._reader.wake()

    async def _follow(self, reader: EventReader) -> None:
        try:
            with contextlib.suppress(ClientGoneError):
                await self._write_all(reader)
        finally:
            reader.close()
            self._generation.abandon()  # the prediction may still run, and has no reader

    async def _write_all(self, reader: EventReader) -> None:
        try:
            await self._write_responses(reader)
        except ClientGoneError:
            raise
        except GeartrainError as error:
            await self._tell(error)
        except Exception:
            logger.exception("an endpoint failed")
            await self._tell(BUG)

    async def _write_responses(self, reader: EventReader) -> None:
        """Write responses as they come, until the last one or until the client has gone; raises `GeartrainError`."""
        over = False
        while not over:
            try:
                events = await reader.batch()
            except LaggedError:
                if self._has_left:  # which is why it did not read
                    return
                msg = "The client reads too slowly; responses were dropped."
                raise GeartrainError(Code.TOO_MANY_READERS, msg) from None
            if self._has_left:
                return
            over = bool(events) and type(events[-1]) is Completed
            await self._write_pieces(events)
        self._open().end()

    async def _write_pieces(self, events: Iterable[Event]) -> None:
        """Write responses together, as many as a connection takes at once; those before a fault are written too."""
        piece = bytearray()
        try:
            for event in events:
                for part in await self._generation.event(event, self._context.bodies):
                    view = memoryview(part)
                    for at in range(0, len(view), _PIECE):  # large data is not copied as a whole
                        piece += view[at : at + _PIECE]
                        if len(piece) > _PIECE:
                            full, piece = bytes(piece), bytearray()
                            await self._open().write(full)
        finally:
            if piece:
                await self._open().write(bytes(piece))

    async def _tell(self, error: GeartrainError) -> None:
        """Tell of an error: as an answer of its own, or as the last event once there has been one."""
        if self._stream is None:
            self._responder.respond(self.refuse(error))
        else:
            await self._stream.write(generate.encode_event(open_inference.encode_error(error)))
            self._stream.end()

    def _open(self) -> AnswerStream:
        """Return the stream, whose head is sent with the first piece."""
        if self._stream is None:
            self._stream = self._responder.open_stream(HTTPStatus.OK, _EVENT_STREAM)
        return self._stream


class InferStreamExchange(GenerateStreamExchange):
    """One infer request that is answered with one event for each output: MLServer's `infer_stream`."""

    __slots__ = ()

    def holds_tensors(self, body: Body, interface: Interface) -> bool:  # noqa: ARG002 - of any body
        """Return True: this path takes nothing else."""
        return True
