"""The parts in which the events of a prediction are written: in rows, or in files if they are large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from geartrain.domain.predictions.ledger import Checkpoint, End, Hold, Ownership
from geartrain.store import sql
from geartrain.store.errors import unavailable
from geartrain.store.files import IN_ROW, PartFiles
from geartrain.store.groups import Groups
from geartrain.store.operations import Operation, RowLock, Statement, Steps


class Parts:
    """The parts of one store."""

    def __init__(self, groups: Groups, files: PartFiles) -> None:
        self._groups = groups
        self._files = files

    def write(self, lock: RowLock, events: bytes, steps: Callable[[str], Steps[Hold]]) -> asyncio.Future[Hold]:
        """Run an operation that adds events; `steps` is told the file that they are in, or `IN_ROW`."""
        if self._files.is_large(len(events)):
            return asyncio.ensure_future(self._write_file(lock, events, steps))
        return self._groups.submit(Operation(lambda: steps(IN_ROW), lock=lock))

    async def _write_file(self, lock: RowLock, events: bytes, steps: Callable[[str], Steps[Hold]]) -> Hold:
        file = await asyncio.to_thread(self._files.write, events)
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
        return tuple(events if file == IN_ROW else self._files.read(file) for events, file in parts)

    def remove_soon(self, names: Sequence[str]) -> None:
        """Have a thread do as `remove`."""
        files = [name for name in names if name != IN_ROW]
        if files:
            _ = asyncio.get_running_loop().run_in_executor(None, self._files.remove, files)

    async def remove(self, names: Sequence[str]) -> None:
        """Remove the files among the names of files that parts had."""
        files = [name for name in names if name != IN_ROW]
        if files:
            await asyncio.to_thread(self._files.remove, files)


def add_part(ownership: Ownership, written: Checkpoint | End, file: str) -> Statement:
    """Add the events of a checkpoint or an end, which are in a file or go into the row."""
    key = ownership.key
    values: dict[str, Any] = {"model": key.model, "id": key.id, "epoch": ownership.epoch, "part": written.part}
    return Statement(sql.ADD_PART, {**values, "events": written.events if file == IN_ROW else b"", "file": file})
