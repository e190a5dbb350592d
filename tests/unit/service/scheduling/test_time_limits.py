"""The time that a prediction has: for its run, and for queue and run together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.domain.predictions.inference import LONGEST_TIMEOUT, NO_SCHEDULE, InferRequest, SchedulePolicy
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.service.models import inference
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits, VersionRecord
from geartrain.service.readers import completion
from geartrain.transport.grpc.translate import within
from tests.support.deployments import deploy
from tests.support.hand_worker import HandCall, HandWorker

SHORT = SchedulePolicy(0.02)
LONG = SchedulePolicy(30.0)


class Bench:
    """A model whose workers a test moves by hand. `batch`: how many predictions a call takes; 0 for no batches."""

    def __init__(self, *, replicas: int = 1, batch: int = 0, **limits: Any) -> None:
        policy = BatchPolicy(max_size=batch, learn_delay=False) if batch else None
        self.workers: list[HandWorker] = []

        def spawn(observer: WorkerObserver) -> HandWorker:
            self.workers.append(HandWorker(observer, policy=policy))
            return self.workers[-1]

        settings = DeploymentSettings(replicas=replicas, limits=Limits(queue=100, **limits))
        self.record = VersionRecord("m", "1")
        self.deployment = deploy(spawn, record=self.record, settings=settings)

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, text: str = "a", schedule: SchedulePolicy = NO_SCHEDULE) -> Prediction:
        body = b'{"text": "%b"}' % text.encode()
        return self.deployment.create(NewPrediction(body, schedule=schedule))

    @property
    def calls(self) -> list[HandCall]:
        return [call for worker in self.workers for call in worker.calls]

    def texts(self) -> list[str]:
        """What has reached a worker."""
        return [text for call in self.calls for text in call.texts]


async def end_of(prediction: Prediction) -> tuple[str, str | None, Code | None]:
    async with asyncio.timeout(40):
        await completion(prediction)
    return prediction.status, prediction.error, prediction.error_code


async def canceled(call: HandCall) -> None:
    """Wait until the worker has been told to stop a call, and do what it does then."""
    async with asyncio.timeout(40):
        while not call.was_canceled:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    call.cancel()


async def test_a_run_ends_when_its_time_is_up() -> None:
    bench = await Bench(run_timeout=0.02).start()
    prediction = bench.ask()
    await canceled(bench.calls[0])
    assert await end_of(prediction) == ("failed", "timed out after 0.02 s", Code.TIMED_OUT)
    assert bench.record.counts.faults == {"CANCELED": 0, "REJECTED": 0, "BACKEND": 0, "OTHER": 1}
    assert bench.deployment.workers.permits.idle == 1


async def test_the_time_of_a_run_begins_with_it() -> None:
    bench = await Bench(run_timeout=0.1).start()
    first, second = bench.ask(), bench.ask()
    await canceled(bench.calls[0])
    assert (await end_of(first))[2] is Code.TIMED_OUT
    assert second.status == "processing"
    bench.calls[1].answer()
    assert second.status == "succeeded"


async def test_who_waits_ends_when_its_time_is_up_and_reaches_no_worker() -> None:
    bench = await Bench().start()
    running = bench.ask("running")
    waiting = bench.ask("waiting", SHORT)
    assert await end_of(waiting) == ("failed", "timed out after 0.02 s", Code.TIMED_OUT)
    assert bench.deployment.scheduler.waiting == 0
    bench.calls[0].answer()
    assert running.status == "succeeded"
    assert bench.texts() == ["running"]
    assert bench.record.counts.faults["REJECTED"] == 1


@pytest.mark.parametrize("batch", [0, 4])
async def test_who_is_late_is_not_begun_though_its_timer_has_not_been_served(batch: int) -> None:
    """The loop was busy: the slot becomes free before the timer of the one that waits has had its turn."""
    bench = await Bench(batch=batch).start()
    bench.ask("running")
    await asyncio.sleep(0)
    late, patient = bench.ask("late", SHORT), bench.ask("patient", LONG)
    block(0.03)
    bench.calls[0].answer()
    assert bench.texts() == ["running", "patient"]
    assert (await end_of(late))[2] is Code.TIMED_OUT
    bench.calls[1].answer()
    assert patient.status == "succeeded"


def block(seconds: float) -> None:
    """Keep the loop busy."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        pass


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-6, 0.0004])
async def test_s1_a_request_without_any_time_is_not_admitted(seconds: float) -> None:
    bench = await Bench().start()
    with pytest.raises(GeartrainError, match=f"^timed out after {seconds:g} s$") as refused:
        bench.ask("a", SchedulePolicy(seconds))
    assert refused.value.code is Code.TIMED_OUT
    deployment = bench.deployment
    assert (deployment.scheduler.waiting, len(deployment.executions.live), len(deployment.predictions.live)) == (
        0,
        0,
        0,
    )
    assert not bench.calls


