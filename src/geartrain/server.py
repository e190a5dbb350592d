"""Wires the rooms together: a start list, and its mirrored stop list."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from geartrain import __version__
from geartrain.apis import cog
from geartrain.bridge.child import ChildWorker, Launch, SetupError
from geartrain.domain.events import DEFAULT_CAPACITY
from geartrain.domain.lifecycle import Health
from geartrain.domain.signature import Signature
from geartrain.domain.work import WorkerObserver
from geartrain.outbound.policy import UrlPolicy
from geartrain.outbound.webhooks import Retries, WebhookSender
from geartrain.project.source import ModelSource
from geartrain.service.model import Model, ModelSetupError, Noun
from geartrain.service.ondemand import OnDemandWorker
from geartrain.service.ports import InputFilesPort
from geartrain.service.predictions import Limits, PredictionService
from geartrain.service.restarts import RestartPolicy
from geartrain.service.served import Served
from geartrain.service.trainings import Trainings
from geartrain.service.webhooks import DEFAULT_INTERVAL, Webhooks

if TYPE_CHECKING:
    from uvicorn import Server

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_DOWNLOAD_SILENCE = 10.0  # seconds without a byte; observed Cog, section 15
_STOP_GRACE = 1.0  # seconds that a worker without work has to end by itself


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """A step of the start, for whoever shows it."""

    stage: str  # "listening", "setup-output", "ready", "setup-failed", "stopping"
    model: str
    url: str = ""
    slots: int = 0
    text: str = ""  # of setup-output: what was printed; of setup-failed: the reason


def log_progress(progress: Progress) -> None:
    """Log a step: the stage as the message, the rest as fields."""
    fields = {name: value for name, value in dataclasses.asdict(progress).items() if value and name != "stage"}
    logger.log(logging.ERROR if progress.stage == "setup-failed" else logging.INFO, progress.stage, extra=fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """How webhooks are sent. Times in seconds."""

    interval: float = DEFAULT_INTERVAL  # the least time between two of output and logs
    token: str | None = dataclasses.field(default=None, repr=False)
    retries: Retries = dataclasses.field(default_factory=Retries)
    grace: float = 10.0  # at the end, for what predictions that have ended still have to tell


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What an operator decides. Sizes in bytes, times in seconds; None means no limit."""

    source: ModelSource
    host: str = "0.0.0.0"  # noqa: S104 - a container is reached from outside
    port: int = 5000
    upload_url: str | None = None
    await_explicit_shutdown: bool = False
    max_body_bytes: int = 100 * 1024**2
    max_download_bytes: int = 100 * 1024**2
    setup_timeout: float | None = None
    shutdown_grace: float | None = 30.0
    training_idle: float | None = 300.0  # how long the worker of a training stays without work
    limits: Limits = dataclasses.field(default_factory=Limits)
    restarts: RestartPolicy | None = None  # after a crash of the worker; None: it stays DEFUNCT
    allow_private_urls: bool | None = None  # None: only when the host is a loopback address
    webhooks: WebhookOptions = WebhookOptions()
    stream_history: int = DEFAULT_CAPACITY  # events of a prediction that are kept for late readers
    on_progress: Callable[[Progress], None] = log_progress
    on_download: Callable[[str, int, int | None], None] | None = None  # of an input; see `InputFiles`


class PortInUseError(Exception):
    """The address to serve on cannot be had."""


def run_server(options: ServeOptions) -> int:
    """Serve until told to stop; return the exit code. Raises `PortInUseError` before anything was started."""
    listener = _listen(options.host, options.port)
    early = _EarlySignals()
    model = new_model(options)
    worker = launch(options.source, model)  # at once: it starts while we import
    import uvloop

    return uvloop.run(_serve(options, model, worker, listener=listener, early=early))


