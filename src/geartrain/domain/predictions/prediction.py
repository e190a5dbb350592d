"""A prediction: one call of a runner, from request to terminal state, as an event log with its state added up.

No clock, loop or socket: times are given by the caller, in seconds since the epoch.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from geartrain.domain.errors import Code
from geartrain.domain.predictions.events import (
    Completed,
    EventLog,
    Log,
    LogSource,
    Metric,
    MetricMode,
    Output,
    Released,
    Start,
    size_of_value,
)
from geartrain.domain.predictions.lifecycle import TO_STATUS, Status
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.printed.text import Printed
from geartrain.domain.tensors.tensor import Buffer

CacheResult = Literal["", "hit", "miss", "shared"]
"""Origin of an answer: a kept one, a run of its own, or one that another request had begun."""
WebhookEvent = Literal["start", "output", "logs", "completed"]

EVERY_EVENT: Final[frozenset[WebhookEvent]] = frozenset({"start", "output", "logs", "completed"})
_to_processing = TO_STATUS[Status.PROCESSING]
MAX_CALLS: Final = 256
"""Calls of models that a prediction has records of; further ones are counted."""
MAX_CALL_TEXT: Final = 1_000
"""Characters of the error of such a record, and of its model's name."""
CLIENT_LEFT: Final = "Its client left before the end."
"""The error of a prediction that was canceled only because no client held it any more. Its id is free."""

_TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED})
_START = Start()
_NOTHING_PRINTED = Printed()  # of nearly all predictions; never added to
_RELEASED = Released()
_LARGE: Final = 4_096  # bytes of an item that is worth a part of its own
_GROUP: Final = 1_024  # items that are joined at a time
_CHUNK: Final = 120  # bytes of memory of a chunk beside its text: the object, its event, its places in two lists
_RECORD: Final = 400  # bytes of memory of the record of a call beside its texts
_WIDEST: Final = 4  # bytes of a character
_COMPLETED = {status: Completed(status) for status in _TERMINAL}


class Webhook(msgspec.Struct, frozen=True):
    """A receiver: its URL, the events it is told of, and the headers with the ids of the request."""

    url: str
    events: frozenset[WebhookEvent] = EVERY_EVENT
    trace: tuple[tuple[str, str], ...] = ()


class PredictionRecord(msgspec.Struct, gc=False, eq=False):
    """Record of one prediction. It stays small, because logs hold it for a while after the end.

    Moments are in seconds since the epoch, 0 until they come.

    Attributes:
        prediction_id: empty for no prediction at all.
        admitted: its admission.
        ready: arrival of the files of its input.
        request: its request.
        model: its model.
        version: of the model.
        rows: its size in a batch.
        input_size: bytes of its input, with its tensors.
        began: begin of its run.
        first_output: the first of several outputs.
        run_ended: end of its run, if an output was still to be delivered then.
        completed: its terminal state.
        outcome: its terminal state, `STARTING` until then.
        cache: whether its answer was kept from another one; empty where the model keeps none.
        age: seconds for which the answer was kept.
    """

    prediction_id: str
    admitted: float
    ready: float
    request: RequestContext = NO_REQUEST
    model: str = ""
    version: str = ""
    rows: int = 1
    input_size: int = 0
    began: float = 0.0
    first_output: float = 0.0
    run_ended: float = 0.0
    completed: float = 0.0
    outcome: Status = Status.STARTING
    cache: CacheResult = ""
    age: int = 0


NO_PREDICTION: Final = PredictionRecord("", 0.0, 0.0)
"""Of a request that has started none."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a prediction that has succeeded."""

    chunks: list[bytes]
    is_single: bool  # the one chunk is the output
    is_list: bool
    metrics: dict[str, Any]


