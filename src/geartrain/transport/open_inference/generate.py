"""`POST v2/models/{name}[/versions/{version}]/generate`: the outputs of a run as one JSON object."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from geartrain.apis import generate
from geartrain.apis.generate import GenerateView
from geartrain.domain.predictions.events import Completed, Event, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models import inference
from geartrain.service.models.admission import CheckedInput
from geartrain.service.models.deployment import Deployment
from geartrain.transport.large_bodies import GenerateBody, LargeBodies
from geartrain.transport.open_inference.exchanges import ModelExchange
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import Answer, Body

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long


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


class GenerateExchange(ModelExchange):
    """One request that is answered with exactly one response, whatever the model gives."""

    __slots__ = ("_generation",)
    MAY_TAKE_LONG = True

    _generation: Generation

    async def prepare(self, body: Body) -> Body | GenerateBody:
        """Decompress a body, and read a large one."""
        body = await super().prepare(body)
        if len(body) <= DIRECT_LIMIT:
            return body
        deployment = self._context.catalogue.find(self._head.name, self._head.version)
        deployment.workers.check_ready()
        return await self._context.bodies.read_generate(body, deployment.interface)

    def admit(self, body: Any) -> Prediction:
        """Start the prediction; raises `GeartrainError`."""
        deployment = self._context.catalogue.find(self._head.name, self._head.version)
        self._generation = Generation(deployment, body, self.record.context)
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
