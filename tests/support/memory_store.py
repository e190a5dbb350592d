"""A store in memory, for tests of the service: a `StorePort` that passes the same tests as the real ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.ledger import (
    LISTED_ECHO,
    LONGEST_PAUSE,
    ROW_STEPS,
    Checkpoint,
    Claim,
    ClaimResult,
    Delivery,
    End,
    Hold,
    Key,
    LeaseEndedError,
    OutboxEntry,
    Owned,
    Ownership,
    Page,
    Replica,
    Retention,
    Row,
    RowFilter,
    RowState,
    RowStep,
    Submission,
    TakenOver,
    WantedModel,
    judge,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CLIENT_LEFT
from geartrain.domain.principal import ANYONE, Principal
from tests.support.memory_batches import MemoryBatches

Clock = Callable[[], float]
T = TypeVar("T")

_NOTHING_SUBMITTED = Submission(b"")


@dataclass
class _Row:
    place: int
    claim: Claim
    owner: str
    epoch: int = 1
    state: RowState = RowState.CLAIMED
    status: Status = Status.STARTING
    submission: Submission = _NOTHING_SUBMITTED
    attempts: int = 1
    is_cancel_requested: bool = False
    started_at: float | None = None
    completed_at: float | None = None
    ended_at: float = 0.0
    error: str = ""
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.claim.echo) + sum(map(len, self.parts.values()))

    def step(self, step: RowStep) -> bool:
        """Take a step if the table has it."""
        after = ROW_STEPS[self.state].get(step)
        if after is None:
            return False
        self.state = after
        return True


@dataclass
class _Entry:
    key: Key
    delivery: Delivery
    due_at: float
    attempts: int = 1


def answered(call: Callable[[], T]) -> asyncio.Future[T]:
    """Return a future that has what a call gives, or raises."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(call())
    except GeartrainError as error:
        future.set_exception(error)
        future.exception()
    return future


class MemoryStore:
    """Everything that one store holds. `fault` is raised by every call while it is set."""

    def __init__(self, *, clock: Clock = time.time, has_key: bool = False) -> None:
        self.clock = clock
        self.has_key = has_key
        self.fault: GeartrainError | None = None
        self.rows: dict[Key, _Row] = {}
        self.entries: dict[int, _Entry] = {}
        self.leases: dict[str, tuple[str, float]] = {}  # address, end
        self.models: dict[str, WantedModel] = {}
        self.count = 0
        self.ledger = MemoryLedger(self)
        self.outbox = MemoryOutbox(self)
        self.replicas = MemoryReplicas(self)
        self.batches = MemoryBatches(clock=clock, is_alive=self.is_alive, reach=self.reach)

    def next_number(self) -> int:
        self.count += 1
        return self.count

    def reach(self) -> None:
        """Begin a call."""
        if self.fault is not None:
            raise self.fault

    def is_alive(self, owner: str) -> bool:
        return owner in self.leases and self.leases[owner][1] > self.clock()

    async def check(self) -> None:
        self.reach()

    async def close(self) -> None:
        """Nothing is open."""


