"""Answers that are kept for equal requests, and the runs that equal requests share while they go on."""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.events import DEFAULT_CAPACITY, Event, EventLog, Log, Metric, Output, Start
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Answer, CallRecords, Prediction
from geartrain.service.scheduling.context import TimeLimit

if TYPE_CHECKING:
    from geartrain.outbound.answer_folder import AnswerFolder, StoredAnswer
    from geartrain.service.scheduling.execution import Execution

logger = logging.getLogger(__name__)

MAX_SHARING: Final = 4_096
"""Predictions that share one run; the next one has a run of its own."""

_ENTRY: Final = 1_024  # bytes of memory of a kept answer beside its outputs
_AT_ONCE: Final = 1_000  # expired answers that go in one turn of the loop: about a millisecond
_LEAST_WAIT: Final = 0.05  # seconds between two such turns
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Answer).decode

StartTimer = Callable[[float, Callable[[], None]], TimeLimit]
"""Start a timer of so many seconds."""


class Answers:
    """The cache of one deployment: with the next one of its model, all is forgotten.

    Attributes:
        settings: its limits.
        runs: the runs that go on, by the key of their input.
        size: bytes of memory of what is kept.
    """

    def __init__(
        self,
        settings: CacheSettings,
        *,
        history: int,
        clock: Callable[[], float] = time.monotonic,
        start_timer: StartTimer | None = None,
        folder: AnswerFolder | None = None,
    ) -> None:
        """`history`: events of a prediction that late readers get; a stream of more is not kept.

        Without `start_timer`, expired answers stay until another one is kept. In `folder` they outlive the server.
        """
        self._folder = folder
        self._is_closed = False  # the model has been unloaded
        self.settings = settings
        self.runs: dict[bytes, SharedRun] = {}
        self.size = 0
        self._history = max(history, DEFAULT_CAPACITY)
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, int, Prediction]] = OrderedDict()  # the latest use is the last one
        self._ages: OrderedDict[bytes, float] = OrderedDict()  # when each was kept, the oldest first
        self._start_timer = start_timer
        self._timer: TimeLimit | None = None  # one for all

    def find(self, key: bytes) -> tuple[Prediction, float] | None:
        """Return a kept answer and its age in seconds; None if there is none."""
        found = self._kept.get(key)
        if found is None:
            return None
        age = self._clock() - found[0]
        if age >= self.settings.ttl:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found[2], age

    def join(self, key: bytes) -> SharedRun | None:
        """Return the run of an equal request that goes on; None if there is none, or too much of it is over."""
        run = self.runs.get(key)
        return run if run is not None and run.takes_more and len(run.prediction.chunks) <= self._history else None

    def keep(self, key: bytes, prediction: Prediction) -> None:
        """Keep the answer of a prediction that has succeeded, in place of those that were asked for longest ago."""
        if self._is_closed:
            return
        packed = prediction.answer()
        answer = Prediction.of_answer(packed)
        size = answer.kept_size + _ENTRY
        if size > self.settings.max_bytes or len(answer.chunks) > self._history:
            return
        self._drop(key)
        self._add(key, self._clock(), answer, size=size)
        if self._folder is not None:
            self._folder.write(key, time.time(), size=size, encode=lambda: _encode(packed))
        self._await_expiry()

    async def restore(self, **labels: str) -> None:
        """Take the answers of the folder; `labels` are those of the log line about it."""
        if self._folder is None:
            return
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, _read, self._folder)
        except Exception:  # a fault of ours: the model serves without them
            logger.exception("answers of a former server cannot be read", extra=labels)
            return
        for number, (key, kept_at, answer) in enumerate(found, 1):
            if self._is_closed:
                return
            if key not in self._kept:  # by a newer one
                age = max(0.0, time.time() - kept_at)
                self._add(key, self._clock() - age, answer, size=answer.kept_size + _ENTRY)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._ages = OrderedDict(sorted(self._ages.items(), key=lambda each: each[1]))
        self._await_expiry()
        logger.info("answers of a former server have been read", extra={**labels, "answers": len(found)})

    def _add(self, key: bytes, kept_at: float, answer: Prediction, *, size: int) -> None:
        self._kept[key] = (kept_at, size, answer)
        self._ages[key] = kept_at
        self.size += size
        if self.size > self.settings.max_bytes:
            self._drop_expired()
        while self.size > self.settings.max_bytes:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget all answers."""
        self._kept.clear()
        self._ages.clear()
        self.size = 0
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self, key: bytes) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            del self._ages[key]
            self.size -= entry[1]

    def _drop_expired(self) -> None:
        latest = self._clock() - self.settings.ttl
        for key in [key for key, kept_at in itertools.islice(self._ages.items(), _AT_ONCE) if kept_at <= latest]:
            self._drop(key)

    def _await_expiry(self) -> None:
        if self._timer is None and self._start_timer is not None and self._ages:
            expires = next(iter(self._ages.values())) + self.settings.ttl
            self._timer = self._start_timer(max(expires - self._clock(), _LEAST_WAIT), self._on_expiry)

    def _on_expiry(self) -> None:
        self._timer = None
        self._drop_expired()
        if self._folder is not None:
            self._folder.remove_expired()
        self._await_expiry()

    def __len__(self) -> int:
        return len(self._kept)


class SharedRun:
    """One run for all requests with one key that come while it goes on.

    Each of them has a prediction of its own, which is told what the run gives. The last of them to be canceled ends it.
    """

    def __init__(self, answers: Answers, key: bytes, execution: Execution) -> None:
        self.prediction = execution.prediction
        self.leads_elsewhere = False  # files of its outputs are at URLs that may become stale
        self.first_id = ""  # of the prediction that has begun it
        self._answers = answers
        self._key = key
        self._execution: Execution | None = execution
        self._members: dict[Execution, None] = {}
        answers.runs[key] = self
        log = execution.prediction.log
        log.listen(self._on_event)
        log.listen_for_end(self._on_end)

    @property
    def takes_more(self) -> bool:
        """True if one more prediction may share it: they wait outside of the queue, and its bound."""
        return len(self._members) < MAX_SHARING

    @property
    def has_members(self) -> bool:
        """True if a prediction shares it already."""
        return bool(self._members)

    @property
    def logs(self) -> tuple[EventLog, ...]:
        """The logs of the predictions that share it."""
        return tuple(member.prediction.log for member in self._members)

    def add(self, member: Execution) -> None:
        """Have a prediction get what the run has given, and will give."""
        self._members[member] = None
        self.first_id = self.first_id or member.prediction.id
        member.share(self)
        source = self.prediction
        if member.is_kept:  # one list for all: a client is shown the calls while the run goes on
            member.prediction.calls = source.calls = source.calls or CallRecords()
        if source.status is Status.STARTING:
            return
        member.prediction.start(member.scheduler.context.clock())
        for chunk in source.chunks:
            member.prediction.add_output(chunk)
        _repeat_metrics(member.prediction, source.metrics)
        if source.logs:
            member.prediction.add_log("stdout", source.logs)

    def leave(self, member: Execution) -> None:
        """Forget a prediction that is about to end. Without any, the run is canceled."""
        self._members.pop(member, None)
        if member.prediction.calls is not None:
            member.prediction.calls = member.prediction.calls.copy()
        execution = self._execution
        if not self._members and execution is not None:
            self._forget()
            execution.cancel()

    def undo(self) -> None:
        """Take back a run that could not be begun."""
        self._forget()
        self.prediction.log.unlisten(self._on_event)
        self.prediction.log.unlisten_for_end(self._on_end)
        self._execution = None

    def _forget(self) -> None:
        if self._answers.runs.get(self._key) is self:
            del self._answers.runs[self._key]

    def _on_event(self, event: Event) -> None:
        for member in tuple(self._members):
            prediction = member.prediction
            if type(event) is Output:
                prediction.add(event)
            elif type(event) is Log:
                prediction.print(event)
            elif type(event) is Metric:
                prediction.apply(event)
            elif type(event) is Start:
                prediction.start(member.scheduler.context.clock())

    def _on_end(self) -> None:
        self._forget()
        self._execution = None
        members, self._members = tuple(self._members), {}
        if self.prediction.status is Status.SUCCEEDED and not self.leads_elsewhere:
            self._answers.keep(self._key, self.prediction)
        for member in members:
            member.end_as(self.prediction)


def _read(folder: AnswerFolder) -> list[tuple[bytes, float, Prediction]]:
    return [(each.key, each.kept_at, answer) for each in folder.read() if (answer := _unpack(each)) is not None]


def _unpack(stored: StoredAnswer) -> Prediction | None:
    try:
        return Prediction.of_answer(_decode(stored.content))
    except (msgspec.DecodeError, IndexError):
        return None


def replay(execution: Execution, answer: Prediction) -> None:
    """Give a prediction, which has been admitted, a kept answer."""
    prediction = execution.prediction
    prediction.start(execution.scheduler.context.clock())
    _repeat_metrics(prediction, answer.metrics)
    execution.end_as(answer)


def _repeat_metrics(prediction: Prediction, metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        prediction.add_metric(name, copy.deepcopy(value), "replace")
