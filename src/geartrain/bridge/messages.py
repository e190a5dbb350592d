"""Every message between parent and worker, and nothing else: the contract of the inner wire.

Two kinds of channel, as in the container runtime document: one control channel for the worker as a whole, and one
channel per slot for the data of its predictions, so a cancel never waits behind a large output. Encoded as msgpack
arrays that start with the message's name. The golden files of the tests hold every message: a change of the wire is a
change of those files and of `PROTOCOL_VERSION`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from geartrain.domain.batching import Batching
from geartrain.domain.events import LogSource, MetricMode
from geartrain.domain.signature import Signature

PROTOCOL_VERSION = 6


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Compact on the wire: `[name, field, …]`."""


# Control channel, parent to worker


class BackendChoice(msgspec.Struct, frozen=True, array_like=True):
    """A model that is a file: the backend that runs it, the file or folder, and the backend's options."""

    name: str
    path: str
    options: dict[str, Any] = {}


class Init(_Message, frozen=True, tag="Init", gc=True):
    """The first message: what to load and where to attach the slots. `num_slots` None leaves it to the model.

    `batching` are settings of `domain.batching.BatchPolicy` that come before those of the model itself.
    """

    protocol: int
    predictor_ref: str
    root: str  # the model's folder
    slot_address: str  # path of the Unix socket that every slot connects to
    num_slots: int | None = None
    mode: Literal["predict", "train"] = "predict"  # which method of the runner's class, and what it is called
    weights: str | None = None
    inspect: bool = False  # load and report, no setup, no slots
    probe: str | None = None  # the path of some memory of the parent's, to try whether it can be shared
    backend: BackendChoice | None = None  # instead of the class that `predictor_ref` names
    batching: dict[str, Any] | None = None


class Cancel(_Message, frozen=True, tag="Cancel"):
    """Stop job `serial` of `slot`; nothing happens if the slot no longer runs it."""

    slot: int
    serial: int


class Healthcheck(_Message, frozen=True, tag="Healthcheck"):
    """Run the author's healthcheck."""

    id: int


class Shutdown(_Message, frozen=True, tag="Shutdown"):
    """End when the running predictions have ended."""


# Control channel, worker to parent


class Loaded(_Message, frozen=True, tag="Loaded", gc=True):
    """The model is loaded and its setup begins, unless it is only inspected: what it takes and gives, and the slots."""

    slots: tuple[int, ...]
    signature: Signature
    is_async: bool
    has_healthcheck: bool
    batching: Batching | None = None  # of a model that takes several predictions in one call
    platform: str = ""  # what runs the model, as the Open Inference Protocol calls it, where that is no Python class


class Ready(_Message, frozen=True, tag="Ready"):
    """Setup is done: the slots take predictions."""


class SetupLog(_Message, frozen=True, tag="Log"):
    """Output of load or setup."""

    source: LogSource
    data: str


class WorkerLog(_Message, frozen=True, tag="WorkerLog"):
    """A record of the worker runtime itself, or output that belongs to no prediction."""

    target: str
    level: Literal["debug", "info", "warning", "error"]
    message: str


class Idle(_Message, frozen=True, tag="Idle"):
    """A slot whose prediction was ended by `SlotCancelled` or `SlotFailed` can take the next one."""

    slot: int


class SlotCancelled(_Message, frozen=True, tag="Cancelled"):
    """The prediction is canceled, though its cleanup still occupies the slot; `Idle` follows."""

    slot: int
    id: str


class SlotFailed(_Message, frozen=True, tag="Failed"):
    """The prediction failed for a reason that the slot's own channel could not carry."""

    slot: int
    error: str


class Fatal(_Message, frozen=True, tag="Fatal"):
    """The worker cannot go on and exits; during load or setup this is why it failed."""

    reason: str


class DroppedLogs(_Message, frozen=True, tag="DroppedLogs"):
    """The worker had to drop log messages."""

    count: int
    interval_millis: int


class HealthcheckResult(_Message, frozen=True, tag="HealthcheckResult"):
    """What the author's healthcheck said."""

    id: int
    status: Literal["healthy", "unhealthy"]
    error: str | None = None


class ShuttingDown(_Message, frozen=True, tag="ShuttingDown"):
    """The worker has understood `Shutdown`."""


# Slot channel, parent to worker


