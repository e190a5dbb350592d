"""`geartrain.asgi`: what its options mean, and what it starts and stops. The workers have no process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import geartrain
import geartrain.server.http
import geartrain.server.repository
from geartrain.domain.predictions.statistics import Buckets
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.setting_values import Devices
from geartrain.server import App, ServeOptions
from geartrain.server.asgi import read_options
from geartrain.server.asgi_options import AsgiOptions
from geartrain.server.options import CacheOptions, StoreOptions
from geartrain.server.workers import Placement
from geartrain.service.workers.pool import ModelSetupError, RestartPolicy
from geartrain.transport.access_log import AccessLogOptions
from geartrain.transport.wire.exchange import Answer, Head
from tests.support.fakes import FakeWorker

RUNNER = "class Runner:\n    def run(self, name: str) -> str: ...\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "run.py").write_text(RUNNER)
    return tmp_path / "cats"


# Options


def test_what_is_not_said_is_as_for_serve(model: Path) -> None:
    options = read_options(model, {})
    expected = ServeOptions(source=options.source, target=str(model), allow_private_urls=False)
    assert options == expected
    assert options.model.name == "cats"


def test_every_option_arrives(model: Path) -> None:
    given: AsgiOptions = {
        "wait_ready": True,
        "default_model": "cats",
        "load": ["cats"],
        "replicas": 2,
        "devices": "cuda:1",
        "reload": True,
        "no_pickle": True,
        "queue": 3,
        "inference_queue": 4,
        "keep": 5.0,
        "run_timeout": 6.0,
        "cancel_grace": 7.0,
        "stream_grace": 7.5,
        "max_output_size": 18,
        "setup_timeout": 8.0,
        "shutdown_grace": 9.0,
        "restart": "on-crash",
        "restart_limit": 10,
        "max_body_size": 11,
        "max_download_size": 12,
        "upload_url": "https://files.example/",
        "allow_private_urls": True,
        "api": "kserve,azure",
        "shared_memory": True,
        "health_body": True,
        "cache_dir": model.parent / "cache",
        "verify_cache": True,
        "latency_buckets": [0.5, 1],
        "size_buckets": (10,),
        "store": "sqlite:///store.db",
        "store_key_file": "keys",
        "store_keep": 14.0,
        "store_size": 15,
        "lease": 16.0,
        "attempts": 17,
        "wakeup": "blocking",
        "mirror_prints": "on",
        "access_log": "sampled:13",
    }
    assert given.keys() == AsgiOptions.__annotations__.keys()
    options = read_options(model.parent, given)
    assert isinstance(options.source, Repository)
    assert options.access_log == AccessLogOptions("sampled", 13)
    limits = options.limits
    assert limits.max_output_size == 18
    assert (limits.queue, limits.keep, limits.run_timeout, limits.cancel_grace) == (3, 5.0, 6.0, 7.0)
    assert limits.stream_grace == 7.5
    assert (options.default_model, options.load, options.replicas, options.reload) == (
        "cats",
        frozenset({"cats"}),
        2,
        True,
    )
    assert (options.inference_queue, options.setup_timeout, options.shutdown_grace) == (4, 8.0, 9.0)
    assert options.devices == Devices("named", ("cuda:1",))
    assert options.restarts == RestartPolicy(limit=10)
    assert (options.max_body_bytes, options.max_download_bytes) == (11, 12)
    assert (options.upload_url, options.allow_private_urls) == ("https://files.example/", True)
    assert options.buckets == Buckets((0.5, 1), (10,))
    assert options.store == StoreOptions(
        url="sqlite:///store.db", key_file=Path("keys"), keep=14.0, max_bytes=15, lease=16.0, attempts=17
    )
    assert (options.shared_memory, options.health_body, options.wakeup) == (True, True, "blocking")
    assert options.api == "kserve,azure"
    assert options.mirror_prints == "on"
    assert options.cache == CacheOptions(model.parent / "cache", verify=True)


def test_zero_is_no_limit_where_it_is_for_serve(model: Path) -> None:
    limits = read_options(model, {"run_timeout": 0, "cancel_grace": 0, "keep": 0}).limits
    assert (limits.run_timeout, limits.cancel_grace, limits.keep) == (None, None, 0)


def test_model_that_is_not_there_is_an_error_at_once(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ProjectError, match="nope"):
        geartrain.asgi(tmp_path / "nope")
    with pytest.raises(ProjectError, match="there is no model 'dogs'; there are cats"):
        geartrain.asgi(tmp_path, load=["dogs"])
    with pytest.raises(ProjectError, match="there is no model 'dogs'; there are cats"):
        geartrain.asgi(model, default_model="dogs")


def test_devices_that_are_none_are_an_error(model: Path) -> None:
    with pytest.raises(ProjectError, match="`devices` is 'gpu'; write auto, cpu, or names such as cuda:0,cuda:1"):
        geartrain.asgi(model, devices="gpu")


def test_unknown_option_is_an_error(model: Path) -> None:
    with pytest.raises(TypeError, match="asgi\\(\\) knows no option port; it has wait_ready, "):
        geartrain.asgi(model, port=1)  # type: ignore[call-arg]


# Start and stop


class Runner:
    async def run(self, name: str) -> str:
        return name


class BrokenRunner(Runner):
    def setup(self, say: Any) -> None:
        say("stdout", "loading\n")
        raise RuntimeError("boom")


class NoHandler:
    """Answers with the state of its app."""

    def __init__(self, app: App) -> None:
        self.app = app

    def begin(self, head: Head) -> Answer:
        is_ready = self.app.catalogue.readiness.is_ready
        return Answer(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)


class Bench:
    """Makes workers without a process, and handlers of the apps that were built."""

    def __init__(self) -> None:
        self.runner = Runner()
        self.workers: list[FakeWorker] = []
        self.apps: list[App] = []

    def launch(
        self, _source: object, observer: Any, *, wakeup: str, placement: Placement, debugging: object
    ) -> FakeWorker:
        self.workers.append(FakeWorker(self.runner, observer))
        return self.workers[-1]

    def make_handler(self, app: App, _bodies: object, **_options: object) -> NoHandler:
        self.apps.append(app)
        return NoHandler(app)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench()
    monkeypatch.setattr(geartrain.server.repository, "launch", bench.launch)
    monkeypatch.setattr(geartrain.server.http, "make_handler", bench.make_handler)
    yield bench
    assert all(worker.is_stopped for worker in bench.workers)


async def status_of(app: Any) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
    return int(sent[0]["status"])


async def test_lifespan_runs_the_workers_and_each_one_has_its_own(bench: Bench, model: Path) -> None:
    app = geartrain.asgi(model, wait_ready=True)
    assert not bench.workers
    for count in (1, 2):
        async with app.lifespan():
            assert len(bench.workers) == count
            assert not bench.workers[-1].is_stopped
            assert await status_of(app) == HTTPStatus.OK
        assert bench.workers[-1].is_stopped
    assert bench.apps[0] is not bench.apps[1]


async def test_start_does_not_wait_for_the_model_unless_it_is_told_to(bench: Bench, model: Path) -> None:
    app = geartrain.asgi(model)
    async with app.lifespan():
        assert await status_of(app) == HTTPStatus.SERVICE_UNAVAILABLE


async def test_model_that_cannot_be_ready_fails_the_start(bench: Bench, model: Path) -> None:
    bench.runner = BrokenRunner()
    app = geartrain.asgi(model, wait_ready=True)
    with pytest.raises(ModelSetupError, match="boom"):
        async with app.lifespan():
            pytest.fail("it started")
    assert len(bench.workers) == 1


async def test_one_of_several_models_that_cannot_be_ready_does_not(bench: Bench, model: Path) -> None:
    bench.runner = BrokenRunner()
    app = geartrain.asgi(model.parent, wait_ready=True)
    async with app.lifespan():
        assert await status_of(app) == HTTPStatus.SERVICE_UNAVAILABLE
        assert not bench.apps[0].catalogue.entry("cats").loading.tasks


async def test_stop_that_is_canceled_kills_the_workers(bench: Bench, model: Path) -> None:
    app = geartrain.asgi(model, wait_ready=True)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with app.lifespan():
            entered.set()
            await leave.wait()

    task = asyncio.ensure_future(live())
    await entered.wait()
    hung = asyncio.Event()

    async def never_stop(**_options: Any) -> None:
        hung.set()
        await asyncio.Event().wait()

    bench.apps[0].stop = never_stop  # type: ignore[method-assign]
    leave.set()
    await hung.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
