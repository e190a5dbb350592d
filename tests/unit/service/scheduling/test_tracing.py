"""The spans of predictions, with workers that a test moves by hand."""

from __future__ import annotations

import asyncio

import msgspec

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.domain.predictions.inference import NO_SCHEDULE, SchedulePolicy
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.predictions.tracing import Span, TraceContext, read_context
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits
from geartrain.service.readers import completion
from geartrain.service.scheduling.context import Clocks
from tests.support.deployments import FakeOutbound, deploy
from tests.support.hand_worker import HandCall, HandWorker
from tests.support.tracers import KeepingTracer


def request(number: int, *, sampled: bool = True) -> RequestContext:
    return RequestContext(f"request-{number}", f"00-{number:032x}-{number:016x}-{sampled:02x}", "vendor=1", "cog")


def context_of(request: RequestContext) -> TraceContext:
    return read_context(request.traceparent, request.tracestate)


class Bench:
    """A model whose spans are kept, and whose time stands still unless a test moves it."""

    def __init__(self, *, batch: int = 0) -> None:
        policy = BatchPolicy(max_size=batch, learn_delay=False) if batch else None
        self.now = 1000.0
        self.tracer = KeepingTracer()
        outbound = FakeOutbound()
        outbound.tracer = self.tracer

        def spawn(observer: WorkerObserver) -> HandWorker:
            self.worker = HandWorker(observer, policy=policy)
            return self.worker

        settings = DeploymentSettings(limits=Limits(queue=100))
        self.deployment = deploy(spawn, outbound=outbound, settings=settings, clocks=Clocks(lambda: self.now))

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, request: RequestContext, schedule: SchedulePolicy = NO_SCHEDULE) -> Prediction:
        return self.deployment.create(NewPrediction(b'{"text": "a"}', request=request, schedule=schedule))

    @property
    def calls(self) -> list[HandCall]:
        return self.worker.calls

    async def call(self, number: int) -> HandCall:
        """Wait for a call."""
        async with asyncio.timeout(40):
            while len(self.calls) <= number:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0)
        return self.calls[number]

    async def spans(self, prediction: Prediction) -> dict[str, Span]:
        """The spans of the trace of a prediction, when it is over."""
        async with asyncio.timeout(40):
            await completion(prediction)
            await asyncio.sleep(0)  # they are made in the turn after
            await asyncio.sleep(0)
        trace_id = prediction.record.request.trace_id
        return {span.name: span for span in self.tracer.spans if span.context.trace_id == trace_id}


async def test_moments() -> None:
    bench = await Bench().start()
    first = bench.ask(request(1))
    bench.now = 1001.0
    second = bench.ask(request(2))
    bench.now = 1004.0
    bench.calls[0].answer()
    bench.now = 1009.0
    bench.calls[1].answer()
    assert [(span.start, span.end) for span in (await bench.spans(first)).values()] == [(1000, 1000), (1000, 1004)]
    spans = await bench.spans(second)
    assert [*spans] == ["queue", "run"]
    assert [(span.start, span.end) for span in spans.values()] == [(1001, 1004), (1004, 1009)]
    assert {span.parent for span in spans.values()} == {context_of(request(2))}
    assert spans["run"].attributes == {
        "geartrain.model.name": "m",
        "geartrain.model.version": "1",
        "geartrain.prediction.id": second.id,
        "geartrain.batch.size": 1,
        "geartrain.batch.rows": 1,
        "geartrain.slot": 0,
        "geartrain.worker.pid": 0,
        "geartrain.outcome": "succeeded",
    }


async def test_worker_is_told_of_the_run_and_all_others_of_the_request() -> None:
    bench = await Bench().start()
    prediction = bench.ask(request(1))
    bench.calls[0].answer()
    run = (await bench.spans(prediction))["run"].context
    told = msgspec.structs.replace(request(1), traceparent=run.traceparent)
    assert bench.calls[0].input.items[0].request == told
    assert prediction.record.request == request(1)


async def test_not_sampled() -> None:
    bench = await Bench().start()
    for asked in (request(1, sampled=False), NO_REQUEST):
        prediction = bench.ask(asked)
        bench.calls[-1].answer()
        assert await bench.spans(prediction) == {}
        assert bench.calls[-1].input.items[0].request is asked


async def test_canceled_run_is_no_error() -> None:
    bench = await Bench().start()
    prediction = bench.ask(request(1))
    bench.deployment.predictions.cancel(prediction.id, ANYONE)
    bench.calls[0].cancel()
    run = (await bench.spans(prediction))["run"]
    assert run.attributes["geartrain.outcome"] == "canceled"
    assert not run.is_failed


async def test_failed_run() -> None:
    bench = await Bench().start()
    prediction = bench.ask(request(1))
    bench.calls[0].answer(0, bad=(0,))
    spans = await bench.spans(prediction)
    assert (spans["run"].is_failed, spans["run"].error) == (True, "ValueError: 0")
    assert spans["run"].attributes["error.type"] == "run_failed"
    assert not spans["queue"].is_failed


async def test_who_never_runs_has_its_error_in_the_queue() -> None:
    bench = await Bench().start()
    bench.ask(request(1))
    spans = await bench.spans(bench.ask(request(2), SchedulePolicy(0.01)))
    assert [*spans] == ["queue"]
    assert (spans["queue"].is_failed, spans["queue"].error) == (True, "timed out after 0.01 s")
    assert spans["queue"].attributes["error.type"] == "timed_out"


async def test_batch_has_links_to_the_requests_that_are_recorded() -> None:
    bench = await Bench(batch=8).start()
    running = bench.ask(request(1))
    first = await bench.call(0)
    waiting = [bench.ask(request(2)), bench.ask(request(3, sampled=False)), bench.ask(request(4))]
    first.answer()
    (await bench.call(1)).answer()
    assert (await bench.spans(running))["run"].links == ()
    runs = [(await bench.spans(prediction))["run"] for prediction in (waiting[0], waiting[2])]
    assert [run.links for run in runs] == [(runs[1].context,), (runs[0].context,)]
    assert [run.attributes["geartrain.batch.size"] for run in runs] == [3, 3]
