"""The one owner of every live prediction: it admits, runs, cancels and forgets them.

A door calls `create` and reads the prediction's log; nothing else has a hand in the lifecycle.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.events import DEFAULT_CAPACITY
from geartrain.domain.inference import Parameters
from geartrain.domain.lifecycle import Health
from geartrain.domain.prediction import Prediction
from geartrain.domain.tensors import Tensor
from geartrain.domain.webhook import Webhook
from geartrain.domain.work import ItemInput
from geartrain.service.kept import KeptPredictions
from geartrain.service.model import Model
from geartrain.service.ports import FolderPort, InputFilesPort, OutputsPort
from geartrain.service.scheduling.context import RunContext, no_folder
from geartrain.service.scheduling.execution import NO_TICKET, Execution, Ticket
from geartrain.service.scheduling.scheduler import DEFAULT_QUEUE, Scheduler
from geartrain.service.statistics import Counts
from geartrain.service.webhooks import Webhooks

__all__ = ["DEFAULT_QUEUE", "SECRET_ECHO", "Limits", "NewPrediction", "PredictionService"]

logger = logging.getLogger(__name__)

SECRET_ECHO = "**********"  # noqa: S105 - what is shown in place of a secret
_UNMEASURED: tuple[Hashable, int] = ((), 1)
MAX_ID = 1024  # characters


class NewPrediction(msgspec.Struct, frozen=True):
    """What a door asks for. `input` is a JSON object in UTF-8; `created_at` in seconds since the epoch."""

    input: bytes = b"{}"
    id: str | None = None
    context: dict[str, str] | None = None
    created_at: float | None = None
    keep: bool = False  # for a client that will ask for it by its id
    webhook: Webhook | None = None
    output_prefix: str | None = None  # the URL that its output files shall go to
    background: bool = False  # nobody waits for its answer
    tensors: tuple[Tensor, ...] | None = None  # inputs that have been checked; see `ItemInput`
    parameters: Parameters | None = None
    queue: int | None = None  # how many may wait before it, where that is not the operator's `Limits.queue`
    patience: float | None = None  # seconds that it may wait for a slot


class Limits(msgspec.Struct, frozen=True):
    """What an operator allows. Times in seconds."""

    # Predictions that may wait for a slot; without a place, the answer is "at capacity". 0: none, but for a model that
    # takes batches `DEFAULT_QUEUE`.
    queue: int = 0
    keep: float = 300.0  # how long a finished prediction can still be looked up
    cancel_grace: float | None = 60.0  # how long a run may ignore a cancel before its worker is killed; None: for ever


class PredictionService:
    """The predictions of one model."""

    def __init__(
        self,
        model: Model,
        *,
        outputs: OutputsPort,
        input_files: Callable[[], InputFilesPort | None] = lambda: None,
        new_folder: Callable[[], FolderPort] = no_folder,
        history: int = DEFAULT_CAPACITY,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`history`: how many events are kept for late readers; 0 for none, they get what comes live.

        `input_files` is called once, when the model's signature is known.
        """
        self.model = model
        self.webhooks: Webhooks | None = None  # none are sent, unless a server gives what sends them
        self.outputs = outputs
        self.clock = clock
        self.history = history
        # Whoever creates a prediction reads it from its first event on, however short the history for others is.
        self._capacity = max(history, DEFAULT_CAPACITY)
        self.live: dict[str, Execution] = {}
        self.kept = KeptPredictions(limits.keep)
        self.counts = Counts()
        self._context = RunContext(
            outputs=outputs, counts=self.counts, cancel_grace=limits.cancel_grace, new_folder=new_folder, clock=clock
        )
        self._scheduler = Scheduler(model, self._context, queue=limits.queue, on_over=self._forget)
        self._successor: PredictionService | None = None
        self._unfinished = 0  # of `live`, those that are ours
        self._make_input_files = input_files
        self._empty: asyncio.Future[None] | None = None
        self._closing = False
        self._prepared = False
        self._sequence = itertools.count()
        model.on_health = self._on_health
        model.has_room = lambda: self._scheduler.has_room

    # for the doors

    def create(self, new: NewPrediction) -> Prediction:
        """Admit a prediction and start it. Returns at once.

        Raises `GeartrainError`: `NOT_READY` whatever the input is, `INVALID_INPUT` with every wrong field, `CONFLICT`
        when a live prediction has the id, `AT_CAPACITY` when every slot is in use, `SHUTTING_DOWN`.
        """
        self.model.check_ready()
        values = self.check(new)
        prediction_id = self._new_id() if new.id is None else self._own_id(new.id)
        if self._closing:
            return self._pass_on(new)
        execution = self._admit(new, prediction_id, values)
        prediction = execution.prediction
        if new.webhook is not None and self.webhooks is not None:
            self.webhooks.follow(prediction, new.webhook)
        return prediction

    def check(self, new: NewPrediction) -> dict[str, Any] | None:
        """Check what is asked for, and start nothing; return the decoded input if it names files, None otherwise.

        It needs the signature only, which is known before setup. Raises `GeartrainError`: `NOT_READY` before that,
        `INVALID_INPUT` with every wrong field.
        """
        if not self._prepared:
            self._prepare()
        webhook, webhooks = new.webhook, self.webhooks
        validator = self.model.validator if new.tensors is None else self.model.plain_validator
        errors = validator.check(new.input)
        if webhook is not None and webhooks is not None:
            errors += webhooks.check(webhook)
        if new.output_prefix is not None:
            errors += self._check_prefix(new.output_prefix, background=new.background)
        if errors:
            raise _invalid(errors)
        return self._check_files(new.input) if self._has_files else None

    def find(self, prediction_id: str) -> Prediction | None:
        """Return the live prediction of that id."""
        execution = self.live.get(prediction_id)
        return None if execution is None else execution.prediction

    def look_up(self, prediction_id: str) -> Prediction | None:
        """Return the prediction of that id, live or recently over."""
        return self.find(prediction_id) or self.kept.find(prediction_id)

    def cancel(self, prediction_id: str) -> bool:
        """Ask for the end of a live prediction; return whether there is one of that id."""
        execution = self.live.get(prediction_id)
        if execution is None:
            return False
        execution.cancel()
        return True

    def abandon(self, prediction: Prediction) -> None:
        """Cancel exactly this prediction, if it is still live: its client has gone."""
        execution = self.live.get(prediction.id)
        if execution is not None and execution.prediction is prediction:
            execution.cancel()

    def expect_others(self) -> None:
        """Note that several clients ask at the same moment: for some time, no call is awaited on the spot."""
        self._scheduler.expect_others()

    # at the end

    def close(self) -> None:
        """Admit nothing more."""
        self._closing = True

    def make_way(self, successor: PredictionService) -> None:
        """Admit nothing more, because another service of the same model is there instead.

        What is live or kept here can be found there as well, and its counts go on where these end. Whoever still asks
        here is passed on.
        """
        successor.live, successor.kept = self.live, self.kept
        successor.counts = successor._context.counts = self.counts
        self._successor = successor
        self._closing = True

    def cancel_all(self) -> None:
        """Ask for the end of every live prediction."""
        for execution in tuple(self.live.values()):
            if execution.is_of(self._scheduler):
                execution.cancel()

    async def drain(self, time_limit: float | None) -> bool:
        """Wait until no prediction is live, at most `time_limit` seconds; return whether that came to be."""
        if self._unfinished:
            if self._empty is None or self._empty.done():
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._empty,), timeout=time_limit)
        return not self._unfinished

    @property
    def waiting(self) -> int:
        """How many predictions are admitted and have no slot yet."""
        return self._scheduler.waiting

    # inside

    def _admit(self, new: NewPrediction, prediction_id: str, values: dict[str, Any] | None) -> Execution:
        """Make a prediction live: it begins, or waits. Raises `GeartrainError` if there is no place for it."""
        scheduler = self._scheduler
        key, rows = scheduler.measure(new.input, new.tensors) if scheduler.is_batching else _UNMEASURED
        scheduler.check_room(new.queue)
        now = self.clock()
        echo = self._echo(new.input) if self._secrets else new.input
        created_at = now if new.created_at is None else new.created_at
        prediction = Prediction(prediction_id, echo, created_at, capacity=self._capacity)
        item = ItemInput(prediction_id, new.input, rows, new.context, new.tensors, new.parameters)
        is_simple = new.patience is None and not scheduler.is_batching
        ticket = NO_TICKET if is_simple else Ticket(key, new.patience)
        execution = Execution(scheduler, prediction, item, ticket=ticket, at=now)
        execution.is_kept = new.keep
        if not new.background:
            execution.output_prefix = new.output_prefix
        self.live[prediction_id] = execution
        self._unfinished += 1
        if values is None:
            scheduler.submit(execution)
        else:
            execution.prepare(values)
        return execution

    def _forget(self, execution: Execution) -> None:
        """Free the id of a prediction that is about to reach its terminal state."""
        prediction = execution.prediction
        if self.live.get(prediction.id) is execution:
            del self.live[prediction.id]
        if execution.is_kept:
            self.kept.add(prediction)
        self._unfinished -= 1
        if self._empty is not None and not self._unfinished and not self._empty.done():
            self._empty.set_result(None)

    def _pass_on(self, new: NewPrediction) -> Prediction:
        successor = self._successor
        # Tensors have been checked against this signature: they must not meet another one.
        if successor is not None and (new.tensors is None or successor.model.signature == self.model.signature):
            return successor.create(new)
        raise GeartrainError(Code.SHUTTING_DOWN, f"The server is shutting down and takes no new {self.model.noun}s.")

    def _on_health(self, health: Health) -> None:
        """The model has become ready again, or will never be."""
        if health is Health.READY:
            self._scheduler.serve()
        elif health is not Health.STARTING:
            self._scheduler.refuse_all()

    def _prepare(self) -> None:
        model = self.model
        validator = model.validator  # raises while the signature is unknown
        self._has_files = bool(validator.file_fields)
        self._secrets = validator.secret_fields
        self._input_files = self._make_input_files() if self._has_files else None
        context = self._context
        context.gives_tensors = lambda: model.view.gives_tensors
        if self._input_files is not None:
            files = self._input_files
            context.input_files = lambda: files
        self._scheduler.configure(model.info)
        self._prepared = True

    def _check_files(self, raw: bytes) -> dict[str, Any] | None:
        values: dict[str, Any] = msgspec.json.decode(raw)
        if self._input_files is None or not self._input_files.needed(values):
            return None
        errors = self._input_files.check(values)
        if errors:
            raise _invalid(errors)
        return values

    def _check_prefix(self, prefix: str, *, background: bool) -> tuple[FieldError, ...]:
        fault = self.outputs.fault(prefix, background=background)
        return () if fault is None else (FieldError(("body", "output_file_prefix"), fault, "value_error.url"),)

    def _echo(self, raw: bytes) -> bytes:
        values: dict[str, Any] = msgspec.json.decode(raw)
        for name in self._secrets:
            if name in values:
                values[name] = SECRET_ECHO
        return msgspec.json.encode(values)

    def _new_id(self) -> str:
        # As Cog makes them; two within one tick of the clock must still differ.
        while (prediction_id := f"pred_{time.time_ns() + next(self._sequence):x}") in self.live:
            pass
        return prediction_id

    def _own_id(self, prediction_id: str) -> str:
        if len(prediction_id) > MAX_ID:
            msg = f"{self.model.noun} ID is {len(prediction_id)} characters long; at most {MAX_ID} are accepted"
            raise _invalid((FieldError(("body", "id"), msg, "value_error"),))
        if prediction_id in self.live:
            noun = self.model.noun.capitalize()
            msg = f"{noun} {prediction_id!r} is still running. Use another id, or PUT to retry the same one."
            raise GeartrainError(Code.CONFLICT, msg)
        return prediction_id


def _invalid(errors: tuple[FieldError, ...]) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, "The input does not fit the model's signature.", fields=errors)
