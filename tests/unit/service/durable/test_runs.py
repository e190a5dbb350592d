"""What is written of a prediction that a store knows, and what becomes of it when the store says no."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ItemEvent
from geartrain.domain.predictions.events import Log, Metric, Output, Released
from geartrain.domain.predictions.ledger import (
    LOST_ERROR,
    Key,
    OutboxEntry,
    Ownership,
    Replica,
    RowState,
    TakenOver,
    Verdict,
)
from geartrain.domain.predictions.ledger import Delivery as StoredDelivery
from geartrain.domain.predictions.lifecycle import ExecutionState, Status
from geartrain.domain.predictions.prediction import Prediction, Webhook
from geartrain.domain.principal import ANYONE
from geartrain.service.durable import history
from geartrain.service.durable.durability import Durability, DurableSettings
from geartrain.service.durable.history import MAX_RECORDED, MAX_UNWRITTEN, restore
from geartrain.service.durable.lease import Lease
from geartrain.service.durable.outbox import OutboxDispatcher
from geartrain.service.durable.runs import FENCED, DurableRun, RunState
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits
from geartrain.service.models.takeover import Takeover
from tests.support.deployments import FakeOutbound, deploy
from tests.support.fake_store import DOWN, FakeStore, new_row
from tests.support.hand_worker import HandCall, HandWorker
from tests.support.servers import eventually

KEY = Key("m", "a")


class Bench:
    """A model whose runs do what the test says, and a store in memory."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.durability = Durability(
            self.store,
            owner="me",
            settings=DurableSettings(lease=0.03, attempts=2),
            encode_end=lambda prediction: f"{prediction.id} {prediction.status}".encode(),
        )
        outbound = FakeOutbound()
        outbound.durability = self.durability
        self.deployment: Deployment = deploy(
            self._spawn, settings=DeploymentSettings(limits=Limits(queue=5)), outbound=outbound
        )

    def _spawn(self, observer: object) -> HandWorker:
        self.worker = HandWorker(observer, slots=1)  # type: ignore[arg-type]
        return self.worker

    async def start(self) -> Bench:
        await self.deployment.start()
        return self

    def ask(self, name: str = "a", *, accepted: bool = True) -> tuple[Prediction, DurableRun]:
        new = NewPrediction(b'{"text": "a"}', id=name, keep=True, accepted=accepted)
        prediction = self.deployment.create(new)
        return prediction, self.durability.runs[Key("m", name)]

    async def running(self, *, accepted: bool = True) -> tuple[Prediction, DurableRun, HandCall]:
        prediction, run = self.ask(accepted=accepted)
        assert await run.made is None
        return prediction, run, self.worker.calls[-1]

    async def over(self, run: DurableRun) -> RunState:
        await eventually(lambda: run.state in {RunState.ENDED, RunState.LOST, RunState.LEFT, RunState.REFUSED})
        return run.state


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "CHECKPOINT_INTERVAL", 0.001)
    monkeypatch.setattr(history, "_PAUSE", 0.001)
    monkeypatch.setattr(history, "_PATIENCE", 0.02)


async def test_nothing_runs_before_its_row_is_written() -> None:
    bench = await Bench().start()
    prediction, run = bench.ask()
    assert (run.execution.state, bench.worker.calls) == (ExecutionState.CLAIMING, [])
    assert await run.made is None
    assert len(bench.worker.calls) == 1
    bench.worker.calls[0].answer()
    assert not prediction.is_terminal  # nobody is told of an end that is not written
    assert await bench.over(run) is RunState.ENDED
    assert prediction.status is Status.SUCCEEDED
    assert [end.status for end in bench.store.ledger.ends] == [Status.SUCCEEDED]
    assert bench.durability.runs == {}


async def test_an_id_that_is_taken_runs_nothing() -> None:
    bench = await Bench().start()
    row = bench.store.ledger.rows[KEY] = new_row(Ownership(KEY, "other", 3), RowState.ACCEPTED)
    _, run = bench.ask()
    assert await run.made is row
    assert (run.state, bench.worker.calls, bench.deployment.executions.live) == (RunState.REFUSED, [], set())
    assert bench.deployment.scheduler.waiting == 0


