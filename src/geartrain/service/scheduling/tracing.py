"""The spans of one prediction that is recorded: made when it is over, from the moments of its execution.

request
├─ prepare inputs      from its admission until its files are there; each download is a child
├─ queue               until its run begins
├─ run                 with the batch, the slot and the worker; what the author records is a child
└─ deliver outputs     from the first output with files to its end; each upload is a child
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import msgspec

from geartrain.domain.errors import Code
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.predictions.tracing import (
    NO_CONTEXT,
    Attributes,
    Span,
    TraceContext,
    TracerPort,
    Value,
    outgoing,
    read_context,
)

PREPARE: Final = "prepare inputs"
QUEUE: Final = "queue"
RUN: Final = "run"
DELIVER: Final = "deliver outputs"


class Seat(msgspec.Struct, frozen=True):
    """Slot and call of a running prediction.

    Attributes:
        slot: of its worker.
        pid: of its worker's process, 0 if that has just ended.
        size: predictions in its call.
        rows: of the call.
        others: the runs of the other predictions that are recorded.
    """

    slot: int
    pid: int
    size: int
    rows: int
    others: tuple[TraceContext, ...] = ()


class TracePort(Protocol):
    """Trace of an execution and its call."""

    run: TraceContext

    def request_of_run(self, request: RequestContext) -> RequestContext:
        """Return the ids that the worker is told: those of the request, with the run as the parent of what follows."""

    def preparing(self) -> AbstractContextManager[None]:
        """The files of the input are fetched by a task that is begun inside this block."""

    def delivering(self) -> AbstractContextManager[None]:
        """Files of an output are delivered by a task that is begun inside this block."""

    def undelivered(self) -> None:
        """The outputs could not be delivered, which is why the prediction fails."""

    def seat(self, seat: Seat) -> None:
        """The run is about to begin."""

    def follow(self, prediction: Prediction) -> None:
        """Record the spans when the prediction is over."""


class NoTrace:
    """In place of the trace of a prediction that is not recorded."""

    run = NO_CONTEXT

    def request_of_run(self, request: RequestContext) -> RequestContext:
        """Return those of the request."""
        return request

    def preparing(self) -> AbstractContextManager[None]:
        """Record nothing."""
        return nullcontext()

    def delivering(self) -> AbstractContextManager[None]:
        """Record nothing."""
        return nullcontext()

    def undelivered(self) -> None:
        """Record nothing."""

    def seat(self, seat: Seat) -> None:
        """Record nothing."""

    def follow(self, prediction: Prediction) -> None:
        """Record nothing."""


NO_TRACE: Final[TracePort] = NoTrace()


class TracesPort(Protocol):
    """Makes the traces of the predictions of one deployment."""

    def trace(self, request: RequestContext) -> TracePort:
        """Return the trace of a prediction that this request asks for."""

    def telling(self, request: RequestContext) -> AbstractContextManager[None]:
        """Webhooks of the request's prediction are sent by a task that is begun inside this block."""


class NoTraces:
    """In place of `ModelTraces`, where there are no traces. Who has it asks nothing of it, so that nothing is spent."""

    def trace(self, request: RequestContext) -> TracePort:  # noqa: ARG002 - as of `TracesPort`
        """Record nothing."""
        return NO_TRACE

    def telling(self, request: RequestContext) -> AbstractContextManager[None]:  # noqa: ARG002 - as of `TracesPort`
        """Record nothing."""
        return nullcontext()


NO_TRACES: Final[TracesPort] = NoTraces()


def traces_of(tracer: TracerPort | None, name: str, version: str, *, clock: Callable[[], float]) -> TracesPort:
    """Create the tracing of a model; `name` and `version` are the model's, `clock` as in `RunContext`."""
    return NO_TRACES if tracer is None else ModelTraces(tracer, name, version, clock=clock)


class ModelTraces:
    """Makes the traces of the predictions of one deployment; see `TracesPort`."""

    def __init__(self, tracer: TracerPort, name: str, version: str, *, clock: Callable[[], float]) -> None:
        """`name` and `version` are the model's."""
        self.tracer = tracer
        self.clock = clock
        self.attributes: Attributes = {"geartrain.model.name": name, "geartrain.model.version": version}

    def trace(self, request: RequestContext) -> TracePort:
        """Return the trace of a prediction; that of a request that is not sampled records nothing."""
        context = read_context(request.traceparent, request.tracestate)
        return PredictionTrace(self, context) if context.is_sampled else NO_TRACE

    def telling(self, request: RequestContext) -> AbstractContextManager[None]:
        """Make the webhooks children of the request: some of them are sent while it runs, some when it is over."""
        context = read_context(request.traceparent, request.tracestate)
        return outgoing(self.tracer, context) if context.is_sampled else nullcontext()


