"""All that one server serves."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from geartrain.service.catalogue import Catalogue
from geartrain.service.predictions import PredictionService
from geartrain.service.trainings import Trainings


class Served(NamedTuple):
    """Predictions, trainings, a catalogue of models: what they have in common is when they end.

    `behind` is a catalogue that no door shows, because its only model is what the trainings train with.
    """

    predictions: PredictionService | None
    trainings: Trainings | None
    catalogue: Catalogue | None = None
    behind: Catalogue | None = None

    @property
    def services(self) -> tuple[PredictionService, ...]:
        """Each of them that is there now."""
        trainings = None if self.trainings is None else self.trainings.service
        loaded = [service for catalogue in self._catalogues for service in catalogue.services()]
        found = dict.fromkeys((self.predictions, *loaded, trainings))
        return tuple(service for service in found if service is not None)

    @property
    def _catalogues(self) -> list[Catalogue]:
        return [catalogue for catalogue in (self.catalogue, self.behind) if catalogue is not None]

    def close(self) -> None:
        """Admit nothing more."""
        if self.predictions is not None:
            self.predictions.close()
        for catalogue in self._catalogues:
            catalogue.close()
        if self.trainings is not None:
            self.trainings.close()

    def cancel_all(self) -> None:
        """Ask for the end of all that is live."""
        for service in self.services:
            service.cancel_all()

    async def drain(self, time_limit: float | None) -> bool:
        """Wait until nothing is live, at most `time_limit` seconds; return whether that came to be."""
        return all(await asyncio.gather(*(service.drain(time_limit) for service in self.services)))

    async def stop(self, *, hurry: bool) -> None:
        """End the models of the catalogues; `hurry`: let nobody wait for webhooks that do not arrive."""
        await asyncio.gather(*(catalogue.stop(hurry=hurry) for catalogue in self._catalogues))

    async def kill(self) -> None:
        """End every worker at once."""
        await asyncio.gather(*(service.model.stop(0) for service in self.services))

    async def drain_webhooks(self, grace: float) -> None:
        """Deliver what webhooks there are within `grace` seconds."""
        webhooks = (service.webhooks for service in self.services)
        await asyncio.gather(*(each.drain(grace) for each in webhooks if each is not None))
