"""The worker port: what a listener hears of a call, of one item or of several, is the same for every kind of worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from geartrain.bridge.child import ChildWorker, Launch
from geartrain.domain.predictions.calls import (
    ALL,
    CallInput,
    Canceled,
    Failed,
    ItemEnd,
    ItemEvent,
    ItemInput,
    ModelCallPort,
    Outcome,
    Succeeded,
    WorkerInfo,
)
from geartrain.domain.predictions.events import Log, LogSource, Metric, Output
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.service.ports import WorkerPort
from tests.contract.conftest import LIMIT, ROOT
from tests.contract.model import batched, run
from tests.support.fakes import FakeWorker
from tests.support.gates import Gates

KINDS = ["fake", "async child", "sync child"]
Script = list[list[Any]]


class Observer:
    """Hears of the worker as a whole."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def on_setup_log(self, source: LogSource, data: str) -> None:
        """Do nothing: nobody reads."""

    def on_loaded(self, info: WorkerInfo) -> None:
        """It is returned later."""

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """Do nothing: there are none."""

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)

    def on_lost(self, reason: str) -> None:
        """Remember it."""
        self.lost.set()


class Heard:
    """A listener that writes down what it hears of a call of so many items."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.story: list[str] = []
        self.outputs: dict[int, list[Any]] = {item: [] for item in range(size)}
        self.logs: dict[int, str] = {}
        self.metrics: list[tuple[int, Metric]] = []
        self.outcomes: dict[int, Outcome] = {}
        self._changed = asyncio.Event()

    def on_begin(self) -> None:
        self._note("begin")

    def on_unstarted(self) -> None:
        self._note("unstarted")

    def on_event(self, report: ItemEvent) -> None:
        assert not report.files
        match report:
            case ItemEvent(item, Output(chunk, index)):
                assert index == len(self.outputs[item])
                self.outputs[item].append(json.loads(bytes(chunk)))
                self._note("output")
            case ItemEvent(item, Log(_, data)):
                self.logs[item] = self.logs.get(item, "") + data
                self._note("log")
            case ItemEvent(item, Metric() as metric):
                self.metrics.append((item, metric))
                self._note("metric")

    def on_end(self, ends: Sequence[ItemEnd], *, idle: bool) -> None:
        for end in ends:
            for item in range(self.size) if end.item == ALL else (end.item,):
                if end.item != ALL or item not in self.outcomes:
                    assert item not in self.outcomes, "it ended twice"
                    self.outcomes[item] = end.outcome
        self._note("idle" if idle else "end")

    def on_idle(self) -> None:
        self._note("idle")

    def on_model_call(self, call: ModelCallPort) -> None:
        raise AssertionError(call.model)

    def _note(self, word: str) -> None:
        assert "idle" not in self.story, "nothing is told of a call that is over"
        self.story.append(word)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something has been heard."""
        async with asyncio.timeout(LIMIT):
            while not condition():
                await self._changed.wait()
                self._changed.clear()

    async def over(self) -> Heard:
        """Wait for the end, and check what holds of every call that began."""
        await self.until(lambda: "idle" in self.story)
        assert self.story[0] == "begin"
        assert self.story.count("begin") == 1
        assert sorted(self.outcomes) == list(range(self.size))
        return self

    @property
    def values(self) -> list[Any]:
        """The output with which each item ended; the error of one that failed."""
        return [_value(self.outcomes[item]) for item in range(self.size)]

    @property
    def all_logs(self) -> str:
        """All that was written, of whatever item."""
        return "".join(self.logs.values())


def _value(outcome: Outcome) -> Any:
    if isinstance(outcome, Succeeded):
        assert outcome.predict_time >= 0
        return None if outcome.output is None else json.loads(bytes(outcome.output))
    return outcome.error if isinstance(outcome, Failed) else outcome


