"""The predictions of a model by their ids, and the executions of one deployment until there is none."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits, Noun
from geartrain.service.models.entry import ModelEntry
from geartrain.service.models.predictions import MAX_ID
from tests.support.deployments import close, deploy
from tests.support.hand_worker import HandWorker

INPUT = b'{"text":"x"}'


async def started(entry: ModelEntry, number: str = "1", *, noun: Noun = "prediction", slots: int = 2) -> Deployment:
    deployment = deploy(
        functools.partial(HandWorker, slots=slots),
        record=entry.version(number).record,
        settings=DeploymentSettings(noun=noun, limits=Limits(queue=4)),
    )
    await deployment.start()
    return deployment


def worker_of(deployment: Deployment) -> HandWorker:
    worker = deployment.workers.replicas[0].worker
    assert isinstance(worker, HandWorker)
    return worker


def ask(deployment: Deployment, prediction_id: str | None = None, *, keep: bool = False) -> Prediction:
    return deployment.create(NewPrediction(INPUT, id=prediction_id, keep=keep))


def refusal(deployment: Deployment, prediction_id: str | None = None) -> GeartrainError:
    with pytest.raises(GeartrainError) as caught:
        ask(deployment, prediction_id)
    return caught.value


# by their ids


async def test_live_prediction_is_found_until_it_is_over() -> None:
    entry = ModelEntry("m")
    deployment = await started(entry)
    prediction = ask(deployment, "mine")
    predictions = entry.predictions
    assert predictions.find("mine") is predictions.look_up("mine", ANYONE) is prediction
    assert (predictions.find("other"), predictions.look_up("other", ANYONE)) == (None, None)
    assert not predictions.cancel("other", ANYONE)
    worker_of(deployment).calls[0].answer()
    assert (predictions.find("mine"), predictions.look_up("mine", ANYONE), predictions.live) == (None, None, {})
    assert not predictions.cancel("mine", ANYONE)


def looked_up_at_each_event(model: ModelEntry, prediction: Prediction) -> list[Prediction | None]:
    seen: list[Prediction | None] = []
    prediction.log.listen(lambda _: seen.append(model.predictions.look_up(prediction.id, ANYONE)))
    return seen


async def test_what_is_kept_can_be_looked_up_afterwards() -> None:
    entry, short = ModelEntry("m"), ModelEntry("short", keep=0)
    for model, expected in ((entry, True), (short, False)):
        deployment = await started(model)
        prediction = ask(deployment, "mine", keep=True)
        seen = looked_up_at_each_event(model, prediction)
        worker_of(deployment).calls[0].answer()
        assert (model.predictions.look_up("mine", ANYONE) is prediction) == expected
        assert (seen[-1] is prediction) == expected  # also for whoever hears of the end
        assert model.predictions.find("mine") is None


async def test_versions_of_a_model_share_its_ids() -> None:
    entry = ModelEntry("m")
    one, two = await started(entry, "1"), await started(entry, "2")
    prediction = ask(one, "mine")
    error = refusal(two, "mine")
    assert error.code is Code.CONFLICT
    assert error.message == "Prediction 'mine' is still running. Use another id, or PUT to retry the same one."
    assert two.predictions.find("mine") is prediction
    assert two.predictions.cancel("mine", ANYONE)
    call = worker_of(one).calls[0]
    assert call.was_canceled
    assert refusal(two, "mine").code is Code.CONFLICT  # it is live as long as its run
    call.cancel()
    assert prediction.status is Status.CANCELED
    assert ask(two, "mine") is entry.predictions.find("mine")


async def test_id_of_another_model_is_no_conflict() -> None:
    one, two = await started(ModelEntry("m")), await started(ModelEntry("n"))
    assert ask(one, "mine") is not ask(two, "mine")


async def test_who_leaves_ends_only_its_own_prediction() -> None:
    entry = ModelEntry("m")
    deployment = await started(entry)
    over = ask(deployment, "mine")
    worker_of(deployment).calls[0].answer()
    live = ask(deployment, "mine")
    calls = worker_of(deployment).calls
    entry.predictions.abandon(over)
    assert [call.was_canceled for call in calls] == [False, False]
    entry.predictions.abandon(live)
    assert [call.was_canceled for call in calls] == [False, True]
    calls[1].cancel()
    assert live.status is Status.CANCELED
    entry.predictions.abandon(live)  # to say it twice does no harm


async def test_s5_ids_of_the_server_have_128_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []

    def draw(size: int) -> bytes:
        drawn.append(hashlib.shake_128(bytes([len(drawn)])).digest(size))
        return drawn[-1]

    monkeypatch.setattr("os.urandom", draw)
    deployment = await started(ModelEntry("m"), slots=2)
    ids = [ask(deployment).id for _ in range(4)]
    assert ids == [f"pred_{drawn[0][start : start + 16].hex()}" for start in (4080, 4064, 4048, 4032)]
    assert len(drawn) == 1


async def test_s5_no_id_is_made_twice() -> None:
    one, two = ModelEntry("m").predictions, ModelEntry("n").predictions
    ids = [table.new_id() for table in (one, two) for _ in range(3000)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("pred_[0-9a-f]{32}", each) for each in ids)


@pytest.mark.parametrize("noun", ["prediction", "training"])
async def test_wrong_ids_are_named_by_what_the_runs_are_called(noun: Noun) -> None:
    deployment = await started(ModelEntry("m"), noun=noun)
    error = refusal(deployment, "x" * (MAX_ID + 1))
    assert error.code is Code.INVALID_INPUT
    (field,) = error.fields
    assert (field.loc, field.msg) == (
        ("body", "id"),
        f"{noun} ID is {MAX_ID + 1} characters long; at most {MAX_ID} are accepted",
    )
    longest = ask(deployment, "x" * MAX_ID)
    assert longest.id == "x" * MAX_ID
    ask(deployment, "mine")
    assert refusal(deployment, "mine").message.startswith(f"{noun.capitalize()} 'mine' is still running.")
    deployment.executions.is_closed = True
    closed = refusal(deployment)
    assert (closed.code, closed.message) == (
        Code.SHUTTING_DOWN,
        f"The server is shutting down and takes no new {noun}s.",
    )
    assert refusal(deployment, "mine").code is Code.CONFLICT  # which says more


# until there is none


async def test_everybody_who_waits_for_the_end_hears_of_it() -> None:
    deployment = await started(ModelEntry("m"))
    executions, worker = deployment.executions, worker_of(deployment)
    assert await executions.drain(0)
    ask(deployment), ask(deployment)
    first, second = (asyncio.ensure_future(executions.drain(limit)) for limit in (None, 60))
    await asyncio.sleep(0)
    worker.calls[0].answer()
    await asyncio.sleep(0)
    assert not first.done()
    third = asyncio.ensure_future(executions.drain(None))
    await asyncio.sleep(0)
    worker.calls[1].answer()
    async with asyncio.timeout(40):
        assert list(await asyncio.gather(first, second, third)) == [True, True, True]
    assert await executions.drain(None)


async def test_time_limit_of_one_takes_nothing_from_the_other() -> None:
    deployment = await started(ModelEntry("m"))
    executions, worker = deployment.executions, worker_of(deployment)
    ask(deployment)
    patient, leaving = (asyncio.ensure_future(executions.drain(None)) for _ in range(2))
    assert not await executions.drain(0.001)
    leaving.cancel()
    await asyncio.wait({leaving})
    assert not patient.done()
    worker.calls[0].answer()
    async with asyncio.timeout(40):
        assert await patient
    ask(deployment)
    assert not await executions.drain(0)
    worker.calls[1].answer()
    assert await executions.drain(0)


async def test_each_deployment_ends_its_own_executions() -> None:
    entry = ModelEntry("m")
    old, new = await started(entry, slots=1), await started(entry, slots=1)
    running, waiting, other = ask(old), ask(old), ask(new)
    old.executions.cancel_all()
    call, prefetched = worker_of(old).calls
    assert (call.was_canceled, prefetched.was_canceled, waiting.status) == (True, True, Status.CANCELED)
    assert not worker_of(new).calls[0].was_canceled
    assert not await old.executions.drain(0)
    call.cancel()
    assert (running.status, other.status) == (Status.CANCELED, Status.PROCESSING)
    assert await old.executions.drain(0)
    assert not await new.executions.drain(0)
    assert list(entry.predictions.live) == [other.id]


# the end of a deployment


async def test_deployment_that_closes_waits_for_what_runs() -> None:
    deployment = await started(ModelEntry("m"), slots=1)
    running, waiting = ask(deployment), ask(deployment)
    closing = [asyncio.ensure_future(deployment.close(None)) for _ in range(2)]
    await asyncio.sleep(0)
    assert refusal(deployment).code is Code.SHUTTING_DOWN
    closing[0].cancel()  # whoever gives up waiting takes nothing from the other
    await asyncio.wait({closing[0]})
    for index in range(2):
        assert not closing[1].done()
        worker_of(deployment).calls[index].answer()
        await asyncio.sleep(0)
    await asyncio.wait_for(closing[1], 40)
    assert (running.status, waiting.status) == (Status.SUCCEEDED, Status.SUCCEEDED)


async def test_deployment_that_closes_cancels_what_outlasts_its_grace() -> None:
    deployment = await started(ModelEntry("m"))
    prediction = ask(deployment)
    call = worker_of(deployment).calls[0]
    closing = asyncio.ensure_future(deployment.close(0))
    async with asyncio.timeout(40):
        while not call.was_canceled:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    assert not closing.done()  # its run has a moment to end
    call.cancel()
    await asyncio.wait_for(closing, 40)
    assert prediction.status is Status.CANCELED
    await close(deployment)  # once more does no harm
