"""The models of a replica, as Ray asks about them and has them changed."""

from __future__ import annotations

import logging
from collections.abc import Collection

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.entry import ModelEntry

logger = logging.getLogger("geartrain.ray")


class ReplicaLostError(Exception):
    """A model that was served is gone, such as by a crash; Ray starts another replica."""


class ReplicaModels:
    """Says how the models are, and loads and unloads them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def check_health(self) -> None:
        """Raise `ReplicaLostError` for a model that was served until its worker crashed, with no other to follow it.

        A model whose setup has failed is none of these: another replica would meet the same.
        """
        entries = (self._catalogue.entry(name) for name in self._catalogue.names())
        lost = [entry.describe_state() for entry in entries if _is_lost(entry)]
        if lost:
            raise ReplicaLostError(" ".join(lost))

    def load(self) -> float:
        """Return the number of replicas that its work would keep busy: 1 for used slots and an empty queue.

        It is that of the model with most to do for its slots.
        """
        return max(
            (
                len(deployment.executions.live) / deployment.workers.permits.size
                for deployment in self._catalogue.deployments()
                if deployment.workers.permits.size
            ),
            default=0.0,
        )

    async def reload(self) -> None:
        """Load every model anew, one after the other. One that cannot be loaded goes on as it is; the log says why."""
        for name in self._catalogue.names():
            if self._catalogue.entry(name).is_wanted:
                await self._change(name, is_wanted=True, anew=True)

    async def have(self, names: Collection[str]) -> None:
        """Have these models loaded, and no others."""
        catalogue = self._catalogue
        loaded = {name for name in catalogue.names() if catalogue.entry(name).is_wanted}
        for name in sorted(loaded ^ set(names)):
            await self._change(name, is_wanted=name in names)

    async def _change(self, name: str, *, is_wanted: bool, anew: bool = False) -> None:
        catalogue = self._catalogue
        try:
            await (catalogue.load(name, anew=anew) if is_wanted else catalogue.unload(name))
        except GeartrainError as error:
            logger.error("the model %r: %s", name, error.message)  # noqa: TRY400 - the sentence says all


def _is_lost(entry: ModelEntry) -> bool:
    return any(deployment.workers.health is Health.DEFUNCT for deployment in entry.available.values())
