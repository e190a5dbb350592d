"""Store lifecycle of a server: opened at its start, left at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from geartrain.service.durable.durability import Durability

if TYPE_CHECKING:
    from geartrain.server.outbound import Outbound
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.models.trainings import Trainings


class DurablePart(Protocol):
    """The durable part of a server's lifecycle."""

    @property
    def durability(self) -> Durability | None:
        """The store as the service uses it."""

    async def start(self) -> None:
        """Take up what is to be run again."""

    def leave(self) -> None:
        """From now on, leave to the next server what has not succeeded."""

    async def stop(self, webhook_grace: float) -> None:
        """Write what has ended, deliver its webhooks within so many seconds, and leave the rest."""


class NoDurablePart:
    """Of a server without a store."""

    durability: Durability | None = None

    async def start(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""

    async def stop(self, webhook_grace: float) -> None:
        """Do nothing."""


class Served(NamedTuple):
    """Parts that stored predictions need to run again, and to report their ends."""

    catalogue: Catalogue
    trainings: Trainings | None
    outbound: Outbound
