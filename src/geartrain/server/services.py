"""Builds the service around a model: where its files come from and go to, its webhooks, its training."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
from collections.abc import AsyncIterator, Callable

from geartrain import __version__
from geartrain.apis import cog
from geartrain.domain.lifecycle import Health
from geartrain.outbound.policy import UrlPolicy
from geartrain.outbound.webhooks import WebhookSender
from geartrain.project.source import ModelSource
from geartrain.project.variables import Variables
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.workers import STOP_GRACE, launch, new_model
from geartrain.service.model import Model
from geartrain.service.ondemand import OnDemandWorker
from geartrain.service.ports import InputFilesPort, WorkerPort
from geartrain.service.predictions import PredictionService
from geartrain.service.served import Served
from geartrain.service.trainings import Trainings
from geartrain.service.webhooks import Webhooks

_DOWNLOAD_SILENCE = 10.0  # seconds without a byte; observed Cog, section 15


class ServiceRoom:
    """The service of a model, with all that is to be closed with it."""

    def __init__(self, options: ServeOptions, model: Model, source: ModelSource) -> None:
        """`source` is what `model` was made of."""
        from geartrain.outbound.uploads import OutputDestinations  # late: the worker starts meanwhile
        from geartrain.outbound.workspace import Workspace

        variables = options.variables_of(source)
        self._workspace = Workspace()
        self._outputs = OutputDestinations(
            _policy(options), upload_url=options.upload_url, user_agent=f"geartrain/{__version__}"
        )
        self._webhooks = _webhooks(options, variables)
        self.service = PredictionService(
            model,
            outputs=self._outputs,
            input_files=lambda: _input_files(options, model, variables.user_agent),
            new_folder=self._workspace.folder,
            history=variables.stream_history,
            limits=options.limits,
        )
        self.service.webhooks = self._webhooks

    async def close(self) -> None:
        """Close what is open, and remove what is left."""
        await self._webhooks.close()
        await self._outputs.close()
        await self._workspace.close()


@contextlib.asynccontextmanager
async def open_service(
    options: ServeOptions, check: Callable[[PredictionService], None] = lambda _service: None
) -> AsyncIterator[PredictionService]:
    """Give a service whose model is ready, without a transport; raise `ModelSetupError` if it cannot be made ready.

    `check` is called before setup is over, as soon as the model's signature is known; if it raises, the worker is
    killed and the error goes on to the caller.
    """
    model = new_model(options)
    show_setup(model, options)
    time_limit = options.variables_of(options.model).setup_timeout
    worker = launch(options.model, model, wakeup=options.wakeup)
    async with _open_room(options, model, options.model) as service:
        try:
            await _set_up(service, worker, check, time_limit=time_limit)
            yield service
        finally:
            service.close()
            service.cancel_all()
            await service.drain(STOP_GRACE)
            await model.stop(STOP_GRACE if model.health is Health.READY else 0)


async def _set_up(
    service: PredictionService,
    worker: WorkerPort,
    check: Callable[[PredictionService], None],
    *,
    time_limit: float | None,
) -> None:
    """Wait until the model is ready, and call `check` on the way."""
    starting = asyncio.ensure_future(service.model.start(worker, time_limit=time_limit))
    loaded = asyncio.ensure_future(service.model.loaded.wait())
    try:
        await asyncio.wait((starting, loaded), return_when=asyncio.FIRST_COMPLETED)
        if service.model.loaded.is_set():
            check(service)
        await starting
    finally:
        loaded.cancel()
        starting.cancel()
        await asyncio.gather(starting, loaded, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_all(options: ServeOptions, model: Model) -> AsyncIterator[Served]:
    """Give what is to be served of one model: its predictions, its training, or both. Nothing is started."""
    async with _open_room(options, model, options.model) as service, open_trainings(options) as trainings:
        if options.model.mode == "train":
            yield Served(None, Trainings(service))
        else:
            yield Served(service, trainings)


@contextlib.asynccontextmanager
async def open_trainings(options: ServeOptions) -> AsyncIterator[Trainings | None]:
    """Give the training of the model that is served alone, None if it has none. Nothing is started."""
    source = options.source.training() if isinstance(options.source, ModelSource) else None
    if source is None:
        yield None
        return
    time_limit = options.variables_of(source).setup_timeout
    model = Model(source.name, noun="training")
    worker = OnDemandWorker(
        functools.partial(launch, source, wakeup=options.wakeup),
        on_load_output=model.on_setup_log,
        idle_limit=options.training_idle,
        setup_limit=time_limit,
    )
    async with _open_room(options, model, source) as service:
        trainings = Trainings(service, lambda: model.start(worker, time_limit=time_limit))
        try:
            yield trainings
        finally:
            await trainings.stop(STOP_GRACE)


@contextlib.asynccontextmanager
async def _open_room(options: ServeOptions, model: Model, source: ModelSource) -> AsyncIterator[PredictionService]:
    room = ServiceRoom(options, model, source)
    try:
        yield room.service
    finally:
        await room.close()


def show_setup(model: Model, options: ServeOptions, *, version: str = "") -> None:
    """Have what a model's setup prints told as progress."""

    def show(_source: object, text: str) -> None:
        options.on_progress(Progress(stage="setup-output", model=model.name, version=version, text=text))

    model.on_setup_output = show


def _input_files(options: ServeOptions, model: Model, user_agent: str | None) -> InputFilesPort:
    from geartrain.outbound.inputs import InputFiles

    return InputFiles(
        model.signature,
        policy=_policy(options),
        max_bytes=options.max_download_bytes,
        timeout=_DOWNLOAD_SILENCE,
        user_agent=user_agent,
        on_bytes=options.on_download,
    )


def _webhooks(options: ServeOptions, variables: Variables) -> Webhooks:
    sender = WebhookSender(
        _policy(options),
        user_agent=f"geartrain/{__version__}",
        token=variables.webhook_token,
        retries=options.webhooks.retries,
    )
    return Webhooks(sender, cog.encode_webhook, interval=variables.webhook_interval)


def _policy(options: ServeOptions) -> UrlPolicy:
    allow = _is_loopback(options.host) if options.allow_private_urls is None else options.allow_private_urls
    return UrlPolicy(allow_private=allow)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
