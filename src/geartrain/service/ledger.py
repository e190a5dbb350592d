"""The port of a store: what the service needs to find predictions again, on every replica and after a crash.

Every method may raise `GeartrainError`, soon and never in place of an answer that is known:

- `STORE_UNAVAILABLE`: the store cannot be reached, is locked by somebody else, or does not answer in time. It is tried
  anew with the next call. What was asked for may have been done all the same. An id that a `claim` has taken without
  telling anybody is released; what an `accept` has stored like that can be taken over at once, and runs.
- `NO_STORAGE`: the disk of the store is full. Nothing was done.
- `STORE_VERSION`: the schema of the store is that of another version of geartrain. Nothing was done.

A call that its caller cancels counts like one that was not answered in time. No call holds the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from geartrain.domain.predictions.batch_jobs import (
    Batch,
    BatchEnd,
    BatchOwnership,
    BatchProgress,
    FileRemoval,
    LineAnswer,
    NewBatch,
    Selection,
    StoredFile,
)
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
    Retention,
    Row,
    RowFilter,
    Submission,
    TakenOver,
    WantedModel,
)
from geartrain.domain.principal import ANYONE, Principal


class LedgerPort(Protocol):
    """The rows of predictions. Their states and steps are the table `ROW_STEPS`.

    Operations that every durable prediction needs return futures, so that no task is needed to wait for them.
    """

    def claim(self, claim: Claim) -> asyncio.Future[ClaimResult]:
        """Take an id for a prediction whose input is not stored. Of all replicas that claim an id, one gets it.

        It is granted if there is no row; if the row is `CLAIMED` and the lease of its owner has ended; or if the row
        has ended and `claim.reuse` is set. A row of another principal stays in any case. Otherwise the row stays, and
        is returned. Raises `LeaseEndedError` if the lease of the claimant has ended and the id is free.
        """

    def accept(self, claim: Claim, submission: Submission) -> asyncio.Future[ClaimResult]:
        """Claim with the input. It is safe on disk when this returns: only now may a 202 leave.

        A row that the claimant holds by a claim of its own becomes `ACCEPTED` in its epoch, and counts as granted.
        Raises `UNSUPPORTED` for a submission with a secret if the operator has given no key to encrypt it with.
        """

    async def release(self, ownership: Ownership) -> None:
        """Remove a row that has not ended: its prediction was refused after all, as by a full queue."""

    async def find(self, key: Key) -> Row | None:
        """Return the row of a prediction, None if there is none."""

    async def read_events(self, ownership: Ownership, start: int = 0) -> tuple[bytes, ...]:
        """Return the parts in which the events of one epoch were written, in order, from the part `start` on.

        There are none once the row has another epoch, or is gone.
        """

    async def list_rows(self, rows: RowFilter, *, limit: int, cursor: str = "") -> Page:
        """Return the latest rows, at most `limit`, or those that follow the page which gave `cursor`.

        A row has its place by the time of its claim, and keeps it: pages show no row twice. Raises `INVALID_INPUT` for
        a cursor that no page has given.
        """

    async def owned(self, owner: str) -> tuple[Owned, ...]:
        """Return all rows of a replica that have not ended.

        A replica calls this after each renewal: runs that are missing here are lost to another server, and rows to be
        canceled say so even if the cancel did not arrive.
        """

    async def checkpoint(self, ownership: Ownership, checkpoint: Checkpoint) -> Hold:
        """Add to what is known of a run. Nothing is written unless the row has this owner and epoch."""

    def finish(self, ownership: Ownership, end: End) -> asyncio.Future[Hold]:
        """Write a terminal state and, in the same transaction, its webhooks into the outbox.

        `FENCED`, and nothing is written, unless the row has this owner and epoch: the run has neither result nor
        webhook. Otherwise `HELD`, whether or not somebody has asked for its end. A row gets one terminal state: if it
        has ended in this epoch already, `HELD` and nothing is written, so a call that was not answered may be repeated.
        """

    async def cancel(self, key: Key, principal: Principal = ANYONE) -> Row | None:
        """Ask for the end of a prediction, if it has not ended; return its row as it is then.

        None if there is none that `principal` may see, and then nothing is written.

        The owner is told by `checkpoint` and `owned`, and should be told directly too. Who takes the row over gets the
        verdict `CANCEL`.
        """

    async def take_over(self, owner: str, *, limit: int) -> tuple[TakenOver, ...]:
        """Make a replica the owner of rows that have not ended and whose owner's lease has.

        These are at most `limit`, the oldest first. Epoch and attempts grow by one, and the status is `STARTING` again;
        events of earlier epochs count no more. Each row goes to one replica, which has to run or to finish it as the
        verdict says. A replica whose own lease has ended gets none.
        """

    async def remove_old(self, retention: Retention, *, limit: int = 1000) -> int:
        """Remove rows that have ended, the oldest end first: those beyond the age, and as many as the size asks for.

        Returns how many, at most `limit`: as many as that, and there may be more. Webhooks in the outbox stay. Files
        and replicas that nothing refers to any more go as well.
        """


class OutboxPort(Protocol):
    """The terminal webhooks that have not arrived. Each is delivered at least once."""

    async def lease(self, owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        """Return entries that are due, the oldest first, and lend them to the caller alone for so many seconds.

        While the lease of the replica that ended a prediction runs, its entry goes to that one first: it knows whether
        the webhooks before the last one have been sent. After a try that has failed it goes to anyone.
        """

    async def remove(self, numbers: Sequence[int]) -> None:
        """Remove entries: they have arrived, or there is no hope of it."""

    async def retry_later(self, number: int, seconds: float) -> None:
        """Count a try that has failed, and have the entry be due again in so many seconds."""


class ReplicasPort(Protocol):
    """The server processes that share the store, and the models that they are asked to have."""

    async def renew(self, owner: str, *, address: str, seconds: float) -> bool:
        """Have the lease of a replica, and so of all its rows, end in so many seconds; the first call announces it.

        `address` is where other replicas can ask it, `HOST:PORT`; empty for nowhere. Returns whether the lease had
        been running: if not, rows of it may have got another owner.
        """

    async def leave(self, owner: str) -> None:
        """End the lease of a replica now. Its rows can be taken over at once."""

    async def alive(self) -> tuple[Replica, ...]:
        """Return the replicas whose leases run."""

    async def want(self, model: str, *, is_wanted: bool) -> WantedModel:
        """Ask every replica to load a model, or to unload it."""

    async def wanted(self) -> tuple[WantedModel, ...]:
        """Return the last wanted state of each model that clients have loaded or unloaded."""


class BatchesPort(Protocol):
    """Files that clients have uploaded, and batches of the requests in them.

    An id is opaque. Times are in seconds since the epoch; the store judges expiry by its own clock.
    """

    async def add_file(self, file: StoredFile, owner: str, *, most: int, most_bytes: int) -> bool:
        """Begin a file, which the replica `owner` is about to write. It can be found once it is complete.

        Returns False if the principal already has `most` files, or `most_bytes` in them. Raises `LeaseEndedError`.
        """

    async def add_piece(self, file: StoredFile, owner: str, data: bytes, *, piece: int) -> int:
        """Write the next piece of a file, from 0 on.

        Returns the bytes of all files of its principal; -1 if it is not being written by this owner any more.
        """

    async def complete_file(self, file_id: str, owner: str, *, expires_at: float | None) -> StoredFile | None:
        """Complete a file; None if it is gone. `expires_at`: None for never."""

    async def find_file(self, file_id: str, *, is_used: bool = False) -> StoredFile | None:
        """Return a complete file, None if there is none or it has expired. `is_used`: also one that has expired."""

    async def list_files(self, selection: Selection) -> tuple[StoredFile, ...]:
        """Return complete files that have not expired, but for those of batches of messages.

        None if the id that the selection begins behind is unknown.
        """

    async def remove_file(self, file_id: str) -> FileRemoval:
        """Remove a file and its content, unless a batch that has not ended reads it."""

    async def read_piece(self, file_id: str, piece: int) -> bytes | None:
        """Return a piece of a file; None if it is gone. Raises `STORE_UNAVAILABLE` without the key to decrypt it."""

    async def read_lines(self, batch: str, *, is_error: bool, after: int, limit: int) -> tuple[tuple[int, bytes], ...]:
        """Return answers of a batch by the numbers of their lines, which are greater than `after`, in order."""

    async def add_batch(self, new: NewBatch, *, most: int) -> bool:
        """Add a batch, for any replica to take. False if its principal has `most` that have not ended."""

    async def find_batch(self, batch_id: str) -> Batch | None:
        """Return a batch, None if there is none."""

    async def list_batches(self, selection: Selection) -> tuple[Batch, ...]:
        """Return batches of one API, the newest first unless the selection is ascending.

        None if the id that the selection begins behind is unknown.
        """

    async def cancel_batch(self, batch_id: str, principal: Principal, *, at: float) -> Batch | None:
        """Ask for the end of a batch, unless it has ended. Returns it as it is then; None if there is none to see."""

    async def remove_batch(self, batch_id: str) -> bool:
        """Remove a batch with its requests and answers; False if there is none that has ended."""

    async def take_batches(self, owner: str, *, limit: int) -> tuple[Batch, ...]:
        """Make a replica whose lease runs the owner of batches that have no owner whose lease runs, the oldest first.

        The epoch of each grows by one.
        """

    async def give_back(self, ownership: BatchOwnership) -> None:
        """Leave a batch to any replica."""

    async def note_progress(self, ownership: BatchOwnership, progress: BatchProgress) -> Hold:
        """Write the progress of a batch, whose lines are being answered from now on."""

    async def hold_batch(self, ownership: BatchOwnership) -> Hold:
        """Return if a batch still belongs to an owner: `CANCELING` if a client has asked for its end."""

    async def answered(self, batch_id: str) -> frozenset[int]:
        """Return the numbers of the lines that have an answer."""

    async def add_lines(self, ownership: BatchOwnership, answers: Sequence[LineAnswer]) -> Hold:
        """Write answers, and count them. A line that has an answer keeps it. `FENCED`: nothing was written."""

    async def end_batch(self, ownership: BatchOwnership, end: BatchEnd) -> Batch | None:
        """End a batch, and make the files of its answers, without those that would be empty.

        One whose end a client has asked for ends as cancelled. None: it has ended, or has another owner.
        """

    async def remove_old(self, seconds: float, *, limit: int = 100) -> int:
        """Remove files that have expired, and those whose upload broke off; then batches without files.

        Such a batch has ended `seconds` ago or more. Returns how many were found, at most `limit` of each.
        """


class StorePort(Protocol):
    """A store that is open."""

    @property
    def ledger(self) -> LedgerPort:
        """The rows of predictions."""

    @property
    def outbox(self) -> OutboxPort:
        """The webhooks that are to be delivered."""

    @property
    def replicas(self) -> ReplicasPort:
        """Servers that share the store."""

    @property
    def batches(self) -> BatchesPort:
        """Files, and batches of requests."""

    async def check(self) -> None:
        """Ask the store for an answer; raise as every method does if there is none."""

    async def close(self) -> None:
        """Do what was asked for before, and close. Leases go on: see `ReplicasPort.leave`."""