class SlotMemory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Two paths that open the slot's memory for what goes down and for what comes up (`bridge.arena`).

    `input_size`: how many bytes the input has there; 0 if it travels otherwise.
    """

    input: str
    output: str
    input_size: int = 0


class Predict(_Message, frozen=True, tag="Predict", gc=True):
    """Run a prediction, the `serial`-th job of this slot: a client may use an id again, but a cancel is for one run.

    Input above the inline limit is None, and `input_file` holds it: the worker deletes it. `packed`: the input is JSON
    and tensors in one piece (`domain.tensors.pack`), and so are outputs to be that hold tensors. `memory` is what
    parent and worker share for such pieces, if they do; an input of `memory.input_size` bytes lies there.
    """

    id: str
    serial: int
    input: bytes | None
    input_file: str | None = None
    output_dir: str | None = None
    context: dict[str, str] | None = None
    parameters: dict[str, str | int | float | bool] | None = None
    packed: bool = False
    memory: SlotMemory | None = None


class BatchItem(msgspec.Struct, frozen=True, array_like=True):
    """What one prediction of a batch has of its own, beside its input: see `Predict`. `size` in rows."""

    id: str
    size: int = 1
    packed: bool = False
    context: dict[str, str] | None = None
    parameters: dict[str, str | int | float | bool] | None = None


class PredictBatch(_Message, frozen=True, tag="PredictBatch", gc=True):
    """Run several predictions in one call, the `serial`-th job of this slot.

    The input is always packed: its JSON is an array with an object for each item, and its tensors are those of the
    items that are `packed`, laid one behind the other along the first dimension. The rest is as in `Predict`.
    """

    id: str
    serial: int
    items: tuple[BatchItem, ...]
    input: bytes | None
    input_file: str | None = None
    output_dir: str | None = None
    memory: SlotMemory | None = None


# Slot channel, worker to parent


class Attach(_Message, frozen=True, tag="Attach"):
    """The first message on a slot's connection: which slot it is, and whether memory can be shared with it."""

    protocol: int
    slot: int
    shares_memory: bool = False


ALL = -1
"""In place of an index: what a message tells is of every item of the batch that has not ended, or there is none."""


class Log(_Message, frozen=True, tag="Log"):
    """Output of the prediction that runs on this slot; of a batch, of the item at that index."""

    source: LogSource
    data: str
    item: int = ALL


class Output(_Message, frozen=True, tag="Output"):
    """One yielded value, as JSON text or packed. `shared`: so many bytes in the slot's memory are it instead.

    Of a batch, of the item at that index: never of all.
    """

    output: bytes
    shared: int = 0
    item: int = ALL


class FileOutput(_Message, frozen=True, tag="FileOutput"):
    """A file that belongs to the next `Output`, `Done`, or `Ended`, which is then of one item.

    `file`: a copy of the author's file; the output's JSON has the string `token` where its URL belongs. `oversized`:
    the JSON itself, which was above the inline limit and stands empty in the message. The parent deletes either.
    `originals` are the author's own temporary file and its folders, in the order to delete them: the worker does when
    the run is over, the parent if the worker dies before.
    """

    filename: str
    kind: Literal["file", "oversized"]
    mime_type: str
    token: str
    originals: tuple[str, ...] = ()


class Metric(_Message, frozen=True, tag="Metric", gc=True):
    """A recorded metric; of a batch, of the item at that index."""

    name: str
    value: Any
    mode: MetricMode
    item: int = ALL


class Done(_Message, frozen=True, tag="Done"):
    """The run ended well and the slot is idle. `output` and `shared` as in `Output`; of a stream `output` is None."""

    id: str
    output: bytes | None
    predict_time: float
    is_stream: bool
    shared: int = 0


class Failed(_Message, frozen=True, tag="Failed"):
    """The run raised and the slot is idle."""

    id: str
    error: str


class Cancelled(_Message, frozen=True, tag="Cancelled"):
    """The run was canceled and the slot is idle."""

    id: str


class ItemEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an item of a batch ended: with `output`, as in `Done`, with an error, or canceled.

    `shared`: its output is that many bytes of the slot's memory, behind those of the items before it in the message.
    """

    item: int
    output: bytes | None = None
    error: str | None = None
    canceled: bool = False
    shared: int = 0


class Ended(_Message, frozen=True, tag="Ended", gc=True):
    """Some items of a batch have ended, whose run took so many seconds; with the `last` of them the slot is idle."""

    id: str
    ends: tuple[ItemEnd, ...]
    predict_time: float
    is_stream: bool
    last: bool


ControlToWorker = Init | Cancel | Healthcheck | Shutdown
ControlToParent = (
    Loaded
    | Ready
    | SetupLog
    | WorkerLog
    | Idle
    | SlotCancelled
    | SlotFailed
    | Fatal
    | DroppedLogs
    | HealthcheckResult
    | ShuttingDown
)
SlotToWorker = Predict | PredictBatch
SlotToParent = Attach | Log | Output | FileOutput | Metric | Done | Failed | Cancelled | Ended
Message = ControlToWorker | ControlToParent | SlotToWorker | SlotToParent

encode = msgspec.msgpack.Encoder().encode
decode_control_to_worker = msgspec.msgpack.Decoder(ControlToWorker).decode
decode_control_to_parent = msgspec.msgpack.Decoder(ControlToParent).decode
decode_slot_to_worker = msgspec.msgpack.Decoder(SlotToWorker).decode
decode_slot_to_parent = msgspec.msgpack.Decoder(SlotToParent).decode
