"""The next calls of a sync model wait in its worker: what a client sees of it, with a real worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.domain.predictions.inference import SchedulePolicy
from geartrain.domain.predictions.lifecycle import ExecutionState, Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Limits
from geartrain.service.readers import completion
from geartrain.service.scheduling import call as calls
from geartrain.service.scheduling import scheduler
from geartrain.service.workers.pool import RestartPolicy
from tests.support.gates import Gates
from tests.support.servers import PATIENCE, LiveServer, Serve, eventually

MODEL = """
    import ctypes, os, pathlib
    read = ctypes.PyDLL(None).read  # it keeps the interpreter's lock

    class Runner:
        def run(self, what: str = "", gate: str = "", holding: bool = False) -> str:
            with open("begun", "a") as begun:
                begun.write(what + "\\n")
            if what.startswith("raw"):
                os.write(1, (what + "\\n").encode())
            if gate:
                fd = os.open(gate, os.O_RDONLY)
                print("waiting", flush=True)
                read(fd, ctypes.create_string_buffer(1), 1) if holding else os.read(fd, 1)
                os.close(fd)
            if what == "die":
                os._exit(3)
            return what
"""
CALLS = 20  # without output past Python, after which a worker is given calls ahead


class Bench:
    """A model that can be kept waiting, and what it has begun."""

    def __init__(self, server: LiveServer, gates: Gates) -> None:
        self.server = server
        self.gates = gates

    async def warm_up(self) -> None:
        for _ in range(CALLS):
            await self.ended(self.ask("warm"))

    def ask(self, what: str, gate: str = "", *, holding: bool = False, timeout: float | None = None) -> Prediction:
        path = self.gates[gate].path if gate else ""
        body = f'{{"what": "{what}", "gate": "{path}", "holding": {"true" if holding else "false"}}}'
        return self.server.deployment.create(NewPrediction(body.encode(), schedule=SchedulePolicy(timeout)))

    async def waiting(self, prediction: Prediction) -> None:
        """Wait until a prediction has reached its gate."""
        await eventually(lambda: "waiting" in prediction.logs)

    def is_prefetched(self, prediction: Prediction) -> bool:
        live = self.server.deployment.executions.live
        return any(each.prediction is prediction and each.state is ExecutionState.PREFETCHED for each in live)

    async def ended(self, prediction: Prediction) -> Prediction:
        async with asyncio.timeout(PATIENCE):
            await completion(prediction)
        return prediction

    def begun(self) -> list[str]:
        """What has begun since the model was warm, in order."""
        return [line for line in Path(self.server.root, "begun").read_text().splitlines() if line != "warm"]


@pytest.fixture(autouse=True)
def any_run_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not decide whether calls are prefetched here: it is one, unless a test wants several."""
    monkeypatch.setattr(scheduler, "_SHORT", 3600.0)
    monkeypatch.setattr(calls, "_AHEAD", 0.0)


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind runs of microseconds."""
    monkeypatch.setattr(calls, "_AHEAD", 3600.0)


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


@pytest.mark.parametrize("holding", [False, True])
async def test_a_canceled_one_never_runs(serve: Serve, gates: Gates, holding: bool) -> None:
    """Also when the run before it lets no other thread of the worker have its turn."""
    async with serve(MODEL, limits=Limits(queue=9)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first = bench.ask("first", "one", holding=holding)
        second, third = bench.ask("second"), bench.ask("third")
        await bench.waiting(first)
        assert (bench.is_prefetched(second), bench.is_prefetched(third)) == (True, False)
        assert server.predictions.cancel(second.id, ANYONE)
        assert (second.status, second.started_at) == (Status.CANCELED, None)
        gates["one"].open()
        assert (await bench.ended(third)).output == b'"third"'
        assert first.output == b'"first"'
        assert bench.begun() == ["first", "third"]


async def test_one_whose_time_is_up_never_runs(serve: Serve, gates: Gates) -> None:
    async with serve(MODEL, limits=Limits(queue=9)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first = bench.ask("first", "one")
        late = bench.ask("late", timeout=1.2)
        assert bench.is_prefetched(late)
        assert (await bench.ended(late)).error == "timed out after 1.2 s"
        gates["one"].open()
        assert (await bench.ended(first)).output == b'"first"'
        assert (await bench.ended(bench.ask("after"))).output == b'"after"'
        assert bench.begun() == ["first", "after"]


async def test_what_lay_in_a_worker_that_died_runs_in_the_next_one(serve: Serve, gates: Gates) -> None:
    policy = RestartPolicy(first_delay=0.05)
    async with serve(MODEL, limits=Limits(queue=9), restarts=policy) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        dying, second, third = bench.ask("die", "one"), bench.ask("second"), bench.ask("third")
        await bench.waiting(dying)
        assert bench.is_prefetched(second)
        gates["one"].open()
        assert (await bench.ended(dying)).status is Status.FAILED
        assert [(await bench.ended(each)).output for each in (second, third)] == [b'"second"', b'"third"']
        assert bench.begun() == ["die", "second", "third"]


async def test_a_running_one_can_be_canceled_before_a_prefetched_one(serve: Serve, gates: Gates) -> None:
    async with serve(MODEL, limits=Limits(queue=9)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first, second = bench.ask("first", "one"), bench.ask("second")
        await bench.waiting(first)
        assert bench.is_prefetched(second)
        assert server.predictions.cancel(first.id, ANYONE)
        assert (await bench.ended(first)).status is Status.CANCELED
        assert (await bench.ended(second)).output == b'"second"'


async def test_both_can_be_canceled(serve: Serve, gates: Gates) -> None:
    async with serve(MODEL, limits=Limits(queue=9)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first, second, third = bench.ask("first", "one"), bench.ask("second"), bench.ask("third")
        await bench.waiting(first)
        assert server.predictions.cancel(second.id, ANYONE)
        assert server.predictions.cancel(first.id, ANYONE)
        assert (await bench.ended(first)).status is Status.CANCELED
        assert (await bench.ended(third)).output == b'"third"'
        assert bench.begun() == ["first", "third"]


async def test_output_past_python_is_in_no_other_predictions_logs(
    serve: Serve, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    """What could be of two predictions goes to the server's log; then each finds its own again."""
    caplog.set_level(logging.INFO, logger="geartrain.model")
    async with serve(MODEL, limits=Limits(queue=9)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first, raw, other = bench.ask("first", "one"), bench.ask("raw secret"), bench.ask("other")
        await bench.waiting(first)
        gates["one"].open()
        for each in (first, raw, other):
            await bench.ended(each)
        assert "raw secret" not in first.logs + other.logs
        assert "raw secret" in raw.logs or "raw secret" in caplog.text
        running, raw, last = bench.ask("running", "two"), bench.ask("raw again"), bench.ask("last")
        await bench.waiting(running)
        assert not bench.is_prefetched(raw)
        gates["two"].open()
        assert (await bench.ended(raw)).logs == "raw again\n"
        assert (await bench.ended(last)).logs == ""


# several calls


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("holding", [False, True])
async def test_canceled_ones_among_several_never_run(serve: Serve, gates: Gates, holding: bool) -> None:
    async with serve(MODEL, limits=Limits(queue=50)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first = bench.ask("first", "one", holding=holding)
        others = [bench.ask(f"{number}") for number in range(20)]
        await bench.waiting(first)
        assert all(bench.is_prefetched(each) for each in others)
        for each in others[::3]:
            assert server.predictions.cancel(each.id, ANYONE)
            assert (each.status, each.started_at) == (Status.CANCELED, None)
        gates["one"].open()
        kept = [number for number in range(20) if number % 3]
        assert [(await bench.ended(others[number])).output for number in kept] == [b'"%d"' % n for n in kept]
        assert bench.begun() == ["first", *map(str, kept)]


@pytest.mark.usefixtures("several")
async def test_a_withdrawal_is_read_behind_all_that_lies_in_the_socket(serve: Serve, gates: Gates) -> None:
    """More than the worker reads at once."""
    async with serve(MODEL, limits=Limits(queue=50)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first = bench.ask("first", "one", holding=True)
        await bench.waiting(first)
        large = bench.ask("x" * 100_000)
        others = [bench.ask(f"{number}" + "x" * 1_800) for number in range(20)]
        assert all(bench.is_prefetched(each) for each in (large, *others))
        assert server.predictions.cancel(large.id, ANYONE)
        gates["one"].open()
        for each in others:
            assert (await bench.ended(each)).status is Status.SUCCEEDED
        assert [text[:2] for text in bench.begun()] == ["fi", *(f"{number}x"[:2] for number in range(20))]


@pytest.mark.usefixtures("several")
async def test_ones_among_several_whose_time_is_up_never_run(serve: Serve, gates: Gates) -> None:
    async with serve(MODEL, limits=Limits(queue=50)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first = bench.ask("first", "one")
        before, late, after = bench.ask("before"), bench.ask("late", timeout=1.2), bench.ask("after")
        assert all(bench.is_prefetched(each) for each in (before, late, after))
        assert (await bench.ended(late)).error == "timed out after 1.2 s"
        gates["one"].open()
        for each in (first, before, after):
            assert (await bench.ended(each)).status is Status.SUCCEEDED
        assert bench.begun() == ["first", "before", "after"]


@pytest.mark.usefixtures("several")
async def test_several_that_lay_in_a_worker_that_died_run_in_the_next_one(serve: Serve, gates: Gates) -> None:
    """Those that had ended before have their answers, and only the one that ran has failed."""
    async with serve(MODEL, limits=Limits(queue=50), restarts=RestartPolicy(first_delay=0.05)) as server:
        bench = Bench(server, gates)
        await bench.warm_up()
        first = bench.ask("first", "one")
        before = [bench.ask(f"{number}") for number in range(5)]
        dying = bench.ask("die")
        after = [bench.ask(f"{number}") for number in range(5, 10)]
        await bench.waiting(first)
        assert all(bench.is_prefetched(each) for each in (*before, dying, *after))
        gates["one"].open()
        assert (await bench.ended(dying)).status is Status.FAILED
        for each in (first, *before, *after):
            assert (await bench.ended(each)).status is Status.SUCCEEDED
        assert bench.begun() == ["first", *"01234", "die", *"56789"]