class Prediction:
    """The state of one prediction and the log of how it came about.

    `input` is the JSON text to echo, with secrets masked. `chunks` are the outputs given so far, each JSON text;
    `single_output` is that of a run that has succeeded and gives no list.
    `predict_time` is the run alone, in seconds: without the wait for a slot, the fetch of input files and the delivery
    of output files; 0 without a run. `record` is what is counted and logged of it.
    `principal` is the name of the client that it belongs to; empty on a server without keys. `calls` are those of other
    models that were made for it, None before the first.
    """

    __slots__ = (
        "_is_list",
        "_kept_size",
        "calls",
        "chunks",
        "completed_at",
        "created_at",
        "error",
        "error_code",
        "id",
        "input",
        "log",
        "metrics",
        "predict_time",
        "principal",
        "printed",
        "record",
        "single_output",
        "started_at",
        "status",
    )

    def __init__(self, record: PredictionRecord, echo: bytes, created_at: float) -> None:
        self.record = record
        self.id = record.prediction_id
        self.input = echo
        self.created_at = created_at  # a client may say it
        self.principal = ""
        self.started_at: float | None = None
        self.completed_at: float | None = None
        self.predict_time: float | None = None
        self.status = Status.STARTING
        self.error: str | None = None
        self.error_code: Code | None = None  # reason of a failure outside the run
        self.single_output: Buffer | None = None
        self._is_list = False  # the output is the list of the chunks
        self.calls: CallRecords | None = None
        self._kept_size = 0  # bytes, once they have been counted
        self.chunks: list[Buffer] = []
        self.printed = _NOTHING_PRINTED
        self.metrics: dict[str, Any] = {}
        self.log = EventLog()

    @property
    def is_terminal(self) -> bool:
        """True if the prediction has ended."""
        return self.status in _TERMINAL

    @property
    def output(self) -> Buffer | None:
        """The JSON text of the whole output, once it is known. That of a stream is joined anew by each call."""
        return json_array(self.chunks) if self._is_list else self.single_output

    @property
    def gives_list(self) -> bool:
        """True if the output, as far as it is known, is the list of the chunks."""
        return self._is_list or (self.single_output is None and bool(self.chunks))

    @property
    def kept_size(self) -> int:
        """Bytes of memory that the prediction takes once it has ended, within a few kB.

        It is counted once: a million chunks take 25 ms.
        """
        if self._kept_size:
            return self._kept_size
        size = len(self.input) + sum(map(len, self.chunks)) + _CHUNK * len(self.chunks) + self.printed.memory
        if self.error is not None:
            size += sys.getsizeof(self.error)
        if self.metrics:
            size += size_of_value(self.metrics)
        if self.calls is not None:
            size += self.calls.memory
        size += self.log.memory
        if self.is_terminal:
            self._kept_size = size
        return size

    @property
    def is_abandoned(self) -> bool:
        """True if it was canceled only because its client left: a retry with its id runs."""
        return self.status is Status.CANCELED and self.error == CLIENT_LEFT

    @property
    def logs(self) -> str:
        """All that the run has written, in the order of writing, as a terminal would show it."""
        return str(self.printed)

    def start(self, at: float) -> None:
        """The runner is about to be called."""
        self.status = _to_processing(self.status)
        self.started_at = self.record.began = at
        self.log.append(_START)

    def add_output(self, chunk: Buffer) -> None:
        """Add a chunk of output (JSON text) behind the others."""
        self.add(Output(chunk, len(self.chunks)))

    def add(self, output: Output) -> None:
        """Add the event of a chunk of output, at its place."""
        self.chunks.append(output.chunk)
        self.log.append(output)

    def forget_outputs(self) -> None:
        """Let go of all outputs, and of the events so far."""
        self.chunks = []  # a thread may be writing the old list
        self.log.forget()

    def add_log(self, source: LogSource, data: str) -> None:
        """Add text that the runner has written to `source`."""
        self.print(Log(source, data))

    def print(self, log: Log) -> None:
        """Add the event of printed text."""
        if self.printed is _NOTHING_PRINTED:
            self.printed = Printed()
        self.printed.add(log.data)
        self.log.append_sized(log)

    def add_metric(self, name: str, value: Any, mode: MetricMode) -> None:
        """The runner recorded a metric under a dotted `name`."""
        self.apply(Metric(name, value, mode))

    def apply(self, metric: Metric) -> None:
        """Apply the event of a metric."""
        apply_metric(self.metrics, metric.name, metric.value, mode=metric.mode)
        self.log.append_sized(metric)

    def succeed(
        self, output: Buffer | None, *, at: float, predict_time: float | None = None, packed: bool = False
    ) -> None:
        """The run ended well. `output` is the JSON text of the value it returned, None for a stream of chunks.

        `packed`: they are no JSON text (see `Succeeded`), and a stream of such is not joined.
        """
        if output is None:
            self._is_list = not packed
        else:
            # The one output of a run that streams nothing is a chunk too, for readers that follow chunks.
            self.chunks.append(output)
            self.log.append(Output(output, len(self.chunks) - 1))
        self.single_output = output
        self._complete(Status.SUCCEEDED, at, predict_time)

    def fail(self, error: str, *, at: float, predict_time: float | None = None, code: Code | None = None) -> None:
        """The run, or what had to come before it, went wrong. The chunks given so far stay."""
        self.error = error
        self.error_code = code
        self._complete(Status.FAILED, at, predict_time)

    def cancel(self, *, at: float, predict_time: float | None = None, error: str | None = None) -> None:
        """The run was stopped, on request or because of an `error`. The chunks given so far stay."""
        self.error = error
        self._complete(Status.CANCELED, at, predict_time)

    def draft(self) -> Prediction:
        """Return a copy without readers, to find out how this prediction ends before anybody is told of it."""
        draft = Prediction(self.record, self.input, self.created_at)
        draft.status, draft.started_at = self.status, self.started_at
        draft.chunks = [*self.chunks]
        draft.calls = self.calls
        draft.printed, draft.metrics = self.printed, self.metrics  # the end changes neither
        draft.log = self.log.copy()
        return draft

    def end_as(self, draft: Prediction) -> None:
        """Reach the terminal state that a draft of this prediction has reached."""
        if len(draft.chunks) < len(self.chunks):
            self.forget_outputs()
        for chunk in draft.chunks[len(self.chunks) :]:
            self.add_output(chunk)
        self.single_output, self._is_list = draft.single_output, draft._is_list
        self.calls = draft.calls
        self.error, self.error_code = draft.error, draft.error_code
        self.status = TO_STATUS[draft.status](self.status)
        self.completed_at, self.predict_time = draft.completed_at, draft.predict_time
        self.log.end(_COMPLETED[draft.status])

    def answer(self) -> Answer:
        """Return the answer of a prediction that has succeeded, in memory of its own."""
        chunks = [chunk if type(chunk) is bytes else bytes(chunk) for chunk in self.chunks]
        metrics = copy.deepcopy(self.metrics) if self.metrics else {}
        return Answer(chunks, self.single_output is not None, self._is_list, metrics)

    @classmethod
    def of_answer(cls, packed: Answer) -> Prediction:
        """Make a prediction that has succeeded with an answer; it has neither a log nor prints."""
        answer = cls(NO_PREDICTION, b"", 0.0)
        answer.chunks = [*packed.chunks]
        if packed.is_single:
            answer.single_output = answer.chunks[-1]  # which is the one output
        answer._is_list = packed.is_list
        answer.metrics = packed.metrics
        answer.status = Status.SUCCEEDED
        return answer

    def end_like(self, other: Prediction, *, at: float) -> None:
        """Reach the terminal state of another prediction, with its outputs."""
        for chunk in other.chunks[len(self.chunks) :]:
            self.add_output(chunk)
        self.single_output, self._is_list = other.single_output, other._is_list
        self.calls = other.calls
        self.error, self.error_code = other.error, other.error_code
        self._complete(other.status, at, other.predict_time or 0.0)

    def release(self) -> None:
        """Tell the readers that the server lets go of the prediction before it has ended."""
        self.log.end(_RELEASED)

    def _complete(self, status: Status, at: float, predict_time: float | None) -> None:
        if self.printed is not _NOTHING_PRINTED:
            self.printed.pack()
        record = self.record
        self.status = record.outcome = TO_STATUS[status](self.status)
        self.completed_at = record.completed = at
        if predict_time is None:
            # A clock that was set back meanwhile gives no negative time.
            predict_time = 0.0 if self.started_at is None else max(0.0, at - self.started_at)
        self.predict_time = predict_time
        self.log.end(_COMPLETED[status])


