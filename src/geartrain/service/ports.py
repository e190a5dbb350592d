"""The ports of the service: what it needs of the layers below. Tests pass fakes instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from geartrain.domain.errors import FieldError
from geartrain.domain.predictions.calls import CallInput, CallListener, FileRef, HealthVerdict, WorkerInfo
from geartrain.domain.predictions.prediction import Webhook
from geartrain.domain.predictions.request_context import RequestContext


class WorkerPort(Protocol):
    """One worker of one model version."""

    async def start(self) -> WorkerInfo:
        """Wait for setup; raise an exception whose text is the reason if it fails.

        The observer hears before, as soon as the model is loaded, what is returned in the end.
        """

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Run a call on an idle slot; `listener` hears of it until its end.

        Only a model that takes batches (`WorkerInfo.batching`) gets calls of several items. If its run is not async and
        `may_prefetch` holds, calls with `prefetch` may be given to a slot that is busy. They begin one after the other,
        and are to be small. Nothing that the listener raises reaches the caller, other listeners, or the worker.
        """

    @property
    def may_prefetch(self) -> bool:
        """True if a call may be given to a slot that is busy."""

    @property
    def is_debugged(self) -> bool:
        """True if a person may have stopped it in a debugger, so that no limit of time may end it or its calls."""

    def cancel(self, slot: int, call_id: str) -> None:
        """Ask for the end of a call; its listener hears of it. A prefetched one that has not begun never runs.

        Nothing happens if the slot does not have that call.
        """

    def discard(self, files: Sequence[FileRef]) -> None:
        """Release the files of an output: they have been read, or are not needed."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The process that it is, if it is one on this machine and lives."""

    def kill(self, reason: str) -> None:
        """Kill the worker at once; the calls that it runs fail for that reason."""

    async def healthcheck(self) -> HealthVerdict:
        """Run the author's healthcheck, however long it takes."""

    async def stop(self, grace: float) -> None:
        """End the worker within `grace` seconds, by force if need be."""


class FolderPort(Protocol):
    """A directory of one prediction's own, made when first asked for."""

    def path(self) -> Path:
        """The directory; it exists."""

    async def remove(self) -> None:
        """Remove it with all it holds; never raises."""


class AttachedFilePort(Protocol):
    """A file that comes with a request. Its methods block: they are for a thread."""

    path: str

    def write(self, data: memoryview) -> None:
        """Append a piece; raise `GeartrainError`: `TOO_LARGE`, or `NO_STORAGE` where the disk is full."""

    def close(self) -> None:
        """Complete the file. Repeating it is harmless."""


class AttachmentStorePort(FolderPort, Protocol):
    """The folder of the files that come with one request, and then of its prediction."""

    def open(self, place: str, file_name: str) -> AttachedFilePort:
        """Begin a file for the input at `place`. Only the last part of a client's `file_name` is used. Blocks."""


class InputFilesPort(Protocol):
    """Makes local files of the URLs in an input."""

    def needed(self, values: dict[str, Any]) -> bool:
        """True if any value is a file."""

    def check(self, values: dict[str, Any]) -> tuple[FieldError, ...]:
        """The file values that no client may give."""

    async def fetch(self, values: dict[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
        """Return the input with local paths; raise `DownloadError` with a sentence for the client."""

    async def digests(self, folder: Path) -> dict[str, str] | None:
        """Return, for the path of each file in `folder`, a text that only equal files have.

        Files are equal if their bytes and extensions are. None if they are too large, or cannot be read.
        """


class WebhookSenderPort(Protocol):
    """Sends webhooks. Nothing that a receiver does makes it raise."""

    def fault(self, url: str) -> str | None:
        """Return the fault of a target as a sentence for the client, None if it is good."""

    async def send(self, webhook: Webhook, body: Callable[[], Awaitable[bytes]]) -> str | None:
        """Try once; return why it did not arrive, None if it did. `body` is asked for when its turn has come."""

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        """Try until it has arrived, or there is no hope of it; return why it did not arrive, None if it did."""

    def end_pauses(self) -> None:
        """End every pause between two tries, and make no more long ones."""

    async def close(self) -> None:
        """Close every connection."""


class OutputFilesPort(Protocol):
    """Makes URLs of the files in the outputs of one prediction."""

    @property
    def holds_content(self) -> bool:
        """True if each URL holds the bytes of its file, so that it never becomes stale."""

    async def deliver(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        """Return the JSON with a URL for every file; raise `OutputFileError` with a sentence for the client."""


class OutputsPort(Protocol):
    """Decides where the output files of predictions go."""

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """Return the fault of a client's upload URL as a sentence for it, None if it is good.

        `background`: no client waits for the answer.
        """

    def kept_in(self, folder: Callable[[], Path]) -> OutputFilesPort:
        """Create the store of the files that another model reads where they lie: in the folder that `folder` makes."""

    def of(self, prediction_id: str, prefix: str | None, request: RequestContext) -> OutputFilesPort:
        """Create the store of one prediction's files; `prefix` is the upload URL of its client, or `INLINE`.

        `request`: its ids are sent to receivers.
        """