class PredictionTrace:
    """The trace of one prediction; see `TracePort`."""

    def __init__(self, traces: ModelTraces, request: TraceContext) -> None:
        self._traces = traces
        self._request = request
        self._preparation = NO_CONTEXT
        self._delivery = NO_CONTEXT
        self._delivery_began = 0.0
        self._is_undelivered = False
        self._seat = Seat(0, 0, 1, 1)
        self.run = traces.tracer.child(request)

    def request_of_run(self, request: RequestContext) -> RequestContext:
        """Return the ids of the request with the run in place of the request's own span."""
        return msgspec.structs.replace(request, traceparent=self.run.traceparent, tracestate=self.run.state)

    def preparing(self) -> AbstractContextManager[None]:
        """Make the downloads children of the preparation."""
        tracer = self._traces.tracer
        self._preparation = tracer.child(self._request)
        return outgoing(tracer, self._preparation)

    def delivering(self) -> AbstractContextManager[None]:
        """Make the uploads children of the delivery, which begins with the first of them."""
        tracer = self._traces.tracer
        if self._delivery is NO_CONTEXT:
            self._delivery, self._delivery_began = tracer.child(self._request), self._traces.clock()
        return outgoing(tracer, self._delivery)

    def undelivered(self) -> None:
        """Blame the delivery."""
        self._is_undelivered = True

    def seat(self, seat: Seat) -> None:
        """Take note of it."""
        self._seat = seat

    def follow(self, prediction: Prediction) -> None:
        """Record the spans when the prediction is over, and its readers have been told."""

        def on_end() -> None:
            asyncio.get_running_loop().call_soon(self._record, prediction)

        prediction.log.listen_for_end(on_end)

    def _record(self, prediction: Prediction) -> None:
        end = prediction.completed_at or self._traces.clock()
        moments = prediction.record
        ready, began = moments.ready, moments.began
        blamed = self._blamed(ready, began)
        tracer = self._traces.tracer

        def record(
            name: str,
            context: TraceContext,
            *,
            start: float,
            end: float,
            attributes: Attributes = {},  # noqa: B006 - never changed
            links: tuple[TraceContext, ...] = (),
        ) -> None:
            outcome = _outcome_of(prediction) if name == blamed else {}
            is_failed = name == blamed and prediction.status is Status.FAILED
            tracer.record(
                Span(
                    name=name,
                    context=context,
                    parent=self._request,
                    start=start,
                    end=max(start, end),
                    attributes={**attributes, **outcome},
                    links=links,
                    is_failed=is_failed,
                    error=prediction.error or "" if is_failed else "",
                )
            )

        if self._preparation is not NO_CONTEXT:
            record(PREPARE, self._preparation, start=moments.admitted, end=ready or end)
        if ready:
            record(QUEUE, tracer.child(self._request), start=ready, end=began or end)
        if began:
            attributes, links = self._of_run(prediction), self._seat.others
            record(RUN, self.run, start=began, end=moments.run_ended or end, attributes=attributes, links=links)
        if self._delivery is not NO_CONTEXT:
            record(DELIVER, self._delivery, start=self._delivery_began, end=end)

    def _blamed(self, ready: float, began: float) -> str:
        """Return the span that says how the prediction ended."""
        if not ready:
            return PREPARE
        if not began:
            return QUEUE
        return DELIVER if self._is_undelivered else RUN

    def _of_run(self, prediction: Prediction) -> dict[str, Value]:
        seat = self._seat
        return {
            **self._traces.attributes,
            "geartrain.prediction.id": prediction.id,
            "geartrain.batch.size": seat.size,
            "geartrain.batch.rows": seat.rows,
            "geartrain.slot": seat.slot,
            "geartrain.worker.pid": seat.pid,
        }


def _outcome_of(prediction: Prediction) -> dict[str, Value]:
    """Return the outcome of a prediction as attributes."""
    found: dict[str, Value] = {"geartrain.outcome": prediction.status.value}
    if prediction.status is Status.FAILED:
        code = prediction.error_code or Code.RUN_FAILED
        found["error.type"] = code.value
    return found
