"""The warm-up of a worker: example inputs that it runs after its setup, before it takes predictions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.domain.errors import FieldError, GeartrainError
from geartrain.domain.predictions.batching import BatchItems
from geartrain.domain.predictions.calls import (
    CallInput,
    Canceled,
    Failed,
    ItemEnd,
    ItemEvent,
    ItemInput,
    ModelCallPort,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.domain.predictions.events import Log
from geartrain.domain.signature.types import USUAL_OPENAI, OpenAISettings, Signature
from geartrain.domain.signature.validation import InputValidator
from geartrain.service.ports import FolderPort, InputFilesPort, WorkerPort

_SLOT: Final = 0

"""Receives the text that an example writes to a stream."""


class WarmUpError(Exception):
    """A worker could not run an example, or settings do not fit it; the message names what it is and says why."""


class Examples(msgspec.Struct, frozen=True):
    """Inputs that an author has written down, each a JSON object in UTF-8. Paths of files are relative to `root`.

    Attributes:
        inputs: those of the warm-up, which each worker runs.
        root: the folder of the version.
        origin: the name of the file that has them.
        shown: those for people, which nothing runs.
        own: those in the files of another server, for people where `shown` has none. Nothing checks them.
        folder: the folder of the model, which has its versions where there are several.
    """

    inputs: tuple[bytes, ...] = ()
    root: Path = Path()
    origin: str = "geartrain.yaml"
    shown: tuple[bytes, ...] = ()
    own: tuple[bytes, ...] = ()
    folder: Path = Path()

    @property
    def for_people(self) -> tuple[bytes, ...]:
        """Those that a page shows."""
        return self.shown or self.own


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
                errors = validator.check(example.input)
                if files is not None and not errors:
                    errors = files.check(msgspec.json.decode(example.input))
            except GeartrainError as error:
                raise WarmUpError(f"{example.place}: {error}") from error
            if errors:
                raise WarmUpError(f"{example.place} does not fit the model: {_listed(errors)}")

    async def run(self, worker: WorkerPort, info: WorkerInfo, observer: WorkerObserver) -> None:
        """Run the examples, one after the other. Raises `WarmUpError`.

        `observer` receives their output and their calls of other models.
        """
        files = self._files(info.signature, InputValidator(info.signature))
        for example in self._named():
            async with self._with_files(example, files) as fetched:
                await _run_one(example._replace(input=fetched), worker, info=info, observer=observer)

    @contextlib.asynccontextmanager
    async def first(self, signature: Signature) -> AsyncIterator[bytes | None]:
        """Return the input of the first example, whose files are there inside the block; None without an example.

        Raises `WarmUpError`.
        """
        example = next(chain(self._named(), self._shown(), self._own()), None)
        if example is None:
            yield None
            return
        async with self._with_files(example, self._files(signature, InputValidator(signature))) as fetched:
            yield fetched

    @contextlib.asynccontextmanager
    async def _with_files(self, example: _Example, files: InputFilesPort | None) -> AsyncIterator[bytes]:
        """Return the input of an example, whose files are there inside the block."""
        values: dict[str, Any] = msgspec.json.decode(example.input)
        if files is None or not files.needed(values):
            yield example.input
            return
        folder = self.new_folder()
        try:
            yield msgspec.json.encode(await _fetch(example.place, values, files, folder=folder))
        finally:
            await folder.remove()

    def _named(self) -> Iterator[_Example]:
        for index, example in enumerate(self.examples.inputs):
            yield _Example(f"warmup[{index}]", f"`warmup[{index}]` in {self.examples.origin}", example)

    def _shown(self) -> Iterator[_Example]:
        for index, example in enumerate(self.examples.shown):
            yield _Example(f"examples[{index}]", f"`examples[{index}]` in {self.examples.origin}", example)

    def _own(self) -> Iterator[_Example]:
        for index, example in enumerate(self.examples.own):
            yield _Example(f"own[{index}]", f"example {index + 1} of its files", example)

    def _files(self, signature: Signature, validator: InputValidator) -> InputFilesPort | None:
        return self.input_files(signature) if validator.file_fields else None


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
    call = ExampleCall(worker, observer)
    worker.run(_SLOT, CallInput(example.id, (ItemInput(example.id, example.input, rows),)), call)
    await call.is_over.wait()
    if call.fault:
        raise WarmUpError(f"{example.place} could not be run: {call.fault}")


class ExampleCall:
    """The listener of one example. Its outputs are thrown away; `fault` says why it failed, empty if it did not."""

    def __init__(self, worker: WorkerPort, observer: WorkerObserver, *, keep_prints: bool = True) -> None:
        self.is_over = asyncio.Event()
        self.is_idle = asyncio.Event()  # the slot is free
        self.fault = ""
        self._worker = worker
        self._observer = observer
        self._keep_prints = keep_prints

    def on_begin(self) -> None:
        """Ignore the beginning: it has no waiter."""

    def on_unstarted(self) -> None:
        """The worker has died before."""
        self._fail("the worker died before the run began")

    def on_event(self, report: ItemEvent) -> None:
        """Throw an output away; printed text belongs to the setup."""
        self._worker.discard(report.files)
        if self._keep_prints and isinstance(report.event, Log):
            self._observer.on_setup_log(report.event.source, report.event.data)

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        """Throw the output away; the example is over when the slot is free."""
        for end in ends:
            self._worker.discard(end.files)
            if isinstance(end.outcome, Failed):
                self._fail(end.outcome.error)
            elif isinstance(end.outcome, Canceled):
                self._fail("the run was canceled")
        if idle:
            self.on_idle()

    def on_idle(self) -> None:
        """It is over."""
        self.is_idle.set()
        self.is_over.set()

    def on_model_call(self, call: ModelCallPort) -> None:
        """Make the prediction of another model, as for the setup."""
        self._observer.on_model_call(call)

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self.is_over.set()


def _listed(errors: Sequence[FieldError]) -> str:
    return "; ".join(error.sentence for error in errors)
