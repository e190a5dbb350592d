"""Turns the files of a prediction's outputs into URLs, and keeps outputs, logs and metrics in the order of the run."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from geartrain.domain.predictions.calls import FileRef
from geartrain.domain.tensors.tensor import pack, unpack
from geartrain.service.ports import OutputFilesPort

Step = Callable[[], Coroutine[Any, Any, None] | None]
Discard = Callable[[Sequence[FileRef]], None]


class Delivery:
    """The outputs of one prediction that have files: all on their way at once, each given when its turn has come.

    A report that comes behind such an output waits for it (`after`), so that the log keeps the order of the run. The
    worker's files are discarded whatever becomes of them.
    """

    def __init__(
        self,
        files: Callable[[], OutputFilesPort],
        discard: Discard,
        *,
        packed: bool,
        on_error: Callable[[], None],
    ) -> None:
        """`files` gives what takes the files of all outputs of the prediction, so that it can keep their names apart.

        `packed`: the outputs are JSON and tensors in one piece (`domain.tensors.tensor.pack`). `on_error` hears of
        the first output that cannot be delivered, whose reason is `error` from then on.
        """
        self._files = functools.cache(files)
        self._discard = discard
        self._packed = packed
        self._on_error = on_error
        self._on_their_way: set[asyncio.Task[bytes]] = set()
        self._steps: deque[Step] = deque()
        self._worker: asyncio.Task[None] | None = None
        self.error: str | None = None
        self.is_cut = False

    @property
    def is_pending(self) -> bool:
        """True if an output is still on its way, so that what comes now has to wait."""
        return self._worker is not None

    def give(self, output: bytes, files: Sequence[FileRef], then: Callable[[bytes], None]) -> None:
        """Deliver the files of an output, and give its JSON with their URLs to `then` when its turn has come.

        `then` is not called if the output cannot be delivered, or if it is cut.
        """
        task = asyncio.ensure_future(self._deliver(output, files))
        self._on_their_way.add(task)
        task.add_done_callback(lambda _: self._on_done(task, files))
        if self.is_cut or self.error is not None:
            task.cancel()  # the prediction has no use for it
        self.after(lambda: self._give(task, then))

    def after(self, step: Step) -> None:
        """Take a step, which may take time, when all that came before it has been given."""
        self._steps.append(step)
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._work())

    def cut(self) -> None:
        """Stop what is still on its way."""
        if self._on_their_way:
            self.is_cut = True
        for task in self._on_their_way:
            task.cancel()

    async def _work(self) -> None:
        while self._steps:
            pending = self._steps.popleft()()
            if pending is not None:
                await pending
        self._worker = None

    async def _give(self, task: asyncio.Task[bytes], then: Callable[[bytes], None]) -> None:
        await asyncio.wait((task,))  # unlike awaiting it, this tells its cancellation from that of the task we are in
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            then(task.result())
        elif self.error is None:
            self.error = str(error)
            self._on_error()

    async def _deliver(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        try:
            if self._packed:
                return await self._deliver_packed(output, files)
            return await self._files().deliver(output, files)
        finally:
            self._discard(files)

    async def _deliver_packed(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        """URLs take the place of tokens in the JSON alone: among the contents of tensors nothing may move."""
        output = await self._files().deliver(output, [file for file in files if file.is_output])
        named = [file for file in files if not file.is_output]
        if not named:
            return output
        json, tensors = unpack(output)
        return b"".join(pack(await self._files().deliver(json, named), tensors))

    def _on_done(self, task: asyncio.Task[bytes], files: Sequence[FileRef]) -> None:
        self._on_their_way.discard(task)
        if task.cancelled():
            self._discard(files)  # again, for one that was cut before its first step; that is harmless
        else:
            task.exception()  # retrieved, in case it has no waiter left


class NoDelivery:
    """In place of a delivery, for a prediction that has given no files."""

    def __init__(self) -> None:
        # Attributes of the class would take several times as long to read.
        self.is_pending = self.is_cut = False
        self.error = None

    def cut(self) -> None:
        """Do nothing: there is nothing to stop."""

    def after(self, step: Step) -> None:
        """Take a step at once. Only a real delivery can take one that takes time."""
        if step() is not None:
            msg = "there is no delivery that could wait for this step"
            raise RuntimeError(msg)


NO_DELIVERY: Final = NoDelivery()
