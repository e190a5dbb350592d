"""Cog's training endpoints: those of predictions, for another model. Observed Cog, section 20."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.trainings import Trainings
from geartrain.transport.cog.api import COG, CogOptions
from geartrain.transport.cog.headers import read_headers
from geartrain.transport.cog.predictions import PredictionEndpoints, PredictionExchange, PredictionWish
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.routing import Params
from geartrain.transport.wire.exchange import Body, Decision, Head, Responder

if TYPE_CHECKING:
    from geartrain.transport.cog.durable import StoredPredictions

_NO_STREAMS: Final = "Training endpoints do not support streaming responses."


class TrainingEndpoints(PredictionEndpoints):
    """`POST /trainings`, `PUT` and `GET /trainings/{id}`, `POST /trainings/{id}/cancel`."""

    noun = "training"

    def __init__(
        self, trainings: Trainings, options: CogOptions, bodies: LargeBodies, *, stored: StoredPredictions | None = None
    ) -> None:
        super().__init__(lambda _params: trainings.ref, options, bodies, stored=stored)
        self.trainings = trainings

    def create(self, head: Head, params: Params) -> Decision:
        """Make a training, which has no stream."""
        if read_headers(head.headers).event_stream:
            return COG.refuse(GeartrainError(Code.NOT_ACCEPTABLE, _NO_STREAMS))
        return super().create(head, params)

    def _exchange(self, wish: PredictionWish) -> Callable[[Responder], PredictionExchange]:
        return partial(TrainingExchange, self, wish) if self.stored is None else self.stored.exchange(self, wish)


class TrainingExchange(PredictionExchange):
    """One request for a training, which may have to wait until its model is loaded."""

    __slots__ = ("_trainings",)

    def __init__(self, endpoints: TrainingEndpoints, wish: PredictionWish, responder: Responder) -> None:
        super().__init__(endpoints, wish, responder)
        self._trainings = endpoints.trainings

    async def find(self) -> Deployment:
        """Wait until the model is loaded."""
        await self._trainings.ready()
        return await super().find()

    def is_large(self, body: Body) -> bool:  # noqa: ARG002 - as of its base class
        """Let every training wait for its model."""
        return True

    async def prepare(self, body: Body) -> NewPrediction:
        """Wait until the model is loaded."""
        await self._trainings.ready()
        return await super().prepare(body) if super().is_large(body) else self.read(body)
