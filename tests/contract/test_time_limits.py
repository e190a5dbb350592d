"""The end of a prediction whose time is up, with a fake worker and with real ones."""

from __future__ import annotations

import pytest

from geartrain.domain.errors import Code
from geartrain.domain.predictions.inference import SchedulePolicy
from geartrain.domain.predictions.lifecycle import Health, Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models.deployment import Limits
from tests.contract.conftest import OpenBench

SHORT = Limits(run_timeout=0.2, queue=4)
TIMED_OUT = (Status.FAILED, "timed out after 0.2 s", Code.TIMED_OUT)


def end_of(prediction: Prediction) -> tuple[Status, str | None, Code | None]:
    return prediction.status, prediction.error, prediction.error_code


async def test_a_run_is_stopped_in_the_model_and_the_next_one_begins(bench: OpenBench) -> None:
    async with bench(limits=Limits(run_timeout=1.0, queue=4)) as b:
        prediction = b.create(["give", 1], ["say", "running\n"], ["for ever"], ["say", "never"])
        waiting = b.create(["give", 2])
        await b.ended(prediction)
        assert end_of(prediction) == (Status.FAILED, "timed out after 1 s", Code.TIMED_OUT)
        assert (prediction.chunks, prediction.logs) == ([b"1"], "running\n")
        assert (await b.ended(waiting)).output == b"[2]"
        await b.idle(1)


@pytest.mark.parametrize("step", ["swallow", "raise instead"])
async def test_a_model_that_does_not_heed_the_end_of_its_time(bench: OpenBench, step: str) -> None:
    async with bench(limits=Limits(queue=4)) as b:
        prediction = b.create([step, "", "running\n"], ["give", "too late"], schedule=SchedulePolicy(0.2))
        assert end_of(await b.ended(prediction)) == TIMED_OUT
        await b.idle(1)
        assert (await b.done(["give", 1])).output == b"[1]"


async def test_a_run_that_goes_on_costs_the_worker(bench: OpenBench) -> None:
    async with bench(limits=Limits(run_timeout=1.0, cancel_grace=0.2)) as b:
        timed_out = (Status.FAILED, "timed out after 1 s", Code.TIMED_OUT)
        assert end_of(await b.done(["tidy", b.gate(), "running\n"])) == timed_out
        await b.lost()
        report = await b.deployment.report()
        assert report.health is Health.DEFUNCT
        assert "had not ended after 0.2 seconds" in (report.defunct_reason or "")


async def test_who_waits_ends_with_its_time_and_never_runs(bench: OpenBench) -> None:
    async with bench(limits=Limits(queue=4)) as b:
        running = b.create(["wait", b.gate()], ["give", 1])
        late = b.create(["say", "it ran\n"], schedule=SchedulePolicy(0.2))
        assert end_of(await b.ended(late)) == TIMED_OUT
        assert (late.started_at, late.logs) == (None, "")
        b.gates["gate"].open()
        assert (await b.ended(running)).output == b"[1]"
        await b.idle(1)


async def test_the_time_of_a_request_goes_on_in_its_run(bench: OpenBench) -> None:
    async with bench(limits=Limits(queue=4)) as b:
        running = b.create(["say", "running\n"], ["wait", b.gate()])
        second = b.create(["for ever"], schedule=SchedulePolicy(2.0))
        await b.said(running, "running")
        b.gates["gate"].open()
        assert end_of(await b.ended(second)) == (Status.FAILED, "timed out after 2 s", Code.TIMED_OUT)
        assert second.started_at is not None
        await b.idle(1)


async def test_a_run_ends_while_its_files_are_delivered(bench: OpenBench) -> None:
    async with bench(limits=SHORT) as b:
        b.deliveries.released.clear()
        prediction = await b.done(["give a file", str(b.folder / "out.txt"), "content"], ["for ever"])
        assert end_of(prediction) == TIMED_OUT
        await b.idle(1)


async def test_fetching_the_input_is_part_of_the_time_of_a_request(bench: OpenBench) -> None:
    async with bench(limits=SHORT) as b:
        b.inputs.released.clear()
        prediction = b.create(["say", "it ran\n"], image="cat", schedule=SchedulePolicy(0.2))
        assert end_of(await b.ended(prediction)) == TIMED_OUT
        assert prediction.started_at is None
        b.inputs.released.set()
        assert (await b.done(["give", 1])).output == b"[1]"


async def test_one_ends_and_its_neighbour_goes_on(async_bench: OpenBench) -> None:
    async with async_bench(slots=2) as b:
        first = b.create(["for ever"], schedule=SchedulePolicy(0.2))
        second = b.create(["say", "running\n"], ["wait", b.gate()], ["give", 2])
        assert end_of(await b.ended(first)) == TIMED_OUT
        b.gates["gate"].open()
        assert (await b.ended(second)).output == b"[2]"
