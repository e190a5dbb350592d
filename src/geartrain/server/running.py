"""Runs a server: its start list, its signals, and its mirrored stop list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from geartrain.project.repository import Repository
from geartrain.server.app import App, build
from geartrain.server.grpc import grpc_tls, listen_grpc
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.reloading import watching
from geartrain.server.sockets import address_text, bind
from geartrain.server.tuning import tune_collector, tune_memory
from geartrain.service.models.deployment import STOP_GRACE
from geartrain.transport.access.access import Access
from geartrain.transport.listeners import exposure_warning
from geartrain.transport.wire.tls import TlsContext

if TYPE_CHECKING:
    from geartrain.server.http import HttpServer

logger = logging.getLogger("geartrain.server")


class PortInUseError(Exception):
    """The address to serve on cannot be had."""


def run_server(options: ServeOptions) -> int:
    """Serve until told to stop; return the exit code.

    Raises `PortInUseError`, `AccessError`, `GrpcOptionsError` or `TlsFilesError` before anything was started.
    """
    tls = None if options.tls is None else TlsContext(options.tls)
    listener = listen(options.host, options.port)
    admin = None if options.admin_port is None else listen(options.host, options.admin_port)
    exposure = exposure_warning(listener.getsockname()[0], has_keys=options.access.asks_for_keys)
    if exposure is not None:
        logger.warning(exposure)
    access = Access(options.access, options.host)
    grpc_context = grpc_tls(options.grpc, tls)
    grpc = listen_grpc(options.grpc, options.host)
    early = _EarlySignals()
    app = build(options)
    app.spawn()  # the workers start while we import
    import uvloop

    return uvloop.run(_serve(app, _Listeners(listener, admin, grpc, tls, grpc_context), access, early=early))


class _EarlySignals:
    """Remembers the signals that come before there is a loop to handle them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.seen.append(got))


class _Listeners(NamedTuple):
    """What is open before anything is started."""

    http: socket.socket
    admin: socket.socket | None
    grpc: tuple[socket.socket, ...]
    tls: TlsContext | None
    grpc_tls: TlsContext | None

    def refresh(self) -> None:
        """Take up renewed certificates."""
        for context in {self.tls, self.grpc_tls}:
            if context is not None:
                context.refresh()


async def _serve(app: App, listeners: _Listeners, access: Access, *, early: _EarlySignals) -> int:
    options = app.options
    try:
        await app.start()
        from geartrain.server.http import HttpServer

        def on_tick() -> None:
            access.refresh()
            listeners.refresh()

        http = HttpServer(app, access, on_tick=on_tick)
        tune_collector()
        tune_memory()
        with _signals(app, http, early=early):
            _listen(http, listeners, options)
            _listen_grpc(http, listeners, app)
            access.start()
            async with watching(app):
                await http.serve()
            options.on_progress(Progress(stage="stopping", model=_name(options)))
            await app.stop(
                grace=http.grace_left(),
                webhook_grace=lambda: STOP_GRACE if http.is_forced else options.webhooks.grace,
            )
            await access.close()
    except BaseException:
        await app.kill()
        await app.outbound.close()
        raise
    return 0


def _listen(http: HttpServer, listeners: _Listeners, options: ServeOptions) -> None:
    """Accept on the ports of HTTP, and tell where they are."""
    scheme = "http" if listeners.tls is None else "https"
    for stage, listener in (("listening", listeners.http), ("listening-admin", listeners.admin)):
        if listener is not None:
            url = f"{scheme}://{address_text(options.host, listener.getsockname()[1])}"
            http.listen(listener, listeners.tls, is_admin=listener is listeners.admin)
            options.on_progress(Progress(stage=stage, model=_name(options), url=url))


def _listen_grpc(http: HttpServer, listeners: _Listeners, app: App) -> None:
    """Accept on the port of gRPC, and tell where it is; release it where there is no model to be called."""
    for listener in listeners.grpc:
        if not app.serves_models:
            listener.close()
            continue
        url = address_text(app.options.host, listener.getsockname()[1])
        http.listen(listener, listeners.grpc_tls)
        app.options.on_progress(Progress(stage="listening-grpc", url=url))


def _name(options: ServeOptions) -> str:
    return "" if isinstance(options.source, Repository) else options.source.name


def listen(host: str, port: int) -> socket.socket:
    """Bind the address; raise `PortInUseError` if it cannot be had."""
    try:
        return bind(host, port)
    except OSError as error:
        where = address_text(host, port)
        msg = f"cannot listen on {where}: {error.strerror or error}. Choose another with --host and --port."
        raise PortInUseError(msg) from error


@contextlib.contextmanager
def _signals(app: App, http: HttpServer, *, early: _EarlySignals) -> Iterator[None]:
    """Let signals end the server; those that came `early` count, too."""
    loop = asyncio.get_running_loop()
    ending = _Ending(app, http)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.on_signal, number, app.options.drain_delay)
    for early_number in early.seen:
        ending.on_signal(early_number, 0)  # nobody has been told of the server yet
    try:
        yield
    finally:
        ending.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Ending:
    """SIGTERM lets predictions finish, SIGINT cancels them; a second signal ends at once, the workers included.

    With a drain delay, SIGTERM first makes the server no longer ready, and ends it when the delay is over.
    """

    def __init__(self, app: App, http: HttpServer) -> None:
        self._app = app
        self._http = http
        self._delays: list[asyncio.TimerHandle] = []
        self._kills: list[asyncio.Future[None]] = []

    def on_signal(self, number: int, delay: float) -> None:
        """Begin to end; `delay`: the seconds for which SIGTERM lets the server go on."""
        app = self._app
        if self._http.is_stopping or self._delays:
            self._http.force_stop()
            app.cancel_all()
            self._kills.append(asyncio.ensure_future(app.kill()))
        elif number == signal.SIGTERM and app.options.await_explicit_shutdown:
            logger.info("SIGTERM ignored: an explicit shutdown is awaited")
        elif number == signal.SIGTERM and delay:
            logger.info("SIGTERM: no longer ready; requests are served for %g s more", delay)
            app.catalogue.readiness.leave()
            self._http.leave()
            self._delays.append(asyncio.get_running_loop().call_later(delay, self._end))
        else:
            if number == signal.SIGINT:
                app.cancel_all()
            self._end()

    def close(self) -> None:
        """Let what is delayed never come: the server has ended."""
        for delayed in self._delays:
            delayed.cancel()

    def _end(self) -> None:
        self._http.stop()
        self._app.stop_loading()  # predictions are admitted as long as requests come that were sent before
