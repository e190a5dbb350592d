"""Part of a server that has a store."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from geartrain.apis import cog
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import Retention
from geartrain.service.durable.durability import Durability, DurableSettings
from geartrain.service.durable.lease import Lease
from geartrain.service.durable.outbox import OutboxDispatcher
from geartrain.service.models.takeover import Takeover
from geartrain.service.models.waking import when_loaded
from geartrain.service.models.wanted import SharedControl
from geartrain.store.store import open_store

if TYPE_CHECKING:
    from geartrain.server.options import ServeOptions
    from geartrain.server.outbound import Outbound
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.models.deployment import Deployment
    from geartrain.service.models.trainings import Trainings
    from geartrain.service.ports import WebhookSenderPort

_TRAININGS: Final = "trainings/"
_TICKS: Final = "t"  # in front of a time in ticks; names of older servers have a time of day
_START: Final = 19  # the place of the start of a process in /proc/PID/stat, behind its name
_END_GRACE: Final = 5.0  # seconds for ends that could not be written yet


class Served(NamedTuple):
    """Parts that stored predictions need to run again, and to report their ends."""

    catalogue: Catalogue
    trainings: Trainings | None
    outbound: Outbound


class StorePart:
    """Lifecycle of the store: opened at the start of a server, left at its end."""

    def __init__(self, durability: Durability, served: Served) -> None:
        self.durability = durability
        self._takeover = Takeover(durability, _finder(served))
        self._outbox = OutboxDispatcher(durability, _senders(served))
        address = durability.settings.address
        self._lease = Lease(durability, address=address, is_dead=is_dead, take_over=self._takeover.look)
        self._control = SharedControl(served.catalogue, durability)
        if address:
            served.catalogue.control = self._control

    async def start(self) -> None:
        """Take up what is to be run again."""
        await self._lease.start()
        self._outbox.start()
        if self.durability.settings.address:
            self._control.start()

    def leave(self) -> None:
        """Leave to the next server what has not succeeded by now."""
        self.durability.leave()

    async def stop(self, webhook_grace: float) -> None:
        """Write what has ended, deliver its webhooks within `webhook_grace` seconds, and leave the rest."""
        self.leave()
        await self._control.stop()
        await self._takeover.stop()
        await self.durability.drain(_END_GRACE)
        await self._outbox.drain(webhook_grace)
        await self._lease.stop()
        await self.durability.store.close()


async def open_part(serve_options: ServeOptions, served: Served) -> StorePart:
    """Open the store that the options name; raise `StoreOptionError` for one that cannot be."""
    options = serve_options.store
    store = await open_store(options.url, key_file=options.key_file)
    settings = DurableSettings(
        lease=options.lease,
        attempts=options.attempts,
        retention=Retention(options.keep, options.max_bytes),
        has_key=options.key_file is not None,
        address=serve_options.cluster.advertise,
    )
    durability = Durability(
        store,
        owner=new_owner(),
        settings=settings,
        encode_end=lambda prediction: cog.encode_webhook(prediction, "completed"),
    )
    return StorePart(durability, served)


# the names of servers


def new_owner() -> str:
    """Return a name for this server process that no other one has had, and that tells which process it is."""
    return f"{_place()}/{os.getpid()}/{_started(os.getpid())}/{secrets.token_hex(8)}"


def is_dead(owner: str) -> bool:
    """True if that is the name of a server process of this machine, and the process is no more."""
    place, pid, created, *_ = (*owner.split("/"), "", "", "")
    if place != _place() or not pid.isdecimal():
        return False
    try:
        started = _started(int(pid))
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return created.startswith(_TICKS) and started != created


def _started(pid: int) -> str:
    """Return when a process began, in ticks since the start of the machine.

    Empty where that is not known: the time of day, from which it would follow, changes when the clock is set. Raises as
    psutil does.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        psutil.Process(pid)
        return ""
    return f"{_TICKS}{stat.rpartition(')')[2].split()[_START]}"


@functools.cache
def _place() -> str:
    """Name what process ids belong to: a machine since its start, and a namespace of processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return f"{socket.gethostname()}.{psutil.boot_time():.0f}"


# predictions of a table of ids


def _finder(served: Served) -> Callable[[str, str], Awaitable[Deployment]]:
    async def find(table: str, version: str) -> Deployment:
        if not table.startswith(_TRAININGS):
            return await when_loaded(lambda: served.catalogue.entry(table).deployment(version))
        if served.trainings is None or served.trainings.ref.entry.name != table.removeprefix(_TRAININGS):
            raise GeartrainError(Code.NOT_FOUND, "This server has no such training.")
        await served.trainings.ready()
        return served.trainings.ref.deployment

    return find


def _senders(served: Served) -> Callable[[str], WebhookSenderPort]:
    def sender_of(table: str) -> WebhookSenderPort:
        name = table.removeprefix(_TRAININGS)
        for known in served.catalogue.names():
            if known == name and (default := served.catalogue.entry(name).default):
                return default[0].webhooks().sender
        if served.trainings is not None and served.trainings.ref.entry.name == name:
            return served.trainings.ref.deployment.webhooks().sender
        return served.outbound.own_webhooks().sender

    return sender_of
