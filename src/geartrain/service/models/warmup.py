"""The warm-up of a worker: example inputs that it runs after its setup, before it takes predictions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.domain.errors import FieldError, GeartrainError
from geartrain.domain.predictions.batch_items import BatchItems
from geartrain.domain.predictions.calls import (
    CallInput,
    Canceled,
    Failed,
    FileRef,
    ItemEnd,
    ItemInput,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.domain.predictions.events import LogSource, Metric
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.signature.types import USUAL_OPENAI, OpenAISettings, Signature
from geartrain.domain.signature.validation import InputValidator
from geartrain.service.models.admission import NoInputFiles
from geartrain.service.models.replicas import Spawn, SpawnReplica
from geartrain.service.ports import FolderPort, InputFilesPort, WorkerPort

_SLOT: Final = 0
_STOP_GRACE: Final = 0.0  # seconds; a worker that cannot run its examples is of no use


class WarmUpError(Exception):
    """A worker could not run an example, or settings do not fit it; the message names what it is and says why."""


class Examples(msgspec.Struct, frozen=True):
    """Inputs that an author has written down, each a JSON object in UTF-8. Paths of files are relative to `root`.

    Attributes:
        inputs: those of the warm-up, which each worker runs.
        root: the folder of the version.
        origin: the name of the file that has them.
        shown: those for people, which nothing runs.
        folder: the folder of the model, which has its versions where there are several.
    """

    inputs: tuple[bytes, ...] = ()
    root: Path = Path()
    origin: str = "geartrain.yaml"
    shown: tuple[bytes, ...] = ()
    folder: Path = Path()


NO_EXAMPLES: Final = Examples()


class _Example(NamedTuple):
    id: str  # of its call
    place: str  # in which file it is, for errors
    input: bytes


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """The examples of one model, what its input files need, and its settings that have to fit its signature."""

    examples: Examples
    openai: OpenAISettings = USUAL_OPENAI
    input_files: Callable[[Signature], InputFilesPort]
    new_folder: Callable[[], FolderPort]

    def spawning(self, spawn: SpawnReplica) -> SpawnReplica:
        """Create the spawner of workers whose start includes running the examples."""
        return lambda index, observer: WarmedWorker(functools.partial(spawn, index), observer, self)

    def check(self, signature: Signature) -> None:
        """Raise `WarmUpError` for what does not fit the signature, or an example whose file is not there."""
        if self.openai is not USUAL_OPENAI:
            from geartrain.domain.signature.openai_model import misfit  # late: few models have such settings

            fault = misfit(signature, self.openai)
            if fault:
                raise WarmUpError(fault)
        validator = InputValidator(signature)
        files = self._files(signature, validator)
        for example in (*self._named(), *self._shown()):
            try:
                errors = validator.check(example.input) or files.check(msgspec.json.decode(example.input))
            except GeartrainError as error:
                raise WarmUpError(f"{example.place}: {error}") from error
            if errors:
                raise WarmUpError(f"{example.place} does not fit the model: {_listed(errors)}")

    async def run(self, worker: WorkerPort, info: WorkerInfo, observer: WorkerObserver) -> None:
        """Run the examples, one after the other; what they print is told as output of setup. Raises `WarmUpError`."""
        files = self._files(info.signature, InputValidator(info.signature))
        for example in self._named():
            values: dict[str, Any] = msgspec.json.decode(example.input)
            if not files.needed(values):
                await _run_one(example, worker, info=info, observer=observer)
                continue
            folder = self.new_folder()
            try:
                fetched = msgspec.json.encode(await _fetch(example.place, values, files, folder=folder))
                await _run_one(example._replace(input=fetched), worker, info=info, observer=observer)
            finally:
                await folder.remove()

    def _named(self) -> Iterator[_Example]:
        for index, example in enumerate(self.examples.inputs):
            yield _Example(f"warmup[{index}]", f"`warmup[{index}]` in {self.examples.origin}", example)

    def _shown(self) -> Iterator[_Example]:
        for index, example in enumerate(self.examples.shown):
            yield _Example(f"examples[{index}]", f"`examples[{index}]` in {self.examples.origin}", example)

    def _files(self, signature: Signature, validator: InputValidator) -> InputFilesPort:
        return self.input_files(signature) if validator.file_fields else NoInputFiles()


async def _fetch(place: str, values: dict[str, Any], files: InputFilesPort, *, folder: FolderPort) -> dict[str, Any]:
    try:
        return await files.fetch(values, folder.path)
    except Exception as error:
        raise WarmUpError(f"{place}: {error}") from error


async def _run_one(example: _Example, worker: WorkerPort, *, info: WorkerInfo, observer: WorkerObserver) -> None:
    rows = 1
    if info.batching is not None:
        try:
            rows = BatchItems(info.signature, info.batching).measure(example.input, None)[1]
        except GeartrainError as error:
            raise WarmUpError(f"{example.place}: {error.reason}") from error
    call = _ExampleCall(worker, observer)
    worker.run(_SLOT, CallInput(example.id, (ItemInput(example.id, example.input, rows),)), call)
    await call.is_over.wait()
    if call.fault:
        raise WarmUpError(f"{example.place} could not be run: {call.fault}")


class WarmedWorker:
    """A `WorkerPort` around another, which has run its examples when its start returns. It observes the other one."""

    def __init__(self, spawn: Spawn, observer: WorkerObserver, warm_up: WarmUp) -> None:
        """Raises OSError if no process can be had."""
        self._observer = observer
        self._warm_up = warm_up
        self._faults: list[str] = []  # reasons for which it cannot be ready
        self._is_ready = False
        self._worker = worker = spawn(self)
        # From here on calls reach the worker itself.
        self.run, self.cancel, self.discard = worker.run, worker.cancel, worker.discard
        self.kill, self.healthcheck, self.stop = worker.kill, worker.healthcheck, worker.stop

    @property
    def may_prefetch(self) -> bool:
        """True if a call may be given to a slot that is busy."""
        return self._worker.may_prefetch

    @property
    def is_debugged(self) -> bool:
        """True if a person may have stopped it in a debugger."""
        return self._worker.is_debugged

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of the worker."""
        return self._worker.pids

    async def start(self) -> WorkerInfo:
        """Wait until the examples have been run.

        Raises what the start of the worker raises, and `WarmUpError`: then the worker has been stopped.
        """
        try:
            info = await self._worker.start()
            await self._warm_up.run(self._worker, info, self)
        except WarmUpError:
            await self._worker.stop(_STOP_GRACE)
            raise
        except Exception as error:
            for fault in self._faults:
                raise WarmUpError(fault) from error
            raise
        for fault in self._faults:  # it died after its last example
            raise WarmUpError(fault)
        self._is_ready = True
        return info

    # the worker's observer

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """Pass it on."""
        self._observer.on_setup_log(source, data)

    def on_loaded(self, info: WorkerInfo) -> None:
        """Check the examples before the setup, which may take minutes."""
        self._observer.on_loaded(info)
        try:
            self._warm_up.check(info.signature)
        except WarmUpError as error:
            self._faults.append(str(error))
            self._worker.kill(str(error))

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """Pass it on."""
        self._observer.on_own_metrics(reports)

    def on_lost(self, reason: str) -> None:
        """A worker that dies while it runs its examples is one that could not be set up."""
        if self._is_ready:
            self._observer.on_lost(reason)
        else:
            self._faults.append(reason)


