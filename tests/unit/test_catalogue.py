"""Which models there are, and how they come and go, with workers that have no process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.lifecycle import Health
from geartrain.domain.prediction import Prediction
from geartrain.service.catalogue import Catalogue, IndexEntry, LoadError, Step, Wanted
from geartrain.service.inference import Inference
from geartrain.service.model import Model
from geartrain.service.predictions import Limits, NewPrediction, PredictionService
from geartrain.service.readers import completion
from tests.fakes import FakeWorker


class Runner:
    """Says who it is; waits for its gate if it has one."""

    def __init__(self, answer: str, gate: asyncio.Event | None = None) -> None:
        self.answer = answer
        self.gate = gate

    async def run(self, text: str = "") -> str:
        if self.gate is not None:
            await self.gate.wait()
        return self.answer


class Slow(Runner):
    """Its setup waits to be told."""

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def setup(self, _say: Any) -> None:
        self.began.set()
        await self.go.wait()


class Broken(Runner):
    def setup(self, _say: Any) -> None:
        raise RuntimeError("no weights")


class NoOutputs:
    def fault(self, prefix: str, *, background: bool) -> str | None:
        return None

    def of(self, prediction_id: str, prefix: str | None) -> Any:
        raise AssertionError


class FakeVersion:
    def __init__(self, name: str, number: str, runner: Any) -> None:
        self.model = Model(name, version=number)
        self.worker = FakeWorker(runner, self.model)
        service = PredictionService(self.model, outputs=NoOutputs(), limits=Limits(queue=100))
        self.inference = Inference(service)
        self.closed = asyncio.Event()

    async def start(self) -> None:
        await self.model.start(self.worker)

    async def close(self, grace: float | None, *, hurry: bool = False) -> None:
        service = self.inference.service
        service.close()
        if not await service.drain(grace):
            service.cancel_all()
            await service.drain(1)
        await self.model.stop(0)
        self.closed.set()


class Disk:
    """`models` by name and version are what makes a runner; an error is what is wrong with it."""

    def __init__(self, **models: dict[str, Any] | str) -> None:
        self.models: dict[str, Any] = models
        self.default: dict[str, str] = {}
        self.opened: list[FakeVersion] = []
        self.noted: list[str] = []

    def names(self) -> list[str]:
        return sorted(self.models)

    def read(self, name: str) -> Wanted | None:
        found = self.models.get(name)
        if found is None:
            return None
        if isinstance(found, str):
            raise LoadError(found)
        return Wanted(tuple(sorted(found, key=int)), self.default.get(name))

    def note(self, name: str) -> None:
        self.noted.append(name)

    def open(self, name: str, version: str) -> FakeVersion:
        make = self.models[name][version]
        if isinstance(make, str):
            raise LoadError(make)
        self.opened.append(FakeVersion(name, version, make()))
        return self.opened[-1]


def says(answer: str) -> Callable[[], Runner]:
    return lambda: Runner(answer)


class Shop:
    """A catalogue of a disk, and what it has told."""

    def __init__(self, disk: Disk, **options: Any) -> None:
        self.disk = disk
        self.steps: list[Step] = []
        self.catalogue = Catalogue(disk, tell=self.steps.append, **options)

    async def begin(self, *names: str) -> None:
        self.catalogue.begin(names or None)
        for name in names or self.disk.names():
            shelf = self.catalogue._shelves[name]
            if shelf.loads:
                await asyncio.wait(shelf.loads)

    def told(self) -> list[tuple[str, ...]]:
        return [tuple(filter(None, (step.stage, step.name, step.version, step.reason))) for step in self.steps]


def ask(catalogue: Catalogue, name: str, version: str = "") -> Prediction:
    return catalogue.find(name, version).service.create(NewPrediction(input=b"{}"))


async def answer(catalogue: Catalogue, name: str, version: str = "") -> str:
    prediction = ask(catalogue, name, version)
    await completion(prediction)
    assert prediction.output is not None, prediction.error
    return prediction.output.decode().strip('"')


async def refusal(awaitable: Any) -> tuple[Code, str]:
    with pytest.raises(GeartrainError) as caught:
        await awaitable
    return caught.value.code, caught.value.message


def not_found(catalogue: Catalogue, name: str, version: str = "") -> tuple[Code, str]:
    with pytest.raises(GeartrainError) as caught:
        catalogue.find(name, version)
    return caught.value.code, caught.value.message


@pytest.fixture
async def shops() -> AsyncIterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(disk: Disk, **options: Any) -> Shop:
        made.append(Shop(disk, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.catalogue.close()
        await shop.catalogue.stop(hurry=True)
        assert all(version.worker.is_stopped for version in shop.disk.opened), "a worker is left"


Make = Callable[..., Shop]


# what is there


async def test_models_and_versions_are_found_by_name_and_number(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "3": says("c3"), "10": says("c10")}, dogs={"2": says("d2")}))
    await shop.begin()
    catalogue = shop.catalogue
    assert catalogue.versions("cats") == ("1", "3", "10")
    assert [await answer(catalogue, "cats", version) for version in ("", "1", "03", "10")] == ["c10", "c1", "c3", "c10"]
    assert await answer(catalogue, "dogs") == "d2"
    assert catalogue.all_ready()
    assert catalogue.index() == [
        IndexEntry("cats", "1", "READY"),
        IndexEntry("cats", "3", "READY"),
        IndexEntry("cats", "10", "READY"),
        IndexEntry("dogs", "2", "READY"),
    ]


async def test_what_is_not_there_is_named(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}, bad={"1": lambda: Broken("x")}))
    await shop.begin()
    catalogue = shop.catalogue
    assert not_found(catalogue, "nope") == (Code.NOT_FOUND, "Request for unknown model: 'nope' is not found")
    assert not_found(catalogue, "cats", "7") == (
        Code.NOT_FOUND,
        "Request for unknown model: 'cats' version 7 is not found",
    )
    assert not_found(catalogue, "bad") == (
        Code.NOT_FOUND,
        "Request for unknown model: 'bad' has no available versions",
    )
    assert not any(catalogue.is_ready(*what) for what in (("nope",), ("cats", "7"), ("bad",), ("bad", "1")))
    assert await refusal(catalogue.load("nope")) == (
        Code.NOT_FOUND,
        "failed to load 'nope', failed to poll from model repository",
    )


async def test_default_may_be_another_than_the_latest(shops: Make) -> None:
    disk = Disk(cats={"1": says("c1"), "2": says("c2")})
    disk.default["cats"] = "1"
    shop = shops(disk)
    await shop.begin()
    assert await answer(shop.catalogue, "cats") == "c1"


async def test_a_failing_model_stops_nobody_and_says_why(shops: Make) -> None:
    shop = shops(Disk(bad={"1": lambda: Broken("x")}, cats={"1": says("c")}, worse="geartrain.yaml is wrong"))
    await shop.begin()
    catalogue = shop.catalogue
    assert await answer(catalogue, "cats") == "c"
    assert catalogue.index() == [
        IndexEntry("bad", "1", "UNAVAILABLE", "setup() failed: RuntimeError: no weights"),
        IndexEntry("cats", "1", "READY"),
        IndexEntry("worse", "", "UNAVAILABLE", "geartrain.yaml is wrong"),
    ]
    assert catalogue.index(ready=True) == [IndexEntry("cats", "1", "READY")]
    assert not catalogue.all_ready()
    assert catalogue.service("bad").model.health is Health.SETUP_FAILED  # whose report has what it printed
    assert await refusal(catalogue.load("bad")) == (
        Code.LOAD_FAILED,
        "load failed for model 'bad': version 1 is at UNAVAILABLE state: setup() failed: RuntimeError: no weights;",
    )
    assert sorted(shop.told())[:2] == [
        ("ready", "cats", "1"),
        ("setup-failed", "bad", "1", "setup() failed: RuntimeError: no weights"),
    ]


async def test_one_bad_version_leaves_the_others(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "2": "2/run.py has no class Runner"}))
    await shop.begin()
    catalogue = shop.catalogue
    assert await answer(catalogue, "cats") == "c1"
    assert catalogue.versions("cats") == ("1",)
    assert not_found(catalogue, "cats", "2")[0] is Code.NOT_READY
    assert not catalogue.all_ready()
    shop.disk.models["cats"]["2"] = says("c2")
    await catalogue.load("cats")
    assert await answer(catalogue, "cats") == "c2"
    assert catalogue.all_ready()


async def test_t2_a_dead_worker_is_not_ready(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "2": says("c2")}))
    await shop.begin()
    catalogue = shop.catalogue
    catalogue.find("cats", "2").service.model.on_lost("Worker crashed: exited with code 3")
    assert (catalogue.is_ready("cats"), catalogue.is_ready("cats", "1"), catalogue.all_ready()) == (False, True, False)
    assert catalogue.index()[1] == IndexEntry("cats", "2", "UNAVAILABLE", "Worker crashed: exited with code 3")
    with pytest.raises(GeartrainError) as caught:  # a crash never silently changes the answers to those of another
        ask(catalogue, "cats")
    assert caught.value.code is Code.NOT_READY


# coming and going


async def test_known_models_are_loaded_when_asked(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}, dogs={"1": says("d")}))
    await shop.begin("cats")
    catalogue = shop.catalogue
    assert catalogue.index() == [IndexEntry("cats", "1", "READY"), IndexEntry("dogs")]
    assert catalogue.all_ready()
    assert not_found(catalogue, "dogs")[0] is Code.NOT_FOUND
    await catalogue.load("dogs")
    assert await answer(catalogue, "dogs") == "d"
    shop.disk.models["new"] = {"1": says("n")}
    assert IndexEntry("new") in catalogue.index()
    await catalogue.load("new")
    assert await answer(catalogue, "new") == "n"


async def test_t15_unload_keeps_version_and_state_and_knows_its_models(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    catalogue = shop.catalogue
    await catalogue.unload("cats")
    await catalogue.unload("cats")
    assert catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]
    assert catalogue.all_ready()  # it is wanted no longer
    assert not_found(catalogue, "cats")[1].endswith("has no available versions")
    assert await refusal(catalogue.unload("nope")) == (
        Code.NOT_FOUND,
        "Request for unknown model: 'nope' is not found",
    )
    await catalogue.load("cats")
    assert await answer(catalogue, "cats") == "c"


async def test_unload_waits_for_what_runs(shops: Make) -> None:
    gate = asyncio.Event()
    shop = shops(Disk(cats={"1": lambda: Runner("c", gate)}))
    await shop.begin()
    catalogue = shop.catalogue
    running, waiting = ask(catalogue, "cats"), ask(catalogue, "cats")
    unloading = asyncio.ensure_future(catalogue.unload("cats"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert catalogue.index() == [IndexEntry("cats", "1", "UNLOADING")]
    assert not_found(catalogue, "cats")[0] is Code.NOT_FOUND
    gate.set()
    await unloading
    assert (running.status, waiting.status) == ("succeeded", "succeeded")


async def test_unload_gives_up_a_load(shops: Make) -> None:
    slow = Slow("c")
    shop = shops(Disk(cats={"1": lambda: slow}))
    shop.catalogue.begin()
    loading = asyncio.ensure_future(refusal(shop.catalogue.load("cats")))
    await slow.began.wait()
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "LOADING")]
    assert shop.catalogue.find("cats").service.model.health is Health.STARTING
    await shop.catalogue.unload("cats")
    assert (await loading)[0] is Code.LOAD_FAILED
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]


# reload


async def test_an_unload_notes_how_the_model_lies_on_disk(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    await shop.catalogue.unload("cats")
    assert shop.disk.noted == ["cats"]


async def test_a_model_that_is_removed_is_forgotten(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}, dogs={"1": says("d")}))
    await shop.begin()
    catalogue = shop.catalogue
    made = shop.disk.models.pop("cats")
    await catalogue.remove("cats")
    assert catalogue.index() == [IndexEntry("dogs", "1", "READY")]
    assert (catalogue.names(), catalogue.all_ready()) == (["dogs"], True)
    assert not_found(catalogue, "cats") == (Code.NOT_FOUND, "Request for unknown model: 'cats' is not found")
    await catalogue.remove("cats")
    shop.disk.models["cats"] = made
    await catalogue.load("cats")
    assert await answer(catalogue, "cats") == "c"


async def test_a_model_that_is_loaded_while_it_is_removed_stays(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    catalogue = shop.catalogue
    running = ask(catalogue, "cats")
    changed = asyncio.Event()
    catalogue.subscribe(lambda _name: changed.set())
    removing = asyncio.ensure_future(catalogue.remove("cats"))
    await changed.wait()
    assert catalogue.index() == [IndexEntry("cats", "1", "UNLOADING")]
    loading = asyncio.ensure_future(catalogue.load("cats"))
    await asyncio.gather(removing, loading, completion(running))
    assert await answer(catalogue, "cats") == "c"
    assert catalogue.index() == [IndexEntry("cats", "1", "READY")]


async def test_reload_serves_by_the_old_worker_until_the_new_one_is_ready(shops: Make) -> None:
    gate, slow = asyncio.Event(), Slow("new")
    shop = shops(Disk(cats={"1": lambda: Runner("old", gate)}))
    await shop.begin()
    catalogue = shop.catalogue
    held = catalogue.find("cats")
    running = held.service.create(NewPrediction(input=b"{}", id="mine"))
    waiting = ask(catalogue, "cats")
    shop.disk.models["cats"] = {"1": lambda: slow}
    loading = asyncio.ensure_future(catalogue.load("cats"))
    await slow.began.wait()
    assert catalogue.find("cats") is held
    assert catalogue.is_ready("cats")
    assert catalogue.index() == [IndexEntry("cats", "1", "READY")]
    slow.go.set()
    await loading
    assert await answer(catalogue, "cats") == "new"
    service = catalogue.find("cats").service
    assert service.find("mine") is running  # it can still be found, joined and canceled
    late = held.service.create(NewPrediction(input=b"{}"))  # by who had found it before the switch
    await completion(late)
    assert late.output == b'"new"'
    assert not shop.disk.opened[0].closed.is_set()
    gate.set()
    await completion(running)
    await completion(waiting)
    assert (running.output, waiting.output) == (b'"old"', b'"old"')
    await shop.disk.opened[0].closed.wait()
    assert service.live == {}
    assert service.counts.successes == 4


class Numbers(Slow):
    """Takes something else."""

    async def run(self, number: int = 1) -> str:  # type: ignore[override]
        return f"{self.answer}{number}"


def described(catalogue: Catalogue, name: str, version: str = "") -> tuple[list[str], tuple[str, ...]]:
    model, versions = catalogue.describe(name, version)
    return [field.name for field in model.signature.inputs], versions


async def test_model_is_described_while_it_is_loaded_and_when_that_has_failed(shops: Make) -> None:
    slow = Slow("slow")
    shop = shops(Disk(slow={"1": lambda: slow}, bad={"2": lambda: Broken("x")}, gone={"1": "no file"}))
    catalogue = shop.catalogue
    catalogue.begin(["slow"])
    await shop.begin("bad", "gone")
    await slow.began.wait()
    for version in ("", "1", "01"):
        assert described(catalogue, "slow", version) == (["text"], ("1",))
    assert not catalogue.is_ready("slow")
    with pytest.raises(GeartrainError) as caught:
        ask(catalogue, "slow")
    assert caught.value.code is Code.NOT_READY
    for version in ("", "2"):
        assert described(catalogue, "bad", version) == (["text"], ("2",))
    for name, version in (("bad", "7"), ("gone", ""), ("nope", ""), ("slow", "7")):
        with pytest.raises(GeartrainError) as caught:
            catalogue.describe(name, version)
        assert caught.value.code is Code.NOT_FOUND
    slow.go.set()
    await catalogue.unload("bad")
    with pytest.raises(GeartrainError):
        catalogue.describe("bad")


async def test_reload_is_described_when_it_serves(shops: Make) -> None:
    disk = Disk(cats={"1": says("old")})
    shop = shops(disk)
    await shop.begin()
    new = Numbers("new")
    disk.models["cats"] = {"1": lambda: new}
    loading = asyncio.ensure_future(shop.catalogue.load("cats"))
    await new.began.wait()
    assert described(shop.catalogue, "cats") == (["text"], ("1",))
    new.go.set()
    await loading
    assert described(shop.catalogue, "cats") == (["number"], ("1",))


async def test_reload_that_fails_leaves_the_old_one_serving(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("old")}))
    await shop.begin()
    catalogue = shop.catalogue
    for broken, reason in (
        ({"1": lambda: Broken("x")}, "setup() failed: RuntimeError: no weights"),
        ({"1": "run.py:3: SyntaxError"}, "run.py:3: SyntaxError"),
        ("there is no key `replica`", "there is no key `replica`"),
    ):
        shop.disk.models["cats"] = broken
        code, text = await refusal(catalogue.load("cats"))
        assert code is Code.LOAD_FAILED
        assert reason in text
        assert await answer(catalogue, "cats") == "old"
        assert shop.steps[-1].stage == "reload-failed"
        assert catalogue.index() == [IndexEntry("cats", "1", "READY", f"reload failed: {reason}")]
    shop.disk.models["cats"] = {"1": says("new")}
    await catalogue.load("cats")
    assert await answer(catalogue, "cats") == "new"
    assert catalogue.index() == [IndexEntry("cats", "1", "READY")]


async def test_reload_follows_the_versions_on_disk(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "2": says("c2")}))
    await shop.begin()
    changes: list[str] = []
    shop.catalogue.subscribe(changes.append)
    shop.disk.models["cats"] = {"2": says("c2"), "3": says("c3")}
    await shop.catalogue.load("cats")
    assert shop.catalogue.versions("cats") == ("2", "3")
    assert await answer(shop.catalogue, "cats") == "c3"
    assert shop.catalogue.index() == [IndexEntry("cats", "2", "READY"), IndexEntry("cats", "3", "READY")]
    assert not_found(shop.catalogue, "cats", "1")[0] is Code.NOT_FOUND
    assert set(changes) == {"cats"}


async def test_loads_of_one_model_wait_for_each_other(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    slow = Slow("c")
    shop.disk.models["cats"] = {"1": lambda: slow}
    first = asyncio.ensure_future(shop.catalogue.load("cats"))
    await slow.began.wait()
    shop.disk.models["cats"] = {"1": says("last")}
    others = [asyncio.ensure_future(shop.catalogue.load("cats")) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(shop.disk.opened) == 2
    slow.go.set()
    await asyncio.gather(first, *others)
    assert len(shop.disk.opened) == 5
    assert await answer(shop.catalogue, "cats") == "last"


async def test_client_that_stops_waiting_stops_no_load(shops: Make) -> None:
    slow = Slow("c")
    shop = shops(Disk(cats={"1": lambda: slow}))
    shop.catalogue.begin(())
    leaving = asyncio.ensure_future(shop.catalogue.load("cats"))
    await slow.began.wait()
    leaving.cancel()
    slow.go.set()
    await shop.catalogue.load("cats")
    assert await answer(shop.catalogue, "cats") == "c"


async def test_after_the_end_nothing_is_loaded(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    shop.catalogue.close()
    assert (await refusal(shop.catalogue.load("cats")))[0] is Code.SHUTTING_DOWN


async def test_without_a_repository_models_stay_as_they_are() -> None:
    version = FakeVersion("cats", "1", Runner("c"))
    catalogue = Catalogue()
    catalogue.add(version.inference)
    assert not catalogue.all_ready()
    await version.start()
    assert catalogue.all_ready()
    assert await answer(catalogue, "cats", "1") == "c"
    assert catalogue.default_model == "cats"
    assert (await refusal(catalogue.load("cats")))[0] is Code.UNSUPPORTED
    assert (await refusal(catalogue.unload("cats")))[0] is Code.UNSUPPORTED
    await version.close(0)


# counts


async def test_statistics_are_those_of_every_version(shops: Make) -> None:
    class Moody(Runner):
        async def run(self, text: str = "") -> str:
            if text == "bad":
                raise ValueError(text)
            return text

    shop = shops(Disk(cats={"1": says("c"), "2": lambda: Moody("")}, dogs={"1": says("d")}))
    await shop.begin()
    catalogue = shop.catalogue
    await answer(catalogue, "cats", "1")
    await answer(catalogue, "cats", "2")
    failing = catalogue.find("cats").service.create(NewPrediction(input=b'{"text":"bad"}'))
    await completion(failing)
    one, two, dogs = catalogue.statistics()
    assert (one.name, one.version, one.inference_count, one.execution_count, one.fail.count) == ("cats", "1", 1, 1, 0)
    assert (two.version, two.inference_count, two.execution_count, two.fail.count) == ("2", 1, 2, 1)
    assert (dogs.name, dogs.last_inference, dogs.success.count) == ("dogs", 0, 0)
    assert one.last_inference > 1.7e12
    parts = (two.queue, two.compute_input, two.compute_infer, two.compute_output)
    assert two.success.ns > 0
    assert abs(two.success.ns - sum(part.ns for part in parts)) <= 4
    assert [each.version for each in catalogue.statistics("cats")] == ["1", "2"]
    assert catalogue.statistics("cats", "2") == [two]
    with pytest.raises(GeartrainError):
        catalogue.statistics("cats", "9")
    with pytest.raises(GeartrainError):
        catalogue.statistics("birds")


# any order of things


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "break", "remove", "load", "unload", "die", "ask"]), st.integers(1, 3)),
        max_size=25,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_done_in_whatever_order_what_is_said_is_true(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_check_steps(steps))


class Saying:
    """Makes runners that say this."""

    def __init__(self, content: str) -> None:
        self.content = content

    def __call__(self) -> Runner:
        return Runner(self.content)


async def _check_steps(steps: list[tuple[str, int]]) -> None:
    """`serving` is what has to answer, by version; None for one whose worker has died."""
    disk: dict[str, Any] = {}
    shop = Shop(Disk(cats=disk))
    shop.catalogue.begin(())
    catalogue, serving = shop.catalogue, dict[str, str | None]()
    for turn, (what, number) in enumerate(steps):
        version, content = str(number), f"{what}-{turn}"
        if what == "write":
            disk[version] = Saying(content)
        elif what == "break":
            disk[version] = "broken"
        elif what == "remove":
            disk.pop(version, None)
        elif what == "load":
            good = {key: make for key, make in disk.items() if not isinstance(make, str)}
            if len(good) == len(disk):
                await catalogue.load("cats")
            else:
                assert (await refusal(catalogue.load("cats")))[0] is Code.LOAD_FAILED
            serving = {key: kept for key, kept in serving.items() if key in disk}
            serving |= {key: make.content for key, make in good.items()}
        elif what == "unload":
            await catalogue.unload("cats")
            serving = {}
        elif what == "die" and serving.get(version):
            catalogue.find("cats", version).service.model.on_lost("gone")
            serving[version] = None
        await _check_answers(catalogue, serving)
    catalogue.close()
    await catalogue.stop(hurry=True)
    assert all(opened.worker.is_stopped for opened in shop.disk.opened)


async def _check_answers(catalogue: Catalogue, serving: dict[str, str | None]) -> None:
    ready = {version for version, content in serving.items() if content is not None}
    assert {entry.version for entry in catalogue.index(ready=True)} == ready
    for version, content in serving.items():
        assert catalogue.is_ready("cats", version) == (content is not None)
        if content is not None:
            assert await answer(catalogue, "cats", version) == content
    latest = max(serving, default=None)
    if latest is None:
        assert not_found(catalogue, "cats")[0] is Code.NOT_FOUND
    else:
        assert catalogue.find("cats").service.model.version == latest
        assert catalogue.versions("cats") == tuple(sorted(serving))
