"""Batches in the service: who shares a call, what each member hears, and what a cancel or a crash does to it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.batching import Batching, BatchItems, BatchPolicy
from geartrain.domain.predictions.calls import (
    ALL,
    Canceled,
    FileRef,
    ItemEnd,
    ItemEvent,
    Succeeded,
    WorkerObserver,
)
from geartrain.domain.predictions.events import Log, Metric, Output
from geartrain.domain.predictions.inference import SchedulePolicy
from geartrain.domain.predictions.lifecycle import Health, Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Tensor
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import DeploymentSettings, Limits, VersionRecord
from geartrain.service.scheduling.context import Clocks
from geartrain.service.workers.pool import RestartPolicy
from tests.support.deployments import FakeOutbound, deploy
from tests.support.hand_worker import BY_ITEM, BY_ROWS, WITH_FILES, HandCall, HandWorker


class Files:
    """Fetches the image of an input once it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.removed = 0

    def needed(self, values: dict[str, Any]) -> bool:
        return True

    def check(self, values: dict[str, Any]) -> tuple[FieldError, ...]:
        return ()

    async def fetch(self, values: dict[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
        await self.released.wait()
        return {**values, "image": "local"}

    async def digests(self, folder: Path) -> None:
        """See `InputFilesPort`."""

    def path(self) -> Path:
        return Path()

    async def remove(self) -> None:
        self.removed += 1


class Bench:
    """A model that takes batches, with workers that a test moves by hand."""

    def __init__(
        self,
        *,
        replicas: int = 1,
        slots: int = 1,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        signature: Signature = BY_ITEM,
        restarts: RestartPolicy | None = None,
        by_turns: bool = False,
        **policy: Any,
    ) -> None:
        """`by_turns`: as in a server, requests of one turn of the loop share a batch; else each is one by itself."""
        self.workers: list[HandWorker] = []  # in the order of their replicas, then of their restarts
        self.make = functools.partial(
            HandWorker, policy=BatchPolicy(**{"learn_delay": False, **policy}), signature=signature, slots=slots
        )
        self.files = Files()
        self.record = VersionRecord("m", "1")
        self.deployment = deploy(
            self._spawn,
            record=self.record,
            settings=DeploymentSettings(replicas=replicas, restarts=restarts, limits=limits),
            outbound=FakeOutbound(input_files=lambda: self.files, new_folder=lambda: self.files),
            clocks=Clocks(steady=lambda: 1.0),  # by which no run takes long: behind those that do nothing is prefetched
        )
        self.scheduler = self.deployment.scheduler
        self.predictions = self.deployment.predictions
        self.by_turns = by_turns

    def _spawn(self, observer: WorkerObserver) -> HandWorker:
        self.workers.append(self.make(observer))
        return self.workers[-1]

    async def start(self) -> Bench:
        await self.deployment.start()
        if not self.by_turns:
            turn = self.scheduler.pending.turn
            turn.at_end = turn._serve  # type: ignore[method-assign]
        return self

    @property
    def idle(self) -> int:
        """How many slots are free."""
        return self.deployment.workers.permits.idle

    def ask(self, text: str, kind: str = "a", **settings: Any) -> Prediction:
        body = json.dumps({"text": text, "kind": kind}).encode()
        return self.deployment.create(NewPrediction(body, **settings))

    @property
    def calls(self) -> list[HandCall]:
        return [call for worker in self.workers for call in worker.calls]

    @property
    def open_calls(self) -> list[HandCall]:
        """Those that run; what lies ready behind one of them does not."""
        ready = [call.next for call in self.calls if call.next is not None and not call.is_over]
        return [call for call in self.calls if not call.is_over and call not in ready]


async def test_the_first_goes_at_once_and_the_next_batch_gathers_meanwhile() -> None:
    bench = await Bench().start()
    predictions = [bench.ask(text) for text in "abcd"]
    first = bench.calls[0]
    assert first.texts == ["a"]
    assert [each.status for each in predictions] == ["processing", "starting", "starting", "starting"]
    assert bench.scheduler.waiting == 3
    first.answer()
    assert bench.calls[1].texts == ["b", "c", "d"]
    bench.calls[1].answer()
    assert [each.output for each in predictions] == [b'"A"', b'"B"', b'"C"', b'"D"']
    assert [each.metrics for each in predictions] == [{"batch_size": 1}] + [{"batch_size": 3}] * 3
    assert {each.predict_time for each in predictions} == {0.25}
    assert bench.scheduler.waiting == 0
    assert bench.predictions.live == {}


async def test_those_who_ask_in_one_turn_of_the_loop_share_a_batch() -> None:
    bench = await Bench(by_turns=True, max_size=4).start()
    for text in "abc":
        bench.ask(text)
    assert not bench.calls
    await asyncio.sleep(0)
    assert bench.calls[0].texts == ["a", "b", "c"]
    bench.calls[0].answer()
    for text in "defgh":
        bench.ask(text)
    assert bench.calls[1].texts == ["d", "e", "f", "g"], "a full batch waits for nobody"
    await asyncio.sleep(0)
    bench.calls[1].answer()
    assert bench.calls[2].texts == ["h"]


async def test_without_gathering_each_request_is_a_batch_by_itself() -> None:
    bench = await Bench(by_turns=True, gather=False).start()
    predictions = [bench.ask(text) for text in "abc"]
    for text in "abc":
        assert bench.open_calls[0].texts == [text]
        bench.open_calls[0].answer()
    assert [each.output for each in predictions] == [b'"A"', b'"B"', b'"C"']


async def test_a_client_that_is_alone_waits_for_no_turn() -> None:
    bench = await Bench(by_turns=True).start()
    for text in "abc":
        bench.ask(text)
        await asyncio.sleep(0)
        bench.calls[-1].answer()
    bench.ask("d")
    assert bench.calls[-1].texts == ["d"]


async def test_the_next_batch_is_under_way_before_anybody_hears_of_the_last_one() -> None:
    bench = await Bench().start()
    seen: list[int] = []
    first, _ = bench.ask("a"), bench.ask("b")
    first.log.listen(lambda _: seen.append(len(bench.calls)))
    bench.calls[0].answer()
    assert set(seen) == {2}


async def test_inputs_that_are_shared_must_be_equal() -> None:
    bench = await Bench().start()
    bench.ask("first")
    for text, kind in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")]:
        bench.ask(text, kind)
    for _ in range(3):
        bench.open_calls[0].answer()
    assert [call.texts for call in bench.calls] == [["first"], ["a", "c", "d"], ["b"]]


async def test_one_bad_item_fails_alone() -> None:
    bench = await Bench().start()
    bench.ask("first")
    good, bad, fine = [bench.ask(text) for text in "abc"]
    bench.calls[0].answer()
    bench.calls[1].answer(bad=[1])
    assert (good.output, fine.output) == (b'"A"', b'"C"')
    assert (bad.status, bad.error) == ("failed", "ValueError: 1")


async def test_items_may_end_one_after_the_other_and_the_slot_waits_for_the_last() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b")
    bench.calls[0].answer()
    late = bench.ask("c")
    bench.calls[1].answer(1)
    assert (one.status, two.status) == ("processing", "succeeded")
    assert len(bench.calls) == 2
    bench.calls[1].answer(0)
    assert (one.status, late.status) == ("succeeded", "processing")


async def test_what_is_of_all_goes_to_all_that_run() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b")
    bench.calls[0].answer()
    call = bench.calls[1]
    call.listener.on_event(ItemEvent(ALL, Log("stdout", "loading\n")))
    call.listener.on_event(ItemEvent(ALL, Metric("steps", 3, "replace")))
    call.listener.on_event(ItemEvent(1, Log("stderr", "only b\n")))
    call.listener.on_event(ItemEvent(0, Metric("tokens", 7, "replace")))
    bench.predictions.cancel(two.id, ANYONE)
    call.listener.on_event(ItemEvent(ALL, Log("stdout", "going on\n")))
    call.listener.on_event(ItemEvent(1, Log("stdout", "nobody reads this\n")))
    call.answer(0)
    assert (one.logs, two.logs) == ("loading\ngoing on\n", "loading\nonly b\n")
    assert one.metrics == {"batch_size": 2, "steps": 3, "tokens": 7}
    assert two.metrics == {"batch_size": 2, "steps": 3}


async def test_a_stream_has_chunks_for_each() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b")
    bench.calls[0].answer()
    call = bench.calls[1]
    call.listener.on_event(ItemEvent(0, Output(b'"1"', 0)))
    call.listener.on_event(ItemEvent(1, Output(b'"2"', 0)))
    call.listener.on_event(ItemEvent(0, Output(b'"3"', 1)))
    call.listener.on_end([ItemEnd(index, Succeeded(None, 0.1)) for index in (0, 1)], idle=True)
    assert (one.output, two.output) == (b'["1","3"]', b'["2"]')


# cancels


async def test_who_is_canceled_while_waiting_is_never_run() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b")
    assert bench.predictions.cancel(one.id, ANYONE)
    assert one.status is Status.CANCELED
    assert bench.scheduler.waiting == 1
    bench.calls[0].answer()
    assert bench.calls[1].texts == ["b"]
    bench.calls[1].answer()
    assert two.status is Status.SUCCEEDED


async def test_a_canceled_item_is_answered_at_once_and_the_others_go_on() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b")
    bench.calls[0].answer()
    bench.predictions.cancel(one.id, ANYONE)
    bench.predictions.cancel(one.id, ANYONE)
    assert one.status is Status.CANCELED
    assert not bench.calls[1].was_canceled
    bench.calls[1].answer()
    assert two.output == b'"B"'
    assert one.output is None
    assert bench.record.counts.faults["CANCELED"] == 1


async def test_the_run_is_canceled_with_its_last_item() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b")
    bench.calls[0].answer()
    call = bench.calls[1]
    bench.predictions.cancel(one.id, ANYONE)
    bench.predictions.abandon(two)
    assert call.was_canceled
    late = bench.ask("c")
    assert late.status == "starting", "the slot is not free before the run has ended"
    call.cancel()
    assert late.status == "processing"
    assert bench.workers[0].killed is None


async def test_a_run_that_does_not_heed_its_cancel_is_killed() -> None:
    bench = await Bench(limits=Limits(cancel_grace=0.0)).start()
    prediction = bench.ask("a")
    bench.predictions.cancel(prediction.id, ANYONE)
    async with asyncio.timeout(40):
        while bench.workers[0].killed is None:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
    assert "canceled prediction" in (bench.workers[0].killed or "")


async def test_a_run_that_cleans_up_after_its_cancel_gives_its_slot_back_then() -> None:
    bench = await Bench(slots=2).start()
    prediction = bench.ask("a")
    bench.predictions.cancel(prediction.id, ANYONE)
    call = bench.calls[0]
    assert call.was_canceled
    call.is_over = True
    call.listener.on_end((ItemEnd(ALL, Canceled()),), idle=False)
    assert bench.idle == 1
    call.listener.on_idle()
    assert bench.idle == 2
    assert bench.record.counts.runs == 1


async def test_files_of_a_canceled_item_are_let_go() -> None:
    bench = await Bench().start()
    bench.ask("first")
    one, _ = bench.ask("a"), bench.ask("b")
    bench.calls[0].answer()
    bench.predictions.cancel(one.id, ANYONE)
    chunk, end = FileRef("t1", "a", "text/plain"), FileRef("t2", "b", "text/plain")
    listener = bench.calls[1].listener
    listener.on_event(ItemEvent(0, Output(b'"t1"', 0), (chunk,)))
    listener.on_end([ItemEnd(0, Succeeded(b'"t2"', 0.1), (end,))], idle=False)
    assert bench.workers[0].discarded == [chunk, end]


# a full batch lies ready


async def test_a_full_batch_lies_ready_before_its_worker_is_free() -> None:
    bench = await Bench(max_size=2).start()
    predictions = [bench.ask(text) for text in "abcdef"]
    assert [call.texts for call in bench.calls] == [["a"], ["b", "c"]]
    assert [each.status for each in predictions[:3]] == ["processing", "starting", "starting"]
    bench.calls[0].answer()
    assert [each.status for each in predictions[:3]] == ["succeeded", "processing", "processing"]
    assert [call.texts for call in bench.calls] == [["a"], ["b", "c"], ["d", "e"]]
    bench.calls[1].answer()
    bench.calls[2].answer()
    bench.calls[3].answer()
    assert [each.output for each in predictions] == [json.dumps(text).encode() for text in "ABCDEF"]
    assert bench.scheduler.waiting == 0
    assert bench.idle == 1


async def test_nothing_lies_ready_where_another_slot_may_be_free_before() -> None:
    bench = await Bench(max_size=2, slots=2).start()
    for text in "abcdef":
        bench.ask(text)
    assert [call.texts for call in bench.calls] == [["a"], ["b"]]


async def test_heavy_batches_wait_for_the_memory_that_they_travel_in() -> None:
    bench = await Bench(max_size=2).start()
    for _ in range(3):
        bench.ask("x" * 70_000)
    assert len(bench.calls) == 1


async def test_an_older_request_of_another_kind_is_not_overtaken() -> None:
    bench = await Bench(max_size=2).start()
    bench.ask("first")
    for text, kind in [("a", "x"), ("b", "y"), ("c", "y")]:
        bench.ask(text, kind)
    assert len(bench.calls) == 1
    bench.calls[0].answer()
    assert [call.texts for call in bench.calls] == [["first"], ["a"], ["b", "c"]]


async def test_what_lies_ready_can_be_canceled_and_times_out() -> None:
    bench = await Bench(max_size=2).start()
    bench.ask("first")
    one, two = bench.ask("a"), bench.ask("b", schedule=SchedulePolicy(0.001))
    assert len(bench.calls) == 2
    bench.predictions.cancel(one.id, ANYONE)
    assert one.status is Status.CANCELED
    await _until(lambda: two.is_terminal)
    assert two.error_code is Code.TIMED_OUT
    assert bench.scheduler.waiting == 0
    bench.calls[0].answer()
    assert bench.calls[1].was_canceled, "nobody is left to run it for"
    bench.calls[1].cancel()
    assert bench.idle == 1


async def test_what_lay_ready_for_a_worker_that_died_waits_again() -> None:
    bench = await Bench(max_size=2, restarts=RestartPolicy(first_delay=0)).start()
    first, one, two = [bench.ask(text) for text in "abc"]
    bench.workers[0].die()
    assert (first.status, one.status, two.status) == ("failed", "starting", "starting")
    await _until(lambda: len(bench.workers) == 2 and one.status == "processing")
    new = bench.workers[1]
    assert new.calls[0].texts == ["b", "c"]
    new.calls[0].answer()
    assert (one.output, two.output) == (b'"B"', b'"C"')


WITH_MORE = Signature(
    inputs=(*BY_ITEM.inputs, InputField("more", TypeSpec("string"), required=False, has_default=True, default="")),
    output=BY_ITEM.output,
)


@pytest.mark.parametrize(
    ("after", "texts"),
    [
        ({"policy": BatchPolicy(max_size=2)}, [["b", "c"], ["d"]]),
        ({"policy": BatchPolicy(max_size=8), "signature": WITH_MORE}, [["b", "c", "d"]]),
        ({"policy": None}, [["b"], ["c"], ["d"]]),
    ],
)
async def test_a_worker_that_follows_serves_those_who_wait_as_it_takes_them(
    after: dict[str, Any], texts: list[list[str]]
) -> None:
    bench = await Bench(max_size=8, restarts=RestartPolicy(first_delay=0)).start()
    first, *others = [bench.ask(text) for text in "abcd"]
    bench.make = functools.partial(HandWorker, **after)
    bench.workers[0].die()
    assert first.status is Status.FAILED
    await _until(lambda: bench.deployment.workers.health is Health.READY)
    await _until(lambda: bool(bench.open_calls))
    while bench.open_calls:
        bench.open_calls[0].answer()
    assert [call.texts for call in bench.workers[1].calls] == texts
    assert [each.output for each in others] == [b'"B"', b'"C"', b'"D"']
    assert (bench.scheduler.waiting, bench.predictions.live) == (0, {})


# files


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)


def _with_file(bench: Bench, text: str) -> Prediction:
    body = json.dumps({"text": text, "image": "data:,x"}).encode()
    return bench.deployment.create(NewPrediction(body))


async def test_files_are_fetched_before_a_batch_is_joined() -> None:
    bench = await Bench(signature=WITH_FILES, limits=Limits(queue=1)).start()
    one, two = _with_file(bench, "a"), _with_file(bench, "b")
    with pytest.raises(GeartrainError):
        _with_file(bench, "c")  # who fetches has a place, too
    await asyncio.sleep(0)
    assert bench.calls == []
    bench.predictions.cancel(two.id, ANYONE)
    bench.files.released.set()
    await _until(lambda: two.is_terminal and bool(bench.calls))
    assert two.status is Status.CANCELED
    assert json.loads(bench.calls[0].input.items[0].input) == {"text": "a", "image": "local"}
    bench.calls[0].answer()
    await _until(lambda: one.is_terminal)
    assert one.output == b'"A"'
    assert bench.files.removed == 2
    assert bench.scheduler.waiting == 0


async def test_who_has_fetched_for_a_worker_that_is_gone_fails() -> None:
    bench = await Bench(signature=WITH_FILES).start()
    prediction = _with_file(bench, "a")
    bench.workers[0].die()
    bench.files.released.set()
    await _until(lambda: prediction.is_terminal)
    assert (prediction.status, prediction.error_code) == ("failed", Code.NOT_READY)
    assert bench.files.removed == 1


async def test_who_waits_for_a_batch_with_files_leaves_nothing_behind() -> None:
    bench = await Bench(signature=WITH_FILES).start()
    bench.files.released.set()
    predictions = [_with_file(bench, text) for text in "abc"]
    await _until(lambda: bench.scheduler.waiting == 2 and bool(bench.calls))
    await asyncio.sleep(0)
    bench.predictions.cancel(predictions[2].id, ANYONE)
    bench.workers[0].die()
    await _until(lambda: all(each.is_terminal for each in predictions))
    assert [each.status for each in predictions] == ["failed", "failed", "canceled"]
    assert bench.files.removed == 3


# room, health


async def test_there_is_room_for_as_many_as_the_queue_holds() -> None:
    bench = await Bench(limits=Limits(queue=2)).start()
    for text in "abc":
        bench.ask(text)
    assert (await bench.deployment.report()).health is Health.BUSY
    with pytest.raises(GeartrainError) as caught:
        bench.ask("d")
    assert caught.value.code is Code.AT_CAPACITY
    with pytest.raises(GeartrainError) as caught:
        bench.ask("d", queue=1)
    assert caught.value.code is Code.QUEUE_FULL
    bench.ask("d", queue=3)
    bench.calls[0].answer()
    assert (await bench.deployment.report()).health is Health.READY
    assert bench.record.counts.faults["REJECTED"] == 2


async def test_a_crash_fails_its_own_and_the_rest_goes_elsewhere() -> None:
    bench = await Bench(replicas=2).start()
    one, two, three = [bench.ask(text) for text in "abc"]
    bench.workers[0].die()
    assert (one.status, one.error) == ("failed", "Worker crashed: gone")
    assert three.status == "starting"
    bench.workers[1].calls[0].answer()
    assert two.status == "succeeded"
    bench.workers[1].calls[1].answer()
    assert three.output == b'"C"'


async def test_with_the_last_worker_all_that_wait_fail() -> None:
    bench = await Bench().start()
    predictions = [bench.ask(text) for text in "abc"]
    bench.workers[0].die()
    assert [each.status for each in predictions] == ["failed"] * 3
    assert [each.error_code for each in predictions] == [None, Code.NOT_READY, Code.NOT_READY]
    assert bench.predictions.live == {}
    assert bench.scheduler.waiting == 0


async def test_a_delay_is_waited_out_by_a_timer() -> None:
    bench = await Bench(max_delay=0.001).start()
    for text in "abcd":
        bench.ask(text)
    bench.calls[0].answer()  # one of four has its answer
    assert len(bench.calls) == 1, "it may ask again in a moment"
    async with asyncio.timeout(40):
        while len(bench.calls) < 2:  # noqa: ASYNC110 - its timer
            await asyncio.sleep(0)
    assert bench.calls[1].texts == ["b", "c", "d"]


# alone


async def _lone(bench: Bench) -> Bench:
    """Ask so often, one after the other, that the next one is taken for a single client's."""
    await bench.start()
    for text in "xyz":
        bench.ask(text)
        bench.open_calls[0].answer()
    return bench


async def test_a_call_of_a_single_client_says_so() -> None:
    bench = await _lone(Bench())
    prediction = bench.ask("a")
    call = bench.calls[-1]
    assert (call.texts, call.input.single_client, call.input.id) == (["a"], True, prediction.id)
    assert (prediction.status, bench.scheduler.waiting, bench.idle) == ("processing", 0, 0)
    late = bench.ask("b")
    call.listener.on_event(ItemEvent(0, Log("stdout", "on it\n")))
    call.answer()
    assert (prediction.output, prediction.logs, prediction.metrics) == (b'"A"', "on it\n", {"batch_size": 1})
    assert late.status == "processing"
    assert not bench.calls[-1].input.single_client, "somebody else has waited"
    bench.open_calls[0].answer()
    statistics = bench.record.counts.statistics("m", "1")
    assert (statistics.execution_count, statistics.inference_count) == (5, 5)
    assert [(each.size, each.compute_infer.count) for each in statistics.batches] == [(1, 5)]
    assert bench.predictions.live == {}


async def test_a_single_client_can_cancel_and_meet_a_crash() -> None:
    bench = await _lone(Bench(slots=2))
    one = bench.ask("a")
    bench.predictions.cancel(one.id, ANYONE)
    assert one.status is Status.CANCELED
    call = bench.calls[-1]
    call.is_over = True
    call.listener.on_end((ItemEnd(ALL, Canceled()),), idle=False)
    assert bench.idle == 1
    call.listener.on_idle()
    assert bench.idle == 2
    last = bench.ask("c")
    bench.workers[0].die()
    assert (last.status, last.error) == ("failed", "Worker crashed: gone")
    assert bench.scheduler.waiting == 0


# rows


def _rows(bench: Bench, *shape: int) -> Prediction:
    count = 1
    for size in shape:
        count *= size
    return bench.deployment.create(NewPrediction(tensors=(Tensor("x", "INT64", shape, bytes(8 * count)),)))


async def test_rows_are_counted_and_requests_kept_whole() -> None:
    bench = await Bench(signature=BY_ROWS, max_size=4).start()
    for rows in (1, 2, 2, 1, 3):
        _rows(bench, rows, 3)
    sizes = []
    while bench.open_calls:
        call = bench.open_calls[0]
        sizes.append(call.sizes)
        call.cancel()
    assert sizes == [(1,), (2, 2), (1, 3)]


async def test_shapes_that_differ_share_nothing() -> None:
    bench = await Bench(signature=BY_ROWS).start()
    for columns in (1, 2, 3, 2):
        _rows(bench, 1, columns)
    shapes = []
    while bench.open_calls:
        call = bench.open_calls[0]
        shapes.append([item.tensors[0].shape for item in call.input.items if item.tensors])
        call.cancel()
    assert shapes == [[(1, 1)], [(1, 2), (1, 2)], [(1, 3)]]


async def test_tensors_in_json_share_a_batch_with_those_that_come_as_such() -> None:
    bench = await Bench(signature=BY_ROWS).start()
    _rows(bench, 1, 2)
    bench.deployment.create(NewPrediction(b'{"x": [[1, 2], [3, 4]]}'))
    _rows(bench, 1, 2)
    bench.calls[0].cancel()
    assert bench.calls[1].sizes == (2, 1)


async def test_a_batch_that_is_too_large_is_refused() -> None:
    bench = await Bench(signature=BY_ROWS, max_size=4).start()
    with pytest.raises(GeartrainError, match="'x' has 5 rows, and the model takes at most 4 at once") as caught:
        _rows(bench, 5, 1)
    assert caught.value.code is Code.INVALID_TENSOR
    with pytest.raises(GeartrainError) as caught:
        bench.deployment.create(NewPrediction(b'{"x": [[1], [1], [1], [1], [1]]}'))
    assert caught.value.code is Code.INVALID_INPUT
    assert caught.value.fields[0].loc == ("body", "input", "x")


async def test_a_tensor_without_rows_is_refused() -> None:
    tensor = TypeSpec("tensor", datatype="INT64", variadic=True)
    items = BatchItems(Signature((InputField("x", tensor),), OutputSpec(tensor)), Batching(BatchPolicy(), by_rows=True))
    with pytest.raises(GeartrainError, match="'x' has no dimension, and the first one is the batch"):
        items.measure(b"{}", (Tensor("x", "INT64", (), bytes(8)),))
    with pytest.raises(GeartrainError):
        items.measure(b'{"x": 7}', None)


async def test_rows_of_all_inputs_are_equally_many() -> None:
    tensor, names = TypeSpec("tensor", datatype="INT64", shape=(-1,)), TypeSpec("array", items=TypeSpec("string"))
    signature = Signature((InputField("x", tensor), InputField("names", names)), OutputSpec(tensor))
    items = BatchItems(signature, Batching(BatchPolicy(), by_rows=True))
    two = Tensor("x", "INT64", (2,), bytes(16))
    assert items.measure(b'{"names": ["a", "b"]}', (two,)) == items.measure(b'{"names": ["a", "b"], "x": [1, 2]}', None)
    with pytest.raises(GeartrainError, match="'names' has 1 rows along its first dimension, and 'x' has 2"):
        items.measure(b'{"names": ["a"]}', (two,))


async def test_the_figures_add_up() -> None:
    bench = await Bench(signature=BY_ROWS, max_size=4).start()
    for rows in (1, 2, 2):
        _rows(bench, rows, 3)
    for _ in range(2):
        call = bench.open_calls[0]
        call.open.clear()
        call.end([ItemEnd(index, Succeeded(b"null", 0.5)) for index in range(len(call.input.items))])
    statistics = bench.record.counts.statistics("m", "1")
    assert (statistics.inference_count, statistics.execution_count, statistics.success.count) == (5, 2, 3)
    assert [(each.size, each.compute_infer.count) for each in statistics.batches] == [(1, 1), (4, 1)]
    assert [each.compute_infer.ns for each in statistics.batches] == [500_000_000] * 2


# anything in any order

_STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "answer", "some", "cancel", "die"]), st.integers(0, 50)), max_size=50
)


