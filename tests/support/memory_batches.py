"""The files and batches of a store in memory: a `BatchesPort` that passes the same tests as the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from geartrain.domain.predictions.batch_jobs import (
    MESSAGE_BATCH,
    OF_MESSAGES,
    OPEN_BATCH,
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


@dataclass
class _File:
    file: StoredFile
    owner: str
    pieces: list[bytes] = field(default_factory=list)


@dataclass
class _Batch:
    batch: Batch
    lines: dict[int, LineAnswer] = field(default_factory=dict)
    ended_at: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.batch.status in OPEN_BATCH


class MemoryBatches:
    def __init__(
        self, *, clock: Callable[[], float], is_alive: Callable[[str], bool], reach: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._is_alive = is_alive
        self._reach = reach
        self.files: dict[str, _File] = {}
        self.batches: dict[str, _Batch] = {}

    async def add_file(self, file: StoredFile, owner: str, *, most: int, most_bytes: int) -> bool:
        self._reach()
        mine = [each.file for each in self.files.values() if each.file.principal == file.principal]
        if len(mine) >= most or sum(each.size for each in mine) >= most_bytes:
            return False
        if not self._is_alive(owner):
            raise LeaseEndedError
        self.files[file.id] = _File(replace(file, size=0, pieces=0), owner)
        return True

    async def add_piece(self, file: StoredFile, owner: str, data: bytes, *, piece: int) -> int:
        self._reach()
        found = self.files.get(file.id)
        if found is None or found.owner != owner or len(found.pieces) != piece:
            return -1
        found.pieces.append(data)
        found.file = replace(found.file, size=found.file.size + len(data), pieces=piece + 1)
        return sum(each.file.size for each in self.files.values() if each.file.principal == file.principal)

    async def complete_file(self, file_id: str, owner: str, *, expires_at: float | None) -> StoredFile | None:
        self._reach()
        found = self.files.get(file_id)
        if found is not None and found.owner == owner:
            found.owner = ""
            found.file = replace(found.file, expires_at=expires_at)
        return self._find(file_id)

    async def find_file(self, file_id: str, *, is_used: bool = False) -> StoredFile | None:
        self._reach()
        return self._find(file_id, is_used=is_used)

    def _find(self, file_id: str, *, is_used: bool = False) -> StoredFile | None:
        found = self.files.get(file_id)
        if found is None or found.owner:
            return None
        expires_at = found.file.expires_at
        return found.file if is_used or expires_at is None or expires_at > self._clock() else None

    async def list_files(self, selection: Selection) -> tuple[StoredFile, ...]:
        self._reach()
        names = _part(list(self.files), selection)
        found = [file for name in names if (file := self._find(name)) is not None]
        seen = [
            file
            for file in found
            if selection.principal.may_see(file.principal)
            and selection.purpose in ("", file.purpose)
            and file.purpose != OF_MESSAGES
        ]
        return tuple(seen[: selection.limit])

    async def remove_file(self, file_id: str) -> FileRemoval:
        self._reach()
        found = self.files.get(file_id)
        if found is None:
            return FileRemoval.ABSENT
        if self._is_read(file_id):
            return FileRemoval.IN_USE
        del self.files[file_id]
        batch = self.batches.get(found.file.batch)
        if batch is not None:
            is_errors = found.file.is_errors
            batch.lines = {line: each for line, each in batch.lines.items() if each.is_error != is_errors}
        return FileRemoval.REMOVED

    def _is_read(self, file_id: str) -> bool:
        return any(each.is_open and each.batch.new.input_file == file_id for each in self.batches.values())

    async def read_piece(self, file_id: str, piece: int) -> bytes | None:
        self._reach()
        found = self.files.get(file_id)
        return None if found is None or piece >= len(found.pieces) else found.pieces[piece]

    async def read_lines(self, batch: str, *, is_error: bool, after: int, limit: int) -> tuple[tuple[int, bytes], ...]:
        self._reach()
        lines = self.batches[batch].lines if batch in self.batches else {}
        found = [
            (line, each.body) for line, each in sorted(lines.items()) if each.is_error == is_error and line > after
        ]
        return tuple(found[:limit])

    async def add_batch(self, new: NewBatch, *, most: int) -> bool:
        self._reach()
        opened = [each for each in self.batches.values() if each.is_open and each.batch.new.principal == new.principal]
        if len(opened) >= most:
            return False
        self.batches[new.id] = _Batch(Batch(new, BatchStatus.VALIDATING))
        return True

    async def find_batch(self, batch_id: str) -> Batch | None:
        self._reach()
        return self.batches[batch_id].batch if batch_id in self.batches else None

    async def list_batches(self, selection: Selection) -> tuple[Batch, ...]:
        self._reach()
        found = [self.batches[name].batch for name in _part(list(self.batches), selection)]
        seen = [
            each
            for each in found
            if selection.principal.may_see(each.new.principal)
            and each.new.id.startswith(MESSAGE_BATCH) == selection.of_messages
        ]
        return tuple(seen[: selection.limit])

    async def cancel_batch(self, batch_id: str, principal: Principal, *, at: float) -> Batch | None:
        self._reach()
        found = self.batches.get(batch_id)
        if found is None or not principal.may_see(found.batch.new.principal):
            return None
        if found.batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            found.batch = replace(found.batch, status=BatchStatus.CANCELLING, cancelling_at=at)
        return found.batch

    async def remove_batch(self, batch_id: str) -> bool:
        self._reach()
        found = self.batches.get(batch_id)
        if found is None or found.is_open:
            return False
        del self.batches[batch_id]
        self.files = {name: each for name, each in self.files.items() if each.file.batch != batch_id}
        await self.remove_file(found.batch.new.input_file)
        return True

    async def take_batches(self, owner: str, *, limit: int) -> tuple[Batch, ...]:
        self._reach()
        if not self._is_alive(owner):
            return ()
        free = [each for each in self.batches.values() if each.is_open and not self._is_alive(each.batch.owner)][:limit]
        for each in free:
            each.batch = replace(each.batch, owner=owner, epoch=each.batch.epoch + 1)
        return tuple(each.batch for each in free)

    def _mine(self, ownership: BatchOwnership) -> _Batch | None:
        found = self.batches.get(ownership.id)
        if found is None or not found.is_open:
            return None
        return found if (found.batch.owner, found.batch.epoch) == (ownership.owner, ownership.epoch) else None

    async def give_back(self, ownership: BatchOwnership) -> None:
        self._reach()
        found = self._mine(ownership)
        if found is not None:
            found.batch = replace(found.batch, owner="")

    async def note_progress(self, ownership: BatchOwnership, progress: BatchProgress) -> Hold:
        self._reach()
        found = self._mine(ownership)
        if found is None:
            return Hold.FENCED
        status = found.batch.status
        status = status if status is BatchStatus.CANCELLING else BatchStatus.IN_PROGRESS
        found.batch = replace(found.batch, progress=progress, status=status)
        return _hold(found)

    async def hold_batch(self, ownership: BatchOwnership) -> Hold:
        self._reach()
        return _hold(self._mine(ownership))

    async def answered(self, batch_id: str) -> frozenset[int]:
        self._reach()
        return frozenset(self.batches[batch_id].lines)

    async def add_lines(self, ownership: BatchOwnership, answers: Sequence[LineAnswer]) -> Hold:
        self._reach()
        found = self._mine(ownership)
        if found is None:
            return Hold.FENCED
        for each in answers:
            if each.line in found.lines:
                continue
            found.lines[each.line] = each
            batch = found.batch
            found.batch = replace(
                batch,
                completed=batch.completed + (not each.is_error),
                failed=batch.failed + each.is_error,
                input_tokens=batch.input_tokens + each.input_tokens,
                output_tokens=batch.output_tokens + each.output_tokens,
            )
        return _hold(found)

    async def end_batch(self, ownership: BatchOwnership, end: BatchEnd) -> Batch | None:
        self._reach()
        found = self._mine(ownership)
        if found is None:
            return None
        batch, new, made = found.batch, found.batch.new, {}
        for is_error, name in ((False, end.output_file), (True, end.error_file)):
            size = sum(len(each.body) + 1 for each in found.lines.values() if each.is_error == is_error)
            if size:
                made[is_error] = name
                kind = "errors" if is_error else "output"
                told: dict[str, Any] = {"principal": new.principal, "batch": new.id, "is_errors": is_error}
                expires_at = end.at + new.output_seconds
                purpose = OF_MESSAGES if new.is_of_messages else "batch_output"
                file = StoredFile(name, f"{new.id}_{kind}.jsonl", purpose, end.at, expires_at, size, **told)
                self.files[name] = _File(file, "")
        progress = replace(
            batch.progress,
            ended_at=end.at,
            faults=end.faults,
            output_file=made.get(False, ""),
            error_file=made.get(True, ""),
        )
        found.batch = replace(batch, status=end_of(batch.status, end.status), progress=progress)
        found.ended_at = self._clock()
        return found.batch

    async def remove_old(self, seconds: float, *, limit: int = 100) -> int:
        self._reach()
        files = [name for name, each in self.files.items() if self._is_old(each)][:limit]
        kept = {each.file.batch for each in self.files.values()}
        batches = [
            name
            for name, each in self.batches.items()
            if not each.is_open and each.ended_at <= self._clock() - seconds and name not in kept
        ][:limit]
        for name in files:
            await self.remove_file(name)
        for name in batches:
            del self.batches[name]
        return len(files) + len(batches)

    def _is_old(self, each: _File) -> bool:
        if self._is_read(each.file.id):
            return False
        if each.owner:
            return not self._is_alive(each.owner)
        return each.file.expires_at is not None and each.file.expires_at <= self._clock()


def _part(names: list[str], selection: Selection) -> list[str]:
    if not selection.is_ascending:
        names.reverse()
    if not selection.after:
        return names
    return names[names.index(selection.after) + 1 :] if selection.after in names else []


def _hold(found: _Batch | None) -> Hold:
    if found is None:
        return Hold.FENCED
    return Hold.CANCELING if found.batch.status is BatchStatus.CANCELLING else Hold.HELD
