"""Inputs too large for a message and for shared memory: handed over in a file, which the worker deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.parcels import parts_of, spilled_message_of
from geartrain.bridge.slots import SlotChannel
from geartrain.domain import work
from geartrain.domain.tensors import Buffer


class Spills:
    """The inputs of one worker that are on their way into files."""

    def __init__(self, folder: WorkerFolder) -> None:
        self._folder = folder
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, channel: SlotChannel, job: work.Job | work.BatchJob, listener: work.JobListener, *, serial: int
    ) -> None:
        """Write the input of a job that the slot is kept for, and start it then."""
        task = asyncio.ensure_future(self._spill(channel, job, listener, serial=serial))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until none is being written."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _spill(
        self, channel: SlotChannel, job: work.Job | work.BatchJob, listener: work.JobListener, *, serial: int
    ) -> None:
        path = self._folder.new_input()
        try:
            await asyncio.to_thread(_write, path, parts_of(job))
        except OSError as error:
            path.unlink(missing_ok=True)
            if channel.listener is listener:
                channel.take_listener()
                listener.on_end(work.Failed(f"the input could not be handed to the worker: {error}"), (), idle=True)
            return
        if channel.holds(listener):
            outputs = self._folder.outputs
            channel.send(spilled_message_of(job, serial, channel.parcels, outputs=outputs, path=str(path)))


def _write(path: Path, parts: Sequence[Buffer]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)
