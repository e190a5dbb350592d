"""Stores against a model: any sequence of calls gives what the store in memory gives, and calls at once add up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import (
    Checkpoint,
    Delivery,
    End,
    Hold,
    Key,
    Ownership,
    Retention,
    RowFilter,
    RowState,
    Submission,
    Verdict,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Webhook
from geartrain.service.ledger import StorePort
from geartrain.store.store import open_store
from tests.support.memory_store import MemoryStore
from tests.support.postgres import Postgres, running_postgres
from tests.support.stores import LEASE, LIMIT, MODEL, Clock, claim

OWNERS = ("a", "b", "c")
NAMES = ("x", "y", "z")
TERMINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@asynccontextmanager
async def opened(
    kind: str, folder: Path, server: Postgres | None, clock: Clock
) -> AsyncIterator[tuple[StorePort, ...]]:
    """Open an empty store, for two servers where it is one that servers share."""
    if server is None:
        store = await open_store(
            f"sqlite:///{mkdtemp(dir=folder)}/store.db", clock=clock, files_above=100, answer_within=LIMIT
        )
        stores: tuple[StorePort, ...] = (store, store)
    else:
        url = server.emptied()
        first = await open_store(url, clock=clock, answer_within=LIMIT)
        stores = (first, await open_store(url, clock=clock, answer_within=LIMIT))
    try:
        yield stores
    finally:
        for each in stores:
            await each.close()


owners = st.sampled_from(OWNERS)
names = st.sampled_from(NAMES)
epochs = st.integers(1, 4)
parts = st.integers(0, 3)
events = st.sampled_from((b"", b"few", b"many" * 50))


def ownership(name: str, owner: str, epoch: int) -> Ownership:
    return Ownership(Key(MODEL, name), owner, epoch)


class Machine(RuleBasedStateMachine):
    """The same calls to a real store and to the model; `open_stores` is set by the test."""

    open_stores: Callable[[Clock], Any]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.model = MemoryStore(clock=self.clock)
        self.context = type(self).open_stores(self.clock)
        self.stores: tuple[StorePort, ...] = self.runner.run(self.context.__aenter__())
        self.ends: dict[tuple[str, int], Status] = {}

    def teardown(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))
        self.runner.close()

    def both(self, owner: str, call: Callable[[StorePort], Awaitable[Any]]) -> Any:
        """Call the store by the connection of that owner's server, and the model; return what both give."""

        async def give(store: StorePort) -> Any:
            try:
                return await call(store)
            except Exception as error:  # noqa: BLE001 - compared
                return type(error).__name__.replace("StoreFaultError", "GeartrainError"), getattr(error, "code", None)

        given = self.runner.run(give(self.stores[OWNERS.index(owner) % 2]))
        expected = self.runner.run(give(self.model))
        assert given == expected
        return given

    @rule(seconds=st.sampled_from((1.0, 7.0, 15.0)))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(owner=owners)
    def renew(self, owner: str) -> None:
        self.both(owner, lambda store: store.replicas.renew(owner, address=owner, seconds=LEASE))

    @rule(owner=owners)
    def leave(self, owner: str) -> None:
        self.both(owner, lambda store: store.replicas.leave(owner))

    @rule(owner=owners, name=names, reuse=st.booleans())
    def claim(self, owner: str, name: str, reuse: bool) -> None:
        self.both(owner, lambda store: store.ledger.claim(claim(name, owner, reuse=reuse)))

    @rule(
        owner=owners,
        name=names,
        reuse=st.booleans(),
        attempts=st.integers(1, 3),
        retry=st.sampled_from(("always", "always", "never")),
    )
    def accept(self, owner: str, name: str, reuse: bool, attempts: int, retry: Any) -> None:
        submission = Submission(f"{name} of {owner}".encode(), attempts=attempts, retry=retry)
        self.both(owner, lambda store: store.ledger.accept(claim(name, owner, reuse=reuse), submission))

    @rule(owner=owners, name=names, epoch=epochs, part=parts, data=events)
    def checkpoint(self, owner: str, name: str, epoch: int, part: int, data: bytes) -> None:
        written = Checkpoint(Status.PROCESSING, self.clock.now, data, part)
        self.both(owner, lambda store: store.ledger.checkpoint(ownership(name, owner, epoch), written))

    @rule(owner=owners, name=names, epoch=epochs, status=st.sampled_from(TERMINAL), data=events)
    def finish(self, owner: str, name: str, epoch: int, status: Status, data: bytes) -> None:
        delivery = Delivery(Webhook(f"http://{owner}"), f"{name} {status}".encode())
        end = End(status, self.clock.now, events=data, part=9, deliveries=(delivery,))
        self.both(owner, lambda store: store.ledger.finish(ownership(name, owner, epoch), end))

    @rule(owner=owners, name=names, epoch=epochs)
    def release(self, owner: str, name: str, epoch: int) -> None:
        self.both(owner, lambda store: store.ledger.release(ownership(name, owner, epoch)))
        if self.model.rows.get(Key(MODEL, name)) is None:  # epochs begin anew
            self.ends = {key: status for key, status in self.ends.items() if key[0] != name}

    @rule(owner=owners, name=names)
    def cancel(self, owner: str, name: str) -> None:
        self.both(owner, lambda store: store.ledger.cancel(Key(MODEL, name)))

    @rule(owner=owners, limit=st.integers(1, 3))
    def take_over(self, owner: str, limit: int) -> None:
        for taken in self.both(owner, lambda store: store.ledger.take_over(owner, limit=limit)):
            is_stored = taken.row.state is RowState.ACCEPTED
            assert is_stored == (taken.request != b"")
            assert is_stored or taken.verdict is not Verdict.RUN

    @rule(owner=owners, limit=st.integers(1, 3))
    def deliver(self, owner: str, limit: int) -> None:
        async def lease(store: StorePort) -> Any:
            entries = await store.outbox.lease(owner, limit=limit, seconds=5)
            for entry in entries[1:]:
                await store.outbox.retry_later(entry.number, 20)
            await store.outbox.remove([entry.number for entry in entries[:1]])
            return [(entry.key, entry.delivery, entry.attempts) for entry in entries]

        self.both(owner, lease)

    @rule(owner=owners, seconds=st.sampled_from((0.0, 20.0)))
    def remove_old(self, owner: str, seconds: float) -> None:
        self.both(owner, lambda store: store.ledger.remove_old(Retention(seconds, 10**9)))
        self.ends = {key: status for key, status in self.ends.items() if Key(MODEL, key[0]) in self.model.rows}

    @rule(owner=owners, epoch=epochs, name=names, start=parts)
    def read(self, owner: str, epoch: int, name: str, start: int) -> None:
        self.both(owner, lambda store: store.ledger.read_events(ownership(name, owner, epoch), start))

    @invariant()
    def rows_are_the_models(self) -> None:
        async def rows(store: StorePort) -> Any:
            page, owned = await asyncio.gather(
                store.ledger.list_rows(RowFilter(), limit=9),
                asyncio.gather(*(store.ledger.owned(owner) for owner in OWNERS)),
            )
            return page.rows, [sorted(each, key=repr) for each in owned]

        found, _ = self.both("a", rows)
        for row in found:
            if row.state is RowState.ENDED:
                key = row.ownership.key.id, row.ownership.epoch
                assert self.ends.setdefault(key, row.status) is row.status, "a second end"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_any_sequence_of_calls_gives_what_the_model_gives(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("postgres") if kind == "postgres" else None

    class Bound(Machine):
        open_stores = staticmethod(lambda clock: opened(kind, tmp_path, server, clock))

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=20 if server is None else 8,
            stateful_step_count=30,
            suppress_health_check=checks,
            derandomize=True,
        ),
    )


