"""All that one server serves."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from geartrain.service.predictions import PredictionService
from geartrain.service.trainings import Trainings


class Served(NamedTuple):
    """Predictions, trainings, or both: what they have in common is when they end."""

    predictions: PredictionService | None
    trainings: Trainings | None

    @property
    def services(self) -> tuple[PredictionService, ...]:
        """Each of them."""
        trainings = None if self.trainings is None else self.trainings.service
        return tuple(service for service in (self.predictions, trainings) if service is not None)

    def close(self) -> None:
        """Admit nothing more."""
        if self.predictions is not None:
            self.predictions.close()
        if self.trainings is not None:
            self.trainings.close()

    def cancel_all(self) -> None:
        """Ask for the end of all that is live."""
        for service in self.services:
            service.cancel_all()

    async def drain(self, time_limit: float | None) -> bool:
        """Wait until nothing is live, at most `time_limit` seconds; return whether that came to be."""
        return all(await asyncio.gather(*(service.drain(time_limit) for service in self.services)))

    async def drain_webhooks(self, grace: float) -> None:
        """Deliver what webhooks there are within `grace` seconds."""
        webhooks = (service.webhooks for service in self.services)
        await asyncio.gather(*(each.drain(grace) for each in webhooks if each is not None))
