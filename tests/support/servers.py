"""A server in the test's own process, on real sockets, with a real worker; and the same as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil
import pytest
import pytest_asyncio

from geartrain.bridge.child import ChildWorker
from geartrain.domain.predictions.prediction import Prediction
from geartrain.project.source import find_model
from geartrain.server import App, ServeOptions, build, listen
from geartrain.server.http import QUIET, HttpServer, large_bodies, make_handler
from geartrain.service.durable.history import HistoryWriter
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.predictions import Predictions
from geartrain.service.models.trainings import Trainings
from geartrain.service.webhooks import Webhooks
from geartrain.service.workers.pool import WorkerPool
from geartrain.transport.access.access import Access
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.asgi import AsgiApplication
from geartrain.transport.records import RequestRecords
from geartrain.transport.wire.exchange import Handler
from tests.support import modes
from tests.support.clients import asyncio_client
from tests.support.responders import NOBODY

if TYPE_CHECKING:
    import httpx

    from tests.support.haproxy import Front


LOG_PATIENCE: Final = 120.0  # seconds until the next line of a log, such as of a model that takes long to load
PATIENCE: Final = 40.0  # seconds that a test waits for what has to come, on a machine that is busy with others


class LiveServer:
    """A server under test. `client` talks to it over a real socket; `root` is the model's folder."""

    def __init__(self, url: str, client: httpx.AsyncClient, deployment: Deployment) -> None:
        self.url = url
        self.client = client
        self.deployment = deployment
        self.trainings: Trainings | None = None
        self.app: App
        self.root = Path()
        self._admitted: dict[str, Prediction] = {}
        create = deployment.create

        def create_and_remember(new: NewPrediction) -> Prediction:
            prediction = create(new)
            self._admitted[prediction.id] = prediction
            return prediction

        deployment.create = create_and_remember  # type: ignore[method-assign]

    def remember_nothing(self) -> None:
        """Keep no prediction from now on: what it refers to goes with its request, as in a server."""
        vars(self.deployment).pop("create", None)

    @property
    def workers(self) -> WorkerPool:
        """The workers of the model."""
        return self.deployment.workers

    @property
    def predictions(self) -> Predictions:
        """The predictions of the model."""
        return self.deployment.predictions

    @property
    def webhooks(self) -> Webhooks:
        """What sends the webhooks of the model."""
        settings = self.deployment.settings
        return self.app.outbound.webhooks(settings.webhook_token, settings.webhook_interval)

    @property
    def worker(self) -> ChildWorker:
        """The latest worker of the first replica."""
        worker = self.workers.replicas[0].worker
        assert isinstance(worker, ChildWorker)
        return worker

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self.worker._process.pid

    async def predict(self, values: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """POST a prediction that is expected to be admitted; return its body."""
        response = await self.client.post("/predictions", json={"input": values or {}, **fields})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    async def start(self, values: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """POST a prediction that goes on in the background; return what the client is told."""
        headers = {"prefer": "respond-async"}
        response = await self.client.post("/predictions", json={"input": values or {}, **fields}, headers=headers)
        assert response.status_code == 202, response.text
        body: dict[str, Any] = response.json()
        return body

    def newest(self) -> Prediction:
        """The prediction that was admitted last."""
        return list(self._admitted.values())[-1]

    async def said(self, prediction_id: str, text: str) -> Prediction:
        """Wait until a prediction, which may yet have to be admitted, has printed `text`."""
        return await self._until(prediction_id, lambda prediction: text in prediction.logs)

    async def ended(self, prediction_id: str) -> Prediction:
        """Wait for the end of a prediction, which may yet have to be admitted."""
        return await self._until(prediction_id, lambda prediction: prediction.is_terminal)

    async def _until(self, prediction_id: str, condition: Callable[[Prediction], bool]) -> Prediction:
        await eventually(lambda: prediction_id in self._admitted)
        prediction = self._admitted[prediction_id]
        event = asyncio.Event()
        prediction.log.listen(lambda _: event.set())
        async with asyncio.timeout(PATIENCE):
            while not condition(prediction):
                assert not prediction.is_terminal, f"it ended: {prediction.status} {prediction.error} {prediction.logs}"
                await event.wait()
                event.clear()
        return prediction

    def of_trainings(self) -> LiveServer:
        """The same server, as what `said`, `ended` and the like say of its trainings."""
        assert self.trainings is not None
        found = LiveServer(self.url, self.client, self.trainings.ref.deployment)
        found.app, found.root = self.app, self.root
        return found

    def open_gate(self, name: str = "go") -> None:
        """Let the model pass where it waits for a file of that name in its folder."""
        (self.root / name).touch()

    async def health(self) -> dict[str, Any]:
        """GET the health."""
        response = await self.client.get("/health-check")
        assert response.status_code == 200
        body: dict[str, Any] = response.json()
        return body


async def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def wait_for_waiting(client: httpx.Client, count: int) -> None:
    """Wait until so many predictions wait for a slot of the server's one model."""

    def are_there() -> bool:
        text = client.get("/metrics").text
        found = re.search(r"^geartrain_predictions_waiting\{.*\} (\d+)", text, re.MULTILINE)
        return found is not None and int(found[1]) == count

    asyncio.run(eventually(are_there))


def answer_together(
    client: httpx.Client, gate: Path, hold: Callable[[], httpx.Response], *asks: Callable[[], httpx.Response]
) -> list[httpx.Response]:
    """Make requests wait for a model at the same moment; return their answers.

    `hold` asks the model to read the pipe `gate` first, and has to succeed.
    """
    with ThreadPoolExecutor(len(asks) + 1) as pool:
        held = pool.submit(hold)
        with gate.open("w"):  # by then it runs
            waiting = [pool.submit(each) for each in asks]
            wait_for_waiting(client, len(asks))
        answers = [each.result() for each in waiting]
    assert held.result().status_code == 200, held.result().text
    return answers


def listening_ports(pid: int) -> set[int]:
    """Return the ports that a process and its descendants listen on."""
    process = psutil.Process(pid)
    found = set()
    for each in (process, *process.children(recursive=True)):
        connections = getattr(each, "net_connections", None) or each.connections  # its name before psutil 6
        found |= {connection.laddr.port for connection in connections() if connection.status == psutil.CONN_LISTEN}
    return found


def readers(prediction: Prediction) -> int:
    """Count who reads a prediction, but for the store."""
    listeners = prediction.log._listeners
    return sum(not isinstance(getattr(each, "__self__", None), HistoryWriter) for each in listeners)


Serve = Callable[..., AbstractAsyncContextManager[LiveServer]]


def write_model(folder: Path, source: str, cog_yaml: str | None = None) -> Path:
    """Write `run.py` (dedented), and a `cog.yaml` if given."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "run.py").write_text(textwrap.dedent(source))
    if cog_yaml is not None:
        (folder / "cog.yaml").write_text(textwrap.dedent(cog_yaml))
    return folder


@contextlib.asynccontextmanager
async def serve_folder(
    folder: Path,
    *,
    ready: bool = True,
    environ: dict[str, str] | None = None,
    mode: Literal["predict", "train"] = "predict",
    quiet: float = QUIET,
    **options: Any,
) -> AsyncIterator[LiveServer]:
    """Serve the model in a folder; `ready=False` does not wait for its setup.

    URLs may lead to receivers on this machine, unless `options` say otherwise.
    """
    if modes.current().is_replicated:
        async with _replicas(folder, ready=ready, environ=environ, mode=mode, quiet=quiet, **options) as server:
            yield server
        return
    access = modes.current().access(options.pop("access", AccessOptions()))
    options = {"allow_private_urls": True, "access": access, "store": modes.current().store(), **options}
    found = find_model(str(folder), environ=environ or {}, mode=mode)
    app = build(ServeOptions(source=found, host="127.0.0.1", port=0, **options))
    app.spawn()
    serving = _inside_uvicorn if modes.current().is_hosted else _by_itself
    try:
        await app.start()
    except BaseException:
        await app.kill()  # the worker has been spawned
        await app.outbound.close()
        raise
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(app.stop)
        url = await stack.enter_async_context(serving(app, quiet))
        if modes.current().is_fronted:
            url = stack.enter_context(_front(url)).url
        client = await stack.enter_async_context(asyncio_client(url))
        server = LiveServer(url, client, app.catalogue.entry(found.name).deployment())
        server.app = app
        server.trainings = app.trainings
        server.root = folder
        if ready:
            await app.ready()
        yield server


def _replicas(
    folder: Path, *, ready: bool, environ: dict[str, str] | None, mode: str, quiet: float, **options: Any
) -> AbstractAsyncContextManager[LiveServer]:
    from tests.support.replicas import serve_replicas  # few runs have Ray

    if not ready or mode != "predict" or quiet != QUIET:
        pytest.skip("replicas train nothing alone, and are asked when ready")
    return serve_replicas(folder, environ or {}, **{"allow_private_urls": True, **options})


def _front(target: str) -> AbstractContextManager[Front]:
    from tests.support.haproxy import fronted  # few runs have Ray

    return fronted(target)


@contextlib.asynccontextmanager
async def _by_itself(app: App, quiet: float) -> AsyncIterator[str]:
    mode = modes.current()
    access = Access(app.options.access, "")  # of any name: most tests do not care how they call the server
    http = HttpServer(app, access, quiet=quiet)
    listener = listen("127.0.0.1", 0)
    url = f"{mode.scheme}://127.0.0.1:{listener.getsockname()[1]}"
    http.listen(listener, mode.tls)
    serving = asyncio.ensure_future(http.serve())
    try:
        yield url
    finally:
        http.force_stop()
        app.cancel_all()
        await serving


@contextlib.asynccontextmanager
async def _inside_uvicorn(app: App, quiet: float) -> AsyncIterator[str]:
    from tests.support.hosts import hosted  # most runs need no other server

    with contextlib.closing(large_bodies(app)) as bodies:

        async def start() -> Handler:
            return make_handler(app, bodies, quiet=quiet)

        async def stop() -> None:
            """The app ends after the block."""

        async with hosted("uvicorn", AsgiApplication(start, stop, RequestRecords(NOBODY).of)) as url:
            try:
                yield url
            finally:
                app.cancel_all()


def _serve_in(parent: Path) -> Serve:
    def start(
        source: str | Path, *, name: str = "model", cog_yaml: str | None = None, **options: Any
    ) -> AbstractAsyncContextManager[LiveServer]:
        folder = source if isinstance(source, Path) else write_model(parent / name, source, cog_yaml)
        return serve_folder(folder, **options)

    return start


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve a model given by its source or its folder; options as of `serve_folder`."""
    return _serve_in(tmp_path)


@pytest.fixture(scope="module")
def serve_shared(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """As `serve`, for a server that the tests of a module share."""
    return _serve_in(tmp_path_factory.mktemp("shared"))


ServeOnce = Callable[[str], Awaitable[LiveServer]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serve_once(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServeOnce]:
    """Serve each model of a module once, from the first test that needs it until the end of the module.

    Such tests run in the loop of their module: `pytestmark = pytest.mark.asyncio(loop_scope="module")`.
    """
    servers: dict[str, LiveServer] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def start(source: str) -> LiveServer:
            if source not in servers:
                serving = _serve_in(tmp_path_factory.mktemp("once"))(source)
                servers[source] = await stack.enter_async_context(serving)
            return servers[source]

        yield start


@pytest.fixture
def setup_ends() -> Callable[[LiveServer], Awaitable[None]]:
    """Wait until setup is over, well or not."""

    async def wait(server: LiveServer) -> None:
        async with asyncio.timeout(PATIENCE):
            while server.workers.setup.completed_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    return wait


_ADDRESS: Final = ("--host", "127.0.0.1", "--port", "0")
_NAMES: Final = ("--allowed-host", "test", "--allowed-host", "t", "--allowed-host", "h")  # in the tests' `Host` fields


class ServerProcess:
    """`geartrain serve` as a process of its own; its log lines are JSON."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        grpc: tuple[str, ...] = ("--grpc-port", "off"),
        under: tuple[str, ...] = (),
    ) -> None:
        """Start it, `under` another program if one is given; gRPC is off unless `arguments` or `grpc` say otherwise."""
        if modes.current().is_hosted:
            pytest.skip("a process of its own has its own wire")
        grpc = () if "--grpc-port" in arguments else grpc
        kept = modes.current().store()
        has_own = "--store" in arguments or not kept.url
        store = () if has_own else ("--store", kept.url, "--store-key-file", str(kept.key_file))
        self.popen = subprocess.Popen(
            [
                *under,
                sys.executable,
                "-m",
                "geartrain",
                "serve",
                *arguments,
                *grpc,
                *modes.current().arguments,
                *store,
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                *_NAMES,
            ],
            env={**os.environ, "LOG_FORMAT": "json", **(env or {})},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=cwd,
        )
        self.lines: list[dict[str, Any]] = []  # that have been waited for, with those before them
        self._ready_early: list[dict[str, Any]] = []
        self._coming: queue.SimpleQueue[str] = queue.SimpleQueue()  # an empty one at the end
        self._fronts = contextlib.ExitStack()
        # A server whose log nobody reads stands still when the pipe is full.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for text in self.popen.stderr:
            self._coming.put(text)
        self._coming.put("")

    def rest(self) -> Iterator[str]:
        """Yield each line that is still to come, until the server has ended."""
        while text := self._coming.get(timeout=LOG_PATIENCE):
            yield text
        self._coming.put("")

    def read_to_the_end(self) -> list[dict[str, Any]]:
        """Return all lines of the log of a server that is about to end."""
        self.lines += [json.loads(text) for text in self.rest()]
        return self.lines

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read log lines until the one that says so."""
        return self.wait_for_one(event)

    def wait_for_one(self, *events: str) -> dict[str, Any]:
        """Read log lines until one that says one of these.

        With a store a model may be ready before the server listens: who has waited for that finds it ready afterwards.
        """
        if "ready" in events and self._ready_early:
            return self._ready_early.pop(0)
        for text in self.rest():
            line: dict[str, Any] = json.loads(text)
            if modes.current().is_fronted:
                self._front(line)
            self.lines.append(line)
            if not {line.get("event"), line.get("message"), line.get("stage")}.isdisjoint(events):
                return line
            if line.get("message") == "ready" and set(events) == {"listening"}:
                self._ready_early.append(line)
        pytest.fail(f"the server ended without saying {' or '.join(events)}: {self.lines}")

    def _front(self, line: dict[str, Any]) -> None:
        """Put HAProxy in front of what the server says that it listens on."""
        said = {line.get(name) for name in ("event", "message", "stage")}
        url = line.get("url", "")
        if "listening" in said and url.startswith("http:"):
            line["url"] = self._fronts.enter_context(_front(url)).url
        elif "listening-grpc" in said and not url.startswith("unix:"):
            line["url"] = self._fronts.enter_context(_front(url)).grpc

    def end(self) -> None:
        """Make sure nothing is left."""
        self._fronts.close()
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()
        self._reader.join(PATIENCE)
        if self.popen.stderr is not None:
            self.popen.stderr.close()


def start_process(*arguments: str, **options: Any) -> ServerProcess:
    """Start `geartrain serve` with arguments, or replicas in its place; the first is what to serve."""
    if not modes.current().is_replicated:
        return ServerProcess(*arguments, **options)
    from tests.support.replicas import ReplicaProcess  # few runs have Ray

    return ReplicaProcess(*arguments, **options)


@pytest.fixture
def server_process() -> Iterator[Callable[..., ServerProcess]]:
    """Start `geartrain serve` with arguments."""
    started: list[ServerProcess] = []

    def start(*arguments: str, **options: Any) -> ServerProcess:
        started.append(start_process(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.end()
