"""Every message between parent and worker, and nothing else: the contract of the inner wire.

Two channels: the control channel for the worker as a whole, and the call channel for the data of its predictions, so a
cancel never waits behind a large output. The slots share the call channel, unlike in the container runtime document,
where each has a socket of its own: calls and reports that meet travel together, with one system call. What is large
lies in memory or in a file, so the slots do not wait for each other. A report has the event of the domain that its
prediction keeps. Encoded as msgpack arrays that start with the message's name. The golden files of the tests hold every
message: a change of the wire is a change of those files and of `PROTOCOL_VERSION`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from geartrain.domain.predictions.batching import Batching
from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.calls import Report
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.signature.types import NOTHING_DECLARED, Declared, Signature

PROTOCOL_VERSION = 19


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Compact on the wire: `[name, field, …]`."""


# Control channel, parent to worker


class BackendChoice(msgspec.Struct, frozen=True, array_like=True):
    """A model that is a file: the backend that runs it, the file or folder, and the backend's options.

    `declared` is what the configuration of another server says of its tensors.
    """

    name: str
    path: str
    options: dict[str, Any] = {}
    declared: Declared = NOTHING_DECLARED


class Debugging(msgspec.Struct, frozen=True, array_like=True):
    """Debugging aids of a worker; none by default.

    `terminal` is the descriptor of the person's terminal, which is the worker's after `TerminalLent` only. `port` is
    the one on 127.0.0.1 where debugpy listens, 0 for none, and with `waits` setup begins when an editor has attached.
    A profile of each call is written into the folder `profiles`, unless it is empty.
    """

    terminal: int | None = None
    port: int = 0
    waits: bool = False
    profiles: str = ""
    profile_format: Literal["speedscope", "html"] = "speedscope"


class Init(_Message, frozen=True, tag="Init", gc=True):
    """The first message: what to load. `num_slots` None leaves the number of slots to the model.

    `batching` are settings of `domain.predictions.batching.BatchPolicy` that come before those of the model itself.
    """

    protocol: int
    predictor_ref: str
    root: str  # the model's folder, in which it runs
    num_slots: int | None = None
    mode: Literal["predict", "train"] = "predict"  # which method of the runner's class, and what it is called
    weights: str | None = None
    inspect: bool = False  # load and report, no setup, no slots
    probe: str | None = None  # the path of a piece of the parent's memory, to try whether memory can be shared
    backend: BackendChoice | None = None  # instead of the class that `predictor_ref` names
    batching: dict[str, Any] | None = None
    wakeup: Literal["adaptive", "blocking"] = "adaptive"  # waiting of a slot for its next call
    debugging: Debugging = Debugging()
    environment: dict[str, str] = {}  # variables that it sets before it loads the model
    prompt: str = ""  # the input that gets the prompt of a chat; empty for the one that the signature tells
    chat_template: str = ""  # the file of the chat template, in `root`; empty for the one that the model has


class Cancel(_Message, frozen=True, tag="Cancel"):
    """Stop call `serial` of `slot`; nothing happens if the slot no longer runs it."""

    slot: int
    serial: int


class Healthcheck(_Message, frozen=True, tag="Healthcheck"):
    """Run the author's healthcheck."""

    id: int


class Shutdown(_Message, frozen=True, tag="Shutdown"):
    """End when the running predictions have ended."""


class TerminalLent(_Message, frozen=True, tag="TerminalLent"):
    """The terminal is the worker's until `TerminalReturned`. `number` is that of `TerminalWanted`."""

    number: int


class TerminalRefused(_Message, frozen=True, tag="TerminalRefused"):
    """The worker does not get the terminal; `reason` is a sentence for the author."""

    number: int
    reason: str


# Control channel, worker to parent


class Loaded(_Message, frozen=True, tag="Loaded", gc=True):
    """The model is loaded and its setup begins, unless it is only inspected: what it takes and gives, and the slots."""

    slots: tuple[int, ...]
    signature: Signature
    is_async: bool
    has_healthcheck: bool
    batching: Batching | None = None  # of a model that takes several predictions in one call
    platform: str = ""  # runtime of the model in the Open Inference Protocol, if it is no Python class
    shares_memory: bool = False  # true if the worker can open the parent's memory, as it tried with `Init.probe`
    calls: tuple[str, ...] = ()  # other models that the class declares, each as `name` or `name@version`
    cache: CacheSettings | None = None  # of its answers, as `@cached` says


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
    """Result of the author's healthcheck."""

    id: int
    status: Literal["healthy", "unhealthy"]
    error: str | None = None


class OwnMetrics(_Message, frozen=True, tag="OwnMetrics", gc=True):
    """Changes of the author's metrics since the last such message."""

    reports: tuple[OwnReport, ...]


class TerminalWanted(_Message, frozen=True, tag="TerminalWanted"):
    """A debugger asks for the terminal, and its thread waits for the answer. Each such message has its own number."""

    number: int


class TerminalReturned(_Message, frozen=True, tag="TerminalReturned"):
    """The worker no longer uses the terminal, or no longer waits for it."""

    number: int


class ShuttingDown(_Message, frozen=True, tag="ShuttingDown"):
    """The worker has understood `Shutdown`."""


# Transport of bytes.