class MemoryLedger:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def claim(self, claim: Claim) -> asyncio.Future[ClaimResult]:
        return answered(lambda: self._claim(claim, RowStep.CLAIM, _NOTHING_SUBMITTED))

    def accept(self, claim: Claim, submission: Submission) -> asyncio.Future[ClaimResult]:
        if submission.has_secret and not self._store.has_key:
            raise GeartrainError(Code.UNSUPPORTED, "There is no key.")
        return answered(lambda: self._claim(claim, RowStep.ACCEPT, submission))

    def _claim(self, claim: Claim, step: RowStep, submission: Submission) -> ClaimResult:
        self._store.reach()
        if "\x00" in claim.key.id or not claim.key.id.isprintable():
            fault = FieldError(("body", "id"), "holds a character that no id may have", "value_error")
            raise GeartrainError(Code.INVALID_INPUT, "The id is not valid.", fields=(fault,))
        found = self._store.rows.get(claim.key)
        is_alive = self._store.is_alive(claim.owner)
        if found is not None and not (is_alive and self._may_take(found, claim, step)):
            return ClaimResult(self._read(claim.key, found), is_granted=False)
        if not is_alive:
            raise LeaseEndedError
        if found is not None and found.state is RowState.CLAIMED and found.owner == claim.owner:
            row = found
            row.claim, row.submission = claim, submission
        else:
            row = _Row(self._store.next_number(), claim, claim.owner, 1 if found is None else found.epoch + 1)
            row.state = RowState.ABSENT if found is None else found.state
            row.submission = submission
            self._store.rows[claim.key] = row
        assert row.step(step)
        return ClaimResult(self._read(claim.key, row), is_granted=True)

    def _may_take(self, found: _Row, claim: Claim, step: RowStep) -> bool:
        if found.claim.principal not in ("", claim.principal):
            return False
        match found.state:
            case RowState.ENDED:
                return claim.reuse or (found.status is Status.CANCELED and found.error == CLIENT_LEFT)
            case RowState.CLAIMED:
                is_upgrade = step is RowStep.ACCEPT and found.owner == claim.owner
                return is_upgrade or not self._store.is_alive(found.owner)
        return False

    async def release(self, ownership: Ownership) -> None:
        self._store.reach()
        row = self._mine(ownership)
        if row is not None and row.step(RowStep.RELEASE):
            del self._store.rows[ownership.key]

    async def find(self, key: Key) -> Row | None:
        self._store.reach()
        row = self._store.rows.get(key)
        return None if row is None else self._read(key, row)

    async def read_events(self, ownership: Ownership, start: int = 0) -> tuple[bytes, ...]:
        self._store.reach()
        row = self._store.rows.get(ownership.key)
        if row is None or row.epoch != ownership.epoch:
            return ()
        return tuple(events for part, events in sorted(row.parts.items()) if part >= start)

    async def list_rows(self, rows: RowFilter, *, limit: int, cursor: str = "") -> Page:
        self._store.reach()
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20):
            raise GeartrainError(Code.INVALID_INPUT, "The cursor of the list is not valid.")
        found = sorted(
            (
                (row.place, _listed(self._read(key, row)))
                for key, row in self._store.rows.items()
                if rows.model in ("", key.model)
                and (not rows.statuses or row.status in rows.statuses)
                and rows.principal.may_see(row.claim.principal)
                and (not cursor or row.place < int(cursor))
            ),
            key=lambda pair: -pair[0],
        )
        following = str(found[limit - 1][0]) if len(found) > limit else ""
        return Page(tuple(row for _, row in found[:limit]), following)

    async def owned(self, owner: str) -> tuple[Owned, ...]:
        self._store.reach()
        return tuple(
            Owned(Ownership(key, owner, row.epoch), row.state, row.is_cancel_requested)
            for key, row in self._store.rows.items()
            if row.owner == owner and row.state is not RowState.ENDED
        )

    async def checkpoint(self, ownership: Ownership, checkpoint: Checkpoint) -> Hold:
        self._store.reach()
        row = self._mine(ownership)
        if row is None or not row.step(RowStep.CHECKPOINT):
            return Hold.FENCED
        row.status = checkpoint.status
        self._add(row, checkpoint)
        return Hold.CANCELING if row.is_cancel_requested else Hold.HELD

    def finish(self, ownership: Ownership, end: End) -> asyncio.Future[Hold]:
        return answered(lambda: self._finish(ownership, end))

    def _finish(self, ownership: Ownership, end: End) -> Hold:
        self._store.reach()
        row = self._mine(ownership)
        if row is None:
            return Hold.FENCED
        if not row.step(RowStep.FINISH):
            return Hold.HELD
        now = self._store.clock()
        row.status, row.completed_at, row.error, row.ended_at = end.status, end.completed_at, end.error, now
        row.submission = _NOTHING_SUBMITTED
        self._add(row, end)
        for delivery in end.deliveries:
            self._store.entries[self._store.next_number()] = _Entry(ownership.key, delivery, now)
        return Hold.HELD

    def _add(self, row: _Row, written: Checkpoint | End) -> None:
        if written.started_at is not None:
            row.started_at = written.started_at
        if written.events:
            row.parts.setdefault(written.part, written.events)

    async def cancel(self, key: Key, principal: Principal = ANYONE) -> Row | None:
        self._store.reach()
        row = self._store.rows.get(key)
        if row is None or not principal.may_see(row.claim.principal):
            return None
        if row.step(RowStep.CANCEL):
            row.is_cancel_requested = True
        return self._read(key, row)

    async def take_over(self, owner: str, *, limit: int) -> tuple[TakenOver, ...]:
        self._store.reach()
        store = self._store
        if not store.is_alive(owner):
            return ()
        taken: list[TakenOver] = []
        for key, row in sorted(store.rows.items(), key=lambda item: item[1].place):
            if len(taken) == limit:
                break
            if store.is_alive(row.owner) or not row.step(RowStep.TAKE_OVER):
                continue
            row.owner = owner
            row.epoch += 1
            row.attempts += 1
            row.status, row.started_at, row.parts = Status.STARTING, None, {}
            found = self._read(key, row)
            submission = row.submission
            verdict = judge(found, retry=submission.retry, most_attempts=submission.attempts)
            taken.append(TakenOver(found, verdict, submission.request or row.claim.request))
        return tuple(taken)

    async def remove_old(self, retention: Retention, *, limit: int = 1000) -> int:
        self._store.reach()
        rows = self._store.rows
        ended = sorted(
            ((key, row) for key, row in rows.items() if row.state is RowState.ENDED), key=lambda item: item[1].ended_at
        )
        excess = sum(row.size for _, row in ended) - retention.bytes
        removed = 0
        for key, row in ended[:limit]:
            if row.ended_at > self._store.clock() - retention.seconds and excess <= 0:
                break
            excess -= row.size
            del rows[key]
            removed += 1
        return removed

    def _mine(self, ownership: Ownership) -> _Row | None:
        row = self._store.rows.get(ownership.key)
        return row if row is not None and (row.owner, row.epoch) == (ownership.owner, ownership.epoch) else None

    def _read(self, key: Key, row: _Row) -> Row:
        address, _ = self._store.leases.get(row.owner, ("", 0.0))
        return Row(
            Ownership(key, row.owner, row.epoch),
            row.state,
            row.status,
            row.claim.version,
            row.claim.created_at,
            row.claim.echo,
            row.attempts,
            row.is_cancel_requested,
            row.started_at,
            row.completed_at,
            row.error,
            address,
            self._store.is_alive(row.owner),
            row.claim.principal,
        )


