"""A version of a model as it was loaded once: its workers, and the scheduler in front of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.caching import CacheSettings, effective_cache
from geartrain.domain.predictions.calls import INLINE, ItemInput, ModelCallPort, WorkerInfo
from geartrain.domain.predictions.events import DEFAULT_CAPACITY
from geartrain.domain.predictions.ledger import Retry
from geartrain.domain.predictions.lifecycle import ExecutionState, Health
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.predictions.priorities import NO_PRIORITIES, Priorities
from geartrain.domain.predictions.request_context import ForwardedFields
from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Buckets, TextCounts
from geartrain.domain.predictions.tracing import TracerPort
from geartrain.domain.principal import ANYONE
from geartrain.domain.signature.types import USUAL_OPENAI, OpenAISettings, Signature
from geartrain.service.durable.durability import Durability
from geartrain.service.models.admission import Admission, Interface, NewPrediction
from geartrain.service.models.cached import after_files, create_cached
from geartrain.service.models.durable import create_durable
from geartrain.service.models.nested import ModelCaller
from geartrain.service.models.predictions import Executions, Predictions
from geartrain.service.ports import AttachmentStorePort, FolderPort, InputFilesPort, OutputsPort
from geartrain.service.scheduling.answers import Answers
from geartrain.service.scheduling.call import Call
from geartrain.service.scheduling.context import (
    CLOCKS,
    DEFAULT_MAX_OUTPUT,
    NO_OUTPUT_LIMIT,
    Clocks,
    OnPrint,
    RunContext,
    TimeLimit,
    no_mirror,
)
from geartrain.service.scheduling.execution import Execution
from geartrain.service.scheduling.nested import Caller
from geartrain.service.scheduling.pending import DEFAULT_QUEUE
from geartrain.service.scheduling.scheduler import Scheduler
from geartrain.service.scheduling.tracing import telling, traces_of
from geartrain.service.statistics import Counts, DeployedMetrics
from geartrain.service.webhooks import DEFAULT_INTERVAL, Webhooks
from geartrain.service.workers.pool import HealthReport, RestartPolicy, SpawnReplica, StartPolicy, WorkerPool
from geartrain.service.workers.warmup import NO_EXAMPLES, Examples, WarmUp

if TYPE_CHECKING:
    from geartrain.domain.signature.openai_model import OpenAIModel
    from geartrain.outbound.answer_folder import AnswerFolder

Noun = Literal["prediction", "training"]
ExecutionT = TypeVar("ExecutionT", bound=Execution)

STOP_GRACE: Final = 1.0  # seconds that a worker without work has to end by itself
_READY: Final = Health.READY  # to read it from its class takes several times as long
_OVER: Final = ExecutionState.OVER
_UNMEASURED: Final[tuple[Hashable, int]] = ((), 1)


class Limits(msgspec.Struct, frozen=True):
    """Limits that an operator sets. Times in seconds."""

    # Predictions that may wait for a slot; without a place, the answer is "at capacity". 0: none, but for a model that
    # takes batches `DEFAULT_QUEUE`.
    queue: int = 0
    keep: float = 300.0  # time that a finished prediction can still be looked up
    stream_grace: float = 30.0  # time that a stream made by POST runs on without readers
    cancel_grace: float | None = 60.0  # time that a run may ignore a cancel; then its worker is killed. None: no limit
    run_timeout: float | None = None  # time that a run may take before it is canceled and fails; None: no limit
    max_output_size: int | None = DEFAULT_MAX_OUTPUT  # bytes of the outputs of a run; beyond, it fails. None: no limit
    priorities: Priorities = NO_PRIORITIES
    sorts_all: bool = False  # a model that sorts or pads sorts all that wait, however long a request waits then


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeploymentSettings:
    """Settings of a served model version. Times in seconds."""

    noun: Noun = "prediction"  # name of its runs in messages
    replicas: int = 1
    restarts: RestartPolicy | None = None  # after a crash of a worker; None: it stays DEFUNCT
    setup_timeout: float | None = None  # None disables the limit
    limits: Limits = dataclasses.field(default_factory=Limits)
    inference_queue: int = DEFAULT_QUEUE  # requests of the Open Inference Protocol that may wait for a slot
    retry: Retry = "always"  # true if an accepted prediction runs again after its server was lost
    history: int = DEFAULT_CAPACITY  # events of a prediction that are kept for late readers; 0 for none
    webhook_interval: float = DEFAULT_INTERVAL  # the least time between two of output and logs
    webhook_token: str | None = dataclasses.field(default=None, repr=False)
    user_agent: str | None = None  # of the requests for input files
    buckets: Buckets = DEFAULT_BUCKETS  # of the histograms
    examples: Examples = NO_EXAMPLES  # each worker checks them, and runs some of them, before it is ready
    openai: OpenAISettings = USUAL_OPENAI
    cache: CacheSettings | None = None  # of its answers; None: as the model declares
    answers: AnswerFolder | None = None  # those that outlive the server
    calls: tuple[str, ...] | None = None  # the models that it may call besides those that it declares; None: all
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of its configuration, as its file has it
    own_version: str = ""  # the one that the files of another server state
    forwarded: ForwardedFields | None = None  # header fields that are parameters of its runs


class VersionRecord(msgspec.Struct, frozen=True, eq=False):
    """The part of a model version that outlives a deployment."""

    name: str  # of the model
    number: str
    predictions: Predictions = msgspec.field(default_factory=Predictions)  # those of all versions of the model
    counts: Counts = msgspec.field(default_factory=Counts)


class OutboundPort(Protocol):
    """The outside world, as the predictions of all models of a server reach it."""

    @property
    def tracer(self) -> TracerPort | None:
        """Tracer of the predictions."""

    @property
    def durability(self) -> Durability | None:
        """The store that outlives the server, if there is one."""

    @property
    def outputs(self) -> OutputsPort:
        """Destination of output files."""

    @property
    def caller(self) -> ModelCaller | None:
        """Maker of the predictions of other models that a run calls; None where there are none."""

    def new_folder(self) -> FolderPort:
        """Return a directory for one prediction."""

    def new_attachments(self) -> AttachmentStorePort:
        """Create the store for the files of one request."""

    def input_files(self, signature: Signature, user_agent: str | None, *, root: Path | None = None) -> InputFilesPort:
        """Create the fetcher of the URLs in a model's inputs.

        With `root`, for inputs that are the operator's own, also of paths relative to that folder.
        """

    def webhooks(self, token: str | None, interval: float) -> Webhooks:
        """Create the sender of webhooks with this token, at least `interval` seconds apart."""


class Deployment:
    """The workers of one version of a model and the scheduler in front of them, until others replace them."""

    def __init__(
        self,
        record: VersionRecord,
        spawn: SpawnReplica,
        *,
        settings: DeploymentSettings,
        outbound: OutboundPort,
        on_setup_output: Callable[[str], None] = lambda _text: None,
        on_print: OnPrint = no_mirror,
        clocks: Clocks = CLOCKS,
    ) -> None:
        """`spawn` makes a worker; none is made before `workers.spawn()`.

        `on_setup_output` hears what the load and the setup of the workers print, `on_print` what runs print.
        `clocks` are those of the machine, but for tests.
        """
        self.name = record.name
        self.version = record.number
        self.settings = settings
        self.loaded = asyncio.Event()  # the interface is known
        self.executions = Executions()
        self.outbound = outbound
        self.workers = WorkerPool(
            spawn,
            self,
            policy=StartPolicy(
                replicas=settings.replicas,
                time_limit=settings.setup_timeout,
                warm_up=warm_up_of(settings, outbound) if _has_warm_up(settings) else None,
                restarts=settings.restarts,
                check=self._check_calls,
                run_timeout=settings.limits.run_timeout,
            ),
            own_metrics=DeployedMetrics(record.name, record.number, record.counts.own),
            labels={"model": record.name, "version": record.number},
            clock=clocks.wall,
        )
        self.predictions = record.predictions
        record.counts.use_buckets(settings.buckets)
        self.on_setup_output = on_setup_output
        self.answers: Answers | None = None  # that are kept
        self._restoring: asyncio.Task[None] | None = None
        self._settling: list[asyncio.Future[None]] = []  # of those who wait for another health
        self._admission: Admission | None = None
        self._openai: OpenAIModel | None = None
        self._closing: asyncio.Task[None] | None = None
        self.find_fault: Callable[[], str] = (
            str  # the reason for which a model that calls others is not ready; "" if it is
        )
        context = RunContext(
            outputs=lambda: outbound.outputs,
            counts=record.counts,
            input_files=lambda: self.admission.input_files,
            own_files=lambda: self.admission.own_files,
            gives_tensors=lambda: self.interface.view.gives_tensors,
            cancel_grace=settings.limits.cancel_grace,
            run_timeout=settings.limits.run_timeout,
            max_output_size=settings.limits.max_output_size or NO_OUTPUT_LIMIT,
            new_folder=outbound.new_folder,
            on_print=on_print,
            on_model_call=self._on_run_call,
            clock=clocks.wall,
            steady=clocks.steady,
            traces=traces_of(outbound.tracer, record.name, record.number, clock=clocks.wall),
        )
        limits = settings.limits
        self.scheduler = Scheduler(
            self.workers,
            context,
            queue=limits.queue,
            on_over=self._on_over,
            priorities=limits.priorities,
            sorts_all=limits.sorts_all,
        )

    # life

    async def start(self) -> None:
        """Wait until the workers, which have been spawned, are ready; raise `ModelSetupError` if none can be."""
        await self.workers.start()

    async def close(self, grace: float | None) -> None:
        """Admit nothing more, wait until what runs is over, and end the workers. A second caller waits for the first.

        After `grace` seconds (None: no limit) what still runs is canceled.
        """
        self.executions.is_closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(grace))
        await asyncio.shield(self._closing)

    async def _close(self, grace: float | None) -> None:
        if not await self.executions.drain(grace):
            self.executions.cancel_all()
            await self.executions.drain(STOP_GRACE)
        if self.answers is not None:
            self.answers.clear()  # the deployment itself may be referred to for a while
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait((self._restoring,))
        if self.settings.answers is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.settings.answers.close)
        await self.workers.stop(STOP_GRACE)

    @property
    def is_ready(self) -> bool:
        """True if it can take requests, and the models that it needs can, too."""
        return self.workers.health is _READY and not self.find_fault()

    # predictions

    @property
    def interface(self) -> Interface:
        """The model's inputs and outputs; raises `NOT_READY` before the model is loaded."""
        admission = self._admission or self.admission
        return admission.interface

    @property
    def admission(self) -> Admission:
        """The check of requests; raises `NOT_READY` before the model is loaded."""
        if self._admission is None:
            raise self.workers.not_ready()
        return self._admission

    def create(self, new: NewPrediction) -> Prediction:
        """Admit a prediction and start it. Returns at once.

        Raises `GeartrainError`: `NOT_READY` whatever the input is, `INVALID_INPUT` with every wrong field, `CONFLICT`
        when a live prediction has the id, `AT_CAPACITY` when every slot is in use, `TIMED_OUT` when no time is left,
        `SHUTTING_DOWN`. Whatever is raised, nothing of the admission stays. The attachments are then still the
        caller's; those of a prediction that was admitted are removed at its end.
        """
        if self.workers.health is not _READY:
            raise self.workers.not_ready()
        admission = self._admission or self.admission
        values = admission.check(new)
        if new.id is not None:
            self.predictions.check_id(new.id, self.settings.noun, self.scheduler.retry_after, principal=new.principal)
            durability = self.outbound.durability
            if durability is not None:
                return create_durable(self, durability, new, values=values)
        if self.executions.is_closed and not new.nested:
            noun = self.settings.noun
            raise GeartrainError(Code.SHUTTING_DOWN, f"The server is shutting down and takes no new {noun}s.")
        echo = admission.echo(new) if admission.secrets else new.input
        if self.answers is not None and values is None:
            found = create_cached(self, self.answers, new, echo=echo)
            if found is not None:
                return found
        execution = self.admit(new, echo, Execution)
        execution.is_kept = new.keep
        try:
            if values is None:
                self.scheduler.submit(execution)
            else:
                execution.prepare(values, new.attachments, after_files(self, self.answers, new))
            if new.webhook is not None:
                with telling(self.scheduler.context.traces, new.request):
                    self.webhooks().follow(execution.prediction, new.webhook)
        except BaseException:
            self.undo(execution)
            raise
        return execution.prediction

    def admit(self, new: NewPrediction, echo: bytes, make: Callable[..., ExecutionT]) -> ExecutionT:
        """Give a prediction its place, without beginning it; raise `GeartrainError` if there is none.

        `make` makes its execution: `Execution`, or what takes the same.
        """
        scheduler, predictions, history = self.scheduler, self.predictions, self.settings.history
        context = scheduler.context
        key, rows = scheduler.pending.measure(new.input, new.tensors) if scheduler.is_batching else _UNMEASURED
        ticket = scheduler.admit(key, new.schedule, size=new.queue)
        now = context.clock()
        created_at = now if new.created_at is None else new.created_at
        prediction_id = predictions.new_id() if new.id is None else new.id
        size = len(new.input)
        if new.tensors:
            size += sum([len(tensor.data) for tensor in new.tensors])
        record = PredictionRecord(prediction_id, now, now, new.request, self.name, self.version, rows, size)
        prediction = Prediction(record, echo, created_at)
        if new.principal is not ANYONE:
            prediction.principal = new.principal.name
        if history != DEFAULT_CAPACITY:
            prediction.log.keep(history)
        item = ItemInput(
            prediction_id, new.input, rows, new.context, new.tensors, new.parameters, new.request, new.pieces
        )
        execution = make(scheduler, prediction, item, ticket=ticket)
        if new.made_for is not None:
            execution.nested, execution.results = new.made_for, new.results
            new.made_for.execution = execution
        if context.traces is not None:
            try:
                execution.begin_trace()
            except BaseException:
                self.undo(execution)
                raise
        if new.output_prefix is not None and not new.background:
            execution.output_prefix = new.output_prefix
        elif new.inline:
            execution.output_prefix = INLINE
        predictions.live[prediction_id] = execution
        self.executions.live.add(execution)
        return execution

    def undo(self, execution: Execution) -> None:
        """Take back an admission that failed: its place, its id, and what it keeps this deployment open for."""
        try:
            execution.undo()
        finally:
            if execution.state is _OVER:
                self._on_over(execution)

    def _on_over(self, execution: Execution) -> None:
        if execution.shared is not None and execution.delivery is not None and execution.delivery.leads_elsewhere:
            execution.shared.leads_elsewhere = True
        if execution.is_listed:
            self.predictions.remove(execution)
        executions = self.executions
        executions.live.discard(execution)
        if executions.is_awaited and not executions.live:
            executions.tell_drained()

    def webhooks(self) -> Webhooks:
        """Sender of the predictions' webhooks."""
        return self.outbound.webhooks(self.settings.webhook_token, self.settings.webhook_interval)

    # calls of other models

    async def settled(self) -> None:
        """Wait until the health of the workers has changed."""
        waiter = asyncio.get_running_loop().create_future()
        self._settling.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._settling:
                self._settling.remove(waiter)

    def _check_calls(self, info: WorkerInfo) -> str:
        """Return the reason against the models that the class declares; "" for none."""
        caller = self.outbound.caller
        return "" if caller is None or not info.calls else caller.fault_of(self.name, info.calls)

    def on_model_call(self, call: ModelCallPort) -> None:
        """Make the prediction of another model that the setup of a worker calls."""
        if self.outbound.caller is None:
            call.fail(call.model, Code.NOT_FOUND, "There are no other models here.")
        else:
            self.outbound.caller.begin(call, Caller(self.name, self.version, self._may_call))

    def _on_run_call(self, call: ModelCallPort, run: Call) -> None:
        members = run.members
        if self.outbound.caller is None or not members:
            call.fail(call.model, Code.RUN_CANCELED, "The prediction that called it is over.")
        else:
            self.outbound.caller.begin(call, Caller(self.name, self.version, self._may_call, members[0], run))

    @property
    def _may_call(self) -> frozenset[str] | None:
        """The names of the models that it may call; None for all."""
        listed = self.settings.calls
        if listed is None:
            return None
        declared = () if self._admission is None else self._admission.interface.info.calls
        return frozenset({*listed, *(name.partition("@")[0] for name in declared)})

    # calls of protocols

    @property
    def slots(self) -> int:
        """Number of predictions that can run at once; raises `NOT_READY` before the model is loaded."""
        return self.workers.permits.size or self.interface.info.slots * self.settings.replicas

    @property
    def text_counts(self) -> TextCounts:
        """Counts of the texts that protocols for texts have given."""
        return self.scheduler.context.counts.text_counts()

    @property
    def openai(self) -> OpenAIModel:
        """The model as clients of OpenAI's API see it; raises `NOT_READY` before the model is loaded."""
        if self._openai is None:
            from geartrain.domain.signature.openai_model import openai_model  # late: most servers get no such request

            self._openai = openai_model(self.interface.signature, self.settings.openai)
        return self._openai

    async def report(self) -> HealthReport:
        """Return the health now, after asking the author's healthcheck if there is one."""
        return await self.workers.report(is_free=lambda: self.scheduler.has_capacity)

    # observer of its workers

    def on_loaded(self, info: WorkerInfo) -> None:
        """Learn what the model takes and gives. Workers that say the same again change nothing."""
        if self._admission is not None and self._admission.interface.info == info:
            return
        interface = Interface(info)
        self._openai = None
        takes_files = bool(interface.validator.file_fields)
        self._admission = Admission(
            interface,
            input_files=self._input_files(info) if takes_files else None,
            own_files=self._input_files(info, root=Path("/"))
            if takes_files and self.outbound.caller is not None
            else None,
            outputs=self.outbound.outputs,
            check_webhook=lambda webhook: self.webhooks().check(webhook),
        )
        self.answers = self._keep_answers(effective_cache(self.settings.cache, info.cache))
        self.scheduler.configure(info)
        self.loaded.set()

    def _keep_answers(self, cache: CacheSettings | None) -> Answers | None:
        if self.answers is not None:
            self.answers.clear()
        if cache is None:
            return None
        settings, clock = self.settings, self.scheduler.context.steady
        answers = Answers(cache, history=settings.history, clock=clock, start_timer=TimeLimit, folder=settings.answers)
        if settings.answers is not None:
            self._restoring = asyncio.ensure_future(answers.restore(model=self.name, version=self.version))
        return answers

    def _input_files(self, info: WorkerInfo, *, root: Path | None = None) -> InputFilesPort:
        return self.outbound.input_files(info.signature, self.settings.user_agent, root=root)

    def on_health(self, health: Health) -> None:
        """Serve those that wait, or refuse them when there will be no worker for them."""
        settling, self._settling = self._settling, []
        for waiter in settling:
            if not waiter.done():
                waiter.set_result(None)
        if health is _READY:
            self.scheduler.serve()
        elif health is not Health.STARTING:
            self.scheduler.refuse_all()


def _has_warm_up(settings: DeploymentSettings) -> bool:
    """True if workers check examples or settings of the model before they are ready."""
    examples = settings.examples
    return bool(examples.inputs or examples.shown) or settings.openai is not USUAL_OPENAI


def warm_up_of(settings: DeploymentSettings, outbound: OutboundPort) -> WarmUp:
    """Make the warm-up of a model with these settings."""
    examples = settings.examples
    return WarmUp(
        examples=examples,
        openai=settings.openai,
        input_files=lambda signature: outbound.input_files(signature, settings.user_agent, root=examples.root),
        new_folder=outbound.new_folder,
    )