class Inline(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """The bytes are in the message."""

    data: bytes


class InFile(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The bytes are in a file, which its reader deletes."""

    path: str


class Handle(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """The bytes are in memory that parent and worker share (`ipc.memory`): a stretch of the region that `path` opens.

    An input stays as it is until its call is over. The outputs of a frame are in the same region, which belongs to the
    parent until it has freed it.
    """

    path: str
    offset: int
    size: int


Payload = Inline | InFile | Handle


# Call channel, parent to worker


class CallItem(msgspec.Struct, frozen=True, array_like=True):
    """Own data of one prediction in a call, besides its input.

    `rows`: its size in a batch (`domain.predictions.batching`). `packed`: it has tensors, which are packed with the
    JSON (`domain.tensors.tensor.pack`), and its outputs that hold tensors shall be packed too. `request_id` and
    the two after it are those of its request (`domain.predictions.request_context`), empty where there is none.
    """

    id: str
    rows: int = 1
    packed: bool = False
    context: dict[str, str] | None = None
    parameters: dict[str, str | int | float | bool] | None = None
    request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    pieces: bool = False  # a response that is streamed may come as outputs, one for each piece


class Predict(_Message, frozen=True, tag="Predict", gc=True):
    """Run a call: one invocation of `run()` for one prediction or several.

    `serial` numbers the calls of a slot, so that a cancel or a report names exactly one. The input of a call of one
    item is the item's JSON object, packed if the item is. That of several is always packed: its JSON is an array with
    an object for each item, and its tensors are those of the packed items, stacked along the first dimension. Those of
    a model whose requests stay apart have the index of the item and a colon before their names instead. An input above
    the inline limit is in a file, as the container runtime document has it. `regions` are the paths of the slot's
    regions for outputs. One that is `prefetched` was sent while another call ran on the slot, and begins when that is
    over, unless a `Withdraw` has come by then. A `probe` finds out how large a call may be: it runs whole, and only
    once, in so many bytes beyond what the worker has; 0 for any other call.
    """

    id: str
    slot: int
    serial: int
    items: tuple[CallItem, ...]
    input: Payload
    output_dir: str | None = None
    regions: tuple[str, ...] = ()
    prefetched: bool = False
    probe: int = 0


class Withdraw(_Message, frozen=True, tag="Withdraw"):
    """Do not begin call `serial`, which was prefetched. The worker reports it as canceled when its turn has come."""

    serial: int


class ModelAnswer(_Message, frozen=True, tag="ModelAnswer", gc=True):
    """A part of the answer to model call `number`.

    `output` is an output of the other model, packed if it is `packed`; its values in `files` are local files. With
    `mode` it is the last part, which has no output unless the mode is `value`. With `error` the call has failed, for
    the reason `code`, and `model` is the one that failed. An output in shared memory stays there until `ModelCallEnd`
    or `ModelRunEnd`; without `may_stay` it is to be copied, since the other model may need the memory.
    """

    number: int
    output: Payload | None = None
    packed: bool = False
    record: bool = False  # true if the tensors of a packed output are members of an object
    files: tuple[str, ...] = ()
    mode: Literal["", "value", "iterator", "concatenate"] = ""
    error: str = ""
    code: str = ""
    model: str = ""
    may_stay: bool = False


# Call channel, worker to parent


class ModelCall(_Message, frozen=True, tag="ModelCall", gc=True):
    """The author's code calls another model of the server, during call `serial` of `slot`; slot -1 is setup.

    `number` is the worker's own. `item` is the item of the call that it is for, or `ALL`. The input is a JSON object,
    packed (`domain.tensors.tensor.pack`) if it has arrays; file values in it are local paths. The contents of its only
    tensor may be missing at the end of it: they are those of an answer to this worker, and lie at `passed`.
    """

    number: int
    slot: int
    serial: int
    item: int
    model: str
    version: str
    input: Payload
    packed: bool = False
    passed: Handle | None = None


class ModelCallEnd(_Message, frozen=True, tag="ModelCallEnd"):
    """The worker no longer needs what it has been answered to model call `number`; one that runs is canceled."""

    number: int


class ModelRunEnd(_Message, frozen=True, tag="ModelRunEnd"):
    """The worker no longer needs the answers to what call `serial` of `slot` has called, except for those `kept`."""

    slot: int
    serial: int
    kept: tuple[int, ...] = ()


class Reports(_Message, frozen=True, tag="Reports", gc=True):
    """Reports on call `serial` of `slot`: one frame. With `idle` it is over, and the slot takes the next.

    `shared` are the outputs that lie in shared memory, each with the index of its report, where it is empty: in that of
    the slot, or where an answer to this worker lies, which is given on as it is. The container runtime document's
    `FileOutput` is a file of a report; its oversized output is one with `is_output`.
    """

    slot: int
    serial: int
    reports: tuple[Report, ...]
    idle: bool = False
    shared: tuple[tuple[int, Handle], ...] = ()


ControlToWorker = Init | Cancel | Healthcheck | Shutdown | TerminalLent | TerminalRefused
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
    | OwnMetrics
    | TerminalWanted
    | TerminalReturned
    | ShuttingDown
)
CallToWorker = Predict | Withdraw | ModelAnswer
CallToParent = Reports | ModelCall | ModelCallEnd | ModelRunEnd
Message = ControlToWorker | ControlToParent | CallToWorker | CallToParent

encode = msgspec.msgpack.Encoder().encode
decode_control_to_worker = msgspec.msgpack.Decoder(ControlToWorker).decode
decode_control_to_parent = msgspec.msgpack.Decoder(ControlToParent).decode
decode_call = msgspec.msgpack.Decoder(CallToWorker).decode
decode_call_to_parent = msgspec.msgpack.Decoder(CallToParent).decode
