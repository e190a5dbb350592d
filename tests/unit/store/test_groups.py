"""The thread of a store, with an engine that the test holds up."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.store import groups as groups_module
from geartrain.store.errors import StoreFaultError, StoreOptionError, unavailable
from geartrain.store.groups import Groups
from geartrain.store.operations import Done, Failed, Operation, Outcome, Statement, Steps

LIMIT = 40.0  # seconds


class Engine:
    """Runs operations when the test lets it. Each has one statement, of which the name is its value."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.may_run = threading.Event()
        self.may_run.set()
        self.has_begun = threading.Event()
        self.groups: list[list[str]] = []
        self.faults: list[Exception] = []  # of the next groups
        self.is_closed = False
        self.open_error: Exception | None = None

    def open(self) -> None:
        if self.open_error is not None:
            raise self.open_error

    def run(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        names = [next(operation.steps())[0].sql for operation in operations]
        self.has_begun.set()
        assert self.may_run.wait(LIMIT)
        with self.changed:
            self.groups.append(names)
            self.changed.notify_all()
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, StoreFaultError):
                return [Failed(fault)] * len(names)
            raise fault
        return [Done(name) for name in names]

    def close(self) -> None:
        self.is_closed = True

    async def has_run(self, groups: int) -> None:
        """Wait until so many groups have run."""

        def wait() -> bool:
            with self.changed:
                return self.changed.wait_for(lambda: len(self.groups) >= groups, LIMIT)

        assert await asyncio.to_thread(wait)


@asynccontextmanager
async def opened(engine: Engine, *, answer_within: float = LIMIT) -> AsyncIterator[Groups]:
    groups = Groups(engine, answer_within=answer_within)
    await groups.open()
    try:
        yield groups
    finally:
        engine.may_run.set()
        await groups.close()
        assert engine.is_closed


def operation(name: str, *, undo: str = "") -> Operation[str]:
    def steps(named: str) -> Steps[Any]:
        yield [Statement(named, {})]

    if not undo:
        return Operation(lambda: steps(name))
    return Operation(lambda: steps(name), undo=Operation(lambda: steps(undo), is_undo=True))


async def begin(groups: Groups, engine: Engine, each: Operation[str]) -> asyncio.Task[str]:
    """Ask for an operation that the engine begins and is held up in."""
    engine.has_begun.clear()
    engine.may_run.clear()
    task = asyncio.create_task(groups.run(each))
    assert await asyncio.to_thread(engine.has_begun.wait, LIMIT)
    return task


async def test_what_is_asked_for_meanwhile_is_one_group() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        first = await begin(groups, engine, operation("first"))
        others = [asyncio.create_task(groups.run(operation(f"o{i}"))) for i in range(5)]
        await asyncio.sleep(0)
        engine.may_run.set()
        assert await first == "first"
        assert await asyncio.gather(*others) == [f"o{i}" for i in range(5)]
        assert engine.groups == [["first"], [f"o{i}" for i in range(5)]]


async def test_no_answer_in_time_is_an_error_and_is_undone() -> None:
    engine = Engine()
    async with opened(engine, answer_within=0.1) as groups:
        engine.may_run.clear()
        while not engine.has_begun.is_set():  # on a busy machine, its time may be up before it has begun
            with pytest.raises(GeartrainError) as caught:
                await groups.run(operation("claim", undo="undo"))
            assert caught.value.code is Code.STORE_UNAVAILABLE
        engine.may_run.set()
        await engine.has_run(2)
        assert engine.groups == [["claim"], ["undo"]]


async def test_what_was_done_for_a_caller_that_has_left_is_undone() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        task = await begin(groups, engine, operation("claim", undo="undo"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.may_run.set()
        await engine.has_run(2)
        assert engine.groups == [["claim"], ["undo"]]


async def test_what_nobody_waits_for_before_it_begins_is_left_out() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        first = await begin(groups, engine, operation("first"))
        task = asyncio.create_task(groups.run(operation("left", undo="undo")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        engine.may_run.set()
        await first
        assert await groups.run(operation("last")) == "last"
        assert engine.groups == [["first"], ["last"]]


async def test_operation_is_let_go_of_when_its_caller_has_an_answer() -> None:
    """It holds an input, and a store that stands still would collect those of all requests that it has failed."""
    engine = Engine()
    async with opened(engine, answer_within=0.05) as groups:
        first = await begin(groups, engine, operation("first"))
        waiting = [operation(f"w{number}", undo=f"u{number}") for number in range(5)]
        held = [weakref.ref(each.steps) for each in waiting]
        futures = [groups.submit(each) for each in waiting[:4]]
        left = groups.submit(waiting.pop())
        left.cancel()
        waiting.clear()
        await asyncio.wait([first, left, *futures])
        assert [ref() for ref in held] == [None] * 5
        assert all(isinstance(future.exception(), GeartrainError) for future in futures)
        engine.may_run.set()
        with pytest.raises(GeartrainError):
            await first
    assert engine.groups == [["first"]]


async def test_what_may_be_done_is_undone_until_that_is_done() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        engine.faults = [unavailable("it was lost", may_be_done=True), unavailable("it is away")]
        with pytest.raises(GeartrainError):
            await groups.run(operation("claim", undo="undo"))
        await engine.has_run(2)
        assert await groups.run(operation("next")) == "next"
        assert engine.groups == [["claim"], ["undo"], ["undo", "next"]]
        assert await groups.run(operation("last")) == "last"
        assert engine.groups[-1] == ["last"]


async def test_what_is_surely_not_done_is_not_undone() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        engine.faults = [unavailable("it is locked")]
        with pytest.raises(GeartrainError):
            await groups.run(operation("claim", undo="undo"))
        assert await groups.run(operation("next")) == "next"
        assert engine.groups == [["claim"], ["next"]]


async def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MAX_WAITING", 3)
    engine = Engine()
    async with opened(engine) as groups:
        first = await begin(groups, engine, operation("first"))
        others = [asyncio.create_task(groups.run(operation(name))) for name in ("second", "left")]
        await asyncio.sleep(0)
        others[1].cancel()
        await asyncio.wait(others[1:])
        with pytest.raises(GeartrainError) as caught:
            await groups.run(operation("one too many"))
        assert caught.value.code is Code.STORE_UNAVAILABLE
        engine.may_run.set()
        assert await first == "first"
        assert await others[0] == "second"
        assert await asyncio.gather(*(groups.run(operation(name)) for name in ("a", "b", "c"))) == ["a", "b", "c"]


async def test_bug_of_an_engine_is_an_error_of_the_server() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        engine.faults = [ZeroDivisionError()]
        with pytest.raises(GeartrainError) as caught:
            await groups.run(operation("first"))
        assert caught.value.code is Code.INTERNAL
        assert await groups.run(operation("next")) == "next"


async def test_engine_that_cannot_be_opened_says_why() -> None:
    engine = Engine()
    engine.open_error = StoreOptionError("--store: no")
    groups = Groups(engine, answer_within=LIMIT)
    with pytest.raises(StoreOptionError, match="--store: no"):
        await groups.open()
    await groups.close()
    assert engine.is_closed


async def test_closing_runs_what_was_asked_for_before() -> None:
    engine = Engine()
    async with opened(engine) as groups:
        first = await begin(groups, engine, operation("first"))
        second = asyncio.create_task(groups.run(operation("second")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(groups.close())
        await asyncio.sleep(0)
        engine.may_run.set()
        await closing
        assert await first == "first"
        assert await second == "second"
        with pytest.raises(GeartrainError) as caught:
            await groups.run(operation("late"))
        assert caught.value.code is Code.STORE_UNAVAILABLE
