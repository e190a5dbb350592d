"""Cog's training endpoints: those of predictions, for another service. Observed Cog, section 20."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.trainings import Trainings
from geartrain.transport.http.predictions import PredictionEndpoints, accepts_event_stream

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_NO_STREAMS: Final = "Training endpoints do not support streaming responses."


class TrainingEndpoints(PredictionEndpoints):
    """`POST /trainings`, `PUT /trainings/{id}`, `POST /trainings/{id}/cancel`."""

    noun = "training"

    def __init__(self, trainings: Trainings, *, max_body_bytes: int) -> None:
        super().__init__(trainings.ref, max_body_bytes=max_body_bytes)
        self._trainings = trainings

    @staticmethod
    def is_plain(headers: list[tuple[bytes, bytes]], limit: int) -> bool:  # noqa: ARG004 - as of predictions
        """Leave every training to ASGI: it may have to wait until the model is loaded."""
        return False

    async def _respond(self, scope: Scope, receive: Receive, send: Send, *, url_id: str | None) -> None:
        if accepts_event_stream(scope["headers"]):
            raise GeartrainError(Code.NOT_ACCEPTABLE, _NO_STREAMS)
        await self._trainings.ready()
        await super()._respond(scope, receive, send, url_id=url_id)
