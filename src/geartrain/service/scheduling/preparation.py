"""Fetches the files of an input before its prediction may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.calls import Canceled, Failed
from geartrain.service.ports import FolderPort, InputFilesPort


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
        on_ready: Callable[[bytes], None],
        on_end: Callable[[Failed | Canceled], None],
    ) -> None:
        self._files = files
        self._folder = folder
        self._on_ready = on_ready
        self._on_end = on_end
        self._is_canceled = False
        self._fetching: asyncio.Task[dict[str, Any]] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, values: dict[str, Any]) -> None:
        """Begin to fetch the files that the decoded input `values` names."""
        self._task = asyncio.ensure_future(self._run(values))

    def cancel(self) -> None:
        """Stop fetching. `on_end` hears of it soon. Repeating it is harmless."""
        self._is_canceled = True
        if self._fetching is not None:
            self._fetching.cancel()

    async def remove_files(self) -> None:
        """Remove what was fetched."""
        await self._folder.remove()

    async def _run(self, values: dict[str, Any]) -> None:
        # The fetching is a task of its own, so that a cancel before its first step is not lost.
        fetching = self._fetching = asyncio.ensure_future(self._files.fetch(values, self._folder.path))
        if self._is_canceled:
            fetching.cancel()
        await asyncio.wait((fetching,))
        if fetching.cancelled() or self._is_canceled:
            if not fetching.cancelled():
                fetching.exception()  # nobody waits for it any more
            self._on_end(Canceled())
            return
        error = fetching.exception()
        if error is None:
            self._on_ready(msgspec.json.encode(fetching.result()))
        else:  # the client is told of any error
            self._on_end(Failed(str(error)))


class NoPreparation:
    """In place of a preparation, for an input without files."""

    has_files = False

    def cancel(self) -> None:
        """Do nothing: there is nothing to stop."""

    async def remove_files(self) -> None:
        """Do nothing: there is nothing to remove."""


NO_PREPARATION: Final = NoPreparation()
