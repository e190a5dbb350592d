"""Stores under test: every implementation, with a clock that the test turns."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from geartrain.domain.predictions.ledger import Claim, Key, Ownership, Retry, Submission
from geartrain.service.ledger import StorePort
from geartrain.store.store import open_store
from tests.support.memory_store import MemoryStore
from tests.support.postgres import Postgres

KINDS: Final = ("memory", "sqlite", "postgres")
MODEL: Final = "model"
LEASE: Final = 15.0  # seconds
LIMIT: Final = 40.0  # seconds for which a store may take to answer on a busy machine


class Clock:
    """The time of a test, in seconds since the epoch."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A store, and the clock that it goes by."""

    def __init__(self, store: StorePort, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.ledger = store.ledger
        self.outbox = store.outbox
        self.replicas = store.replicas
        self.batches = store.batches

    async def join(self, *owners: str) -> None:
        """Let replicas have leases from now on."""
        for owner in owners:
            await self.replicas.renew(owner, address=f"{owner}:5000", seconds=LEASE)

    async def accept(
        self, name: str, owner: str = "a", *, retry: Retry = "always", attempts: int = 3, has_secret: bool = False
    ) -> Ownership:
        """Accept a prediction of that id, which must be free."""
        submission = Submission(f"request of {name}".encode(), has_secret, retry, attempts)
        result = await self.ledger.accept(claim(name, owner), submission)
        assert result.is_granted
        return result.row.ownership

    async def claim(self, name: str, owner: str = "a", *, reuse: bool = False) -> Ownership:
        """Claim an id, which must be free."""
        result = await self.ledger.claim(claim(name, owner, reuse=reuse))
        assert result.is_granted
        return result.row.ownership


def claim(name: str, owner: str = "a", *, model: str = MODEL, reuse: bool = False) -> Claim:
    return Claim(Key(model, name), owner, version="3", created_at=7.5, echo=b'{"x":1}', reuse=reuse)


async def open_bench(kind: str, folder: Path, postgres: Postgres | None) -> Bench:
    """Open a new, empty store."""
    clock = Clock()
    if kind == "memory":
        return Bench(MemoryStore(clock=clock), clock)
    if kind == "sqlite":
        return Bench(
            await open_store(f"sqlite:///{folder}/store.db", clock=clock, files_above=1000, answer_within=LIMIT), clock
        )
    assert postgres is not None
    return Bench(await open_store(postgres.emptied(), clock=clock, answer_within=LIMIT), clock)
