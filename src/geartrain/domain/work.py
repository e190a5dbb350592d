"""What passes between the service and a worker: a job, what becomes of it, and who hears of it.

The service and the bridge both speak these words, so neither needs to know the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from geartrain.domain.batching import Batching
from geartrain.domain.events import LogSource, MetricMode
from geartrain.domain.inference import Parameters
from geartrain.domain.signature import Signature
from geartrain.domain.tensors import Tensor

PYTHON: Final = "python"
"""The platform of a model that is code: the document lists none for it, and Triton says this of its Python models."""


class Job(msgspec.Struct, frozen=True):
    """One call of the runner. `input` is a JSON object in UTF-8 whose file values are local paths.

    With `tensors`, which may be none at all, these are inputs beside it, and outputs that hold tensors shall come
    packed (`domain.tensors.pack`) instead of as JSON. `parameters` are those of the Open Inference Protocol. `lone`:
    nobody else asks at present, so that nothing else would be done while it runs.
    """

    id: str
    input: bytes
    context: dict[str, str] | None = None
    tensors: tuple[Tensor, ...] | None = None
    parameters: Parameters | None = None
    lone: bool = False


class BatchJob(msgspec.Struct, frozen=True):
    """Several jobs in one call of the runner; `sizes` are their rows (`domain.batching`).

    `ahead`: the slot is not free yet; the batch lies ready for when it is. `lone` as of `Job`.
    """

    id: str
    jobs: tuple[Job, ...]
    sizes: tuple[int, ...]
    ahead: bool = False
    lone: bool = False


class FileRef(msgspec.Struct, frozen=True):
    """A file that an output refers to: the output's JSON has the string `token` where its URL belongs.

    With `is_output` it is the JSON itself: too large for a message, it is empty there.
    """

    token: str
    filename: str
    mime_type: str
    is_output: bool = False


class Succeeded(msgspec.Struct, frozen=True):
    """The run ended well. `output` is JSON text, empty if a file holds it; None when the run gave it as chunks.

    Of a job with tensors it is packed, if it holds any; so are its chunks.
    """

    output: bytes | None
    predict_time: float


class Failed(msgspec.Struct, frozen=True):
    """The run raised, or its worker died."""

    error: str


class Canceled(msgspec.Struct, frozen=True):
    """The run was stopped on request."""


Outcome = Succeeded | Failed | Canceled


class JobListener(Protocol):
    """Hears what a worker reports of one job: any number of outputs, logs and metrics, then exactly one end."""

    def on_output(self, chunk: bytes, files: tuple[FileRef, ...]) -> None:
        """The run gave a chunk of JSON text, empty if one of the files holds it."""

    def on_log(self, source: LogSource, data: str) -> None:
        """The run wrote to a stream."""

    def on_metric(self, name: str, value: Any, mode: MetricMode) -> None:
        """The run recorded a metric."""

    def on_end(self, outcome: Outcome, files: tuple[FileRef, ...], *, idle: bool) -> None:
        """The run is over. With `idle` the slot may take the next job; otherwise `on_idle` follows or never comes."""

    def on_idle(self) -> None:
        """The slot that was still occupied at the end may take the next job."""


class ItemOutcome(msgspec.Struct, frozen=True):
    """How the job at that index of a batch ended."""

    index: int
    outcome: Outcome
    files: tuple[FileRef, ...] = ()


class BatchListener(JobListener, Protocol):
    """Hears what a worker reports of a batch: of a single job by its index, and as a `JobListener` of all that run."""

    def on_begin(self) -> None:
        """The batch is run now: comes before all else, at once or when the slot that it lay ready for is free."""

    def on_unstarted(self) -> None:
        """The worker has died, and the batch had not begun: nothing of it has run."""

    def item(self, index: int) -> JobListener:
        """The listener of one job; its end comes with `on_item_ends`, never here."""

    def on_item_ends(self, ends: Sequence[ItemOutcome], *, idle: bool) -> None:
        """Some jobs are over; `idle` with the last of them: the slot may take the next batch."""


class WorkerObserver(Protocol):
    """Hears what concerns a worker as a whole."""

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """Load or setup wrote to a stream."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """The model is loaded, and its setup begins."""

    def on_lost(self, reason: str) -> None:
        """The worker is gone without having been told to go; the jobs it had have been ended before."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself when it has loaded its model, before setup."""

    signature: Signature
    slots: int
    is_async: bool
    has_healthcheck: bool
    batching: Batching | None = None
    platform: str = PYTHON  # what runs it, as the Open Inference Protocol calls it


class HealthVerdict(msgspec.Struct, frozen=True):
    """The result of the author's `healthcheck()`; `error` says why it is not healthy."""

    healthy: bool
    error: str | None = None
