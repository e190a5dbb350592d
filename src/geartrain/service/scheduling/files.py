"""The files of a prediction: those of its input are fetched before the run, those of its outputs become URLs."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.calls import Canceled, Failed, FileRef
from geartrain.domain.tensors.tensor import pack, unpack
from geartrain.service.ports import FolderPort, InputFilesPort, OutputFilesPort

SINGLE: Final = -1


class Attachment(msgspec.Struct, frozen=True):
    """A file that came with a request.

    Attributes:
        name: of the input that it is a value of.
        path: where it lies, absolute.
        index: its place in the list that the input is; `SINGLE` for an input that is one file.
    """

    name: str
    path: str
    index: int


class Attachments(msgspec.Struct, frozen=True):
    """The files that came with a request, and the folder that they lie in.

    The input holds a text at the place of each file, for the validation and for the client. It says nothing about where
    the file lies: that is told here alone, so no input can name a file that did not come with it.
    """

    folder: FolderPort
    files: tuple[Attachment, ...] = ()

    def take_out(self, values: dict[str, Any]) -> None:
        """Leave None in a decoded input at the place of each file."""
        for file in self.files:
            _put(values, file, None)

    def put_in(self, values: dict[str, Any]) -> None:
        """Put into a decoded input where each file lies."""
        for file in self.files:
            _put(values, file, file.path)


def _put(values: dict[str, Any], file: Attachment, value: str | None) -> None:
    if file.index == SINGLE:
        values[file.name] = value
    else:
        values[file.name][file.index] = value


Digests = Mapping[str, str]
"""Digests of the content of local files, by their paths."""


class Preparation:
    """The fetching of the files of one input, in a task of its own.

    It ends with exactly one call: of `on_ready`, with the input as JSON with local paths and the digests of its files,
    or of `on_end`. The digests are None unless `has_digests`, and where the files have none.
    """

    def __init__(
        self,
        files: InputFilesPort | None,
        folder: FolderPort,
        *,
        attachments: Attachments | None,
        has_digests: bool,
        on_ready: Callable[[bytes, Digests | None], None],
        on_end: Callable[[Failed | Canceled], None],
    ) -> None:
        self._files = files
        self._folder = folder
        self._attachments = attachments
        self._has_digests = has_digests
        self._on_ready = on_ready
        self._on_end = on_end
        self._is_canceled = False
        self._fetching: asyncio.Task[tuple[dict[str, Any], Digests | None]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None

    @property
    def is_pending(self) -> bool:
        """True while its task exists and has called neither `on_ready` nor `on_end`."""
        return self._task is not None

    def begin(self, values: dict[str, Any]) -> None:
        """Begin to fetch the files that the decoded input `values` names."""
        self._task = asyncio.ensure_future(self._run(values))

    def cancel(self) -> None:
        """Stop fetching. `on_end` hears of it soon. Repeating it is harmless."""
        self._is_canceled = True
        if self._fetching is not None:
            self._fetching.cancel()

    def begin_removal(self) -> None:
        """Begin to remove the files: the prediction goes on without them."""
        if self._removal is None:
            self._removal = asyncio.ensure_future(self._folder.remove())

    async def remove_files(self) -> None:
        """Remove what was fetched, and what came with the request."""
        if self._removal is None:
            await self._folder.remove()
        else:
            await self._removal

    async def _fetch(self, values: dict[str, Any]) -> tuple[dict[str, Any], Digests | None]:
        files = self._files
        # Without `files`, another worker has followed, with another signature.
        local = values if files is None else await files.fetch(values, self._folder.path)
        if self._attachments is not None:
            self._attachments.put_in(local)
        if files is None or not self._has_digests:
            return local, None
        return local, await files.digests(self._folder.path())

    async def _run(self, values: dict[str, Any]) -> None:
        # The fetching is a task of its own, so that a cancel before its first step is not lost.
        fetching = self._fetching = asyncio.ensure_future(self._fetch(values))
        if self._is_canceled:
            fetching.cancel()
        await asyncio.wait((fetching,))
        self._task = None
        if fetching.cancelled() or self._is_canceled:
            if not fetching.cancelled():
                fetching.exception()  # it may have no waiter left
            self._on_end(Canceled())
            return
        error = fetching.exception()
        if error is None:
            local, digests = fetching.result()
            self._on_ready(msgspec.json.encode(local), digests)
        else:  # the client is told of any error
            message = str(error)
            self._fetching = None
            del fetching, error  # the frames of the error refer to this object
            self._on_end(Failed(message))


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
        self.leads_elsewhere = False  # an output has URLs that may become stale

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
            if not self._files().holds_content and not all(file.is_output for file in files):
                self.leads_elsewhere = True
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
