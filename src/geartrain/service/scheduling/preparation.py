"""Fetches the files of an input before its prediction may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.calls import Canceled, Failed
from geartrain.service.ports import FolderPort, InputFilesPort

SINGLE: Final = -1


class NoFolder:
    """In place of the folder of a request that came without files."""

    def path(self) -> Path:
        """Raise an error: there is no folder."""
        msg = "this request came without files"
        raise RuntimeError(msg)

    async def remove(self) -> None:
        """Do nothing: there is nothing to remove."""


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


class Preparation:
    """The fetching of the files of one input, in a task of its own.

    It ends with exactly one call: of `on_ready`, with the input as JSON with local paths, or of `on_end`.
    """

    has_files = True  # that are to be removed at the end

    def __init__(
        self,
        files: InputFilesPort,
        folder: FolderPort,
        *,
        attachments: Attachments,
        on_ready: Callable[[bytes], None],
        on_end: Callable[[Failed | Canceled], None],
    ) -> None:
        self._files = files
        self._folder = folder
        self._attachments = attachments
        self._on_ready = on_ready
        self._on_end = on_end
        self._is_canceled = False
        self._fetching: asyncio.Task[dict[str, Any]] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """True once its task exists, which calls `on_ready` or `on_end`."""
        return self._task is not None

    def begin(self, values: dict[str, Any]) -> None:
        """Begin to fetch the files that the decoded input `values` names."""
        self._task = asyncio.ensure_future(self._run(values))

    def cancel(self) -> None:
        """Stop fetching. `on_end` hears of it soon. Repeating it is harmless."""
        self._is_canceled = True
        if self._fetching is not None:
            self._fetching.cancel()

    async def remove_files(self) -> None:
        """Remove what was fetched, and what came with the request."""
        await self._folder.remove()

    async def _run(self, values: dict[str, Any]) -> None:
        # The fetching is a task of its own, so that a cancel before its first step is not lost.
        fetching = self._fetching = asyncio.ensure_future(self._files.fetch(values, self._folder.path))
        if self._is_canceled:
            fetching.cancel()
        await asyncio.wait((fetching,))
        if fetching.cancelled() or self._is_canceled:
            if not fetching.cancelled():
                fetching.exception()  # it may have no waiter left
            self._on_end(Canceled())
            return
        error = fetching.exception()
        if error is None:
            local = fetching.result()
            self._attachments.put_in(local)
            self._on_ready(msgspec.json.encode(local))
        else:  # the client is told of any error
            self._on_end(Failed(str(error)))


class NoPreparation:
    """In place of a preparation, for an input without files."""

    has_begun = False

    def __init__(self) -> None:
        self.has_files = False  # an attribute of the class would take several times as long to read

    def cancel(self) -> None:
        """Do nothing: there is nothing to stop."""

    async def remove_files(self) -> None:
        """Do nothing: there is nothing to remove."""


NO_PREPARATION: Final = NoPreparation()
NO_ATTACHMENTS: Final = Attachments(NoFolder())
