"""Runs a server: its start list, its signals, and its mirrored stop list."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.ready_file import write_ready_file
from geartrain.server.reloading import watching
from geartrain.server.services import open_trainings
from geartrain.server.tuning import tune_collector, tune_memory
from geartrain.server.versions import Shop
from geartrain.server.workers import STOP_GRACE
from geartrain.service.catalogue import Catalogue, Step
from geartrain.service.served import Served
from geartrain.service.shared_memory import SharedRegions
from geartrain.service.trainings import Trainings
from geartrain.transport.grpc.door import GrpcDoor

if TYPE_CHECKING:
    from uvicorn import Server

logger = logging.getLogger("geartrain.server")

_BACKLOG = 2048


class PortInUseError(Exception):
    """The address to serve on cannot be had."""


def run_server(options: ServeOptions) -> int:
    """Serve until told to stop; return the exit code.

    Raises `PortInUseError` or `GrpcOptionsError` before anything was started.
    """
    listener = listen(options.host, options.port)
    grpc = GrpcDoor(options.grpc, options.host)
    early = _EarlySignals()
    shop = Shop(options)
    shop.spawn_ahead()  # the workers start while we import
    import uvloop

    return uvloop.run(_serve(options, shop, grpc, listener=listener, early=early))


class _EarlySignals:
    """Remembers the signals that come before there is a loop to handle them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.seen.append(got))


async def _serve(
    options: ServeOptions, shop: Shop, grpc: GrpcDoor, *, listener: socket.socket, early: _EarlySignals
) -> int:
    from geartrain.transport.http.open_inference import OpenInferenceOptions
    from geartrain.transport.http.server import make_http_server

    regions = SharedRegions(enabled=options.shared_memory)
    async with _open(options, shop) as served:
        http = make_http_server(
            served.predictions,
            trainings=served.trainings,
            catalogue=served.catalogue,
            open_inference=OpenInferenceOptions(regions, options.health_body),
            max_body_bytes=options.max_body_bytes,
            grace=options.shutdown_grace,
        )
        tune_collector()
        tune_memory()
        with _signals(options, http, served, early=early):
            url = f"http://{_address(options.host, listener.getsockname()[1])}"
            options.on_progress(Progress(stage="listening", model=_name(options), url=url))
            grpc.open(served.catalogue, regions, functools.partial(_tell_grpc, options))
            async with watching(options, shop, served.catalogue):
                await http.serve(sockets=[listener])
            options.on_progress(Progress(stage="stopping", model=_name(options)))
            served.close()
            grpc_closed = asyncio.ensure_future(grpc.close(http.grace_left()))
            if not await served.drain(http.grace_left()):
                served.cancel_all()
                await served.drain(STOP_GRACE)
            await served.stop(hurry=http.force_exit)
            await asyncio.wait({grpc_closed}, timeout=STOP_GRACE)  # nothing is left that it could wait for
            await served.drain_webhooks(options.webhooks.grace if not http.force_exit else STOP_GRACE)
    return 0


@contextlib.asynccontextmanager
async def _open(options: ServeOptions, shop: Shop) -> AsyncIterator[Served]:
    """Give what is to be served; what there is to load is being loaded."""

    def tell(step: Step) -> None:
        _tell(options, step)
        if step.stage == "ready":
            _tell_kubernetes(options, catalogue)

    catalogue = Catalogue(shop, default_model=options.default_model, grace=options.shutdown_grace, tell=tell)
    try:
        catalogue.begin(options.load)
        _tell_kubernetes(options, catalogue)  # where nothing is loaded at the start it is ready at once
        async with open_trainings(options) as trainings:
            if isinstance(options.source, ModelSource) and options.source.mode == "train":
                service = catalogue.service(options.source.name)
                yield Served(None, Trainings(service), behind=catalogue)
            else:
                yield Served(None, trainings, catalogue=catalogue)
    finally:
        await catalogue.stop(hurry=True)
        await shop.close()


def _tell(options: ServeOptions, step: Step) -> None:
    """Report what has become of a model; one that is served alone has no version to speak of."""
    version = step.version if isinstance(options.source, Repository) else ""
    options.on_progress(
        Progress(stage=step.stage, model=step.name, version=version, slots=step.slots, text=step.reason)
    )


def _tell_kubernetes(options: ServeOptions, catalogue: Catalogue) -> None:
    if options.ready_file is not None and catalogue.all_ready():
        write_ready_file(options.ready_file)


def _tell_grpc(options: ServeOptions, port: int) -> None:
    options.on_progress(Progress(stage="listening-grpc", url=_address(options.host, port)))


def _name(options: ServeOptions) -> str:
    return "" if isinstance(options.source, Repository) else options.source.name


def listen(host: str, port: int) -> socket.socket:
    """Bind the address; raise `PortInUseError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        where = _address(host, port)
        msg = f"cannot listen on {where}: {error.strerror or error}. Choose another with --host and --port."
        raise PortInUseError(msg) from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _signals(options: ServeOptions, http: Server, served: Served, *, early: _EarlySignals) -> Iterator[None]:
    """SIGTERM lets predictions finish, SIGINT cancels them; a second signal ends at once, the workers included."""
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Future[None]] = []

    def on_signal(number: int) -> None:
        if http.should_exit:
            http.force_exit = True
            served.cancel_all()
            ending.append(asyncio.ensure_future(served.kill()))
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