class Port:
    """A worker of one slot, started."""

    def __init__(self, worker: WorkerPort, observer: Observer, info: WorkerInfo, gates: Gates) -> None:
        self.worker = worker
        self.observer = observer
        self.info = info
        self.gates = gates
        self._calls = 0

    def begin(self, *scripts: Script) -> tuple[str, Heard]:
        """Run a call with a script for each item; return its id and its listener."""
        self._calls += 1
        call_id = f"call-{self._calls}"
        inputs = [json.dumps({"script": json.dumps(script)}).encode() for script in scripts]
        items = tuple(ItemInput(f"{call_id}/{index}", each) for index, each in enumerate(inputs))
        heard = Heard(len(scripts))
        self.worker.run(0, CallInput(call_id, items), heard)
        return call_id, heard

    async def run(self, *scripts: Script) -> Heard:
        """Run a call to its end."""
        return await self.begin(*scripts)[1].over()

    def kill(self) -> None:
        """Let the worker die."""
        if isinstance(self.worker, FakeWorker):
            self.worker.die("killed by SIGKILL")
        elif isinstance(self.worker, ChildWorker):
            os.kill(self.worker._process.pid, signal.SIGKILL)


OpenPort = Callable[..., AbstractAsyncContextManager[Port]]


@pytest.fixture(params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path: Path) -> OpenPort:
    """Start a worker of each kind with a model of the module `batched`."""

    @contextlib.asynccontextmanager
    async def start(*, streams: bool = False, module: Any = batched) -> AsyncIterator[Port]:
        is_async = not request.param.startswith("sync")
        runner = f"{'Async' if is_async else 'Sync'}{'Stream' if streams else 'Value'}"
        observer = Observer()
        worker: WorkerPort
        if request.param == "fake":
            worker = FakeWorker(getattr(module, runner)(), observer)
        else:
            path = Path(module.__file__)
            worker = ChildWorker(Launch(f"{path.name}:{runner}", path.parent, {"PYTHONPATH": str(ROOT)}), observer)
        gates = Gates(tmp_path / "gates")
        try:
            async with asyncio.timeout(LIMIT):
                info = await worker.start()
            yield Port(worker, observer, info, gates)
        finally:
            await worker.stop(0)
            gates.remove()

    return start


def give(text: str) -> Script:
    return [["give", text]]


async def test_each_item_gets_its_own_value_whatever_their_number(port: OpenPort) -> None:
    async with port() as p:
        assert p.info.batching is not None
        assert p.info.batching.policy.max_size == 8
        for size in (1, 3, 8, 1):
            texts = [f"text {number}" for number in range(size)]
            heard = await p.run(*map(give, texts))
            assert heard.values == texts
            assert heard.all_logs == f"{size} requests\n"
            assert heard.story[-1] == "idle"


async def test_model_that_takes_one_at_a_time_says_so(port: OpenPort) -> None:
    async with port(module=run) as p:
        assert p.info.batching is None
        assert (await p.run(give("a"))).values == ["a"]


async def test_each_item_gets_its_own_chunks(port: OpenPort) -> None:
    async with port(streams=True) as p:
        scripts: list[Script] = [
            [["give", "a"], ["give", "b"], ["give", "c"]],
            [["wait", _opened(p)], ["give", "d"]],
            [],
        ]
        for chosen in ([scripts[0]], scripts):
            heard = await p.run(*chosen)
            assert list(heard.outputs.values()) == [["a", "b", "c"], ["d"], []][: len(chosen)]
            assert heard.values == [None] * len(chosen)


def _opened(port: Port) -> str:
    gate = port.gates["open"]
    gate.open()
    return str(gate.path)


async def test_exception_fails_every_item(port: OpenPort) -> None:
    async with port() as p:
        for scripts in ([[["raise", "boom"]]], [give("a"), [["raise", "boom"]], give("c")]):
            heard = await p.run(*scripts)
            assert heard.values == ["ValueError: boom"] * len(scripts)
            assert "ValueError: boom" in heard.all_logs
        assert (await p.run(give("a"), give("b"))).values == ["a", "b"], "the worker goes on"


async def test_item_that_fails_alone_leaves_the_others_as_they_are(port: OpenPort) -> None:
    async with port() as p:
        heard = await p.run(give("a"), [["fail", "boom"]], give("c"))
        assert heard.values == ["a", "ValueError: boom", "c"]
        assert "ValueError: boom" in heard.logs[1]
        assert (await p.run([["fail", "boom"]])).values == ["ValueError: boom"]