async def test_queue_and_run_share_the_time_of_a_request() -> None:
    bench = await Bench().start()
    first = bench.ask("first")
    second = bench.ask("second", SchedulePolicy(0.05))
    bench.calls[0].answer()
    assert (first.status, second.status) == ("succeeded", "processing")
    await canceled(bench.calls[1])
    assert (await end_of(second))[1] == "timed out after 0.05 s"


@pytest.mark.parametrize(("asked", "counts"), [(0.02, 0.02), (30.0, 0.03)])
async def test_the_shorter_limit_counts(asked: float, counts: float) -> None:
    bench = await Bench(run_timeout=0.03).start()
    prediction = bench.ask("a", SchedulePolicy(asked))
    await canceled(bench.calls[0])
    assert (await end_of(prediction))[1] == f"timed out after {counts:g} s"


async def test_a_run_that_ends_in_time_leaves_no_timer() -> None:
    bench = await Bench(run_timeout=0.01).start()
    prediction = bench.ask("a", SHORT)
    bench.calls[0].answer()
    bench.ask("b", LONG)
    await canceled(bench.calls[1])  # the limit of the second is over, so that of the first would be
    assert prediction.status == "succeeded"
    assert not bench.calls[0].was_canceled


async def test_who_was_canceled_before_does_not_time_out() -> None:
    bench = await Bench(run_timeout=0.01).start()
    prediction = bench.ask()
    bench.deployment.predictions.cancel(prediction.id, ANYONE)
    block(0.02)
    for _ in range(3):
        await asyncio.sleep(0)  # a timer would be served
    bench.calls[0].cancel()
    assert await end_of(prediction) == ("canceled", None, None)


async def test_a_cancel_after_the_time_is_up_changes_nothing() -> None:
    bench = await Bench(run_timeout=0.01).start()
    prediction = bench.ask()
    async with asyncio.timeout(40):
        while not bench.calls[0].was_canceled:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    bench.deployment.predictions.cancel(prediction.id, ANYONE)
    bench.calls[0].cancel()
    assert (await end_of(prediction))[2] is Code.TIMED_OUT


async def test_a_worker_that_does_not_stop_is_killed() -> None:
    bench = await Bench(run_timeout=0.01, cancel_grace=0.01).start()
    prediction = bench.ask()
    async with asyncio.timeout(40):
        while bench.workers[0].killed is None:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    bench.workers[0].die()
    assert await end_of(prediction) == ("failed", "timed out after 0.01 s", Code.TIMED_OUT)


async def test_time_of_a_run_begins_anew_while_it_is_debugged() -> None:
    bench = await Bench(run_timeout=0.01).start()
    worker = bench.workers[0]
    worker.debugged_until = 3
    prediction = bench.ask()
    await canceled(bench.calls[0])
    assert worker.asked_for_debugger == 4
    assert (await end_of(prediction))[2] is Code.TIMED_OUT


