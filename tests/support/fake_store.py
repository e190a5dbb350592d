"""A store in memory for unit tests: one row after the other, with faults and holds that the test decides."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import (
    Checkpoint,
    Claim,
    ClaimResult,
    End,
    Hold,
    Key,
    OutboxEntry,
    Owned,
    Ownership,
    Page,
    Replica,
    Row,
    RowState,
    Submission,
    TakenOver,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.principal import ANYONE, Principal
from tests.support.memory_store import MemoryStore, answered

DOWN = GeartrainError(Code.STORE_UNAVAILABLE, "The store is away.")


class FakeLedger:
    """See `LedgerPort`; leases are what the test says they are."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.parts: dict[Ownership, dict[int, bytes]] = {}
        self.ends: list[End] = []
        self.submissions: dict[Key, Submission] = {}
        self.faults: deque[GeartrainError] = deque()  # raised by the next calls, one each
        self.lost: deque[GeartrainError] = deque()  # as `faults`, after the call has done its work
        self.fenced: set[Key] = set()
        self.canceling: set[Key] = set()
        self.left: list[TakenOver] = []

    def _begin(self) -> None:
        if self.faults:
            raise self.faults.popleft()

    def _end(self) -> None:
        if self.lost:
            raise self.lost.popleft()

    def claim(self, claim: Claim) -> asyncio.Future[ClaimResult]:
        return answered(lambda: self._claim(claim, RowState.CLAIMED))

    def accept(self, claim: Claim, submission: Submission) -> asyncio.Future[ClaimResult]:
        def accept() -> ClaimResult:
            result = self._claim(claim, RowState.ACCEPTED)
            if result.is_granted:
                self.submissions[claim.key] = submission
            return result

        return answered(accept)

    def _claim(self, claim: Claim, state: RowState) -> ClaimResult:
        self._begin()
        if claim.key in self.rows:
            return ClaimResult(self.rows[claim.key], is_granted=False)
        row = self.rows[claim.key] = new_row(Ownership(claim.key, claim.owner, 1), state)
        return ClaimResult(row, is_granted=True)

    async def find(self, key: Key) -> Row | None:
        self._begin()
        return self.rows.get(key)

    async def read_events(self, ownership: Ownership, start: int = 0) -> tuple[bytes, ...]:
        parts = self.parts.get(ownership, {})
        return tuple(parts[number] for number in sorted(parts) if number >= start)

    async def checkpoint(self, ownership: Ownership, checkpoint: Checkpoint) -> Hold:
        self._begin()
        if ownership.key in self.fenced:
            return Hold.FENCED
        self._add(ownership, checkpoint.part, checkpoint.events)
        self._end()
        return Hold.CANCELING if ownership.key in self.canceling else Hold.HELD

    def finish(self, ownership: Ownership, end: End) -> asyncio.Future[Hold]:
        return answered(lambda: self._finish(ownership, end))

    def _finish(self, ownership: Ownership, end: End) -> Hold:
        self._begin()
        if ownership.key in self.fenced:
            return Hold.FENCED
        row = self.rows[ownership.key]
        if row.state is not RowState.ENDED:
            self.ends.append(end)
            self._add(ownership, end.part, end.events)
            self.rows[ownership.key] = msgspec.structs.replace(
                row,
                state=RowState.ENDED,
                status=end.status,
                error=end.error,
                started_at=end.started_at,
                completed_at=end.completed_at,
            )
        self._end()
        return Hold.HELD

    def _add(self, ownership: Ownership, part: int, events: bytes) -> None:
        self.parts.setdefault(ownership, {}).setdefault(part, events)

    async def owned(self, owner: str) -> tuple[Owned, ...]:
        self._begin()
        return tuple(
            Owned(row.ownership, row.state, key in self.canceling)
            for key, row in self.rows.items()
            if row.state is not RowState.ENDED and key not in self.fenced
        )

    async def take_over(self, owner: str, *, limit: int) -> tuple[TakenOver, ...]:
        self._begin()
        taken, self.left = self.left[:limit], self.left[limit:]
        for each in taken:
            self.rows[each.row.ownership.key] = each.row
        return tuple(taken)

    async def remove_old(self, retention: Any, *, limit: int = 1000) -> int:
        return 0

    async def cancel(self, key: Key, principal: Principal = ANYONE) -> Row | None:
        self._begin()
        self.canceling.add(key)
        return self.rows.get(key)

    async def release(self, ownership: Ownership) -> None:
        del self.rows[ownership.key]

    async def list_rows(self, rows: Any, *, limit: int, cursor: str = "") -> Page:
        return Page(tuple(self.rows.values())[:limit], "")


class FakeOutbox:
    """See `OutboxPort`."""

    def __init__(self) -> None:
        self.due: list[OutboxEntry] = []
        self.removed: list[int] = []
        self.later: list[tuple[int, float]] = []

    async def lease(self, owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        due, self.due = self.due[:limit], self.due[limit:]
        return tuple(due)

    async def remove(self, numbers: Sequence[int]) -> None:
        self.removed += numbers

    async def retry_later(self, number: int, seconds: float) -> None:
        self.later.append((number, seconds))


class FakeReplicas:
    """See `ReplicasPort`."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.gone: list[str] = []

    async def renew(self, owner: str, *, address: str, seconds: float) -> bool:
        return True

    async def leave(self, owner: str) -> None:
        self.gone.append(owner)

    async def alive(self) -> tuple[Replica, ...]:
        return tuple(self.replicas)

    async def want(self, model: str, *, is_wanted: bool) -> Any:
        raise NotImplementedError

    async def wanted(self) -> Any:
        raise NotImplementedError


class FakeStore:
    """See `StorePort`."""

    def __init__(self) -> None:
        self.ledger = FakeLedger()
        self.outbox = FakeOutbox()
        self.replicas = FakeReplicas()
        self.batches = MemoryStore().batches

    async def check(self) -> None:
        """It answers."""

    async def close(self) -> None:
        """There is nothing open."""


def new_row(ownership: Ownership, state: RowState) -> Row:
    """Return the row of a prediction that has not begun."""
    return Row(
        ownership=ownership,
        state=state,
        status=Status.STARTING,
        version="1",
        created_at=1000.0,
        echo=b"{}",
        attempts=ownership.epoch,
        is_cancel_requested=False,
        started_at=None,
        completed_at=None,
        error="",
        owner_address="",
        is_owner_alive=True,
    )