class _ExampleCall:
    """The listener of one example. Its outputs are thrown away; `fault` says why it failed, empty if it did not."""

    def __init__(self, worker: WorkerPort, observer: WorkerObserver) -> None:
        self.is_over = asyncio.Event()
        self.fault = ""
        self._worker = worker
        self._observer = observer

    def on_begin(self) -> None:
        """Ignore the beginning: it has no waiter."""

    def on_unstarted(self) -> None:
        """The worker has died before."""
        self._fail("the worker died before the run began")

    def on_output(self, item: int, chunk: bytes, files: tuple[FileRef, ...]) -> None:  # noqa: ARG002 - the port's
        """Throw it away."""
        self._worker.discard(files)

    def on_log(self, item: int, source: LogSource, data: str) -> None:  # noqa: ARG002 - the port's
        """It belongs to the setup."""
        self._observer.on_setup_log(source, data)

    def on_metric(self, item: int, metric: Metric) -> None:
        """It is no prediction's."""

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        """Throw the output away; the example is over when the slot is free."""
        for end in ends:
            self._worker.discard(end.files)
            if isinstance(end.outcome, Failed):
                self._fail(end.outcome.error)
            elif isinstance(end.outcome, Canceled):
                self._fail("the run was canceled")
        if idle:
            self.is_over.set()

    def on_idle(self) -> None:
        """It is over."""
        self.is_over.set()

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self.is_over.set()


def _listed(errors: Sequence[FieldError]) -> str:
    return "; ".join(error.sentence for error in errors)