async def test_without_the_store_nothing_runs() -> None:
    bench = await Bench().start()
    bench.store.ledger.faults.append(GeartrainError(Code.NO_STORAGE, "full"))
    _, run = bench.ask()
    with pytest.raises(GeartrainError) as caught:
        await run.made
    assert caught.value.code is Code.STORE_UNAVAILABLE  # which may pass, unlike a request that is too large
    assert (bench.worker.calls, bench.durability.fault) == ([], "full")
    bench.ask()  # the id is free


async def test_a_cancel_while_the_row_is_written_ends_it() -> None:
    bench = await Bench().start()
    prediction, run = bench.ask()
    bench.deployment.predictions.cancel("a", ANYONE)
    assert await run.made is None
    assert await bench.over(run) is RunState.ENDED
    assert (prediction.status, bench.worker.calls) == (Status.CANCELED, [])


async def test_oldest_prints_are_dropped_while_the_store_is_away() -> None:
    """Outputs are not; they have a bound of their own."""
    bench = await Bench().start()
    _, run, call = await bench.running()
    tracemalloc.start()
    try:
        bench.store.ledger.faults.extend([DOWN] * 1000)
        for number in range(64):
            call.listener.on_event(ItemEvent(0, Log("stdout", f"{number:2}" * (MAX_UNWRITTEN // 32))))
            call.listener.on_event(ItemEvent(0, Output(b"%d" % number, number)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2.5 * MAX_UNWRITTEN  # with what the prediction keeps itself
    bench.store.ledger.faults.clear()
    call.answer()
    assert await bench.over(run) is RunState.ENDED
    row = bench.store.ledger.rows[KEY]
    stored = restore(row, await bench.store.ledger.read_events(row.ownership))
    assert stored.chunks[:64] == [b"%d" % number for number in range(64)]
    assert len(stored.logs) >= MAX_UNWRITTEN // 2
    assert stored.logs.endswith("63")


async def test_recorded_values_are_folded_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    most = MAX_RECORDED // 8  # a million events take 20 s
    monkeypatch.setattr(history, "MAX_RECORDED", most)
    bench = await Bench().start()
    _, run, call = await bench.running()
    count = 4 * most // 128
    bench.store.ledger.faults.extend([DOWN] * 1000)
    tracemalloc.start()
    try:
        for number in range(count):
            call.listener.on_event(ItemEvent(0, Metric("steps", 1, "increment")))
            call.listener.on_event(ItemEvent(0, Metric("last", number, "replace")))
            if number % 1_000 == 0:
                call.listener.on_event(ItemEvent(0, Metric("loss.train", number, "append")))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * most  # with what the prediction keeps itself
    bench.store.ledger.faults.clear()
    call.answer()
    assert await bench.over(run) is RunState.ENDED
    row = bench.store.ledger.rows[KEY]
    stored = restore(row, await bench.store.ledger.read_events(row.ownership))
    train = list(range(0, count, 1_000))
    assert stored.metrics == {"steps": count, "last": count - 1, "loss": {"train": train}}


async def test_folded_values_take_the_place_of_those_that_were_written() -> None:
    bench = await Bench().start()
    _, run, call = await bench.running()
    for name, value in (("gone", 1), ("steps", 5), ("deep.gone", [1])):
        call.listener.on_event(ItemEvent(0, Metric(name, value, "replace")))
    await eventually(lambda: bool(bench.store.ledger.parts.get(run.ownership)))
    bench.store.ledger.faults.extend([DOWN] * 1000)
    for name in ("gone", "deep.gone"):
        call.listener.on_event(ItemEvent(0, Metric(name, None, "delete")))
    call.listener.on_event(ItemEvent(0, Metric("new", {"a": 1}, "replace")))
    for _ in range(MAX_RECORDED // 128):
        call.listener.on_event(ItemEvent(0, Metric("steps", 1, "increment")))
    call.listener.on_event(ItemEvent(0, Metric("steps", 1, "increment")))
    bench.store.ledger.faults.clear()
    call.answer()
    assert await bench.over(run) is RunState.ENDED
    row = bench.store.ledger.rows[KEY]
    stored = restore(row, await bench.store.ledger.read_events(row.ownership))
    assert stored.metrics == {"steps": 6 + MAX_RECORDED // 128, "new": {"a": 1}, "deep": {}}


async def test_a_part_that_was_not_answered_is_written_once() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running()
    bench.store.ledger.lost.append(DOWN)
    call.listener.on_event(ItemEvent(0, Log("stdout", "first\n")))
    await eventually(lambda: bench.durability.fault != "")
    call.listener.on_event(ItemEvent(0, Log("stdout", "second\n")))
    await eventually(lambda: len(bench.store.ledger.parts[run.ownership]) == 2)
    call.answer()
    assert await bench.over(run) is RunState.ENDED
    row = bench.store.ledger.rows[KEY]
    again = restore(row, await bench.store.ledger.read_events(row.ownership))
    assert (again.logs, again.output, again.status) == ("first\nsecond\n", prediction.output, Status.SUCCEEDED)
    assert again.predict_time == prediction.predict_time


async def test_who_was_fenced_off_has_no_result() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running()
    bench.store.ledger.fenced.add(KEY)
    call.answer()
    assert await bench.over(run) is RunState.LOST
    assert not prediction.is_terminal
    assert isinstance(prediction.log.read(0)[-1], Released)


async def test_a_client_that_waits_is_told_that_its_result_does_not_count() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running(accepted=False)
    bench.store.ledger.fenced.add(KEY)
    call.answer()
    assert await bench.over(run) is RunState.LOST
    assert (prediction.status, prediction.error) == (Status.FAILED, FENCED)


async def test_an_end_is_tried_until_it_is_written() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running()
    bench.store.ledger.faults.extend([DOWN] * 4)
    call.answer()
    assert await bench.over(run) is RunState.ENDED
    assert prediction.status is Status.SUCCEEDED


async def test_a_client_that_waits_gets_its_result_without_the_store() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running(accepted=False)
    bench.store.ledger.faults.extend([DOWN] * 1000)
    call.answer()
    assert await bench.over(run) is RunState.LOST
    assert prediction.status is Status.SUCCEEDED


async def test_what_the_store_says_at_a_checkpoint_is_heeded() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running()
    bench.store.ledger.canceling.add(KEY)
    call.listener.on_event(ItemEvent(0, Log("stdout", "still here\n")))
    await eventually(lambda: call.was_canceled)
    call.cancel()
    assert await bench.over(run) is RunState.ENDED
    assert prediction.status is Status.CANCELED


async def test_a_server_that_ends_leaves_what_was_accepted() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running()
    waiting, second = bench.ask("b")
    assert await second.made is None
    bench.durability.leave()
    bench.deployment.executions.cancel_all()
    call.cancel()
    assert (await bench.over(run), await bench.over(second)) == (RunState.LEFT, RunState.LEFT)
    assert bench.store.ledger.ends == []
    assert (prediction.is_terminal, waiting.is_terminal) == (False, False)


async def test_a_server_that_ends_writes_what_has_succeeded() -> None:
    bench = await Bench().start()
    _, run, call = await bench.running()
    bench.durability.leave()
    call.answer()
    assert await bench.over(run) is RunState.ENDED


async def test_an_end_that_cannot_be_written_is_left() -> None:
    bench = await Bench().start()
    prediction, run, call = await bench.running()
    bench.store.ledger.faults.extend([DOWN] * 1000)
    call.answer()
    await bench.durability.drain(0.01)
    assert (run.state, prediction.is_terminal) == (RunState.LEFT, False)


# the lease


async def test_a_renewal_tells_what_is_lost_and_what_is_to_be_canceled() -> None:
    bench = await Bench().start()
    _, run, call = await bench.running()
    bench.store.replicas.replicas = [Replica("dead", "", 9.0), Replica("far", "", 9.0), Replica("me", "", 9.0)]
    looked: list[None] = []

    async def look() -> None:
        looked.append(None)

    lease = Lease(bench.durability, address="", is_dead=lambda owner: owner in {"dead", "me"}, take_over=look)
    await lease.start()
    assert bench.store.replicas.gone == ["dead"]  # this server is not asked whether it lives
    await eventually(lambda: len(looked) >= 2)
    bench.store.ledger.fenced.add(KEY)
    await eventually(lambda: call.was_canceled)
    call.cancel()
    assert await bench.over(run) is RunState.LOST
    await lease.stop()
    assert bench.store.replicas.gone == ["dead", "me"]


# taken over


def taken(name: str, verdict: Verdict, request: bytes = b"") -> TakenOver:
    return TakenOver(new_row(Ownership(Key("m", name), "me", 2), RowState.ACCEPTED), verdict, request)


async def test_what_is_taken_over_is_run_or_ended_as_its_verdict_says() -> None:
    bench = await Bench().start()
    _, run, call = await bench.running()
    call.answer()
    await bench.over(run)
    request = bench.store.ledger.submissions[KEY].request
    bench.store.ledger.left = [
        taken("b", Verdict.RUN, request),
        taken("c", Verdict.CANCEL, request),
        taken("d", Verdict.LOST),
        taken("e", Verdict.UNREADABLE),
    ]
    asked: list[str] = []

    async def find(table: str, version: str) -> Deployment:
        asked.append(table)
        if len(asked) == 1:
            raise GeartrainError(Code.NOT_READY, "not yet")
        return bench.deployment

    takeover = Takeover(bench.durability, find, clock=lambda: 2000.0)
    await takeover.look()
    await eventually(lambda: len(bench.worker.calls) == 2)
    bench.worker.calls[1].answer()
    rows = bench.store.ledger.rows
    await eventually(lambda: all(row.state is RowState.ENDED for row in rows.values()))
    assert {key.id: (row.status, row.error) for key, row in rows.items() if key != KEY} == {
        "b": (Status.SUCCEEDED, ""),
        "c": (Status.CANCELED, ""),
        "d": (Status.FAILED, LOST_ERROR),
        "e": (Status.FAILED, "Its server was lost, and its input cannot be decrypted with the key of this one."),
    }
    await takeover.stop()


async def test_what_the_model_no_longer_takes_fails() -> None:
    bench = await Bench().start()
    _, run, call = await bench.running()
    call.answer()
    await bench.over(run)
    request = bench.store.ledger.submissions[KEY].request.replace(b'"text"', b'"gone"')
    bench.store.ledger.left = [taken("b", Verdict.RUN, request)]

    async def find(table: str, version: str) -> Deployment:
        return bench.deployment

    takeover = Takeover(bench.durability, find)
    await takeover.look()
    await eventually(lambda: bench.store.ledger.rows[Key("m", "b")].state is RowState.ENDED)
    assert "does not fit" in bench.store.ledger.rows[Key("m", "b")].error
    await takeover.stop()


# the outbox


class Sender:
    """See `WebhookSenderPort`."""

    def __init__(self, *answers: str | None) -> None:
        self.sent: list[bytes] = []
        self._answers = list(answers)

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        self.sent.append(body)
        return self._answers.pop(0)


async def test_a_webhook_stays_until_it_has_arrived() -> None:
    bench = await Bench().start()
    sender = Sender(None, "refused", "refused")
    entry = StoredDelivery(Webhook("http://hook"), b"body")
    bench.store.outbox.due = [
        OutboxEntry(number, KEY, entry, attempts) for number, attempts in ((1, 1), (2, 1), (3, 24))
    ]
    dispatcher = OutboxDispatcher(bench.durability, lambda _model: sender)  # type: ignore[arg-type, return-value]
    dispatcher.start()
    await eventually(lambda: len(sender.sent) == 3 and bool(bench.store.outbox.later))
    await dispatcher.drain(1.0)
    assert (bench.store.outbox.removed, bench.store.outbox.later) == ([1, 3], [(2, 2.0)])


async def test_the_last_webhook_waits_for_those_before_it() -> None:
    bench = await Bench().start()
    sender = Sender(None)
    before: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bench.durability.follow(KEY, before)
    entry = OutboxEntry(1, KEY, StoredDelivery(Webhook("http://hook"), b"body"), 1)
    bench.store.outbox.due = [entry]
    bench.durability.settings = DurableSettings(lease=60.0)
    dispatcher = OutboxDispatcher(bench.durability, lambda _model: sender)  # type: ignore[arg-type, return-value]
    dispatcher.start()
    await eventually(lambda: not bench.store.outbox.due)
    assert sender.sent == []
    before.set_result(None)
    await eventually(lambda: bench.store.outbox.removed == [1])
    await dispatcher.drain(1.0)


async def test_the_last_webhook_is_left_for_later_while_one_before_it_is_not_answered() -> None:
    bench = await Bench().start()
    sender = Sender(None)
    before: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bench.durability.follow(KEY, before)
    entry = OutboxEntry(1, KEY, StoredDelivery(Webhook("http://hook"), b"body"), 1)
    bench.store.outbox.due = [entry]
    bench.durability.settings = DurableSettings(lease=0.03)
    dispatcher = OutboxDispatcher(bench.durability, lambda _model: sender)  # type: ignore[arg-type, return-value]
    dispatcher.start()
    await eventually(lambda: not bench.store.outbox.due and not dispatcher._running)
    assert (sender.sent, bench.store.outbox.later, bench.store.outbox.removed) == ([], [], [])
    before.set_result(None)
    bench.store.outbox.due = [entry]
    await eventually(lambda: bench.store.outbox.removed == [1])
    await dispatcher.drain(1.0)


async def test_what_is_being_leased_when_the_server_stops_is_delivered() -> None:
    bench = await Bench().start()
    sender = Sender(None)
    outbox = bench.store.outbox
    outbox.due = [OutboxEntry(1, KEY, StoredDelivery(Webhook("http://hook"), b"body"), 1)]
    asked, answered = asyncio.Event(), asyncio.Event()
    lease = outbox.lease

    async def slow(owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        """Lease as a database does: what is asked for happens there, though its answer comes late."""
        leased = await lease(owner, limit=limit, seconds=seconds)
        asked.set()
        await answered.wait()
        return leased

    outbox.lease = slow  # type: ignore[method-assign]
    bench.durability.settings = DurableSettings(lease=60.0)
    dispatcher = OutboxDispatcher(bench.durability, lambda _model: sender)  # type: ignore[arg-type, return-value]
    dispatcher.start()
    await asked.wait()
    stopping = asyncio.ensure_future(dispatcher.drain(10.0))
    await asyncio.sleep(0)
    answered.set()
    await stopping
    assert (sender.sent, outbox.removed) == ([b"body"], [1])


async def test_a_store_that_does_not_answer_holds_up_the_stop_only_for_its_time() -> None:
    bench = await Bench().start()
    asked = asyncio.Event()

    async def never(_owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        asked.set()
        return await asyncio.Future()

    bench.store.outbox.lease = never  # type: ignore[method-assign, assignment]
    dispatcher = OutboxDispatcher(bench.durability, lambda _model: Sender())  # type: ignore[arg-type, return-value]
    dispatcher.start()
    await asked.wait()
    async with asyncio.timeout(10):
        await dispatcher.drain(0.05)


async def test_s11_id_that_is_used_again_keeps_the_order_of_its_webhooks() -> None:
    """The slow webhook of the prediction that had the id before ends, and the one of the next is still under way."""
    durability = (await Bench().start()).durability
    earlier, later = asyncio.Future[None](), asyncio.Future[None]()
    durability.follow(KEY, earlier)
    durability.follow(KEY, later)
    earlier.set_result(None)
    await asyncio.sleep(0)
    assert durability.telling == {KEY: later}
    later.set_result(None)
    await asyncio.sleep(0)
    assert not durability.telling
