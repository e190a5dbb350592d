"""Which models there are, and how they come and go, with workers that have no process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.domain.remote.progress import Download
from geartrain.service.models import information
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment, DeploymentSettings, Limits, VersionRecord
from geartrain.service.models.entry import ModelEntry, ModelRef
from geartrain.service.models.repository import IndexEntry, LoadError, Step, Wanted
from geartrain.service.readers import completion
from tests.support.deployments import deploy
from tests.support.fakes import FakeWorker


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


class Disk:
    """`models` by name and version are what makes a runner; an error is what is wrong with it."""

    def __init__(self, **models: dict[str, Any] | str) -> None:
        self.models: dict[str, Any] = models
        self.default: dict[str, str] = {}
        self.opened: list[Deployment] = []
        self.noted: list[str] = []
        self.sizes: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.remote: dict[str, Callable[[Download], Awaitable[None]]] = {}  # what fetches a model

    def names(self) -> list[str]:
        return sorted(self.models)

    def has_remote_files(self, name: str) -> bool:
        return name in self.remote

    async def fetch(self, name: str, download: Download) -> None:
        await self.remote[name](download)

    def read(self, name: str) -> Wanted | None:
        found = self.models.get(name)
        if found is None:
            return None
        if isinstance(found, str):
            raise LoadError(found)
        return Wanted(tuple(sorted(found, key=int)), self.default.get(name), self.digests.get(name, ""))

    def note(self, name: str) -> None:
        self.noted.append(name)

    def memory(self, name: str) -> int:
        """The bytes of each worker of `sizes` that has not been stopped."""
        workers = [replica.worker for each in self.opened if each.name == name for replica in each.workers.replicas]
        return self.sizes.get(name, 0) * sum(isinstance(each, FakeWorker) and not each.is_stopped for each in workers)

    def open(self, record: VersionRecord) -> Deployment:
        make = self.models[record.name][record.number]
        if isinstance(make, str):
            raise LoadError(make)
        spawn = functools.partial(FakeWorker, make())
        self.opened.append(deploy(spawn, record=record, settings=DeploymentSettings(limits=Limits(queue=100))))
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
        self.catalogue.spawn(names or None)
        self.catalogue.reconciler.begin()
        for name in names or self.disk.names():
            entry = self.catalogue.entry(name)
            if entry.loading.tasks:
                await asyncio.wait(entry.loading.tasks)

    async def stop(self) -> None:
        self.catalogue.reconciler.close()
        await self.catalogue.reconciler.stop()
        assert not self.catalogue.reconciler.alive
        assert all(worker_of(deployment).is_stopped for deployment in self.disk.opened), "a worker is left"

    def told(self) -> list[tuple[str, ...]]:
        return [tuple(filter(None, (step.stage, step.name, step.version, step.reason))) for step in self.steps]


def worker_of(deployment: Deployment) -> FakeWorker:
    worker = deployment.workers.replicas[0].worker
    assert isinstance(worker, FakeWorker)
    return worker


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)


def ask(catalogue: Catalogue, name: str, version: str = "") -> Prediction:
    return catalogue.find(name, version).create(NewPrediction(input=b"{}"))


async def answer(catalogue: Catalogue, name: str, version: str = "") -> str:
    prediction = ask(catalogue, name, version)
    await completion(prediction)
    assert prediction.output is not None, prediction.error
    return bytes(prediction.output).decode().strip('"')


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
        await shop.stop()


Make = Callable[..., Shop]


# what is there


async def test_models_and_versions_are_found_by_name_and_number(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "3": says("c3"), "10": says("c10")}, dogs={"2": says("d2")}))
    await shop.begin()
    catalogue = shop.catalogue
    assert information.versions(catalogue, "cats") == ("1", "3", "10")
    assert [await answer(catalogue, "cats", version) for version in ("", "1", "03", "10")] == ["c10", "c1", "c3", "c10"]
    assert await answer(catalogue, "dogs") == "d2"
    assert catalogue.readiness.is_ready
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
    assert not any(
        information.is_ready(catalogue, *what) for what in (("nope",), ("cats", "7"), ("bad",), ("bad", "1"))
    )
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
    assert not catalogue.readiness.is_ready
    assert catalogue.entry("bad").deployment().workers.health is Health.SETUP_FAILED  # whose report says why
    report = await catalogue.entry("bad").report()
    assert report.setup.logs == "setup() failed: RuntimeError: no weights\n"
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
    assert information.versions(catalogue, "cats") == ("1",)
    assert not_found(catalogue, "cats", "2")[0] is Code.NOT_READY
    assert not catalogue.readiness.is_ready
    shop.disk.models["cats"]["2"] = says("c2")
    await catalogue.load("cats")
    assert await answer(catalogue, "cats") == "c2"
    assert catalogue.readiness.is_ready


async def test_t2_a_dead_worker_is_not_ready(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "2": says("c2")}))
    await shop.begin()
    catalogue = shop.catalogue
    catalogue.find("cats", "2").workers.replicas[0].on_lost("Worker crashed: exited with code 3")
    assert (
        information.is_ready(catalogue, "cats"),
        information.is_ready(catalogue, "cats", "1"),
        catalogue.readiness.is_ready,
    ) == (False, True, False)
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
    assert catalogue.readiness.is_ready
    assert not_found(catalogue, "dogs")[0] is Code.NOT_FOUND
    await catalogue.load("dogs")
    assert await answer(catalogue, "dogs") == "d"
    shop.disk.models["new"] = {"1": says("n")}
    assert IndexEntry("new") in catalogue.index()
    await catalogue.load("new")
    assert await answer(catalogue, "new") == "n"


async def test_a_load_of_what_has_not_changed_does_nothing(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1"), "2": says("c2")}))
    shop.disk.digests["cats"] = "before"
    await shop.begin()
    catalogue, opened = shop.catalogue, shop.disk.opened
    await catalogue.load("cats")
    assert (len(opened), shop.told()) == (2, [("ready", "cats", "1"), ("ready", "cats", "2")])
    shop.disk.digests["cats"] = "after"
    await catalogue.load("cats")
    await catalogue.load("cats")
    assert len(opened) == 4
    await catalogue.load("cats", anew=True)
    assert len(opened) == 6
    del shop.disk.models["cats"]["1"]  # as when `versions` changes, which the digest need not say
    await catalogue.load("cats")
    assert len(opened) == 7
    assert await answer(catalogue, "cats") == "c2"


async def test_what_does_not_serve_well_is_loaded_though_nothing_has_changed(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    shop.disk.digests["cats"] = "before"
    await shop.begin()
    catalogue, opened = shop.catalogue, shop.disk.opened
    await catalogue.unload("cats")
    await catalogue.load("cats")
    assert (len(opened), await answer(catalogue, "cats")) == (2, "c")
    catalogue.find("cats").workers.replicas[0].on_lost("Worker crashed: exited with code 3")
    await catalogue.load("cats")
    assert (len(opened), await answer(catalogue, "cats")) == (3, "c")
    shop.disk.models["cats"]["1"] = lambda: Broken("c")
    shop.disk.digests["cats"] = "after"
    for number in (4, 5):  # what has failed is tried again, with the workers before still there
        assert (await refusal(catalogue.load("cats")))[0] is Code.LOAD_FAILED
        assert (len(opened), await answer(catalogue, "cats")) == (number, "c")


async def test_t15_unload_keeps_version_and_state_and_knows_its_models(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    catalogue = shop.catalogue
    await catalogue.unload("cats")
    await catalogue.unload("cats")
    assert catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]
    assert catalogue.readiness.is_ready  # it is wanted no longer
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
    shop.catalogue.spawn()
    shop.catalogue.reconciler.begin()
    loading = asyncio.ensure_future(refusal(shop.catalogue.load("cats")))
    await slow.began.wait()
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "LOADING")]
    assert shop.catalogue.find("cats").workers.health is Health.STARTING
    await shop.catalogue.unload("cats")
    assert (await loading)[0] is Code.LOAD_FAILED
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]


@pytest.mark.parametrize("turns", range(4))
async def test_unload_gives_up_a_load_however_far_it_is(turns: int, shops: Make) -> None:
    slow = Slow("c")
    shop = shops(Disk(cats={"1": lambda: slow}))
    shop.catalogue.spawn()
    shop.catalogue.reconciler.begin()
    for _ in range(turns):
        await asyncio.sleep(0)
    await shop.catalogue.unload("cats")
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]
    assert not shop.catalogue.reconciler.alive
    assert worker_of(shop.disk.opened[0]).is_stopped
    shop.disk.models["cats"] = {"1": says("c")}
    await shop.catalogue.load("cats")
    assert await answer(shop.catalogue, "cats") == "c"


@pytest.mark.parametrize("turns", range(4))
async def test_unload_gives_up_a_reload_however_far_it_is(turns: int, shops: Make) -> None:
    slow = Slow("new")
    shop = shops(Disk(cats={"1": says("old")}))
    await shop.begin()
    shop.disk.models["cats"] = {"1": lambda: slow}
    loading = asyncio.ensure_future(refusal(shop.catalogue.load("cats")))
    await until(lambda: len(shop.disk.opened) == 2)
    for _ in range(turns):
        await asyncio.sleep(0)
    await shop.catalogue.unload("cats")
    assert (await loading)[0] is Code.LOAD_FAILED
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]
    assert not shop.catalogue.reconciler.alive
    assert all(worker_of(deployment).is_stopped for deployment in shop.disk.opened)
    shop.disk.models["cats"] = {"1": says("c")}
    await shop.catalogue.load("cats")
    assert await answer(shop.catalogue, "cats") == "c"


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
    assert (catalogue.names(), catalogue.readiness.is_ready) == (["dogs"], True)
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
    removing = asyncio.ensure_future(catalogue.remove("cats"))
    await until(lambda: catalogue.index() == [IndexEntry("cats", "1", "UNLOADING")])
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
    running = held.create(NewPrediction(input=b"{}", id="mine"))
    waiting = ask(catalogue, "cats")
    shop.disk.models["cats"] = {"1": lambda: slow}
    loading = asyncio.ensure_future(catalogue.load("cats"))
    await slow.began.wait()
    assert catalogue.find("cats") is held
    assert information.is_ready(catalogue, "cats")
    assert catalogue.index() == [IndexEntry("cats", "1", "READY")]
    slow.go.set()
    await loading
    assert await answer(catalogue, "cats") == "new"
    deployment = catalogue.find("cats")
    assert deployment is not held
    predictions = deployment.predictions
    assert predictions.find("mine") is running  # it can still be found, joined and canceled
    with pytest.raises(GeartrainError) as caught:
        deployment.create(NewPrediction(id="mine"))
    assert caught.value.code is Code.CONFLICT
    with pytest.raises(GeartrainError) as caught:  # whoever has held it over the switch has to look again
        held.create(NewPrediction())
    assert caught.value.code is Code.SHUTTING_DOWN
    old = worker_of(shop.disk.opened[0])
    assert (old.is_stopped, len(catalogue.reconciler.alive)) == (False, 2)
    gate.set()
    await completion(running)
    await completion(waiting)
    assert (running.output, waiting.output) == (b'"old"', b'"old"')
    await until(lambda: old.is_stopped and catalogue.reconciler.alive == (deployment,))
    assert predictions.live == {}
    (statistics,) = information.statistics(catalogue, "cats")
    assert (statistics.success.count, statistics.inference_count) == (3, 3)


async def test_predictions_of_before_a_reload_can_be_looked_up_and_canceled_after_it(shops: Make) -> None:
    gate = asyncio.Event()
    shop = shops(Disk(cats={"1": lambda: Runner("old", gate)}))
    await shop.begin()
    catalogue = shop.catalogue
    ref = catalogue.refer("cats")
    old = ref.deployment
    over = old.create(NewPrediction(id="over", keep=True))
    gate.set()
    await completion(over)
    gate.clear()
    live, joined = old.create(NewPrediction(id="live")), old.create(NewPrediction(id="joined"))
    shop.disk.models["cats"] = {"1": says("new")}
    await catalogue.load("cats")
    assert ref.deployment is not old
    assert ref.predictions is old.predictions is ref.deployment.predictions
    assert ref.predictions.look_up("over", ANYONE) is over
    assert ref.predictions.look_up("live", ANYONE) is live
    assert ref.predictions.cancel("live", ANYONE)
    await completion(live)
    assert (live.status, ref.predictions.look_up("live", ANYONE)) == ("canceled", None)
    assert ref.deployment.executions.live == set()  # a successor waits for nobody else's
    ref.predictions.abandon(joined)
    await completion(joined)
    assert joined.status == "canceled"
    assert await answer(catalogue, "cats") == "new"
    (statistics,) = information.statistics(catalogue)
    assert (statistics.success.count, statistics.fail.count) == (2, 2)
    counts = catalogue.entry("cats").versions["1"].record.counts
    assert counts.faults["CANCELED"] == 2


async def test_counts_go_on_after_a_reload_that_failed_and_after_an_unload(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    catalogue = shop.catalogue
    await answer(catalogue, "cats")
    shop.disk.models["cats"] = {"1": lambda: Broken("x")}
    await refusal(catalogue.load("cats"))
    await answer(catalogue, "cats")
    await catalogue.unload("cats")
    assert information.statistics(catalogue) == []  # of what is served
    shop.disk.models["cats"] = {"1": says("c")}
    await catalogue.load("cats")
    await answer(catalogue, "cats")
    assert [each.success.count for each in information.statistics(catalogue)] == [3]


async def test_reload_to_another_signature_checks_by_the_new_one(shops: Make) -> None:
    gate = asyncio.Event()
    shop = shops(Disk(cats={"1": lambda: Runner("old", gate)}))
    await shop.begin()
    catalogue = shop.catalogue
    ref, before = catalogue.refer("cats"), catalogue.find("cats")
    running = before.create(NewPrediction(b'{"text":"x"}'))
    new = Numbers("new")
    new.go.set()
    shop.disk.models["cats"] = {"1": lambda: new}
    await catalogue.load("cats")
    assert [field.name for field in ref.deployment.interface.signature.inputs] == ["number"]
    assert [spec.name for spec in ref.deployment.interface.view.inputs] == ["number"]
    with pytest.raises(GeartrainError) as caught:
        ref.deployment.create(NewPrediction(b'{"text":"x"}'))
    assert caught.value.code is Code.INVALID_INPUT
    late = ref.deployment.create(NewPrediction(b'{"number":7}'))
    await completion(late)
    assert late.output == b'"new7"'
    assert [field.name for field in before.interface.signature.inputs] == ["text"]  # what still runs has what it had
    gate.set()
    await completion(running)
    assert running.output == b'"old"'


class Numbers(Slow):
    """Takes something else."""

    async def run(self, number: int = 1) -> str:  # type: ignore[override]
        return f"{self.answer}{number}"


def described(catalogue: Catalogue, name: str, version: str = "") -> tuple[list[str], tuple[str, ...]]:
    deployment, versions = information.describe(catalogue, name, version)
    return [field.name for field in deployment.interface.signature.inputs], versions


async def test_model_is_described_while_it_is_loaded_and_when_that_has_failed(shops: Make) -> None:
    slow = Slow("slow")
    shop = shops(Disk(slow={"1": lambda: slow}, bad={"2": lambda: Broken("x")}, gone={"1": "no file"}))
    catalogue = shop.catalogue
    catalogue.spawn(["slow"])
    await shop.begin("bad", "gone")
    await slow.began.wait()
    for version in ("", "1", "01"):
        assert described(catalogue, "slow", version) == (["text"], ("1",))
    assert not information.is_ready(catalogue, "slow")
    with pytest.raises(GeartrainError) as caught:
        ask(catalogue, "slow")
    assert caught.value.code is Code.NOT_READY
    for version in ("", "2"):
        assert described(catalogue, "bad", version) == (["text"], ("2",))
    for name, version in (("bad", "7"), ("gone", ""), ("nope", ""), ("slow", "7")):
        with pytest.raises(GeartrainError) as caught:
            information.describe(catalogue, name, version)
        assert caught.value.code is Code.NOT_FOUND
    slow.go.set()
    await catalogue.unload("bad")
    with pytest.raises(GeartrainError):
        information.describe(catalogue, "bad")


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
    first = shop.disk.opened[0]
    shop.disk.models["cats"] = {"2": says("c2"), "3": says("c3")}
    await shop.catalogue.load("cats")
    assert information.versions(shop.catalogue, "cats") == ("2", "3")
    assert await answer(shop.catalogue, "cats") == "c3"
    assert shop.catalogue.index() == [IndexEntry("cats", "2", "READY"), IndexEntry("cats", "3", "READY")]
    assert not_found(shop.catalogue, "cats", "1")[0] is Code.NOT_FOUND
    assert worker_of(first).is_stopped
    assert ("unloaded", "cats", "1") in shop.told()


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
    shop.catalogue.spawn(())
    leaving = asyncio.ensure_future(shop.catalogue.load("cats"))
    await slow.began.wait()
    leaving.cancel()
    slow.go.set()
    await shop.catalogue.load("cats")
    assert await answer(shop.catalogue, "cats") == "c"


async def test_after_the_end_nothing_is_loaded(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    shop.catalogue.reconciler.close()
    with pytest.raises(GeartrainError) as caught:
        ask(shop.catalogue, "cats")
    assert caught.value.code is Code.SHUTTING_DOWN
    assert (await refusal(shop.catalogue.load("cats")))[0] is Code.SHUTTING_DOWN


async def test_nothing_is_raised_or_told_before_the_loop_runs() -> None:
    disk = Disk(cats={"1": says("c"), "2": "2/run.py has no class Runner"}, worse="geartrain.yaml is wrong")
    shop = await asyncio.to_thread(_spawned, disk)  # where no loop runs
    assert (shop.told(), len(disk.opened)) == ([], 1)
    entry = shop.catalogue.entry("cats")
    assert shop.catalogue.index()[0] == IndexEntry("cats", "1", "LOADING")
    assert (await entry.report()).health is Health.UNKNOWN
    shop.catalogue.reconciler.begin()
    await asyncio.wait(entry.loading.tasks)
    assert await answer(shop.catalogue, "cats") == "c"
    assert sorted(shop.told()) == [
        ("ready", "cats", "1"),
        ("setup-failed", "cats", "2", "2/run.py has no class Runner"),
        ("setup-failed", "worse", "geartrain.yaml is wrong"),
    ]
    await shop.stop()


def _spawned(disk: Disk) -> Shop:
    shop = Shop(disk)
    shop.catalogue.spawn()
    return shop


async def test_what_is_not_loaded_at_the_start_is_no_change(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}, dogs={"1": says("d")}))
    await shop.begin("cats")
    assert shop.disk.noted == ["dogs"]


async def test_the_only_model_is_the_default_also_when_others_come_later(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}))
    await shop.begin()
    shop.disk.models["dogs"] = {"1": says("d")}
    await shop.catalogue.load("dogs")
    assert shop.catalogue.default_model == "cats"
    several = shops(Disk(cats={"1": says("c")}, dogs={"1": says("d")}))
    await several.begin()
    assert several.catalogue.default_model is None
    assert shops(Disk(), default_model="dogs").catalogue.default_model == "dogs"


# what is not there, and says so


def unavailable(entry: ModelEntry | ModelRef, version: str = "") -> str:
    """What a request is told that needs a deployment."""
    with pytest.raises(GeartrainError) as caught:
        _ = entry.deployment if isinstance(entry, ModelRef) else entry.deployment(version)
    assert caught.value.code is Code.NOT_READY
    return caught.value.message


NOT_LOADED = "The model 'cats' is not loaded. POST /v2/repository/models/cats/load loads it."


async def test_a_model_that_nobody_has_loaded_says_how_to_load_it(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c")}, dogs={"1": says("d")}))
    await shop.begin("dogs")
    entry = shop.catalogue.entry("cats")
    assert unavailable(entry) == NOT_LOADED
    report = await entry.report()
    assert (report.health, report.setup.failed, report.setup.logs) == (Health.UNKNOWN, False, "")
    assert report.setup.completed_at is None
    await shop.catalogue.load("cats")
    assert entry.deployment() is entry.deployment("1") is shop.catalogue.find("cats")
    assert (await entry.report()).health is (await entry.report("1")).health is Health.READY
    assert unavailable(entry, "2") == NOT_LOADED
    await shop.catalogue.unload("cats")
    for version in ("", "1"):
        assert unavailable(entry, version) == NOT_LOADED
        assert (await entry.report(version)).health is Health.UNKNOWN


async def test_a_model_that_could_not_be_loaded_says_why(shops: Make) -> None:
    shop = shops(Disk(cats="there is no key `replica`", dogs={"1": "run.py:3: SyntaxError", "2": says("d")}))
    await shop.begin()
    entry = shop.catalogue.entry("cats")
    assert unavailable(entry) == "The model 'cats' could not be loaded: there is no key `replica`"
    report = await entry.report()
    assert (report.health, report.setup.failed) == (Health.SETUP_FAILED, True)
    assert report.setup.logs == "there is no key `replica`\n"
    assert report.setup.completed_at == report.setup.started_at
    dogs = shop.catalogue.entry("dogs")
    assert unavailable(dogs, "1") == "The model 'dogs' could not be loaded: run.py:3: SyntaxError"
    assert (await dogs.report("1")).setup.logs == "run.py:3: SyntaxError\n"
    assert (await dogs.report()).health is Health.READY


async def test_a_model_that_failed_has_its_own_deployment_say_why_until_it_is_unloaded(shops: Make) -> None:
    shop = shops(Disk(cats={"1": lambda: Broken("x")}))
    await shop.begin()
    entry = shop.catalogue.entry("cats")
    (failed,) = shop.disk.opened
    assert entry.deployment() is entry.deployment("1") is failed
    assert (entry.has_default, entry.available) == (False, {})
    with pytest.raises(GeartrainError, match="Setup has failed"):
        failed.create(NewPrediction())
    shop.disk.models["cats"] = {"1": "run.py:3: SyntaxError"}
    assert (await refusal(shop.catalogue.load("cats")))[0] is Code.LOAD_FAILED
    assert unavailable(entry) == "The model 'cats' could not be loaded: run.py:3: SyntaxError"
    await until(lambda: worker_of(failed).is_stopped)
    await shop.catalogue.unload("cats")
    assert unavailable(entry) == NOT_LOADED
    assert shop.catalogue.index() == [IndexEntry("cats", "1", "UNAVAILABLE", "unloaded")]


# a model as a route names it


async def test_a_route_finds_what_serves_now(shops: Make) -> None:
    shop = shops(Disk(cats={"1": says("c1")}))
    await shop.begin()
    catalogue = shop.catalogue
    default, first = catalogue.refer("cats"), catalogue.refer("cats", "01")
    assert (default.version, first.version) == ("", "1")
    assert default.entry is first.entry is catalogue.entry("cats")
    assert default.deployment is first.deployment is catalogue.find("cats")
    shop.disk.models["cats"] = {"1": says("c1"), "2": says("c2")}
    await catalogue.load("cats")
    assert default.deployment is catalogue.find("cats", "2")
    assert first.deployment is catalogue.find("cats", "1")
    assert default.predictions is first.predictions is first.deployment.predictions  # of all versions
    first.deployment.workers.replicas[0].on_lost("gone")
    assert ((await default.report()).health, (await first.report()).health) == (Health.READY, Health.DEFUNCT)
    await catalogue.unload("cats")
    assert unavailable(default) == unavailable(first) == NOT_LOADED
    assert (await default.report()).health is Health.UNKNOWN


async def test_a_route_may_be_there_before_its_model_and_after_it(shops: Make) -> None:
    shop = shops(Disk(dogs={"1": says("d")}))
    await shop.begin()
    catalogue = shop.catalogue
    ref = catalogue.refer("cats")
    for version in ("7", "1"):
        with pytest.raises(GeartrainError) as caught:  # a version has to be known
            catalogue.refer("cats", version)
        assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(GeartrainError) as caught:
        catalogue.refer("dogs", "7")
    assert (caught.value.code, caught.value.message) == (
        Code.NOT_FOUND,
        "Request for unknown model: 'dogs' version 7 is not found",
    )
    await _check_unknown(ref)
    shop.disk.models["cats"] = {"1": says("c")}
    await catalogue.load("cats")
    assert ref.deployment is catalogue.find("cats")
    del shop.disk.models["cats"]
    await catalogue.remove("cats")
    await _check_unknown(ref)


async def _check_unknown(ref: ModelRef) -> None:
    for attribute in ("entry", "predictions", "deployment"):
        with pytest.raises(GeartrainError) as caught:
            getattr(ref, attribute)
        assert caught.value.code is Code.NOT_FOUND
    assert (await refusal(ref.report()))[0] is Code.NOT_FOUND


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
    failing = catalogue.find("cats").create(NewPrediction(input=b'{"text":"bad"}'))
    await completion(failing)
    one, two, dogs = information.statistics(catalogue)
    assert (one.name, one.version, one.inference_count, one.execution_count, one.fail.count) == ("cats", "1", 1, 1, 0)
    assert (two.version, two.inference_count, two.execution_count, two.fail.count) == ("2", 1, 2, 1)
    assert (dogs.name, dogs.last_inference, dogs.success.count) == ("dogs", 0, 0)
    assert one.last_inference > 1.7e12
    parts = (two.queue, two.compute_input, two.compute_infer, two.compute_output)
    assert two.success.ns > 0
    assert abs(two.success.ns - sum(part.ns for part in parts)) <= 4
    assert [each.version for each in information.statistics(catalogue, "cats")] == ["1", "2"]
    assert information.statistics(catalogue, "cats", "2") == [two]
    with pytest.raises(GeartrainError):
        information.statistics(catalogue, "cats", "9")
    with pytest.raises(GeartrainError):
        information.statistics(catalogue, "birds")


# any order of things


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "break", "remove", "load", "unload", "die", "ask"]), st.integers(1, 3)),
        max_size=25,
    )
)
@settings(max_examples=60)
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
    shop.catalogue.spawn(())
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
            catalogue.find("cats", version).workers.replicas[0].on_lost("gone")
            serving[version] = None
        await _check_answers(catalogue, serving)
    await shop.stop()


async def _check_answers(catalogue: Catalogue, serving: dict[str, str | None]) -> None:
    ready = {version for version, content in serving.items() if content is not None}
    assert {entry.version for entry in catalogue.index(ready=True)} == ready
    for version, content in serving.items():
        assert information.is_ready(catalogue, "cats", version) == (content is not None)
        if content is not None:
            assert await answer(catalogue, "cats", version) == content
    latest = max(serving, default=None)
    if latest is None:
        assert not_found(catalogue, "cats")[0] is Code.NOT_FOUND
    else:
        assert catalogue.find("cats").version == latest
        assert information.versions(catalogue, "cats") == tuple(sorted(serving))


# what lies elsewhere


async def test_model_is_fetched_before_it_is_read() -> None:
    disk = Disk(cats={"1": says("meow")})
    going, reached = asyncio.Event(), asyncio.Event()

    async def fetch(download: Download) -> None:
        download.begin("s3://bucket/cats")
        reached.set()
        await going.wait()

    disk.remote["cats"] = fetch
    shop = Shop(disk)
    shop.catalogue.spawn()
    entry = shop.catalogue.entry("cats")
    assert (await entry.report()).health is Health.STARTING, "before the loop has begun with it"
    shop.catalogue.reconciler.begin()
    await asyncio.wait_for(reached.wait(), 40)
    report = await entry.report()
    assert (report.health, report.setup.logs) == (Health.STARTING, "Looking at s3://bucket/cats.\n")
    assert shop.catalogue.readiness.reasons() == ["Model 'cats': no version loading; Looking at s3://bucket/cats."]
    asks: tuple[Callable[[], object], ...] = (lambda: shop.catalogue.find("cats"), entry.deployment)
    for ask in asks:
        with pytest.raises(
            GeartrainError, match=r"The model 'cats' is not ready\. Looking at s3://bucket/cats\."
        ) as caught:
            ask()
        assert caught.value.code is Code.NOT_READY
    assert not disk.opened
    assert [name for name, _ in information.downloads(shop.catalogue)] == ["cats"]
    loads = set(entry.loading.tasks)
    going.set()
    await asyncio.wait(loads, timeout=40)
    assert (await entry.report()).health is Health.READY
    assert shop.catalogue.readiness.is_ready
    assert not entry.loading.download.is_active
    await shop.catalogue.reconciler.stop()


async def test_fetch_that_fails_is_a_failed_setup() -> None:
    disk = Disk(cats={"1": says("meow")})
    faults = ["no room"]

    async def fetch(_download: Download) -> None:
        for fault in faults:
            raise LoadError(fault)

    disk.remote["cats"] = fetch
    shop = Shop(disk)
    shop.catalogue.spawn()
    shop.catalogue.reconciler.begin()
    entry = shop.catalogue.entry("cats")
    await asyncio.wait(set(entry.loading.tasks), timeout=40)
    assert [(step.stage, step.reason) for step in shop.steps] == [("setup-failed", "no room")]
    report = await entry.report()
    assert (report.health, report.setup.logs) == (Health.SETUP_FAILED, "no room\n")
    faults.clear()
    await shop.catalogue.load("cats")
    assert (await entry.report()).health is Health.READY
    faults.append("gone")
    with pytest.raises(GeartrainError, match="gone"):
        await shop.catalogue.load("cats")
    assert (await entry.report()).health is Health.READY, "what there is goes on"
    await shop.catalogue.reconciler.stop()


async def test_end_of_the_server_cancels_a_fetch() -> None:
    disk = Disk(cats={"1": says("meow")})
    reached, canceled = asyncio.Event(), asyncio.Event()

    async def fetch(_download: Download) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            canceled.set()

    disk.remote["cats"] = fetch
    shop = Shop(disk)
    shop.catalogue.spawn()
    shop.catalogue.reconciler.begin()
    await asyncio.wait_for(reached.wait(), 40)
    shop.catalogue.reconciler.cease()
    await asyncio.wait_for(canceled.wait(), 40)
    await shop.catalogue.reconciler.stop()
    assert not disk.opened
