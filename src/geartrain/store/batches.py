"""Files and batches in a database; implements the service's `BatchesPort`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.batch_jobs import (
    OF_MESSAGES,
    Batch,
    BatchEnd,
    BatchOwnership,
    BatchProgress,
    BatchStatus,
    FileRemoval,
    LineAnswer,
    NewBatch,
    Selection,
    StoredFile,
    end_of,
)
from geartrain.domain.predictions.ledger import Hold, LeaseEndedError
from geartrain.domain.principal import Principal
from geartrain.store import batch_sql as sql
from geartrain.store.errors import unavailable
from geartrain.store.groups import Groups
from geartrain.store.operations import Operation, RowLock, Rows, Statement, Steps, Table
from geartrain.store.sealing import Keys, UnknownKeyError

_LAST_PLACE: Final = 2**63 - 1
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_new: Final = msgspec.msgpack.Decoder(NewBatch).decode
_decode_progress: Final = msgspec.msgpack.Decoder(BatchProgress).decode


def _read_file(columns: tuple[Any, ...]) -> StoredFile:
    file = StoredFile(*columns)
    return msgspec.structs.replace(file, is_errors=columns[-1] == 1)


def _read_batch(columns: tuple[Any, ...]) -> Batch:
    request, status, owner, epoch, progress, *counts = columns
    return Batch(_decode_new(request), BatchStatus(status), owner, epoch, _decode_progress(progress), *counts)


def _file_lock(name: str) -> RowLock:
    return RowLock(Table.FILES, id=name)


def _batch_lock(name: str) -> RowLock:
    return RowLock(Table.BATCHES, id=name)


def _seen(principal: Principal) -> dict[str, Any]:
    return {"sees_all": int(principal.sees_all), "principal": principal.name}


def _mine(ownership: BatchOwnership) -> dict[str, Any]:
    return {"id": ownership.id, "owner": ownership.owner, "epoch": ownership.epoch}


class Batches:
    """The files and batches of one store."""

    def __init__(self, groups: Groups, *, sealer: Keys) -> None:
        self._groups = groups
        self._sealer = sealer

    # files

    async def add_file(self, file: StoredFile, owner: str, *, most: int, most_bytes: int) -> bool:
        values: dict[str, Any] = {
            "id": file.id,
            "owner": owner,
            "principal": file.principal,
            "purpose": file.purpose,
            "name": file.name,
        }
        values |= {"created_at": file.created_at, "expires_at": file.expires_at}

        def steps() -> Steps[bool]:
            [[(count, size)]] = yield [Statement(sql.COUNT_FILES, {"principal": file.principal})]
            if count >= most or size >= most_bytes:
                return False
            [added] = yield [Statement(sql.ADD_FILE, values)]
            if not added:
                raise LeaseEndedError
            return True

        def undo() -> Steps[None]:
            yield [Statement(sql.REMOVE_FILE, {"id": file.id})]

        lock = _file_lock(file.id)
        return await self._groups.run(Operation(steps, lock=lock, undo=Operation(undo, lock=lock, is_undo=True)))

    async def add_piece(self, file: StoredFile, owner: str, data: bytes, *, piece: int) -> int:
        name = {"id": file.id, "piece": piece}

        def steps() -> Steps[int]:
            body, key_id = self._sealer.seal(data, _context(file.id, piece))
            [grown] = yield [Statement(sql.GROW_FILE, {**name, "owner": owner, "size": len(data)})]
            if not grown:
                return -1
            _, [(_, used)] = yield [
                Statement(sql.ADD_PIECE, {**name, "key_id": key_id, "body": body}),
                Statement(sql.COUNT_FILES, {"principal": file.principal}),
            ]
            return int(used)

        return await self._groups.run(Operation(steps, lock=_file_lock(file.id)))

    async def complete_file(self, file_id: str, owner: str, *, expires_at: float | None) -> StoredFile | None:
        def steps() -> Steps[StoredFile | None]:
            _, found = yield [
                Statement(sql.COMPLETE_FILE, {"id": file_id, "owner": owner, "expires_at": expires_at}),
                Statement(sql.FIND_FILE, {"id": file_id}),
            ]
            return _read_file(found[0]) if found else None

        return await self._groups.run(Operation(steps, lock=_file_lock(file_id)))

    async def find_file(self, file_id: str, *, is_used: bool = False) -> StoredFile | None:
        template = sql.FIND_USED_FILE if is_used else sql.FIND_FILE

        def steps() -> Steps[StoredFile | None]:
            [found] = yield [Statement(template, {"id": file_id})]
            return _read_file(found[0]) if found else None

        return await self._groups.run(Operation(steps, only_reads=True))

    async def list_files(self, selection: Selection) -> tuple[StoredFile, ...]:
        template = sql.list_files(is_ascending=selection.is_ascending, of_purpose=selection.purpose != "")
        values: dict[str, Any] = {"limit": selection.limit, **_seen(selection.principal)}
        if selection.purpose:
            values["purpose"] = selection.purpose

        def steps() -> Steps[tuple[StoredFile, ...]]:
            place = yield from _place(sql.PLACE_OF_FILE, selection)
            if place is None:
                return ()
            [found] = yield [Statement(template, {**values, "place": place})]
            return tuple(map(_read_file, found))

        return await self._groups.run(Operation(steps, only_reads=True))

    async def remove_file(self, file_id: str) -> FileRemoval:
        def steps() -> Steps[FileRemoval]:
            [removed] = yield [Statement(sql.REMOVE_FILE, {"id": file_id})]
            if removed:
                yield _contents(file_id, removed)
                return FileRemoval.REMOVED
            [found] = yield [Statement(sql.IS_FILE, {"id": file_id})]
            return FileRemoval.IN_USE if found else FileRemoval.ABSENT

        return await self._groups.run(Operation(steps, lock=_file_lock(file_id)))

    async def read_piece(self, file_id: str, piece: int) -> bytes | None:
        def steps() -> Steps[tuple[bytes, str] | None]:
            [found] = yield [Statement(sql.READ_PIECE, {"id": file_id, "piece": piece})]
            return found[0] if found else None

        found = await self._groups.run(Operation(steps, only_reads=True))
        if found is None:
            return None
        try:
            return self._sealer.open(*found, _context(file_id, piece))
        except UnknownKeyError:
            raise unavailable("the file is encrypted with a key that this server does not have") from None

    async def read_lines(self, batch: str, *, is_error: bool, after: int, limit: int) -> tuple[tuple[int, bytes], ...]:
        values = {"batch": batch, "is_error": int(is_error), "after": after, "limit": limit}

        def steps() -> Steps[tuple[tuple[int, bytes], ...]]:
            [found] = yield [Statement(sql.READ_LINES, values)]
            return tuple((line, body) for line, body in found)

        return await self._groups.run(Operation(steps, only_reads=True))

    # batches

    async def add_batch(self, new: NewBatch, *, most: int) -> bool:
        values = {"id": new.id, "principal": new.principal, "input_file": new.input_file, "most": most}
        values |= {"request": _encode(new), "progress": _encode(BatchProgress())}

        def steps() -> Steps[bool]:
            [added] = yield [Statement(sql.ADD_BATCH, values)]
            return bool(added)

        return await self._groups.run(Operation(steps, lock=_batch_lock(new.id)))

    async def find_batch(self, batch_id: str) -> Batch | None:
        def steps() -> Steps[Batch | None]:
            [found] = yield [Statement(sql.FIND_BATCH, {"id": batch_id})]
            return _read_batch(found[0]) if found else None

        return await self._groups.run(Operation(steps, only_reads=True))

    async def list_batches(self, selection: Selection) -> tuple[Batch, ...]:
        template = sql.list_batches(is_ascending=selection.is_ascending, of_messages=selection.of_messages)
        values = {"limit": selection.limit, **_seen(selection.principal)}

        def steps() -> Steps[tuple[Batch, ...]]:
            place = yield from _place(sql.PLACE_OF_BATCH, selection)
            if place is None:
                return ()
            [found] = yield [Statement(template, {**values, "place": place})]
            return tuple(map(_read_batch, found))

        return await self._groups.run(Operation(steps, only_reads=True))

    async def cancel_batch(self, batch_id: str, principal: Principal, *, at: float) -> Batch | None:
        def steps() -> Steps[Batch | None]:
            _, found = yield [
                Statement(sql.CANCEL_BATCH, {"id": batch_id, "at": at, **_seen(principal)}),
                Statement(sql.FIND_BATCH, {"id": batch_id}),
            ]
            batch = _read_batch(found[0]) if found else None
            return batch if batch is not None and principal.may_see(batch.new.principal) else None

        return await self._groups.run(Operation(steps, lock=_batch_lock(batch_id)))

    async def remove_batch(self, batch_id: str) -> bool:
        def steps() -> Steps[bool]:
            [removed] = yield [Statement(sql.REMOVE_ENDED_BATCH, {"id": batch_id})]
            if not removed:
                return False
            [(file,)] = removed
            *_, found = yield [
                Statement(sql.REMOVE_ALL_LINES, {"id": batch_id}),
                Statement(sql.REMOVE_ANSWERS, {"id": batch_id}),
                Statement(sql.REMOVE_FILE, {"id": file}),
            ]
            if found:
                yield _contents(file, found)
            return True

        return await self._groups.run(Operation(steps, lock=_batch_lock(batch_id)))

    # work on batches

    async def take_batches(self, owner: str, *, limit: int) -> tuple[Batch, ...]:
        def steps() -> Steps[tuple[Batch, ...]]:
            [found] = yield [Statement(sql.FIND_FREE_BATCHES, {"owner": owner, "limit": limit})]
            if not found:
                return ()
            taken = yield [
                Statement(sql.TAKE_BATCH, {"owner": owner, "id": name, "epoch": epoch}) for name, epoch in found
            ]
            return tuple(_read_batch(rows[0]) for rows in taken if rows)

        return await self._groups.run(Operation(steps))

    async def give_back(self, ownership: BatchOwnership) -> None:
        def steps() -> Steps[None]:
            yield [Statement(sql.GIVE_BACK, _mine(ownership))]

        await self._groups.run(Operation(steps, lock=_batch_lock(ownership.id)))

    async def note_progress(self, ownership: BatchOwnership, progress: BatchProgress) -> Hold:
        values = {**_mine(ownership), "progress": _encode(progress)}

        def steps() -> Steps[Hold]:
            [updated] = yield [Statement(sql.NOTE_PROGRESS, values)]
            return _hold(updated)

        return await self._groups.run(Operation(steps, lock=_batch_lock(ownership.id)))

    async def hold_batch(self, ownership: BatchOwnership) -> Hold:
        def steps() -> Steps[Hold]:
            [found] = yield [Statement(sql.LOOK_AT_BATCH, _mine(ownership))]
            return _hold(found)

        return await self._groups.run(Operation(steps, only_reads=True))

    async def answered(self, batch_id: str) -> frozenset[int]:
        def steps() -> Steps[frozenset[int]]:
            [found] = yield [Statement(sql.ANSWERED, {"id": batch_id})]
            return frozenset(line for (line,) in found)

        return await self._groups.run(Operation(steps, only_reads=True))

    async def add_lines(self, ownership: BatchOwnership, answers: Sequence[LineAnswer]) -> Hold:
        def steps() -> Steps[Hold]:
            [held] = yield [Statement(sql.HOLD_BATCH, _mine(ownership))]
            if not held:
                return Hold.FENCED
            added = yield [
                Statement(
                    sql.ADD_LINE,
                    {"id": ownership.id, "line": each.line, "is_error": int(each.is_error), "body": each.body},
                )
                for each in answers
            ]
            new = [each for each, rows in zip(answers, added, strict=True) if rows]
            failed = sum(each.is_error for each in new)
            counts = {"completed": len(new) - failed, "failed": failed}
            counts |= {"input_tokens": sum(each.input_tokens for each in new)}
            counts |= {"output_tokens": sum(each.output_tokens for each in new)}
            yield [Statement(sql.COUNT_LINES, {**_mine(ownership), **counts})]
            return _hold(held)

        return await self._groups.run(Operation(steps, lock=_batch_lock(ownership.id)))

    async def end_batch(self, ownership: BatchOwnership, end: BatchEnd) -> Batch | None:
        def steps() -> Steps[Batch | None]:
            held, found, sizes = yield [
                Statement(sql.HOLD_BATCH, _mine(ownership)),
                Statement(sql.FIND_BATCH, {"id": ownership.id}),
                Statement(sql.SIZE_OF_LINES, {"id": ownership.id}),
            ]
            if not held:
                return None
            batch = _read_batch(found[0])
            files = {is_error: (end.error_file if is_error else end.output_file) for is_error, _ in sizes}
            if files:
                yield [
                    _add_answers(batch, end, files[is_error], is_errors=is_error, size=size) for is_error, size in sizes
                ]
            progress = msgspec.structs.replace(
                batch.progress,
                ended_at=end.at,
                faults=end.faults,
                output_file=files.get(0, ""),
                error_file=files.get(1, ""),
            )
            status = end_of(batch.status, end.status)
            values = {**_mine(ownership), "status": status.value, "progress": _encode(progress)}
            [updated] = yield [Statement(sql.END_BATCH, values)]
            return _read_batch(updated[0])

        return await self._groups.run(Operation(steps, lock=_batch_lock(ownership.id)))

    async def remove_old(self, seconds: float, *, limit: int = 100) -> int:
        def steps() -> Steps[int]:
            files, batches = yield [
                Statement(sql.OLD_FILES, {"limit": limit}),
                Statement(sql.OLD_BATCHES, {"limit": limit, "seconds": seconds}),
            ]
            removed: list[Rows] = []
            if files:
                removed = yield [Statement(sql.REMOVE_FILE, {"id": name}) for (name,) in files]
            for (name,), rows in zip(files, removed, strict=True):
                if rows:
                    yield _contents(name, rows)
            for (name,) in batches:
                yield [Statement(each, {"id": name}) for each in (sql.REMOVE_BATCH, sql.REMOVE_ALL_LINES)]
            return len(files) + len(batches)

        return await self._groups.run(Operation(steps))


def _context(file_id: str, piece: int) -> str:
    return f"file:{file_id}:{piece}"


def _hold(updated: Rows) -> Hold:
    if not updated:
        return Hold.FENCED
    return Hold.CANCELING if updated[0][0] == BatchStatus.CANCELLING else Hold.HELD


def _place(template: str, selection: Selection) -> Steps[int | None]:
    """Return the number behind which a list begins; None if the id is not known."""
    if not selection.after:
        return 0 if selection.is_ascending else _LAST_PLACE
    [found] = yield [Statement(template, {"id": selection.after})]
    return int(found[0][0]) if found else None


def _contents(file_id: str, removed: Rows) -> list[Statement]:
    """Make the statements that remove the content of a removed file."""
    [(batch, is_errors)] = removed
    if batch:
        return [Statement(sql.REMOVE_LINES, {"batch": batch, "is_error": is_errors})]
    return [Statement(sql.REMOVE_PIECES, {"id": file_id})]


def _add_answers(batch: Batch, end: BatchEnd, file_id: str, *, is_errors: int, size: Any) -> Statement:
    new = batch.new
    values: dict[str, Any] = {"file": file_id, "principal": new.principal, "id": new.id, "is_errors": is_errors}
    values["purpose"] = OF_MESSAGES if new.is_of_messages else "batch_output"
    values |= {"name": f"{new.id}_{'errors' if is_errors else 'output'}.jsonl", "size": int(size), "at": end.at}
    return Statement(sql.ADD_ANSWERS, {**values, "expires_at": end.at + new.output_seconds})