class Load:
    """Servers that do anything at once with a few ids, and what they are told."""

    def __init__(self, stores: tuple[StorePort, ...], clock: Clock, seed: int) -> None:
        self.stores = stores
        self.clock = clock
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.got: Counter[tuple[str, int]] = Counter()  # how often an epoch of an id was given to somebody
        self.ended: Counter[tuple[str, int]] = Counter()  # how often an end was written, by the first to write it
        self.held: dict[str, set[Ownership]] = {owner: set() for owner in OWNERS}

    async def act(self, owner: str) -> None:
        try:
            await self._act(owner)
        except GeartrainError as error:
            if error.code is not Code.STORE_UNAVAILABLE:  # another call has ended the lease before the claim
                raise

    async def _act(self, owner: str) -> None:
        store = self.stores[OWNERS.index(owner) % 2]
        choice = self.random.choice(("claim", "accept", "renew", "leave", "take", "finish", "checkpoint", "cancel"))
        name = self.random.choice(NAMES)
        match choice:
            case "claim" | "accept":
                await store.replicas.renew(owner, address=owner, seconds=LEASE)
                wanted = claim(name, owner, reuse=True)
                result = await (
                    store.ledger.claim(wanted) if choice == "claim" else store.ledger.accept(wanted, Submission(b"in"))
                )
                if result.is_granted and result.row.ownership not in self.held[owner]:
                    self._get(result.row.ownership)
            case "renew":
                await store.replicas.renew(owner, address=owner, seconds=LEASE)
            case "leave":
                await store.replicas.leave(owner)
            case "take":
                for taken in await store.ledger.take_over(owner, limit=2):
                    self._get(taken.row.ownership)
            case "cancel":
                await store.ledger.cancel(Key(MODEL, name))
            case _:
                await self._write(store, owner, choice)

    def _get(self, mine: Ownership) -> None:
        self.got[mine.key.id, mine.epoch] += 1
        self.held[mine.owner].add(mine)

    async def _write(self, store: StorePort, owner: str, choice: str) -> None:
        if not self.held[owner]:
            return
        mine = self.random.choice(sorted(self.held[owner], key=repr))
        if choice == "checkpoint":
            await store.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"e", 0))
            return
        delivery = Delivery(Webhook(f"http://{mine.key.id}/{mine.epoch}"), b"")
        hold = await store.ledger.finish(mine, End(self.random.choice(TERMINAL), 1.0, deliveries=(delivery,)))
        if hold is Hold.HELD:
            self.ended[mine.key.id, mine.epoch] = 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_calls_at_once_give_each_epoch_to_one_and_each_end_one_webhook(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("postgres") if kind == "postgres" else None
    clock = Clock()
    async with opened(kind, tmp_path, server, clock) as stores:
        load = Load(stores, clock, seed=7)
        for _ in range(40):
            await asyncio.gather(*(load.act(load.random.choice(OWNERS)) for _ in range(20)))
        assert load.ended
        assert set(load.got.values()) == {1}
        webhooks: Counter[tuple[str, ...]] = Counter()
        for owner in OWNERS:
            for entry in await stores[0].outbox.lease(owner, limit=10_000, seconds=1):
                webhooks[tuple(entry.delivery.webhook.url.removeprefix("http://").split("/"))] += 1
        assert webhooks == Counter({(name, str(epoch)): 1 for name, epoch in load.ended})
