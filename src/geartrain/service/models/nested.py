"""Predictions that other predictions have made: models that call models of the same server.

A nested prediction is checked, queued, batched and counted like any other. It waits before all that clients ask for,
since its caller holds a slot. It has what is left of its caller's time, and ends with its caller at the latest.

No two wait for each other: a model that is in its own chain of callers gets a slot that is idle, or none; and a
prediction that would wait for slots whose runs all wait, directly or not, for it or for each other is refused.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ModelCallPort, nothing
from geartrain.domain.predictions.events import Event, Output
from geartrain.domain.predictions.inference import SchedulePolicy
from geartrain.domain.predictions.lifecycle import ExecutionState, Health, Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.principal import ANYONE, Principal
from geartrain.domain.signature.pipeline import find_cycle
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.service.models.admission import BoundInput, Interface, NewPrediction
from geartrain.service.models.waking import ModelAsleepError
from geartrain.service.scheduling.nested import (
    Caller,
    EdgeCounts,
    NestedCalls,
    NestedRun,
    ResultFolder,
    can_proceed,
    remove_later,
    time_left,
)

if TYPE_CHECKING:
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.models.deployment import Deployment

logger = logging.getLogger(__name__)

MAX_DEPTH: Final = 16  # predictions in a chain of calls
_LOOK_AGAIN: Final = 1.0  # seconds
_LATER: Final = 0.25  # seconds
MAX_EDGES: Final = 4096  # pairs of models that have figures of their own; others share one
_AHEAD: Final = SchedulePolicy(is_nested=True)


class ModelCaller:
    """Makes predictions for calls of models by models.

    Attributes:
        is_large: returns True if the JSON of an input takes too long for the event loop.
        bind_large: binds and checks such an input beside the loop. Faults of its values are in `BoundInput.checked`.
    """

    def __init__(self) -> None:
        self.is_large: Callable[[bytes], bool] = lambda _: False
        self.bind_large: Callable[[bytes, Sequence[Tensor] | None, Interface], Awaitable[BoundInput]] | None = None
        self._models: Catalogue | None = None
        self._edges: dict[tuple[str, str], EdgeCounts] = {}

    def connect(self, catalogue: Catalogue) -> None:
        """Take the models that can be called."""
        self._models = catalogue
        catalogue.caller = self

    @property
    def _catalogue(self) -> Catalogue:
        if self._models is None:
            msg = "the models are not known yet"
            raise RuntimeError(msg)
        return self._models

    def fault_of(self, model: str, calls: tuple[str, ...]) -> str:
        """Return the reason against the models that a class declares: that it calls itself by way of them."""

        def declared(name: str) -> list[str]:
            found = calls if name == model else self._declared(name)
            return [each.partition("@")[0] for each in found]

        cycle = find_cycle([model], declared)
        if not cycle:
            return ""
        chain = " → ".join(cycle)
        return f"the models that the classes declare call each other in a circle: {chain}; take one declaration out"

    def _declared(self, name: str) -> tuple[str, ...]:
        try:
            return self._catalogue.find(name).interface.info.calls
        except GeartrainError:  # it is not there, or not loaded
            return ()

    def edges(self) -> Iterator[tuple[str, str, EdgeCounts]]:
        """Give caller, model and figures of each pair of models that has called."""
        for (caller, model), counts in self._edges.items():
            yield caller, model, counts

    def begin(self, port: ModelCallPort, caller: Caller) -> None:
        """Make the prediction of a call, and answer the call at its end."""
        nested = NestedRun(port, caller, self._edge(caller.model, port.model))
        nested.edge.running += 1
        port.on_end = nested.cancel
        if caller.call is not None:
            caller.call.nested = caller.call.nested or NestedCalls()
            caller.call.nested.add(nested)
        try:
            self._check(nested)
            if self.is_large(nested.port.input):
                self._wait(nested, None)
            else:
                self._create(nested)
        except ModelAsleepError as error:
            self._wait(nested, error)
        except GeartrainError as error:
            if error.code is Code.NOT_READY and self._may_become_ready(nested):
                self._wait(nested, None)
            else:
                self._fail(nested, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
            self._fail_with(nested, error)

    # before the prediction

    def _check(self, nested: NestedRun) -> None:
        caller, model = nested.caller, nested.model
        if caller.call is not None and caller.call.nested is not None and caller.call.nested.is_over:
            raise GeartrainError(Code.RUN_CANCELED, "The prediction that calls it is canceled.")
        if caller.allowed is not None and model not in caller.allowed:
            names = ", ".join(sorted(caller.allowed)) or "none"
            msg = f"the model '{caller.model}' may not call '{model}'; its `calls` are: {names}"
            raise GeartrainError(Code.FORBIDDEN, msg)
        if nested.depth > MAX_DEPTH:
            raise GeartrainError(Code.UNSUPPORTED, f"a chain of calls has at most {MAX_DEPTH} predictions")

    async def _bind_aside(self, nested: NestedRun, bound: BoundInput | None) -> BoundInput | None:
        """Bind a large input to the interface that the model has now; None for a small one. Raises `GeartrainError`."""
        port = nested.port
        if self.bind_large is None or not self.is_large(port.input):
            return None
        while True:  # the model may be loaded anew meanwhile
            interface = self._catalogue.find(port.model, port.version).interface
            if bound is not None and bound.interface is interface:
                return bound
            bound = await self.bind_large(port.input, port.tensors, interface)

    def _may_become_ready(self, nested: NestedRun) -> bool:
        """True if the model that is called is being loaded, or its worker is being replaced."""
        try:
            deployment = self._catalogue.find(nested.model, nested.port.version)
        except GeartrainError:
            return False
        return deployment.workers.health in {Health.UNKNOWN, Health.STARTING}

    def _wait(self, nested: NestedRun, asleep: ModelAsleepError | None) -> None:
        """Make the prediction later: when the model is ready, and a large input has been checked."""
        nested.task = asyncio.ensure_future(self._create_later(nested, asleep))
        nested.task.add_done_callback(partial(self._on_created, nested))  # also for a cancel before its first step

    def _on_created(self, nested: NestedRun, task: asyncio.Task[None]) -> None:
        nested.task = None
        if task.cancelled():
            self._fail(nested, GeartrainError(Code.RUN_CANCELED, "The prediction was canceled."))
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._fail_with(nested, error)

    async def _create_later(self, nested: NestedRun, asleep: ModelAsleepError | None) -> None:
        """Make the prediction once that is possible; the limit of the caller ends the wait."""
        bound: BoundInput | None = None
        if asleep is not None:
            await asleep.wait()
        while True:  # it may have become ready before this task began
            try:
                bound = await self._bind_aside(nested, bound)
                self._create(nested, bound)
            except ModelAsleepError as error:
                await error.wait()
            except GeartrainError as error:
                if error.code is not Code.NOT_READY or not self._may_become_ready(nested):
                    raise
                await self._settled(nested)
            else:
                return

    async def _settled(self, nested: NestedRun) -> None:
        """Wait until the health of the called model has changed, or another deployment may have taken its place."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._catalogue.find(nested.model, nested.port.version).settled()

    def _create(self, nested: NestedRun, bound: BoundInput | None = None) -> None:
        """Make the prediction. Raises `GeartrainError`."""
        port, caller = nested.port, nested.caller
        deployment = self._catalogue.find(port.model, port.version)
        if port.model in nested.names and deployment.workers.permits.idle == 0:
            msg = (
                f"the model '{port.model}' is in its own chain of calls, and all of its slots are in use; "
                "give it more slots or replicas"
            )
            raise GeartrainError(Code.AT_CAPACITY, msg)
        left = time_left(caller)
        if left is not None and left <= 0:
            raise GeartrainError(Code.TIMED_OUT, "timed out: its caller has no time left")
        if bound is None:
            json, tensors = deployment.interface.view.bind_nested(port.input, port.tensors)
        else:
            json, tensors = bound.json, bound.tensors
        nested.is_packed = tensors is not None and deployment.interface.view.gives_tensors
        folder = nested.folder = ResultFolder(deployment.outbound.new_folder())
        new = NewPrediction(
            input=json,
            tensors=tensors,
            queue=sys.maxsize,
            # The limit of the caller comes first, and cancels this one: the client is told that its time is up.
            schedule=_AHEAD if left is None else SchedulePolicy(timeout=left + _LATER, is_nested=True),
            request=_request_of(caller),
            principal=_principal_of(caller),
            nested=True,
            made_for=nested,
            results=folder,
            checked=None if bound is None else bound.checked,
        )
        prediction = deployment.create(new)
        for record in nested.records:
            record.follow(prediction)
        self._follow(nested, deployment, prediction)
        execution = deployment.predictions.live.get(prediction.id)
        if execution is not None and execution.state is ExecutionState.WAITING and not can_proceed(execution):
            msg = f"it would wait for itself: all slots of the model '{port.model}' run predictions that wait for it"
            execution.refuse(GeartrainError(Code.AT_CAPACITY, msg))

    # its answer

    def _follow(self, nested: NestedRun, deployment: Deployment, prediction: Prediction) -> None:
        """Send what the prediction gives, and its end."""
        mode = deployment.interface.signature.output.mode
        log = prediction.log
        if mode != "value":
            packed = nested.is_packed
            record = deployment.interface.view.gives_record

            def on_event(event: Event) -> None:
                if type(event) is Output:
                    files = () if nested.folder is None else nested.folder.files()
                    nested.port.give(event.chunk, packed=packed, record=record, files=files)

            for event in log.read(log.begin):
                on_event(event)
            if not prediction.is_terminal:
                log.listen(on_event)
        if prediction.is_terminal:
            self._end(nested, deployment, prediction)
        else:
            log.listen_for_end(lambda: self._end(nested, deployment, prediction))

    def _end(self, nested: NestedRun, deployment: Deployment, prediction: Prediction) -> None:
        if prediction.status is not Status.SUCCEEDED:
            canceled = prediction.status is Status.CANCELED
            code = Code.RUN_CANCELED if canceled else prediction.error_code or Code.RUN_FAILED
            message = prediction.error or ("The prediction was canceled." if canceled else "The prediction failed.")
            self._fail(nested, GeartrainError(code, message))
            return
        if not self._leave(nested, "succeeded"):
            return
        mode = deployment.interface.signature.output.mode
        output: Buffer | None = None
        if mode == "value":  # a run that yields though its type is a list gives chunks
            output = prediction.single_output if prediction.single_output is not None else prediction.output
        files = () if nested.folder is None else nested.folder.files()
        nested.port.end(
            output,
            mode,
            packed=nested.is_packed,
            record=deployment.interface.view.gives_record,
            files=files,
        )

    def _fail_with(self, nested: NestedRun, error: Exception) -> None:
        """Answer with any error; one that is none of a client's is logged."""
        if not isinstance(error, GeartrainError):
            logger.error("a call of the model %r has failed", nested.model, exc_info=error)
            error = GeartrainError(Code.INTERNAL, "The call has failed; the server's log says why.")
        execution = nested.execution
        self._fail(nested, error)
        if execution is not None:
            execution.cancel()

    def _fail(self, nested: NestedRun, error: GeartrainError) -> None:
        sentence = _sentence(error)
        if self._leave(nested, str(error.code), sentence):
            nested.port.fail(nested.model, str(error.code), sentence)

    def _leave(self, nested: NestedRun, outcome: str, error: str = "") -> bool:
        """Count the end of a call, which its caller no longer waits for; return False if that has been done."""
        if nested.is_over:
            return False
        nested.is_over = True
        nested.port.on_end = nothing  # without the cycle, both are freed at once
        edge = nested.edge
        edge.running -= 1
        edge.seconds += time.perf_counter() - nested.began
        edge.outcomes[outcome] = edge.outcomes.get(outcome, 0) + 1
        if nested.records:
            nested.end_records(outcome, error)
        nested.execution = None
        call = nested.caller.call
        if call is not None and call.nested is not None:
            call.nested.remove(nested)
        elif nested.folder is not None:
            remove_later(nested.folder)
        return True

    def _edge(self, caller: str, model: str) -> EdgeCounts:
        key = (caller, model)
        if key not in self._edges and len(self._edges) >= MAX_EDGES:
            key = ("", "")
        return self._edges.setdefault(key, EdgeCounts())


def _request_of(caller: Caller) -> RequestContext:
    """Return the request of a nested prediction: that of its caller, below the span of its run."""
    if caller.execution is None:
        return NO_REQUEST
    return msgspec.structs.replace(caller.execution.item.request, protocol="model", shows_logs=False)


def _principal_of(caller: Caller) -> Principal:
    execution = caller.execution
    if execution is None or not execution.prediction.principal:
        return ANYONE
    return Principal(execution.prediction.principal)


def _sentence(error: GeartrainError) -> str:
    if error.fields:
        return "; ".join(f"{'.'.join(field.loc[2:]) or field.loc[-1]}: {field.msg}" for field in error.fields)
    return error.message
