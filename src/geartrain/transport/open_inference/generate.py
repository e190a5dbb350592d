"""`POST v2/models/{name}[/versions/{version}]/generate`: the outputs of a run as one JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

from geartrain.apis import generate
from geartrain.apis.generate import GenerateView
from geartrain.domain.predictions.events import Completed, Event, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.service.models import inference
from geartrain.service.models.admission import CheckedInput
from geartrain.service.models.deployment import Deployment
from geartrain.transport.large_bodies import GenerateBody
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
        self._view = GenerateView(signature, view)
        self._model = (deployment.name, deployment.version)
        self._id = asked.request.id
        self.prediction: Prediction = inference.create_from_json(
            deployment, asked.values, asked.request, origin=origin, tensors=asked.tensors, checked=checked
        )

    def whole(self) -> bytes:
        """Return the one response of a run that is over; raises `GeartrainError` if it failed."""
        inference.check_success(self._deployment, self.prediction)
        return generate.encode_response(self._model, self._id, self._view.whole(self.prediction))

    def events(self, events: Iterable[Event]) -> Iterator[bytes]:
        """Yield the responses for these events of the run; raises `GeartrainError` at one that says it failed."""
        for event in events:
            if type(event) is Output:
                response = generate.encode_response(self._model, self._id, self._view.one(event.chunk))
                yield generate.encode_event(response)
            elif type(event) is Completed:
                inference.check_success(self._deployment, self.prediction)

    def abandon(self) -> None:
        """Cancel the prediction if it still runs: no client waits for it any more."""
        self._deployment.predictions.abandon(self.prediction)


class GenerateExchange(ModelExchange):
    """One request that is answered with exactly one response, whatever the model gives."""

    __slots__ = ("_generation",)

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

    def forsake(self, prediction: Prediction) -> None:  # noqa: ARG002 - it is that of the generation
        """Cancel the prediction: its client has disconnected."""
        self._generation.abandon()