async def test_item_that_is_refused_has_the_others_run_again(port: OpenPort) -> None:
    async with port() as p:
        heard = await p.run(give("a"), [["refuse", "not this one"]], give("c"))
        assert heard.values == ["a", "not this one", "c"]
        assert "3 requests\n" in heard.all_logs
        assert "2 requests\n" in heard.all_logs
        assert (await p.run([["refuse", "nor this"]])).values == ["nor this"]


async def test_item_that_fails_in_the_midst_of_a_stream_ends_there(port: OpenPort) -> None:
    async with port(streams=True) as p:
        gate = p.gates["go"]
        wait: list[Any] = ["wait", str(gate.path)]
        _, heard = p.begin([["give", "a"], wait, ["give", "b"]], [["fail", "boom"], wait, ["give", "late"]])
        await heard.until(lambda: 1 in heard.outcomes)
        assert 0 not in heard.outcomes
        gate.open()
        await heard.over()
        assert heard.values == [None, "ValueError: boom"]
        assert heard.outputs == {0: ["a", "b"], 1: []}


async def test_what_is_printed_and_measured_is_of_the_item_or_of_all(port: OpenPort) -> None:
    async with port() as p:
        own: list[Script] = [[["say", f"{number}\n"], ["metric", "own", number], ["give", ""]] for number in range(3)]
        heard = await p.run(*own)
        assert heard.logs == {ALL: "3 requests\n", 0: "0\n", 1: "1\n", 2: "2\n"}
        assert sorted((item, metric.name, metric.value) for item, metric in heard.metrics) == [
            (number, "own", number) for number in range(3)
        ]
        heard = await p.run([["metric of all", "size", 2], ["give", ""]], give(""))
        assert heard.metrics == [(ALL, Metric("size", 2, "replace"))]
        heard = await p.run([["say", "alone\n"], ["metric", "own", 1], ["metric of all", "n", 1], ["give", ""]])
        assert heard.logs == {0: "1 requests\nalone\n"}
        assert [(item, metric.name) for item, metric in heard.metrics] == [(0, "own"), (0, "n")]


@pytest.mark.parametrize("step", ["wait", "swallow"])
async def test_cancel_ends_every_item(port: OpenPort, step: str) -> None:
    async with port() as p:
        for rest in ((), (give("b"), give("c"))):
            call_id, heard = p.begin([[step, ""]], *rest)
            await heard.until(lambda heard=heard: "requests" in heard.all_logs)  # type: ignore[misc]
            p.worker.cancel(0, call_id)
            p.worker.cancel(0, call_id)
            await heard.over()
            assert heard.values == [Canceled()] * heard.size
            p.worker.cancel(0, call_id)  # it is over
        assert (await p.run(give("a"))).values == ["a"], "the worker goes on"


async def test_cancel_of_another_call_changes_nothing(port: OpenPort) -> None:
    async with port() as p:
        gate = p.gates["go"]
        _, heard = p.begin([["wait", str(gate.path)], ["give", "a"]], give("b"))
        await heard.until(lambda: "requests" in heard.all_logs)
        p.worker.cancel(0, "another call")
        gate.open()
        assert (await heard.over()).values == ["a", "b"]


@pytest.mark.parametrize("size", [1, 3])
async def test_worker_that_dies_fails_every_item_that_has_not_ended(port: OpenPort, size: int) -> None:
    async with port() as p:
        _, heard = p.begin([["wait", ""]], *[give("")] * (size - 1))
        await heard.until(lambda: "requests" in heard.all_logs)
        p.kill()
        await heard.until(lambda: len(heard.outcomes) == size)
        assert all("Worker crashed: killed by SIGKILL" in value for value in heard.values)
        assert heard.story[-1] == "end", "the slot of a dead worker is never idle"
        async with asyncio.timeout(LIMIT):
            await p.observer.lost.wait()
        _, late = p.begin(*[give("")] * size)
        assert late.story == ["unstarted"]