class CallRecord(msgspec.Struct, eq=False):
    """Record of one call. Moments are in seconds since the epoch, 0 until they come.

    Attributes:
        parent: the id of the prediction that made the call; empty for the outermost one.
        model: the name of the called model.
        depth: 1 for a call by the outermost prediction.
        created: begin of the call.
        prediction: the prediction that was made for it, until its end.
        id: of that prediction; empty without one.
        version: of the model; empty without a prediction.
        started: begin of its run.
        completed: its end.
        status: its state, once it has ended.
        error: the reason of a failure, cut to `MAX_CALL_TEXT`.
        shared: the number of predictions in the batch whose run made the call; 1 without a batch.
    """

    parent: str
    model: str
    depth: int
    created: float
    prediction: Prediction | None = None
    id: str = ""
    version: str = ""
    started: float = 0.0
    completed: float = 0.0
    status: Status = Status.STARTING
    error: str = ""
    shared: int = 1

    def follow(self, prediction: Prediction) -> None:
        """Take id and version of the prediction that was made for the call."""
        self.prediction, self.id, self.version = prediction, prediction.id, prediction.record.version

    def end(self, status: Status, error: str, at: float) -> None:
        """Note the end of the call."""
        prediction, self.prediction = self.prediction, None
        if prediction is not None:
            self.started = prediction.started_at or 0.0
        self.status, self.error, self.completed = status, error[:MAX_CALL_TEXT], at

    def now(self) -> tuple[Status, float]:
        """Return the present state and the begin of the run, also of a call that goes on."""
        if self.prediction is None:
            return self.status, self.started
        return self.prediction.status, self.prediction.started_at or 0.0

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes at most; a call that goes on may still get an error."""
        error = sys.getsizeof(self.error) if self.completed else _WIDEST * MAX_CALL_TEXT
        return _RECORD + sys.getsizeof(self.model) + error


class CallRecords:
    """The first calls that were made for a prediction, by itself and by the models that it calls.

    Attributes:
        records: in the order in which the calls began.
        left_out: the number of calls beyond `MAX_CALLS`.
    """

    __slots__ = ("left_out", "records")

    def __init__(self) -> None:
        self.records: list[CallRecord] = []
        self.left_out = 0

    def add(self, record: CallRecord) -> bool:
        """Add a call; return False for one that is only counted."""
        if len(self.records) >= MAX_CALLS:
            self.left_out += 1
            return False
        self.records.append(record)
        return True

    def copy(self) -> CallRecords:
        """Return a list of the same records that gets no further ones."""
        copy = CallRecords()
        copy.records, copy.left_out = [*self.records], self.left_out
        return copy

    def in_tree_order(self) -> list[CallRecord]:
        """Return the records so that each call is followed by those that were made for it."""
        made: dict[str, list[CallRecord]] = {}
        for record in self.records:
            made.setdefault(record.parent, []).append(record)
        found: list[CallRecord] = []
        rest = made.pop("", [])[::-1]
        while rest:
            record = rest.pop()
            found.append(record)
            if record.id:
                rest += made.pop(record.id, [])[::-1]
        return found

    @property
    def memory(self) -> int:
        """Bytes of memory that they take at most."""
        return sum(record.memory for record in self.records)


def json_array_parts(items: Sequence[Buffer], count: int | None = None) -> list[Buffer]:
    """Return the text of an array in parts, without copies of large items.

    `count`: the items of a list that grows. No step takes long, so a thread that does this lets others run.
    """
    if count is None:
        count = len(items)
    parts: list[Buffer] = [b"["]
    for begin in range(0, count, _GROUP):
        group = items[begin : min(begin + _GROUP, count)]
        if begin:
            parts.append(b",")
        if sum(map(len, group)) < _LARGE * len(group):
            parts.append(b",".join(group))
        else:
            separated: list[Buffer] = [b","] * (2 * len(group) - 1)
            separated[::2] = group
            parts += separated
    parts.append(b"]")
    return parts


def json_array(items: Sequence[Buffer]) -> bytes:
    """Return the JSON text of an array of JSON texts."""
    return b"".join(json_array_parts(items))


def apply_metric(metrics: dict[str, Any], name: str, value: Any, *, mode: MetricMode) -> None:
    """Fold one recorded value into `metrics`; the dots of `name` nest objects. Source: observed Cog, section 10.

    The rules on names and types are checked where the author calls `record_metric`; here an impossible combination (a
    parent name that holds a plain value) simply replaces what stood there.
    """
    if type(value) is list:
        value = [*value]  # a list that grows here is not the one of the event
    if mode == "replace" and "." not in name:  # nearly always
        metrics[name] = value
        return
    *parents, leaf = name.split(".")
    for parent in parents:
        child = metrics.get(parent)
        if not isinstance(child, dict):
            child = metrics[parent] = {}
        metrics = child
    match mode:
        case "replace":
            metrics[leaf] = value
        case "increment":
            metrics[leaf] = metrics.get(leaf, 0) + value
        case "append":
            present = metrics.get(leaf, [])
            if isinstance(present, list):
                present.append(value)
            else:
                present = [present, value]
            metrics[leaf] = present
        case "delete":
            metrics.pop(leaf, None)
