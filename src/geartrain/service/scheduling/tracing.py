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
from typing import Final

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


def traces_of(tracer: TracerPort | None, name: str, version: str, *, clock: Callable[[], float]) -> ModelTraces | None:
    """Create the tracing of a model, None if nothing is traced; `clock` as in `RunContext`."""
    return None if tracer is None else ModelTraces(tracer, name, version, clock=clock)


def telling(traces: ModelTraces | None, request: RequestContext) -> AbstractContextManager[None]:
    """Make the webhooks of a task that is begun inside this block children of the request that asks for them.

    Some of them are sent while its prediction runs, some when that is over.
    """
    context = NO_CONTEXT if traces is None else read_context(request.traceparent, request.tracestate)
    return nullcontext() if traces is None or not context.is_sampled else outgoing(traces.tracer, context)


class ModelTraces:
    """Makes the traces of the predictions of one deployment."""

    def __init__(self, tracer: TracerPort, name: str, version: str, *, clock: Callable[[], float]) -> None:
        """`name` and `version` are the model's."""
        self.tracer = tracer
        self.clock = clock
        self.attributes: Attributes = {"geartrain.model.name": name, "geartrain.model.version": version}

    def trace(self, request: RequestContext) -> PredictionTrace | None:
        """Return the trace of a prediction that this request asks for, None if the request is not sampled."""
        context = read_context(request.traceparent, request.tracestate)
        return PredictionTrace(self, context) if context.is_sampled else None


class PredictionTrace:
    """The trace of one prediction: its execution and its call."""

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
        """Return the ids that the worker is told: the run stands in place of the request's own span."""
        return msgspec.structs.replace(request, traceparent=self.run.traceparent, tracestate=self.run.state)

    def preparing(self) -> AbstractContextManager[None]:
        """Make the downloads of a task that is begun inside this block children of the preparation."""
        tracer = self._traces.tracer
        self._preparation = tracer.child(self._request)
        return outgoing(tracer, self._preparation)

    def delivering(self) -> AbstractContextManager[None]:
        """Make the uploads of a task that is begun inside this block children of the delivery, which begins here."""
        tracer = self._traces.tracer
        if self._delivery is NO_CONTEXT:
            self._delivery, self._delivery_began = tracer.child(self._request), self._traces.clock()
        return outgoing(tracer, self._delivery)

    def undelivered(self) -> None:
        """Note that the outputs could not be delivered, which is why the prediction fails."""
        self._is_undelivered = True

    def seat(self, seat: Seat) -> None:
        """Note the slot and the call of a run that is about to begin."""
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
