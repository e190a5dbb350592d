"""One run of a pipeline: a prediction of each step, as soon as the values that it takes are there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import (
    CallInput,
    CallListener,
    Canceled,
    Failed,
    FileRef,
    ItemEnd,
    ItemEvent,
    Outcome,
    Succeeded,
    nothing,
)
from geartrain.domain.predictions.events import Output
from geartrain.domain.signature.pipeline import Step
from geartrain.domain.signature.types import OutputMode
from geartrain.domain.tensors.tensor import Buffer, unpack
from geartrain.service.models.pipeline_values import NULL, Arguments, Values, Wiring, as_json

if TYPE_CHECKING:
    from geartrain.service.models.deployment import Deployment

logger = logging.getLogger(__name__)

T = TypeVar("T")
_DIRECT: Final = 65_536  # bytes of JSON that are read on the loop


class StepCall:
    """The call of the model of one step. See `ModelCallPort`."""

    __slots__ = ("_index", "_run", "chunks", "input", "model", "on_end", "tensors", "version")

    def __init__(self, run: PipelineRun, index: int, step: Step, *, arguments: Arguments) -> None:
        self.model = step.model
        self.version = step.version
        self.input = arguments.json
        self.tensors = arguments.tensors
        self.on_end: Callable[[], None] = nothing
        self.chunks: list[Buffer] = []
        self._run = run
        self._index = index

    def give(self, output: Buffer, *, packed: bool, record: bool, files: tuple[str, ...]) -> None:  # noqa: ARG002
        """Take an output of a stream."""
        self._run.on_output(self._index, output, files)

    def end(
        self,
        output: Buffer | None,
        mode: OutputMode,  # noqa: ARG002 - as of the signature
        *,
        packed: bool = False,  # noqa: ARG002
        record: bool = False,  # noqa: ARG002
        files: tuple[str, ...] = (),
    ) -> None:
        """Take the end, with the output of a model that streams nothing."""
        self.on_end = nothing
        self._run.on_step_end(self._index, output, files)

    def fail(self, model: str, code: str, error: str) -> None:  # noqa: ARG002 - the step is that of the model
        """Take the reason for which there is no output."""
        self.on_end = nothing
        self._run.on_step_failure(self._index, code, error)


class PipelineRun:
    """Runs the steps of a pipeline for one prediction, and reports its end when the last of them has ended."""

    __slots__ = (
        "_call",
        "_done",
        "_files",
        "_find",
        "_has_ended",
        "_index",
        "_item",
        "_keep",
        "_listener",
        "_live",
        "_on_over",
        "_since",
        "_started",
        "_stopped",
        "_tasks",
        "_values",
        "_whole",
        "_wiring",
    )

    def __init__(
        self,
        wiring: Wiring,
        call: CallInput,
        listener: CallListener,
        *,
        find: Callable[[int], Deployment],
        keep: Callable[[Buffer, Collection[str]], tuple[Buffer, tuple[FileRef, ...]]],
        on_over: Callable[[], None],
    ) -> None:
        """`find` returns the deployment of a step; `on_over` is called before the listener receives the end.

        `keep` takes files over that an output names by their paths, and returns the output with tokens in their places.
        """
        self._wiring = wiring
        self._call = call
        self._item = call.items[0]
        self._listener = listener
        self._find = find
        self._keep = keep
        self._on_over = on_over
        self._since = time.monotonic()
        self._values = Values(wiring, self._item)
        self._live: dict[int, StepCall] = {}
        self._files: set[str] = set()  # that steps have given, by their paths
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: set[int] = set()
        self._done: set[int] = set()
        self._stopped: Outcome | None = None  # the outcome of a run that ends before its last step
        self._whole: Buffer | None = None  # the output of the direct step
        self._index = 0  # of the next yield
        self._has_ended = False

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self._call.id

    def begin(self) -> None:
        """Read the input, and start the steps that take nothing else."""
        self._listener.on_begin()
        if self._stopped is None:
            self._do(len(self._item.input), self._values.read_input, self._start_steps)
        self._settle()

    def stop(self, outcome: Outcome) -> None:
        """Cancel the steps that run, and end with `outcome` when they have ended. The first outcome counts."""
        if self._stopped is not None or self._has_ended:
            return
        self._stopped = outcome
        for call in tuple(self._live.values()):
            call.on_end()
        self._settle()

    def give_up(self) -> None:
        """End a run that has been stopped, though steps of it have not ended."""
        if self._stopped is not None:
            self._end(self._stopped)

    # steps

    def _start_steps(self, _: None = None) -> None:
        for index, step in enumerate(self._wiring.plan.steps):
            if self._stopped is not None:
                return
            if index not in self._started and step.after <= self._done:
                self._started.add(index)
                self._start(index)

    def _start(self, index: int) -> None:
        size = self._values.size_of(index)
        work = partial(self._values.arguments, index)
        self._do(size, work, partial(self._create, index), index=index)

    def _create(self, index: int, arguments: Arguments) -> None:
        """Begin the prediction of a step."""
        if self._stopped is not None:
            return
        step = self._wiring.pipeline.steps[index]
        self._check_signature(index)
        call = self._live[index] = StepCall(self, index, step, arguments=arguments)
        self._listener.on_model_call(call)

    def _check_signature(self, index: int) -> None:
        """Raise `NOT_READY` if the model of a step now has other inputs or outputs than it was planned for."""
        try:
            found = self._find(index).interface
        except GeartrainError:
            return  # the call says so, or waits for the model
        wired = self._wiring.steps[index].interface
        if found is not wired and found.signature != wired.signature:
            raise GeartrainError(Code.NOT_READY, "the model has been replaced by one with other inputs or outputs")

    # from the predictions of steps

    def on_output(self, index: int, output: Buffer, files: tuple[str, ...]) -> None:
        """Pass on a yield of the last step, or keep one of any other step."""
        if self._stopped is not None or index not in self._live:
            return
        self._files.update(files)
        if self._wiring.plan.streams != index:
            self._live[index].chunks.append(output)
            return
        if self._item.tensors is None and self._wiring.view.gives_tensors:
            output = as_json(self._wiring.plan, *unpack(output))
        chunk, refs = self._with_files(output)
        self._listener.on_event(ItemEvent(0, Output(chunk, self._index), refs))
        self._index += 1

    def on_step_end(self, index: int, output: Buffer | None, files: tuple[str, ...]) -> None:
        """Take the outputs of a step, and start those that wait for them."""
        call = self._live.pop(index, None)
        if call is None or self._stopped is not None:
            self._settle()
            return
        self._files.update(files)
        if self._wiring.direct == index and not files:
            self._whole = output
        view, chunks = self._wiring.steps[index].view, call.chunks
        # Of a packed output, the JSON is not known to be short; but nearly all of it is tensors.
        size = sum(map(len, chunks)) if chunks else 0 if view.gives_tensors or output is None else len(output)
        work = partial(self._values.read_outputs, index, output if output is not None else NULL, chunks)
        self._do(size, work, partial(self._follow, index), index=index)
        self._settle()

    def on_step_failure(self, index: int, code: str, error: str) -> None:
        """End the run, because a step has failed or was canceled."""
        self._live.pop(index, None)
        if self._stopped is None:
            self.stop(Failed(self._sentence(index, error), self._code_of(index, code)))
        self._settle()

    def _code_of(self, index: int | None, code: str) -> Code | None:
        """Return the code of a run that fails because a step did; None for a failure of the run itself."""
        is_own = index is not None and bool(self._wiring.plan.steps[index].after)
        if code in _OF_RUNS or (is_own and code in _OF_VALUES):
            return None
        return Code(code)

    def _with_files(self, output: Buffer) -> tuple[Buffer, tuple[FileRef, ...]]:
        """Return an output whose files are named by tokens, and the files."""
        return self._keep(output, self._files) if self._files else (output, ())

    def _follow(self, index: int, _: None) -> None:
        self._done.add(index)
        if len(self._done) < len(self._wiring.steps):
            self._start_steps()
        elif self._wiring.plan.streams is not None:
            self._succeed(None)
        elif self._whole is not None and (self._item.tensors is not None or not self._wiring.view.gives_tensors):
            self._succeed(self._whole)
        else:
            self._do(self._values.tensor_size, self._values.output, self._succeed)

    # the end

    def _succeed(self, output: Buffer | None) -> None:
        if self._stopped is None:
            output, files = (None, ()) if output is None else self._with_files(output)
            self._end(Succeeded(output, time.monotonic() - self._since), files)

    def _settle(self) -> None:
        """End a run that has been stopped when no step of it is left."""
        if self._stopped is not None and not self._live and not self._tasks:
            self._end(self._stopped)

    def _end(self, outcome: Outcome, files: tuple[FileRef, ...] = ()) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._values.clear()
        self._whole = None
        self._on_over()
        self._listener.on_end((ItemEnd(0, outcome, files),), idle=True)

    # work

    def _do(self, size: int, work: Callable[[], T], then: Callable[[T], None], *, index: int | None = None) -> None:
        """Do `work` on so many bytes, here or in a thread, and go on with its result; what is raised ends the run."""
        if size > _DIRECT:
            self._begin_task(self._do_aside(work, then), index)
            return
        try:
            then(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            self._fail(index, error)

    async def _do_aside(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        result = await asyncio.to_thread(work)
        if self._stopped is None:
            then(result)

    def _begin_task(self, work: Coroutine[Any, Any, None], index: int | None = None) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, index))

    def _on_task_done(self, index: int | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(index, error)
        self._settle()

    def _fail(self, index: int | None, error: Exception) -> None:
        if not isinstance(error, GeartrainError):
            logger.error("a pipeline failed", exc_info=error)
            self.stop(Failed(self._sentence(index, "an error of the server; its log has more")))
            return
        text = "; ".join(field.sentence for field in error.fields) or error.message
        self.stop(Failed(self._sentence(index, text), self._code_of(index, error.code)))

    def _sentence(self, index: int | None, text: str) -> str:
        return text if index is None else f"{self._wiring.pipeline.describe(index)}: {text}"


_OF_RUNS: Final = frozenset({Code.RUN_FAILED, Code.RUN_CANCELED, Code.INTERNAL})
_OF_VALUES: Final = frozenset({Code.INVALID_INPUT, Code.INVALID_TENSOR, Code.UNPARSABLE})
"""Codes that are none of the client's faults where the value is another step's."""

CANCELED: Final = Canceled()
