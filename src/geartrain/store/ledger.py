"""Rows of predictions in a database, with the parts of their events; implements the service's `LedgerPort`."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.ledger import (
    Checkpoint,
    Claim,
    ClaimResult,
    End,
    Hold,
    Key,
    LeaseEndedError,
    Owned,
    Ownership,
    Page,
    Retention,
    Row,
    RowFilter,
    RowState,
    Submission,
    TakenOver,
    Verdict,
    judge,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.principal import ANYONE, Principal
from geartrain.store import sql
from geartrain.store.errors import unavailable
from geartrain.store.files import IN_ROW, Folder
from geartrain.store.groups import Groups
from geartrain.store.operations import Operation, RowLock, Statement, Steps, Table
from geartrain.store.sealing import Keys, UnknownKeyError

_STATES: Final = {state.value: state for state in RowState}
_STATUSES: Final = {status.value: status for status in Status}
KEY_PATIENCE: Final = 600.0
"""Seconds for which a row waits for a replica that has its key; then it goes to one that has not, and fails."""

REPLICA_PATIENCE: Final = 24 * 3600.0
"""Seconds for which a replica is known after the end of its lease."""

_TRIES: Final = 8  # of a claim whose id others take and free meanwhile
_LAST_PLACE: Final = 2**63 - 1
_NO_SUBMISSION: Final = Submission(b"")


def read_row(columns: tuple[Any, ...]) -> Row:
    """Return the record of a row with the columns of `geartrain.store.sql`."""
    (
        model,
        prediction_id,
        owner,
        epoch,
        state,
        status,
        version,
        created_at,
        echo,
        attempts,
        is_cancel_requested,
        started_at,
        completed_at,
        error,
        principal,
        address,
        is_alive,
    ) = columns
    return Row(
        Ownership(Key(model, prediction_id), owner, epoch),
        _STATES[state],
        _STATUSES[status],
        version,
        float(created_at),
        echo,
        attempts,
        is_cancel_requested == 1,
        started_at,
        completed_at,
        error,
        address,
        is_alive == 1,
        principal,
    )


def read_state(value: str) -> RowState:
    """Return the state of a row by its name."""
    return _STATES[value]


def check_key(key: Key) -> None:
    """Raise `INVALID_INPUT` for an id that is no text to every database."""
    if not _is_text(key.id):
        fault = FieldError(("body", "id"), "holds a character that no id may have", "value_error")
        raise GeartrainError(Code.INVALID_INPUT, "The input does not fit the model's signature.", fields=(fault,))


def is_storable(key: Key) -> bool:
    """True if there may be a row of a key at all."""
    return _is_text(key.id) and _is_text(key.model)


def clean(text: str) -> str:
    """Return a text without what a database does not take: the character 0, and halves of characters."""
    return text if _is_text(text) else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _is_text(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


class Parts:
    """The parts of one store, in rows; large ones in files where there is a folder."""

    def __init__(self, groups: Groups, files: Folder | None) -> None:
        self._groups = groups
        self._files = files

    def write(self, lock: RowLock, events: bytes, steps: Callable[[str], Steps[Hold]]) -> asyncio.Future[Hold]:
        """Run an operation that adds events; `steps` is told the file that they are in, or `IN_ROW`."""
        if self._files is not None and self._files.is_large(len(events)):
            return asyncio.ensure_future(self._write_file(self._files, lock, events, steps=steps))
        return self._groups.submit(Operation(lambda: steps(IN_ROW), lock=lock))

    async def _write_file(
        self, files: Folder, lock: RowLock, events: bytes, *, steps: Callable[[str], Steps[Hold]]
    ) -> Hold:
        file = await asyncio.to_thread(files.write, events)
        hold = await self._groups.run(Operation(lambda: steps(file), lock=lock))
        if hold is Hold.FENCED:
            await self.remove([file])
        return hold

    async def read(self, ownership: Ownership, start: int) -> tuple[bytes, ...]:
        """Return the parts of an epoch from the part `start` on."""
        key = ownership.key
        parameters = {"model": key.model, "id": key.id, "epoch": ownership.epoch, "start": start}

        def steps() -> Steps[list[tuple[Any, ...]]]:
            [parts] = yield [Statement(sql.READ_PARTS, {**parameters})]
            return parts

        operation = Operation(steps, only_reads=True)
        parts = await self._groups.run(operation)
        if all(file == IN_ROW for _, file in parts):
            return tuple(events for events, _ in parts)
        try:
            return await asyncio.to_thread(self._read_files, parts)
        except FileNotFoundError as error:
            if await self._groups.run(operation) != parts:
                return ()  # the row has been removed, or has got another owner, while this was read
            raise unavailable(f"the file {error.filename} is missing") from error

    def _read_files(self, parts: Sequence[tuple[Any, ...]]) -> tuple[bytes, ...]:
        return tuple(events if file == IN_ROW else self._read_file(file) for events, file in parts)

    def _read_file(self, name: str) -> bytes:
        if self._files is None:  # another server keeps its parts in a folder
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._files.read(name)

    def remove_soon(self, names: Sequence[str]) -> None:
        """Have a thread do as `remove`."""
        files = [name for name in names if name != IN_ROW]
        if files and self._files is not None:
            _ = asyncio.get_running_loop().run_in_executor(None, self._files.remove, files)

    async def remove(self, names: Sequence[str]) -> None:
        """Remove the files among the names of files that parts had."""
        files = [name for name in names if name != IN_ROW]
        if files and self._files is not None:
            await asyncio.to_thread(self._files.remove, files)


def add_part(ownership: Ownership, written: Checkpoint | End, file: str) -> Statement:
    """Add the events of a checkpoint or an end, which are in a file or go into the row."""
    key = ownership.key
    values: dict[str, Any] = {"model": key.model, "id": key.id, "epoch": ownership.epoch, "part": written.part}
    return Statement(sql.ADD_PART, {**values, "events": written.events if file == IN_ROW else b"", "file": file})


class Ledger:
    """The ledger of one store."""

    def __init__(self, groups: Groups, *, sealer: Keys, files: Folder | None) -> None:
        self._groups = groups
        self._sealer = sealer
        self._parts = Parts(groups, files)

    # ids

    def claim(self, claim: Claim) -> asyncio.Future[ClaimResult]:
        return self._claim(claim, RowState.CLAIMED, _NO_SUBMISSION)

    def accept(self, claim: Claim, submission: Submission) -> asyncio.Future[ClaimResult]:
        if submission.has_secret and not self._sealer.has_key:
            msg = (
                "The input has a secret, and this server has no key to store it with: wait for the answer, without "
                "`Prefer: respond-async`, or start the server with --store-key-file."
            )
            raise GeartrainError(Code.UNSUPPORTED, msg)
        return self._claim(claim, RowState.ACCEPTED, submission)

    def _claim(self, claim: Claim, state: RowState, submission: Submission) -> asyncio.Future[ClaimResult]:
        check_key(claim.key)
        nonce = random.getrandbits(62)  # of no use to those who guess it
        name = {"model": claim.key.model, "id": claim.key.id}
        earlier: list[str] = []  # files of the prediction that had the id before

        def steps() -> Steps[ClaimResult]:
            request, key_id = submission.request or claim.request, ""
            if request:
                request, key_id = self._sealer.seal(request, context_of(claim.key))
            insert = Statement(
                sql.CLAIM,
                {
                    **name,
                    "state": state.value,
                    "owner": claim.owner,
                    "nonce": nonce,
                    "version": claim.version,
                    "created_at": claim.created_at,
                    "echo": claim.echo,
                    "size": len(claim.echo),
                    "request": request,
                    "key_id": key_id,
                    "retry": submission.retry,
                    "most_attempts": submission.attempts,
                    "reuse": int(claim.reuse),
                    "principal": claim.principal,
                },
            )
            for _ in range(_TRIES):
                [granted] = yield [insert]
                if granted:
                    row = read_row(granted[0])
                    if row.ownership.epoch > 1:
                        [parts] = yield [_remove_parts(claim.key, below=row.ownership.epoch)]
                        earlier[:] = [file for (file,) in parts]
                    return ClaimResult(row, is_granted=True)
                found, alive = yield [Statement(sql.FIND, {**name}), Statement(sql.IS_ALIVE, {"owner": claim.owner})]
                if found:
                    return ClaimResult(read_row(found[0]), is_granted=False)
                if not alive:
                    raise LeaseEndedError
            raise unavailable("others claim and release the same id all the time")

        def undo() -> Steps[None]:
            yield [Statement(each, {**name, "nonce": nonce}) for each in (sql.DISOWN, sql.UNCLAIM)]

        lock = _lock(claim.key)
        asked = self._groups.submit(Operation(steps, lock=lock, undo=Operation(undo, lock=lock, is_undo=True)))
        asked.add_done_callback(lambda _asked: self._parts.remove_soon(earlier))
        return asked

    async def release(self, ownership: Ownership) -> None:
        def steps() -> Steps[list[str]]:
            [released] = yield [Statement(sql.RELEASE, _mine(ownership))]
            if not released:
                return []
            [parts] = yield [_remove_parts(ownership.key, below=ownership.epoch + 1)]
            return [file for (file,) in parts]

        await self._parts.remove(await self._groups.run(Operation(steps, lock=_lock(ownership.key))))

    # reading

    async def find(self, key: Key) -> Row | None:
        if not is_storable(key):
            return None

        def steps() -> Steps[Row | None]:
            [found] = yield [_find(key)]
            return read_row(found[0]) if found else None

        return await self._groups.run(Operation(steps, only_reads=True))

    async def read_events(self, ownership: Ownership, start: int = 0) -> tuple[bytes, ...]:
        return await self._parts.read(ownership, start)

    async def list_rows(self, rows: RowFilter, *, limit: int, cursor: str = "") -> Page:
        # A statement for each status and principal: each ends as soon as it has found enough.
        statuses = [status.value for status in rows.statuses] or [""]
        principals = {""} if rows.principal.sees_all else {"", rows.principal.name}
        of_one = not rows.principal.sees_all
        templates = [
            sql.list_rows(of_one_model=rows.model != "", status=status, of_one_principal=of_one) for status in statuses
        ]
        parameters = {"model": rows.model, "before": _place(cursor), "limit": limit + 1, "nothing": b""}

        def steps() -> Steps[Page]:
            lists = yield [
                Statement(template, {**parameters, "principal": principal})
                for template in templates
                for principal in principals
            ]
            found = sorted((columns for each in lists for columns in each), key=lambda columns: -columns[0])
            following = str(found[limit - 1][0]) if len(found) > limit else ""
            return Page(tuple(read_row(columns[1:]) for columns in found[:limit]), following)

        if not is_storable(Key(rows.model, "")):
            return Page((), "")
        return await self._groups.run(Operation(steps, only_reads=True))

    async def owned(self, owner: str) -> tuple[Owned, ...]:
        def steps() -> Steps[tuple[Owned, ...]]:
            [found] = yield [Statement(sql.OWNED, {"owner": owner})]
            return tuple(
                Owned(Ownership(Key(model, name), owner, epoch), read_state(state), canceled == 1)
                for model, name, epoch, state, canceled in found
            )

        return await self._groups.run(Operation(steps, only_reads=True))

    # runs

    async def checkpoint(self, ownership: Ownership, checkpoint: Checkpoint) -> Hold:
        parameters = {
            **_mine(ownership),
            "status": checkpoint.status.value,
            "started_at": checkpoint.started_at,
            "size": len(checkpoint.events),
        }

        def steps(file: str) -> Steps[Hold]:
            [updated] = yield [Statement(sql.CHECKPOINT, {**parameters})]
            if not updated:
                return Hold.FENCED
            if checkpoint.events:
                yield [add_part(ownership, checkpoint, file)]
            return Hold.CANCELING if updated[0][0] == 1 else Hold.HELD

        return await self._parts.write(_lock(ownership.key), checkpoint.events, steps)

    def finish(self, ownership: Ownership, end: End) -> asyncio.Future[Hold]:
        parameters = {
            **_mine(ownership),
            "status": end.status.value,
            "started_at": end.started_at,
            "completed_at": end.completed_at,
            "error": clean(end.error),
            "nothing": b"",
            "size": len(end.events),
        }

        def steps(file: str) -> Steps[Hold]:
            [updated] = yield [Statement(sql.FINISH, {**parameters})]
            if not updated:
                [found] = yield [Statement(sql.STATE, _mine(ownership))]
                return Hold.HELD if found == [(RowState.ENDED.value,)] else Hold.FENCED
            added = [add_part(ownership, end, file)] if end.events else []
            added += _deliveries(ownership.key, end, self._sealer)
            if added:
                yield added
            return Hold.HELD

        return self._parts.write(_lock(ownership.key), end.events, steps)

    async def cancel(self, key: Key, principal: Principal = ANYONE) -> Row | None:
        if not is_storable(key):
            return None

        def steps() -> Steps[Row | None]:
            seen = {"sees_all": int(principal.sees_all), "principal": principal.name}
            _, found = yield [Statement(sql.CANCEL, {"model": key.model, "id": key.id, **seen}), _find(key)]
            row = read_row(found[0]) if found else None
            return row if row is not None and principal.may_see(row.principal) else None

        return await self._groups.run(Operation(steps, lock=_lock(key)))

    async def take_over(self, owner: str, *, limit: int) -> tuple[TakenOver, ...]:
        def steps() -> Steps[tuple[list[TakenOver], list[str]]]:
            selection = {"owner": owner, "key_ids": self._sealer.key_ids, "patience": KEY_PATIENCE, "limit": limit}
            taken: list[TakenOver] = []
            while not taken:
                [found] = yield [Statement(sql.FIND_ABANDONED, {**selection})]
                if not found:
                    return [], []
                updated = yield [
                    Statement(sql.TAKE_OVER, {"owner": owner, "model": model, "id": name, "epoch": epoch})
                    for model, name, epoch in found
                ]
                # None of them: they went to another replica in the same transaction, and there may be more.
                taken = [_taken(rows[0], self._sealer) for rows in updated if rows]
            removed = yield [_remove_parts(each.row.ownership.key, below=each.row.ownership.epoch) for each in taken]
            return taken, [file for parts in removed for (file,) in parts]

        taken, files = await self._groups.run(Operation(steps))
        await self._parts.remove(files)
        return tuple(taken)

    async def remove_old(self, retention: Retention, *, limit: int = 1000) -> int:
        def steps() -> Steps[tuple[int, list[str]]]:
            sums, oldest, _ = yield [
                Statement(sql.SIZE, {}),
                Statement(sql.OLDEST, {"seconds": retention.seconds, "limit": limit}),
                Statement(sql.FORGET_REPLICAS, {"patience": REPLICA_PATIENCE}),
            ]
            excess = int(sums[0][0]) - retention.bytes
            keys = []
            for model, name, size, is_too_old in oldest:
                if not is_too_old and excess <= 0:
                    break
                keys.append(Key(model, name))
                excess -= size
            if not keys:
                return 0, []
            removed = yield [Statement(sql.REMOVE, {"model": key.model, "id": key.id}) for key in keys]
            gone = [(key, rows[0][0]) for key, rows in zip(keys, removed, strict=True) if rows]
            parts = yield [_remove_parts(key, below=epoch + 1) for key, epoch in gone]
            return len(gone), [file for rows in parts for (file,) in rows]

        count, files = await self._groups.run(Operation(steps))
        await self._parts.remove(files)
        return count


def context_of(key: Key) -> str:
    """Return the context that a sealed value is bound to."""
    return f"{len(key.model)}:{key.model}{key.id}"


def _mine(ownership: Ownership) -> dict[str, Any]:
    key = ownership.key
    return {"model": key.model, "id": key.id, "owner": ownership.owner, "epoch": ownership.epoch}


def _lock(key: Key) -> RowLock:
    return RowLock(Table.PREDICTIONS, key.model, key.id)


def _find(key: Key) -> Statement:
    return Statement(sql.FIND, {"model": key.model, "id": key.id})


def _deliveries(key: Key, end: End, sealer: Keys) -> list[Statement]:
    statements = []
    for delivery in end.deliveries:
        webhook, key_id = sealer.seal(msgspec.msgpack.encode(delivery.webhook), context_of(key))
        values = {"model": key.model, "id": key.id, "webhook": webhook, "key_id": key_id, "body": delivery.body}
        statements.append(Statement(sql.ADD_DELIVERY, values))
    return statements


def _taken(columns: tuple[Any, ...], sealer: Keys) -> TakenOver:
    row = read_row(columns[:-4])
    request, key_id, retry, most_attempts = columns[-4:]
    verdict = judge(row, retry=retry, most_attempts=most_attempts)
    if not request:
        return TakenOver(row, verdict, b"")
    try:
        return TakenOver(row, verdict, sealer.open(request, key_id, context_of(row.ownership.key)))
    except UnknownKeyError:
        return TakenOver(row, Verdict.UNREADABLE if verdict is Verdict.RUN else verdict, b"")


def _remove_parts(key: Key, *, below: int) -> Statement:
    return Statement(sql.REMOVE_PARTS, {"model": key.model, "id": key.id, "epoch": below})


def _place(cursor: str) -> int:
    if cursor == "":
        return _LAST_PLACE
    if not (cursor.isascii() and cursor.isdigit()) or int(cursor) > _LAST_PLACE:
        fault = FieldError(("query", "cursor"), "is not one that a page has given", "value_error")
        raise GeartrainError(Code.INVALID_INPUT, "The cursor of the list is not valid.", fields=(fault,))
    return int(cursor)