class _EarlySignals:
    """Remembers the signals that come before there is a loop to handle them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.seen.append(got))


def new_model(options: ServeOptions) -> Model:
    """Make the model of the options, with no worker yet."""
    noun: Noun = "training" if options.source.mode == "train" else "prediction"
    model = Model(options.source.name, restarts=options.restarts, noun=noun)
    model.respawn = lambda: launch(options.source, model)
    return model


def launch(source: ModelSource, observer: WorkerObserver, *, inspect: bool = False) -> ChildWorker:
    """Spawn the worker of a model; `inspect` for one that only tells its signature."""
    what = Launch(
        runner=source.runner,
        root=source.root,
        environment=source.environment,
        slots=source.max_concurrency,
        mode=source.mode,
        weights=os.environ.get("COG_WEIGHTS"),
        inspect=inspect,
    )
    return ChildWorker(what, observer)


@contextlib.asynccontextmanager
async def open_service(options: ServeOptions) -> AsyncIterator[PredictionService]:
    """Give a service whose model is ready, with no door; raise `ModelSetupError` if it cannot be made ready."""
    model = new_model(options)
    _show_setup(model, options)
    worker = launch(options.source, model)
    async with _workspace(options, model) as service:
        try:
            await model.start(worker, time_limit=options.setup_timeout)
            yield service
        finally:
            service.close()
            service.cancel_all()
            await service.drain(_STOP_GRACE)
            await model.stop(_STOP_GRACE if model.health is Health.READY else 0)


async def read_model(source: ModelSource) -> Signature:
    """Load a model in a worker, without setup, and return its signature; raise `ModelSetupError` with the reason."""
    model = Model(source.name)
    worker = launch(source, model, inspect=True)
    try:
        return (await worker.start()).signature
    except SetupError as error:
        raise ModelSetupError(str(error), model.setup.logs) from error
    finally:
        await worker.stop(_STOP_GRACE)


async def _serve(
    options: ServeOptions, model: Model, worker: ChildWorker, *, listener: socket.socket, early: _EarlySignals
) -> int:
    from geartrain.transport.http.server import make_http_server, tune_collector

    _show_setup(model, options)
    async with open_all(options, model) as served:
        http = make_http_server(
            served.predictions,
            trainings=served.trainings,
            max_body_bytes=options.max_body_bytes,
            log_level=logging.WARNING,
            grace=options.shutdown_grace,
        )
        tune_collector()
        with _signals(options, http, served, model=model, early=early):
            setup = asyncio.ensure_future(_set_up(options, model, worker))
            url = f"http://{_address(options.host, listener.getsockname()[1])}"
            options.on_progress(Progress(stage="listening", model=model.name, url=url))
            await http.serve(sockets=[listener])
            options.on_progress(Progress(stage="stopping", model=model.name))
            setup.cancel()
            served.close()
            if not await served.drain(http.grace_left()):
                served.cancel_all()
                await served.drain(_STOP_GRACE)
            await model.stop(_STOP_GRACE if model.health is Health.READY else 0)
            await served.drain_webhooks(options.webhooks.grace if not http.force_exit else _STOP_GRACE)
    return 0


@contextlib.asynccontextmanager
async def open_all(options: ServeOptions, model: Model) -> AsyncIterator[Served]:
    """Give what is to be served: the model, and its training if it has one. Nothing is started."""
    async with _workspace(options, model) as service:
        training = options.source.training()
        if options.source.mode == "train":
            yield Served(None, Trainings(service))
        elif training is None:
            yield Served(service, None)
        else:
            async with _trainings(options, training) as trainings:
                yield Served(service, trainings)


@contextlib.asynccontextmanager
async def _trainings(options: ServeOptions, source: ModelSource) -> AsyncIterator[Trainings]:
    model = Model(source.name, noun="training")
    worker = OnDemandWorker(
        functools.partial(launch, source),
        on_load_output=model.on_setup_log,
        idle_limit=options.training_idle,
        setup_limit=options.setup_timeout,
    )
    async with _workspace(options, model) as service:
        trainings = Trainings(service, lambda: model.start(worker, time_limit=options.setup_timeout))
        try:
            yield trainings
        finally:
            await trainings.stop(_STOP_GRACE)


async def _set_up(options: ServeOptions, model: Model, worker: ChildWorker) -> None:
    try:
        await model.start(worker, time_limit=options.setup_timeout)
    except ModelSetupError as error:
        options.on_progress(Progress(stage="setup-failed", model=model.name, text=error.reason))
    else:
        options.on_progress(Progress(stage="ready", model=model.name, slots=model.permits.size))


@contextlib.asynccontextmanager
async def _workspace(options: ServeOptions, model: Model) -> AsyncIterator[PredictionService]:
    from geartrain.outbound.uploads import OutputDestinations
    from geartrain.outbound.workspace import Workspace

    workspace = Workspace()
    outputs = OutputDestinations(_policy(options), upload_url=options.upload_url, user_agent=f"geartrain/{__version__}")
    webhooks = _webhooks(options)
    try:
        service = PredictionService(
            model,
            outputs=outputs,
            input_files=lambda: _input_files(options, model),
            new_folder=workspace.folder,
            history=options.stream_history,
            limits=options.limits,
        )
        service.webhooks = webhooks
        yield service
    finally:
        await webhooks.close()
        await outputs.close()
        await workspace.close()


def _input_files(options: ServeOptions, model: Model) -> InputFilesPort:
    from geartrain.outbound.inputs import InputFiles

    return InputFiles(
        model.signature,
        policy=_policy(options),
        max_bytes=options.max_download_bytes,
        timeout=_DOWNLOAD_SILENCE,
        user_agent=os.environ.get("COG_USER_AGENT"),
        on_bytes=options.on_download,
    )


def _webhooks(options: ServeOptions) -> Webhooks:
    sender = WebhookSender(
        _policy(options),
        user_agent=f"geartrain/{__version__}",
        token=options.webhooks.token,
        retries=options.webhooks.retries,
    )
    return Webhooks(sender, cog.encode_webhook, interval=options.webhooks.interval)


def _policy(options: ServeOptions) -> UrlPolicy:
    allow = _is_loopback(options.host) if options.allow_private_urls is None else options.allow_private_urls
    return UrlPolicy(allow_private=allow)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        where = _address(host, port)
        msg = f"cannot listen on {where}: {error.strerror or error}. Choose another with --host and --port."
        raise PortInUseError(msg) from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _show_setup(model: Model, options: ServeOptions) -> None:
    def show(_source: object, text: str) -> None:
        options.on_progress(Progress(stage="setup-output", model=model.name, text=text))

    model.on_setup_output = show


@contextlib.contextmanager
def _signals(
    options: ServeOptions, http: Server, served: Served, *, model: Model, early: _EarlySignals
) -> Iterator[None]:
    """SIGTERM lets predictions finish, SIGINT cancels them; a second signal ends at once, the worker included."""
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def on_signal(number: int) -> None:
        if http.should_exit:
            http.force_exit = True
            served.cancel_all()
            ending.append(asyncio.ensure_future(model.stop(0)))
        elif number == signal.SIGTERM and options.await_explicit_shutdown:
            logger.info("SIGTERM ignored: an explicit shutdown is awaited")
        else:
            if number == signal.SIGINT:
                served.cancel_all()
            http.should_exit = True
            served.close()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    for early_number in early.seen:
        on_signal(early_number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
