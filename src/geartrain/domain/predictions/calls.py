"""The interface between the service and a worker: a call, the reports of it, and its listener.

Service, bridge and worker use these types, so none of them imports the other. Reports travel as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, final

import msgspec

from geartrain.domain.errors import Code
from geartrain.domain.predictions.batching import Batching
from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.events import Log, LogSource, Metric, Output
from geartrain.domain.predictions.inference import Parameters
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.signature.types import OutputMode, Signature
from geartrain.domain.tensors.tensor import Tensor

if TYPE_CHECKING:
    from geartrain.domain.tensors.tensor import Buffer
else:
    Buffer = bytes  # in a report; the output of a call may also be a view of memory

PYTHON: Final = "python"
"""The platform of a model that is code: the document lists none for it, and Triton says this of its Python models."""


ALL: Final = -1
"""In place of the index of an item: every item of the call that has not ended."""


class ItemInput(msgspec.Struct, frozen=True):
    """One prediction's part of a call. `input` is a JSON object in UTF-8 whose file values are local paths.

    With `tensors`, which may be an empty tuple, these are inputs beside it, and outputs that hold tensors come packed
    (`domain.tensors.tensor.pack`) instead of as JSON. `rows` is its size in a batch (`domain.predictions.batching`).
    `parameters` are those of the Open Inference Protocol. `request` is the one that asks for the prediction. `pieces`:
    a response that is streamed may come as outputs, one for each piece.
    """

    id: str
    input: bytes
    rows: int = 1
    context: dict[str, str] | None = None
    tensors: tuple[Tensor, ...] | None = None
    parameters: Parameters | None = None
    request: RequestContext = NO_REQUEST
    pieces: bool = False


class CallInput(msgspec.Struct, frozen=True):
    """One invocation of `run()`, for one prediction or, where the model takes batches, for several.

    `prefetch`: the slot is still busy; the call begins when the one before it is over. `single_client`: no other client
    seems to ask at present, so the server has nothing else to do while the call runs. `apart`: see `Batching`. `probe`:
    see `ipc.messages.Predict`.
    """

    id: str
    items: tuple[ItemInput, ...]
    prefetch: bool = False
    single_client: bool = False
    apart: bool = False
    probe: bool = False


INLINE: Final = "data:"
"""In place of the URL that a client wants its output files at: they become `data:` URLs."""


class FileRef(msgspec.Struct, frozen=True, array_like=True):
    """A file that an output refers to: the output's JSON has the string `token` where its URL belongs.

    `filename` is a copy of the author's file, which the parent deletes. With `is_output` it is the JSON itself: too
    large for a message, it is empty there. `temporary_files` are the author's own temporary file and its folders, in
    the order in which they are deleted: by the worker when the run is over, by the parent if the worker dies before.
    """

    token: str
    filename: str
    mime_type: str
    is_output: bool = False
    temporary_files: tuple[str, ...] = ()


WORKER_CRASHED: Final = "Worker crashed: "
"""Beginning of the error of a run whose worker has died."""


class Succeeded(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The run ended well. `output` is JSON text, empty if a file holds it; None when the run gave it as chunks.

    For an item with tensors it is packed, if it holds any; so are its chunks. A packed output may be a view of memory
    that the worker waits for, so it is not to be kept for longer than it takes to answer.
    """

    output: Buffer | None
    predict_time: float


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The run raised, or its worker died. `code`: why, where it was not the run."""

    error: str
    code: Code | None = None


class Canceled(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The run was stopped on request."""


Outcome = Succeeded | Failed | Canceled


class ItemEvent(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """An event of the run of an item of a call; `item` may be `ALL`. The `files` are those that an output names."""

    item: int
    event: Output | Log | Metric
    files: tuple[FileRef, ...] = ()


@final
class ItemEnd(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """End of an item of a call; `item` may be `ALL`. The `files` are those that the output of a success names."""

    item: int
    outcome: Outcome
    files: tuple[FileRef, ...] = ()


Report = ItemEvent | ItemEnd


def nothing() -> None:
    """Stand in for `ModelCallPort.on_end` of a call without a prediction."""


class ModelCallPort(Protocol):
    """A call of another model by the author's code, and the way of its answer.

    Attributes:
        model: the name of the other model.
        version: empty for the one that clients get.
        input: a JSON object in UTF-8, whose file values are local paths.
        tensors: inputs beside it; None without.
        on_end: called when the worker needs no more of the answer: to cancel what runs, and to let go of what is held.
    """

    model: str
    version: str
    input: bytes
    tensors: tuple[Tensor, ...] | None
    on_end: Callable[[], None]

    def give(self, output: Buffer, *, packed: bool, record: bool, files: tuple[str, ...]) -> None:
        """Send an output of a stream; see `ipc.messages.ModelAnswer`."""

    def end(
        self,
        output: Buffer | None,
        mode: OutputMode,
        *,
        packed: bool = False,
        record: bool = False,
        files: tuple[str, ...] = (),
    ) -> None:
        """Send the end, with the output of a model that streams nothing."""

    def fail(self, model: str, code: str, error: str) -> None:
        """Send the reason for which there is no answer."""


class CallListener(Protocol):
    """Receives the reports of a worker on one call, whose items are named by their index, or by `ALL`.

    First `on_begin`, then any number of reports, and exactly one end for each item; or only `on_unstarted`.
    """

    def on_begin(self) -> None:
        """The run of the call begins: at once, or when the call before it on its slot has ended."""

    def on_unstarted(self) -> None:
        """The worker has died before the call began: nothing of it has run."""

    def on_event(self, report: ItemEvent) -> None:
        """The run gave an output or a metric, or wrote to a stream."""

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        """Items are over, perhaps none. With `idle` the call is, too, and its slot may take the next one."""

    def on_idle(self) -> None:
        """The slot, which was still occupied when all items had ended, may take the next call."""

    def on_model_call(self, call: ModelCallPort) -> None:
        """The run calls another model."""


class WorkerObserver(Protocol):
    """Hears what concerns a worker as a whole."""

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """Load or setup wrote to a stream."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """The model is loaded, and its setup begins."""

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """The author's own metrics have changed."""

    def on_model_call(self, call: ModelCallPort) -> None:
        """The setup calls another model."""

    def on_lost(self, reason: str) -> None:
        """The worker is gone without having been told to go; the calls it had have been ended before."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """Self-description of a worker that has loaded its model, before setup."""

    signature: Signature
    slots: int
    is_async: bool
    has_healthcheck: bool
    batching: Batching | None = None
    platform: str = PYTHON  # the Open Inference Protocol's name of what runs the model
    calls: tuple[str, ...] = ()  # other models that its class declares, as `name` or `name@version`
    cache: CacheSettings | None = None  # of its answers, as `@cached` says; `geartrain.yaml` comes first


class HealthVerdict(msgspec.Struct, frozen=True):
    """The result of the author's `healthcheck()`; `error` says why it is not healthy."""

    healthy: bool
    error: str | None = None