@settings(max_examples=200)
@given(
    steps=_STEPS,
    replicas=st.integers(1, 3),
    slots=st.integers(1, 2),
    policy=st.fixed_dictionaries(
        {"max_size": st.integers(1, 5), "preferred_sizes": st.sampled_from([(), (2,), (3, 4)])}
    ),
    by_turns=st.booleans(),
)
async def test_everybody_gets_exactly_their_own_answer(
    steps: list[tuple[str, int]], replicas: int, slots: int, *, policy: dict[str, Any], by_turns: bool
) -> None:
    bench = await Bench(replicas=replicas, slots=slots, by_turns=by_turns, **policy).start()
    asked: dict[str, Prediction] = {}
    bad: set[str] = set()
    canceled: set[str] = set()
    alive = list(bench.workers)
    names = (f"t{number}" for number in itertools.count())
    for step, number in steps:
        calls = bench.open_calls
        if step == "ask" and alive:
            for _ in range(1 + number % 3 if by_turns else 1):
                text = next(names)
                asked[text] = bench.ask(text, kind="ab"[number % 2])
            await asyncio.sleep(0)
        elif step in {"answer", "some"} and calls:
            call = calls[number % len(calls)]
            if call.was_canceled:
                call.cancel()
                continue
            which = sorted(call.open)[: 1 if step == "some" else None]
            broken = [index for index in which if (number + index) % 5 == 0]
            bad |= {call.texts[index] for index in broken}
            call.answer(*which, bad=broken)
        elif step == "cancel" and asked:
            text, prediction = list(asked.items())[number % len(asked)]
            if bench.predictions.cancel(prediction.id, ANYONE):
                canceled.add(text)
        elif step == "die" and len(alive) > 1:
            alive.pop(number % len(alive)).die()
        _check_nobody_waits_in_vain(bench, alive)
    while bench.open_calls:
        call = bench.open_calls[0]
        call.cancel() if call.was_canceled else call.answer()
    _check_the_end(bench, asked, bad=bad, canceled=canceled)


