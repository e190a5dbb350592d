"""The life of a prediction, the same for every kind of worker: `bench.check()` holds after each of these."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.bridge.channels import ControlChannel
from geartrain.bridge.child import ChildWorker, Launch, SetupError
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ModelCallPort, WorkerInfo
from geartrain.domain.predictions.events import Completed, Event, Log, Metric, Output, Start
from geartrain.domain.predictions.lifecycle import Health, Status
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Limits
from geartrain.service.workers.pool import ModelSetupError
from tests.contract.conftest import LIMIT, ROOT, Bench, OpenBench, events_of, leftovers, story
from tests.contract.model import slow_setup
from tests.contract.model.run import wait_on_loop
from tests.support.folders import files_below
from tests.support.gates import Gate


def refusal(bench: Bench, *steps: list[Any], **options: Any) -> Code:
    """Why a prediction is not admitted."""
    with pytest.raises(GeartrainError) as caught:
        bench.create(*steps, **options)
    return caught.value.code


# before there is any


def take(bench: Bench, values: bytes) -> Code:
    """Why an input is not taken, whatever it is."""
    with pytest.raises(GeartrainError) as caught:
        bench.deployment.create(NewPrediction(values))
    return caught.value.code


@pytest.fixture
def setup_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """What the setup of the module `slow_setup` waits for."""
    gate = Gate(tmp_path / "setup")
    monkeypatch.setenv("SETUP_GATE", str(gate.path))
    yield gate
    gate.remove()


async def test_signature_is_known_before_setup_is_over(bench: OpenBench, setup_gate: Gate) -> None:
    async with bench(streams=False, module=slow_setup, ready=False) as b:
        deployment, known = b.deployment, b.deployment.interface.signature
        assert b.workers.health is Health.STARTING
        assert [field.name for field in known.inputs] == ["script", "image"]
        assert (deployment.slots, b.workers.permits.size) == (1, 0)
        assert {take(b, values) for values in (b'{"script":"[]"}', b'{"nope":1}')} == {Code.NOT_READY}
        with pytest.raises(GeartrainError) as caught:
            b.deployment.admission.check(NewPrediction(b'{"nope":1}'))
        assert caught.value.code is Code.INVALID_INPUT
        assert {field.loc[-1] for field in caught.value.fields} == {"nope", "script"}
        setup_gate.open()
        assert b.starting is not None
        async with asyncio.timeout(LIMIT):
            await b.starting
        assert (b.workers.health, deployment.interface.signature, deployment.slots) == (Health.READY, known, 1)
        assert (await b.done(["give", 1])).output == b"1"


async def test_signature_is_known_after_setup_has_failed(
    bench: OpenBench, setup_gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETUP_FAILS", "1")
    async with bench(streams=False, module=slow_setup, ready=False) as b:
        setup_gate.open()
        assert b.starting is not None
        async with asyncio.timeout(LIMIT):
            with pytest.raises(ModelSetupError, match="boom in setup"):
                await b.starting
        assert b.workers.health is Health.SETUP_FAILED
        assert [field.name for field in b.deployment.interface.signature.inputs] == ["script", "image"]
        assert b.deployment.slots == 1
        assert {take(b, values) for values in (b'{"script":"[]"}', b'{"nope":1}')} == {Code.NOT_READY}


class Told:
    """What a worker has said of its model."""

    def __init__(self) -> None:
        self.infos: list[WorkerInfo] = []

    def on_setup_log(self, source: str, data: str) -> None:
        """See `WorkerObserver`."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """See `WorkerObserver`."""
        self.infos.append(info)

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """See `WorkerObserver`."""

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)

    def on_lost(self, reason: str) -> None:
        """See `WorkerObserver`."""


@pytest.mark.usefixtures("setup_gate")
async def test_worker_that_inspects_tells_the_signature_and_runs_no_setup(folder: Path) -> None:
    path, told = Path(slow_setup.__file__), Told()
    launch = Launch(f"{path.name}:AsyncValue", path.parent, {"PYTHONPATH": str(ROOT)}, slots=3, inspect=True)
    worker = ChildWorker(launch, told)
    async with asyncio.timeout(LIMIT):
        info = await worker.start()
    await worker.stop(LIMIT)
    assert (info.slots, info.is_async, told.infos) == (3, True, [info])
    assert not leftovers(folder)


@pytest.mark.usefixtures("setup_gate")
async def test_worker_that_inspects_may_have_ended_before_it_is_heard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlChannel, "attach", lambda _channel, _loop: None)  # it is read at the exit
    path, told = Path(slow_setup.__file__), Told()
    launch = Launch(f"{path.name}:AsyncValue", path.parent, {"PYTHONPATH": str(ROOT)}, slots=3, inspect=True)
    worker = ChildWorker(launch, told)
    async with asyncio.timeout(LIMIT):
        info = await worker.start()
    await worker.stop(LIMIT)
    assert (info.slots, told.infos) == (3, [info])
    assert not leftovers(folder)


class Unable(Told):
    """A server that cannot serve the model."""

    def on_loaded(self, info: WorkerInfo) -> None:
        raise ValueError(f"no place for {info.slots} slots")


async def assert_start_fails(worker: ChildWorker, sentence: str, setup_gate: Gate) -> None:
    with pytest.raises(SetupError, match=sentence):
        async with asyncio.timeout(LIMIT):
            await worker.start()
    setup_gate.open()
    await worker.stop(LIMIT)


async def test_setup_fails_if_the_server_cannot_take_the_model(folder: Path, setup_gate: Gate) -> None:
    path = Path(slow_setup.__file__)
    launch = Launch(f"{path.name}:AsyncValue", path.parent, {"PYTHONPATH": str(ROOT)}, slots=3)
    await assert_start_fails(
        ChildWorker(launch, Unable()), "the server cannot serve the model: no place for 3 slots", setup_gate
    )
    assert not leftovers(folder)


async def test_setup_fails_if_the_worker_sends_no_messages(
    folder: Path, setup_gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain.bridge.channels.decode_control_to_parent", msgspec.json.decode)
    path = Path(slow_setup.__file__)
    worker = ChildWorker(Launch(f"{path.name}:AsyncValue", path.parent, {"PYTHONPATH": str(ROOT)}), Told())
    await assert_start_fails(worker, "the worker's message could not be read", setup_gate)
    assert not leftovers(folder)


# its ends


async def test_value_is_the_output(bench: OpenBench) -> None:
    async with bench(streams=False) as b:
        prediction = await b.done(["give", {"a": [1, 2.5, None]}])
        assert prediction.status is Status.SUCCEEDED
        assert prediction.output == b'{"a":[1,2.5,null]}'
        assert [type(event) for event in events_of(prediction)] == [Start, Output, Completed]


async def test_stream_is_a_list_of_its_chunks(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = await b.done(["give", "one"], ["give", 2], ["give", None])
        assert prediction.output == b'["one",2,null]'
        assert story(prediction) == ['"one"', "2", "null"]


async def test_stream_of_nothing_is_an_empty_list(bench: OpenBench) -> None:
    async with bench() as b:
        assert (await b.done()).output == b"[]"


async def test_chunk_is_there_before_the_next_is_made(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["give", 1], ["say", "waiting\n"], ["wait", b.gate()], ["give", 2])
        await b.said(prediction, "waiting")
        assert (prediction.status, prediction.chunks) == (Status.PROCESSING, [b"1"])
        b.gates["gate"].open()
        assert (await b.ended(prediction)).output == b"[1,2]"


async def test_times_are_in_order(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = await b.done(["give", 1])
        assert prediction.started_at is not None
        assert prediction.completed_at is not None
        assert prediction.created_at <= prediction.started_at <= prediction.completed_at
        assert prediction.predict_time is not None
        assert 0 <= prediction.predict_time <= prediction.completed_at - prediction.started_at + 0.001


async def test_exception_fails_it_and_leaves_what_came_before(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = await b.done(["say", "so far\n"], ["give", 1], ["raise", "no further"])
        assert prediction.status is Status.FAILED
        assert prediction.error == "ValueError: no further"
        assert (prediction.chunks, prediction.output) == ([b"1"], None)
        assert prediction.logs.startswith("so far\n")
        assert prediction.logs.endswith("ValueError: no further\n")
        assert (await b.done(["give", 2])).output == b"[2]"


async def test_exit_fails_it_and_the_worker_goes_on(bench: OpenBench) -> None:
    """D18."""
    async with bench() as b:
        prediction = await b.done(["exit", 3])
        assert (prediction.status, prediction.error) == (Status.FAILED, "SystemExit: 3")
        assert (await b.done(["give", 1])).status is Status.SUCCEEDED


async def test_exception_that_speaks_of_cancelling_is_a_failure(bench: OpenBench) -> None:
    """D27."""
    async with bench() as b:
        assert (await b.done(["raise", "this was cancelled by user"])).status is Status.FAILED


# what it says on the way


async def test_prints_outputs_and_metrics_keep_their_order(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = await b.done(
            ["say", "a\n"], ["give", 1], ["cry", "b\n"], ["metric", "n", 1, "replace"], ["give", 2], ["say", "c\n"]
        )
        assert story(prediction) == ["a\n", "1", "b\n", "metric", "2", "c\n"]
        assert prediction.logs == "a\nb\nc\n"
        assert [event.source for event in events_of(prediction) if isinstance(event, Log)] == [
            "stdout",
            "stderr",
            "stdout",
        ]


async def test_metrics_add_up(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = await b.done(
            ["metric", "total", 2, "incr"],
            ["metric", "total", 3, "incr"],
            ["metric", "a.b", "x", "replace"],
            ["metric", "all", 1, "append"],
            ["metric", "all", 2, "append"],
        )
        assert prediction.metrics == {"total": 5, "a": {"b": "x"}, "all": [1, 2]}
        assert [event.mode for event in events_of(prediction) if isinstance(event, Metric)][:2] == ["increment"] * 2


async def test_d2_last_line_without_an_end_stays_in_its_prediction(bench: OpenBench) -> None:
    async with bench() as b:
        assert (await b.done(["say", "last"])).logs == "last"
        assert (await b.done(["say", "next\n"])).logs == "next\n"


async def test_predictions_at_once_keep_apart(async_bench: OpenBench) -> None:
    async with async_bench(slots=2) as b:
        first = b.create(["say", "first\n"], ["wait", b.gate("1")], ["give", 1], ["metric", "n", 1, "replace"])
        second = b.create(["say", "second\n"], ["wait", b.gate("2")], ["give", 2], ["say", "end\n"])
        await b.said(first, "first")
        await b.said(second, "second")
        b.gates["2"].open()
        await b.ended(second)
        assert not first.is_terminal
        b.gates["1"].open()
        await b.ended(first)
        assert (first.logs, first.output, first.metrics) == ("first\n", b"[1]", {"n": 1})
        assert (second.logs, second.output, second.metrics) == ("second\nend\n", b"[2]", {})


# files


async def test_files_of_an_output_become_urls(bench: OpenBench) -> None:
    async with bench(streams=False) as b:
        prediction = await b.done(["give a file", str(b.folder / "out.txt"), "content"])
        assert prediction.output == b'"file:content"'


async def test_what_follows_a_file_waits_behind_it(bench: OpenBench) -> None:
    async with bench() as b:
        b.deliveries.released.clear()
        prediction = b.create(
            ["give a file", str(b.folder / "1.txt"), "one"],
            ["say", "between\n"],
            ["metric", "n", 1, "replace"],
            ["give a file", str(b.folder / "2.txt"), "two"],
            ["give", "last"],
            ["say", "end\n"],
            ["open", b.gate()],
        )
        await wait_on_loop(b.gate())
        assert (prediction.chunks, prediction.logs) == ([], "")
        b.deliveries.released.set()
        await b.ended(prediction)
        assert story(prediction) == ['"file:one"', "between\n", "metric", '"file:two"', '"last"', "end\n"]
        assert prediction.output == b'["file:one","file:two","last"]'
        assert b.deliveries.begun == 2


async def test_permit_stays_with_an_end_that_waits_for_files(bench: OpenBench) -> None:
    async with bench(streams=False) as b:
        b.deliveries.released.clear()
        prediction = b.create(["give a file", str(b.folder / "out.txt"), "content"], ["open", b.gate()])
        await wait_on_loop(b.gate())
        assert refusal(b) is Code.AT_CAPACITY
        b.deliveries.released.set()
        assert (await b.ended(prediction)).output == b'"file:content"'


async def test_files_of_one_name_do_not_meet(async_bench: OpenBench) -> None:
    """Two chunks, and two predictions, give files of one name: each keeps its content."""
    async with async_bench(slots=2) as b:
        b.deliveries.released.clear()
        for folder in ("1", "2", "3"):
            (b.folder / folder).mkdir()
        first = b.create(
            ["give a file", str(b.folder / "1" / "out.txt"), "one"],
            ["give a file", str(b.folder / "2" / "out.txt"), "two"],
            ["open", b.gate("1")],
        )
        second = b.create(["give a file", str(b.folder / "3" / "out.txt"), "three"], ["open", b.gate("2")])
        await wait_on_loop(b.gate("1"))
        await wait_on_loop(b.gate("2"))
        b.deliveries.released.set()
        assert (await b.ended(first)).output == b'["file:one","file:two"]'
        assert (await b.ended(second)).output == b'["file:three"]'


async def test_d10_files_are_gone_when_the_prediction_has_ended(bench: OpenBench) -> None:
    async with bench(streams=False) as b:
        for _ in range(3):
            await b.done(["give a file", str(b.folder / "out.txt"), "content"])
        assert not [path for own in b.folder.glob("geartrain-*") for path in files_below(own)]


async def test_delivery_that_fails_fails_the_prediction(bench: OpenBench) -> None:
    async with bench(streams=False) as b:
        b.deliveries.error = "the store is full"
        prediction = await b.done(["say", "made\n"], ["give a file", str(b.folder / "out.txt"), "content"])
        assert (prediction.status, prediction.error) == (Status.FAILED, "the store is full")
        assert prediction.logs == "made\n"
        b.deliveries.error = None
        assert (await b.done(["give", 1])).status is Status.SUCCEEDED


async def test_run_is_canceled_when_its_file_cannot_be_delivered(bench: OpenBench) -> None:
    async with bench() as b:
        b.deliveries.error = "the store is full"
        prediction = await b.done(["give a file", str(b.folder / "out.txt"), "content"], ["for ever"])
        assert (prediction.status, prediction.error) == (Status.FAILED, "the store is full")


# files of the input


async def test_image_is_fetched_before_the_run(bench: OpenBench) -> None:
    async with bench(streams=False) as b:
        b.inputs.released.clear()
        prediction = b.create(["give the image"], image="http://example.com/cat")
        await b.inputs.fetching.wait()
        assert prediction.status is Status.STARTING
        assert refusal(b) is Code.AT_CAPACITY
        assert b.inputs.folder is not None
        assert b.inputs.folder.exists()
        b.inputs.released.set()
        assert (await b.ended(prediction)).output == b'"the content of http://example.com/cat"'
        assert not b.inputs.folder.exists()


async def test_image_that_cannot_be_fetched_fails_it(bench: OpenBench) -> None:
    async with bench() as b:
        b.inputs.error = "404 Not Found"
        prediction = await b.done(["give", 1], image="http://example.com/cat")
        assert (prediction.status, prediction.error, prediction.started_at) == (Status.FAILED, "404 Not Found", None)
        assert [type(event) for event in events_of(prediction)] == [Completed]
        assert b.inputs.folder is not None
        assert not b.inputs.folder.exists()


async def test_cancel_while_the_image_is_fetched(bench: OpenBench) -> None:
    async with bench() as b:
        b.inputs.released.clear()
        prediction = b.create(["give", 1], image="http://example.com/cat")
        await b.inputs.fetching.wait()
        assert b.predictions.cancel(prediction.id, ANYONE)
        await b.ended(prediction)
        assert (prediction.status, prediction.started_at) == (Status.CANCELED, None)
        assert b.inputs.folder is not None
        assert not b.inputs.folder.exists()


async def test_cancel_before_the_fetching_begins(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["give", 1], image="http://example.com/cat")
        assert b.predictions.cancel(prediction.id, ANYONE)
        assert (await b.ended(prediction)).status is Status.CANCELED
        assert not b.inputs.fetching.is_set()


async def test_cancels_that_follow_each_other_while_the_image_is_fetched(bench: OpenBench) -> None:
    """The second may come while the folder is being removed; it must not cancel that."""
    async with bench() as b:
        b.inputs.released.clear()
        prediction = b.create(["give", 1], image="http://example.com/cat")
        await b.inputs.fetching.wait()
        for _ in range(50):
            b.predictions.cancel(prediction.id, ANYONE)
            await asyncio.sleep(0)
        assert (await b.ended(prediction)).status is Status.CANCELED


# cancel


async def test_cancel_of_a_run(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["give", 1], ["say", "running\n"], ["for ever"], ["say", "never"])
        await b.said(prediction, "running")
        assert b.predictions.cancel(prediction.id, ANYONE)
        await b.ended(prediction)
        assert (prediction.status, prediction.error, prediction.output) == (Status.CANCELED, None, None)
        assert (prediction.chunks, prediction.logs) == ([b"1"], "running\n")
        assert not b.predictions.cancel(prediction.id, ANYONE)
        await b.idle(1)
        assert (await b.done(["give", 2])).output == b"[2]"


async def test_d28_cancel_before_the_run_begins(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["for ever"])
        assert b.predictions.cancel(prediction.id, ANYONE)
        assert (await b.ended(prediction)).status is Status.CANCELED
        await b.idle(1)
        assert (await b.done(["give", 2])).output == b"[2]"


async def test_d28_cancel_at_any_moment(bench: OpenBench) -> None:
    """However far the run has come when the cancel arrives, it ends as canceled or as what it was."""
    async with bench() as b:
        for turns in range(30):
            prediction = b.create(["say", "x\n"], ["give", 1], ["for ever"])
            for _ in range(turns):
                await asyncio.sleep(0)
            assert b.predictions.cancel(prediction.id, ANYONE)
            assert (await b.ended(prediction)).status is Status.CANCELED
            await b.idle(1)


async def test_cancel_of_an_unknown_id(bench: OpenBench) -> None:
    async with bench() as b:
        assert not b.predictions.cancel("nobody", ANYONE)


async def test_late_cancel_does_not_hit_the_next_of_the_same_id(bench: OpenBench) -> None:
    async with bench() as b:
        first = await b.done(["give", 1], prediction_id="same")
        second = b.create(["wait", b.gate()], ["give", 2], prediction_id="same")
        b.predictions.abandon(first)
        b.gates["gate"].open()
        assert (await b.ended(second)).output == b"[2]"


@pytest.mark.parametrize("step", ["swallow", "raise instead"])
async def test_model_that_does_not_heed_its_cancel_is_canceled_all_the_same(bench: OpenBench, step: str) -> None:
    async with bench() as b:
        prediction = b.create([step, "", "running\n"], ["give", "too late"])
        await b.said(prediction, "running")
        assert b.predictions.cancel(prediction.id, ANYONE)
        assert (await b.ended(prediction)).status is Status.CANCELED
        await b.idle(1)
        assert (await b.done(["give", 1])).status is Status.SUCCEEDED


async def test_long_cleanup_keeps_the_slot_and_not_the_client(async_bench: OpenBench) -> None:
    async with async_bench() as b:
        prediction = b.create(["tidy", b.gate(), "running\n"])
        await b.said(prediction, "running")
        assert b.predictions.cancel(prediction.id, ANYONE)
        assert (await b.ended(prediction)).status is Status.CANCELED
        assert refusal(b) is Code.AT_CAPACITY
        assert b.predictions.find(prediction.id) is None
        b.gates["gate"].open()
        await b.idle(1)
        assert (await b.done(["give", 1])).output == b"[1]"


async def test_cleanup_without_a_loop_keeps_both(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["tidy", b.gate(), "running\n"])
        await b.said(prediction, "running")
        b.predictions.cancel(prediction.id, ANYONE)
        b.gates["gate"].open()
        assert (await b.ended(prediction)).status is Status.CANCELED
        await b.idle(1)


async def test_one_is_canceled_and_its_neighbour_goes_on(async_bench: OpenBench) -> None:
    async with async_bench(slots=2) as b:
        first = b.create(["say", "running\n"], ["for ever"])
        second = b.create(["say", "running\n"], ["wait", b.gate()], ["give", 2])
        await b.said(first, "running")
        await b.said(second, "running")
        b.predictions.cancel(first.id, ANYONE)
        assert (await b.ended(first)).status is Status.CANCELED
        b.gates["gate"].open()
        assert (await b.ended(second)).output == b"[2]"


# admission


async def test_at_capacity(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["wait", b.gate()])
        assert refusal(b) is Code.AT_CAPACITY
        b.gates["gate"].open()
        await b.ended(prediction)
        assert (await b.done()).status is Status.SUCCEEDED


async def test_d14_id_of_a_live_prediction_is_taken(async_bench: OpenBench) -> None:
    async with async_bench(slots=2) as b:
        prediction = b.create(["wait", b.gate()], prediction_id="mine")
        assert refusal(b, prediction_id="mine") is Code.CONFLICT
        assert b.predictions.find("mine") is prediction
        assert b.workers.permits.idle == 1
        b.gates["gate"].open()
        await b.ended(prediction)
        assert (await b.done(prediction_id="mine")).status is Status.SUCCEEDED


@pytest.mark.parametrize("prediction_id", ["x" * 256, "x" * 1024, "../../x", "/absolute", "a/b", "\x00", "ü ☃", "."])
async def test_d22_d23_id_is_only_a_name(bench: OpenBench, prediction_id: str) -> None:
    async with bench(streams=False) as b:
        prediction = await b.done(
            ["give a file", str(b.folder / "out.txt"), "content"], prediction_id=prediction_id, image="x:"
        )
        assert (prediction.id, prediction.status) == (prediction_id, Status.SUCCEEDED)
        strangers = {path.name for path in b.folder.iterdir() if not path.name.startswith("geartrain-")}
        assert strangers <= {"out.txt", "gates"}


async def test_invalid_input_takes_no_slot(bench: OpenBench) -> None:
    async with bench() as b:
        with pytest.raises(GeartrainError) as caught:
            b.deployment.create(NewPrediction(b'{"script":5,"other":1}'))
        assert caught.value.code is Code.INVALID_INPUT
        assert {field.loc[-1] for field in caught.value.fields} == {"script", "other"}
        assert b.workers.permits.idle == 1


async def test_d1_permit_and_id_are_back_before_the_log_says_so(bench: OpenBench) -> None:
    async with bench() as b:
        following = []

        def on_event(event: Event) -> None:
            if isinstance(event, Completed):
                following.append(b.create(["give", 2], prediction_id="same"))

        for gate, last in (("first", ["give", 1]), ("second", ["raise", "no"])):
            prediction = b.create(["wait", b.gate(gate)], last, prediction_id="same")
            prediction.log.listen(on_event)
            b.gates[gate].open()
            await b.ended(prediction)
            assert (await b.ended(following.pop())).output == b"[2]"


# a queue, where the operator gives one


async def test_who_waits_is_served_in_order(bench: OpenBench) -> None:
    async with bench(limits=Limits(queue=3)) as b:
        order: list[str] = []
        predictions = [b.create(["wait", b.gate()], ["give", 0], prediction_id="0")]
        predictions += [b.create(["give", n], prediction_id=str(n)) for n in (1, 2, 3)]
        assert refusal(b) is Code.AT_CAPACITY
        assert refusal(b, prediction_id="3") is Code.CONFLICT
        for prediction in predictions:
            prediction.log.listen(partial(note, order, prediction.id))
        assert [prediction.status for prediction in predictions] == [Status.PROCESSING, *[Status.STARTING] * 3]
        b.gates["gate"].open()
        assert [(await b.ended(prediction)).output for prediction in predictions] == [b"[0]", b"[1]", b"[2]", b"[3]"]
        assert [entry for entry in order if "Completed" in entry] == [f"{n} Completed" for n in range(4)]


async def test_long_queue_of_short_runs(bench: OpenBench) -> None:
    """Each is served from the end of the one before; that must not pile up."""
    async with bench(limits=Limits(queue=1000), streams=False) as b:
        for _ in range(20):
            await b.done(["give", "warm"])
        order: list[str] = []
        predictions = [b.create(["wait", b.gate()], ["give", 0], prediction_id="0")]
        predictions += [b.create(["give", n], prediction_id=str(n)) for n in range(1, 400)]
        for prediction in predictions:
            prediction.log.listen(partial(note, order, prediction.id))
        b.gates["gate"].open()
        for n, prediction in enumerate(predictions):
            assert (await b.ended(prediction)).output == b"%d" % n
        assert [entry for entry in order if "Completed" in entry] == [f"{n} Completed" for n in range(400)]


def note(order: list[str], name: str, event: Event) -> None:
    """Write down what happened to whom."""
    order.append(f"{name} {type(event).__name__}")


async def test_who_waits_may_leave(bench: OpenBench) -> None:
    async with bench(limits=Limits(queue=2)) as b:
        running = b.create(["wait", b.gate()])
        leaving, staying = b.create(["give", 1]), b.create(["give", 2])
        assert b.predictions.cancel(leaving.id, ANYONE)
        assert (leaving.status, leaving.started_at) == (Status.CANCELED, None)
        assert not b.predictions.cancel(leaving.id, ANYONE)
        assert b.create(["give", 3]).status is Status.STARTING  # its place is free
        b.gates["gate"].open()
        await b.ended(running)
        assert (await b.ended(staying)).output == b"[2]"


async def test_worker_lost_with_a_queue(bench: OpenBench) -> None:
    async with bench(limits=Limits(queue=2)) as b:
        predictions = [b.create(["say", "running\n"], ["for ever"]), b.create(["give", 1]), b.create(["give", 2])]
        await b.said(predictions[0], "running")
        b.kill_worker()
        assert {(await b.ended(prediction)).status for prediction in predictions} == {Status.FAILED}
        assert predictions[1].started_at is None


# a run that does not heed its cancel


async def test_cancel_that_is_not_heeded_ends_with_the_worker(bench: OpenBench) -> None:
    async with bench(limits=Limits(cancel_grace=0.2)) as b:
        prediction = b.create(["tidy", b.gate(), "running\n"])
        await b.said(prediction, "running")
        b.predictions.cancel(prediction.id, ANYONE)
        assert (await b.ended(prediction)).status is Status.CANCELED
        await b.lost()
        report = await b.deployment.report()
        assert report.health is Health.DEFUNCT
        assert "had not ended after 0.2 seconds" in (report.defunct_reason or "")


async def test_cancel_that_is_heeded_in_time_costs_no_worker(bench: OpenBench) -> None:
    async with bench(limits=Limits(cancel_grace=2.0)) as b:
        for _ in range(3):
            prediction = b.create(["say", "running\n"], ["for ever"])
            await b.said(prediction, "running")
            b.predictions.cancel(prediction.id, ANYONE)
            assert (await b.ended(prediction)).status is Status.CANCELED
            await b.idle(1)
        await asyncio.sleep(2.1)  # past the grace of all of them: nothing must happen
        assert (await b.done(["give", 1])).output == b"[1]"


# the end of the worker


async def test_worker_lost_in_mid_run(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["give", 1], ["say", "running\n"], ["for ever"])
        await b.said(prediction, "running")
        b.kill_worker()
        await b.ended(prediction)
        assert prediction.status is Status.FAILED
        assert prediction.error == "Worker crashed: killed by SIGKILL (out of memory, or killed from outside)"
        assert (prediction.chunks, prediction.logs) == ([b"1"], "running\n")
        assert refusal(b) is Code.NOT_READY
        report = await b.deployment.report()
        assert (report.health, report.defunct_reason) == (Health.DEFUNCT, prediction.error)
        assert not b.predictions.cancel(prediction.id, ANYONE)


async def test_worker_lost_with_every_slot_in_use(async_bench: OpenBench) -> None:
    async with async_bench(slots=3) as b:
        predictions = [b.create(["say", "running\n"], ["for ever"]) for _ in range(3)]
        for prediction in predictions:
            await b.said(prediction, "running")
        b.kill_worker()
        assert {(await b.ended(prediction)).status for prediction in predictions} == {Status.FAILED}


async def test_worker_lost_while_idle(bench: OpenBench) -> None:
    """Whoever comes before it is known is told that it failed; whoever comes after is refused."""
    async with bench() as b:
        b.kill_worker()
        for _ in range(1000):
            if b.workers.health is Health.READY:
                assert (await b.done(["for ever"])).status is Status.FAILED
        await b.lost()
        assert refusal(b) is Code.NOT_READY


async def test_worker_lost_during_a_cleanup(async_bench: OpenBench) -> None:
    async with async_bench() as b:
        prediction = b.create(["tidy", b.gate(), "running\n"])
        await b.said(prediction, "running")
        b.predictions.cancel(prediction.id, ANYONE)
        assert (await b.ended(prediction)).status is Status.CANCELED
        b.kill_worker()
        await b.lost()


async def test_worker_lost_while_a_file_is_delivered(bench: OpenBench) -> None:
    async with bench() as b:
        b.deliveries.released.clear()
        prediction = b.create(["give a file", str(b.folder / "a"), "one"], ["open", b.gate()], ["for ever"])
        await wait_on_loop(b.gate())
        b.kill_worker()
        await b.lost()
        assert not prediction.is_terminal
        b.deliveries.released.set()
        assert (await b.ended(prediction)).status is Status.FAILED


async def test_worker_lost_while_the_image_is_fetched(bench: OpenBench) -> None:
    async with bench() as b:
        b.inputs.released.clear()
        prediction = b.create(["give", 1], image="http://example.com/cat")
        await b.inputs.fetching.wait()
        b.kill_worker()
        await b.lost()
        b.inputs.released.set()
        assert (await b.ended(prediction)).status is Status.FAILED
        assert b.inputs.folder is not None
        assert not b.inputs.folder.exists()


# drain and close


async def test_close_admits_nothing_more_and_drain_waits(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["wait", b.gate()], ["give", 1])
        b.deployment.executions.is_closed = True
        assert refusal(b) is Code.SHUTTING_DOWN
        assert not await b.deployment.executions.drain(0)
        assert not prediction.is_terminal
        draining = asyncio.ensure_future(b.deployment.executions.drain(None))
        b.gates["gate"].open()
        assert await draining
        assert (await b.ended(prediction)).output == b"[1]"
        assert await b.deployment.executions.drain(0)


async def test_cancel_all_leaves_nothing(async_bench: OpenBench) -> None:
    async with async_bench(slots=3) as b:
        predictions = [b.create(["for ever"]), b.create(["say", "running\n"], ["for ever"])]
        predictions.append(b.create(["give", 1], image="http://example.com/cat"))
        b.inputs.released.clear()
        await b.said(predictions[1], "running")
        b.deployment.executions.cancel_all()
        assert await b.deployment.executions.drain(20)
        assert {prediction.status for prediction in predictions} == {Status.CANCELED}


async def test_stop_ends_what_still_runs(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["say", "running\n"], ["for ever"])
        await b.said(prediction, "running")
        await b.stop(0)
        assert (await b.ended(prediction)).status is Status.FAILED


async def test_stop_lets_a_run_end_within_its_grace(bench: OpenBench) -> None:
    async with bench() as b:
        prediction = b.create(["say", "running\n"], ["wait", b.gate()], ["give", 1])
        await b.said(prediction, "running")
        stopping = asyncio.ensure_future(b.stop(20))
        b.gates["gate"].open()
        await stopping
        assert (prediction.status, prediction.output) == (Status.SUCCEEDED, b"[1]")


async def test_stop_just_after_a_run(bench: OpenBench) -> None:
    """The worker has said that it is done, and nobody has read it yet: it must not wait for more."""
    async with bench() as b:
        prediction = b.create(["open", b.gate()], ["give", 1])
        if isinstance(b.worker, ChildWorker):
            b.gates["gate"].wait()  # in place: this loop reads nothing meanwhile
            select.select([b.worker._slots.calls.fd], [], [], LIMIT)
        async with asyncio.timeout(LIMIT):
            await b.stop(2 * LIMIT)
        assert (prediction.status, prediction.output) == (Status.SUCCEEDED, b"[1]")