class MemoryOutbox:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def lease(self, owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        self._store.reach()
        now = self._store.clock()
        due = [
            (number, entry)
            for number, entry in sorted(self._store.entries.items())
            if not now < entry.due_at <= now + LONGEST_PAUSE + seconds and not self._is_of_another(entry, owner)
        ]
        for _, entry in due[:limit]:
            entry.due_at = now + seconds
        return tuple(OutboxEntry(number, entry.key, entry.delivery, entry.attempts) for number, entry in due[:limit])

    def _is_of_another(self, entry: _Entry, owner: str) -> bool:
        row = self._store.rows.get(entry.key)
        if entry.attempts > 1 or row is None or row.state is not RowState.ENDED:
            return False
        return row.owner != owner and self._store.is_alive(row.owner)

    async def remove(self, numbers: Sequence[int]) -> None:
        self._store.reach()
        for number in numbers:
            self._store.entries.pop(number, None)

    async def retry_later(self, number: int, seconds: float) -> None:
        self._store.reach()
        if number in self._store.entries:
            entry = self._store.entries[number]
            entry.due_at, entry.attempts = self._store.clock() + seconds, entry.attempts + 1


class MemoryReplicas:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def renew(self, owner: str, *, address: str, seconds: float) -> bool:
        self._store.reach()
        was_alive = self._store.is_alive(owner)
        self._store.leases[owner] = (address, self._store.clock() + seconds)
        return was_alive

    async def leave(self, owner: str) -> None:
        self._store.reach()
        if self._store.is_alive(owner):
            self._store.leases[owner] = (self._store.leases[owner][0], self._store.clock())

    async def alive(self) -> tuple[Replica, ...]:
        self._store.reach()
        now = self._store.clock()
        return tuple(
            Replica(owner, address, ends_at - now)
            for owner, (address, ends_at) in sorted(self._store.leases.items())
            if ends_at > now
        )

    async def want(self, model: str, *, is_wanted: bool) -> WantedModel:
        self._store.reach()
        wanted = WantedModel(model, is_wanted, self._store.next_number())
        self._store.models[model] = wanted
        return wanted

    async def wanted(self) -> tuple[WantedModel, ...]:
        self._store.reach()
        return tuple(wanted for _, wanted in sorted(self._store.models.items()))


def _listed(row: Row) -> Row:
    return row if len(row.echo) <= LISTED_ECHO else msgspec.structs.replace(row, echo=b"")