def _check_nobody_waits_in_vain(bench: Bench, alive: list[HandWorker]) -> None:
    if bench.scheduler.pending.queue:
        assert bench.idle == 0, "a slot is idle, and somebody waits"
    for call in bench.calls:
        kinds = {json.loads(item.input)["kind"] for item in call.input.items}
        assert len(kinds) == 1
        numbers = [int(text[1:]) for text in call.texts]
        assert numbers == sorted(numbers), "the order of asking is kept"
        assert len(numbers) <= bench.workers[0]._info.batching.policy.max_size  # type: ignore[union-attr]
    assert all(call.is_over for worker in bench.workers if worker not in alive for call in worker.calls)


def _check_the_end(bench: Bench, asked: dict[str, Prediction], *, bad: set[str], canceled: set[str]) -> None:
    ran = [text for call in bench.calls for text in call.texts]
    assert len(ran) == len(set(ran)), "nobody is run twice"
    for text, prediction in asked.items():
        if text in canceled:
            assert prediction.status is Status.CANCELED
        elif prediction.error == "Worker crashed: gone":
            assert text in ran, "a crash ends only what ran"
        elif text in bad:
            assert prediction.status is Status.FAILED
        else:
            assert prediction.output == json.dumps(text.upper()).encode()
    counts = bench.record.counts
    counts.settle()
    assert counts.successes + sum(counts.faults.values()) == len(asked)
    assert counts.runs == len([call for call in bench.calls if not call.was_withdrawn])
    assert bench.scheduler.waiting == 0
    assert bench.predictions.live == {}
