"""The outputs of one prediction that have files: all on their way at once, each given when its turn has come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from geartrain.domain.tensors import pack, unpack
from geartrain.domain.work import FileRef
from geartrain.service.ports import OutputFilesPort, WorkerPort


class Deliveries:
    """Begins deliveries and cuts them short; the worker's files are let go whatever becomes of them."""

    def __init__(self, files: OutputFilesPort, worker: WorkerPort, *, packed: bool = False) -> None:
        """`files` takes the files of all outputs of the prediction, so that it can keep their names apart.

        `packed`: the outputs are JSON and tensors in one piece (`domain.tensors.pack`).
        """
        self._files = files
        self._worker = worker
        self._packed = packed
        self._tasks: set[asyncio.Task[bytes]] = set()

    def begin(self, output: bytes, files: Sequence[FileRef]) -> asyncio.Task[bytes]:
        """Deliver the files of an output; the task gives its JSON with their URLs, or raises why it cannot."""
        task = asyncio.ensure_future(self._deliver(output, files))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._on_done(task, files))
        return task

    def cut(self) -> bool:
        """Cancel what is still on its way; return whether anything was."""
        for task in self._tasks:
            task.cancel()
        return bool(self._tasks)

    async def _deliver(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        try:
            if self._packed:
                return await self._deliver_packed(output, files)
            return await self._files.deliver(output, files)
        finally:
            self._worker.discard(files)

    async def _deliver_packed(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        """URLs take the place of tokens in the JSON alone: among the contents of tensors, nothing may move."""
        output = await self._files.deliver(output, [file for file in files if file.is_output])
        named = [file for file in files if not file.is_output]
        if not named:
            return output
        json, tensors = unpack(output)
        return b"".join(pack(await self._files.deliver(json, named), tensors))

    def _on_done(self, task: asyncio.Task[bytes], files: Sequence[FileRef]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._worker.discard(files)  # again, for one that was cut before its first step; it does no harm
        else:
            task.exception()  # seen, also where nobody waits for it any more
