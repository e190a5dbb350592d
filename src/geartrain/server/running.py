"""Runs a server: its start list, its signals, and its mirrored stop list."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from geartrain.project.repository import Repository
from geartrain.server.app import App, build
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.reloading import watching
from geartrain.server.tuning import tune_collector, tune_memory
from geartrain.service.models.deployment import STOP_GRACE
from geartrain.transport.grpc.listener import GrpcListener

if TYPE_CHECKING:
    from geartrain.transport.http.server import HttpServer

logger = logging.getLogger("geartrain.server")

_BACKLOG = 2048


class PortInUseError(Exception):
    """The address to serve on cannot be had."""


def run_server(options: ServeOptions) -> int:
    """Serve until told to stop; return the exit code.

    Raises `PortInUseError` or `GrpcOptionsError` before anything was started.
    """
    listener = listen(options.host, options.port)
    grpc = GrpcListener(options.grpc, options.host)
    early = _EarlySignals()
    app = build(options)
    app.spawn()  # the workers start while we import
    import uvloop

    return uvloop.run(_serve(app, grpc, listener=listener, early=early))


class _EarlySignals:
    """Remembers the signals that come before there is a loop to handle them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.seen.append(got))


async def _serve(app: App, grpc: GrpcListener, *, listener: socket.socket, early: _EarlySignals) -> int:
    options = app.options
    try:
        await app.start()
        http = http_server(app)
        tune_collector()
        tune_memory()
        with _signals(app, http, early=early):
            url = f"http://{_address(options.host, listener.getsockname()[1])}"
            options.on_progress(Progress(stage="listening", model=_name(options), url=url))
            catalogue = app.catalogue if app.serves_models else None
            grpc.open(catalogue, app.regions, functools.partial(_tell_grpc, options))
            async with watching(app):
                await http.serve(sockets=[listener])
            options.on_progress(Progress(stage="stopping", model=_name(options)))
            grpc_closed = asyncio.ensure_future(grpc.close(http.grace_left()))
            await app.stop(
                grace=http.grace_left(),
                webhook_grace=lambda: STOP_GRACE if http.force_exit else options.webhooks.grace,
            )
            await asyncio.wait({grpc_closed}, timeout=STOP_GRACE)  # nothing is left that it could wait for
    except BaseException:
        await app.kill()
        raise
    return 0


def http_server(app: App, *, quiet: float | None = None) -> HttpServer:
    """Return the HTTP server of an app, on the running loop; `serve(sockets=[…])` runs it.

    `quiet`: the seconds after which a stream without events is kept alive; None for the default.
    """
    from geartrain.transport.http.open_inference import OpenInferenceOptions
    from geartrain.transport.http.server import make_http_server
    from geartrain.transport.http.streams import QUIET

    options = app.options
    return make_http_server(
        app.catalogue if app.serves_models else None,
        app.trainings,
        cancel_all=app.cancel_all,
        open_inference=OpenInferenceOptions(app.regions, options.health_body),
        max_body_bytes=options.max_body_bytes,
        quiet=QUIET if quiet is None else quiet,
        grace=options.shutdown_grace,
    )


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
def _signals(app: App, http: HttpServer, *, early: _EarlySignals) -> Iterator[None]:
    """SIGTERM lets predictions finish, SIGINT cancels them; a second signal ends at once, the workers included."""
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Future[None]] = []

    def on_signal(number: int) -> None:
        if http.should_exit:
            http.force_exit = True
            app.cancel_all()
            ending.append(asyncio.ensure_future(app.kill()))
        elif number == signal.SIGTERM and app.options.await_explicit_shutdown:
            logger.info("SIGTERM ignored: an explicit shutdown is awaited")
        else:
            if number == signal.SIGINT:
                app.cancel_all()
            http.should_exit = True
            app.close()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    for early_number in early.seen:
        on_signal(early_number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