async def test_worker_is_not_killed_while_it_is_debugged() -> None:
    bench = await Bench(cancel_grace=0.01).start()
    worker = bench.workers[0]
    worker.debugged_until = 3
    prediction = bench.ask()
    bench.deployment.predictions.cancel(prediction.id, ANYONE)
    async with asyncio.timeout(40):
        while worker.killed is None:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    assert worker.asked_for_debugger == 4
    worker.die()
    assert (await end_of(prediction))[0] == "canceled"


async def test_in_a_batch_only_the_one_whose_time_is_up_ends() -> None:
    bench = await Bench(batch=4).start()
    short, long = bench.ask("short", SHORT), bench.ask("long", LONG)
    await asyncio.sleep(0)
    assert [call.texts for call in bench.calls] == [["short", "long"]]
    assert await end_of(short) == ("failed", "timed out after 0.02 s", Code.TIMED_OUT)
    assert not bench.calls[0].was_canceled
    assert long.status == "processing"
    bench.calls[0].answer()
    assert (long.status, long.output) == ("succeeded", b'"LONG"')


async def test_a_batch_is_stopped_when_the_time_of_all_is_up() -> None:
    bench = await Bench(batch=4, run_timeout=0.02).start()
    predictions = [bench.ask(text) for text in "ab"]
    await asyncio.sleep(0)
    for prediction in predictions:
        assert (await end_of(prediction))[2] is Code.TIMED_OUT
    await canceled(bench.calls[0])
    assert bench.deployment.workers.permits.idle == 1


async def test_a_prefetched_run_has_its_time_when_it_begins() -> None:
    bench = await Bench(batch=2, run_timeout=0.05).start()
    predictions = [bench.ask(text) for text in "abcd"]
    await asyncio.sleep(0)
    assert [call.input.prefetch for call in bench.calls] == [False, True]
    for prediction in predictions[:2]:
        assert (await end_of(prediction))[2] is Code.TIMED_OUT
    assert [prediction.status for prediction in predictions[2:]] == ["starting"] * 2
    await canceled(bench.calls[0])
    assert [prediction.status for prediction in predictions[2:]] == ["processing"] * 2
    bench.calls[1].answer()
    assert [prediction.status for prediction in predictions[2:]] == ["succeeded"] * 2


async def test_what_was_prefetched_and_is_late_is_taken_back() -> None:
    bench = await Bench(batch=2).start()
    for text in "ab":
        bench.ask(text)
    patient, late = bench.ask("patient"), bench.ask("late", SHORT)
    await asyncio.sleep(0)
    assert bench.calls[1].input.prefetch
    assert (await end_of(late))[2] is Code.TIMED_OUT
    bench.calls[0].answer()
    bench.calls[1].answer()
    assert patient.status == "succeeded"


async def test_each_replica_ends_its_own() -> None:
    bench = await Bench(replicas=2).start()
    limit = SchedulePolicy(0.2)  # it may not be over before the call is begun, on a busy machine
    short, long = bench.ask("short", limit), bench.ask("long")
    await canceled(bench.workers[0].calls[0])
    assert (await end_of(short))[2] is Code.TIMED_OUT
    assert (long.status, bench.deployment.workers.permits.idle) == ("processing", 1)
    bench.workers[1].calls[0].answer()
    assert long.status == "succeeded"


async def test_the_timeout_of_an_infer_request_reaches_the_run() -> None:
    bench = await Bench().start()
    request = InferRequest((), schedule=SHORT)
    prediction = inference.create_from_json(bench.deployment, b'{"text": "a"}', request)
    await canceled(bench.calls[0])
    assert (await end_of(prediction))[2] is Code.TIMED_OUT


def test_a_deadline_bounds_the_timeout_of_a_request() -> None:
    request = InferRequest((), "7")
    assert within(request, 2.5) == InferRequest((), "7", schedule=SchedulePolicy(2.5))
    assert within(within(request, 2.5), 3.0).schedule.timeout == 2.5
    assert within(within(request, 2.5), 0.5).schedule.timeout == 0.5
    assert within(request, 1e12).schedule.timeout == LONGEST_TIMEOUT
