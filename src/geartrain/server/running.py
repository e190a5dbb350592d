"""Runs a server: its start list, its signals, and its mirrored stop list."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from geartrain.bridge.process import SPARE
from geartrain.project.repository import Repository
from geartrain.server.app import App, build
from geartrain.server.cluster import with_address
from geartrain.server.grpc import grpc_tls, listen_grpc
from geartrain.server.memory import share_arenas, trimmed_memory, tune_collector, tune_memory
from geartrain.server.notify import Notifier, Supervision
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.reloading import Reload, Terminal, watching
from geartrain.server.sockets import (
    Role,
    Sockets,
    address_text,
    bind,
    host_of,
    location,
    passed_sockets,
    served_host,
    url_of,
)
from geartrain.service.models.deployment import STOP_GRACE
from geartrain.transport.access.access import Access
from geartrain.transport.access_log import open_access_log
from geartrain.transport.routing import exposure_warning
from geartrain.transport.wire.tls import TlsContext

if TYPE_CHECKING:
    from geartrain.server.http import HttpServer

logger = logging.getLogger("geartrain.server")


class PortInUseError(Exception):
    """The address to serve on cannot be had."""


def run_server(options: ServeOptions) -> int:
    """Serve until told to stop; return the exit code.

    Raises `PortInUseError`, `ActivationError`, `AccessError`, `ClusterOptionError`, `GrpcOptionsError` or
    `TlsFilesError` before anything was started.
    """
    share_arenas()
    notifier = Notifier.from_environ(os.environ)
    passed = passed_sockets(os.environ)
    options = _with_admin(options, passed)
    tls = None if options.tls is None else TlsContext(options.tls)
    http = passed.get("http") or (listen(options.host, options.port),)
    options = with_address(options, http[0])
    admin = passed.get("admin") or (() if options.admin_port is None else (listen(options.host, options.admin_port),))
    _warn_of_exposure(http, options)
    access = Access(options.access, served_host(http) if "http" in passed else options.host)
    grpc_context = grpc_tls(options.grpc, tls)
    grpc = passed.get("grpc") or listen_grpc(options.grpc, options.host)
    early = _EarlySignals()
    app = build(options)
    app.spawn()  # the workers start while we import
    SPARE.discard()
    import uvloop

    listeners = _Listeners(http, admin, grpc, tls, grpc_context, frozenset(passed))
    return uvloop.run(_serve(app, listeners, access, early=early, notifier=notifier))


def _with_admin(options: ServeOptions, passed: Sockets) -> ServeOptions:
    """Return the options of a server that has a port of administration if it has been passed one."""
    if "admin" not in passed or options.admin_port is not None:
        return options
    grpc = msgspec.structs.replace(options.grpc, has_administration=False)
    return dataclasses.replace(options, admin_port=0, grpc=grpc)


def _warn_of_exposure(listeners: Iterable[socket.socket], options: ServeOptions) -> None:
    for address in map(host_of, listeners):
        exposure = address and exposure_warning(address, has_keys=options.access.asks_for_keys)
        if exposure:
            logger.warning(exposure)
            return


class _EarlySignals:
    """Remembers the signals that come before there is a loop to handle them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        # Under nohup SIGHUP is ignored, and stays so.
        self.reloads = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self.terminal = Terminal()
        for number in (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if self.reloads else ())):
            signal.signal(number, lambda got, _frame: self.seen.append(got))


class _Listeners(NamedTuple):
    """Resources that are open before anything is started."""

    http: tuple[socket.socket, ...]
    admin: tuple[socket.socket, ...]
    grpc: tuple[socket.socket, ...]
    tls: TlsContext | None
    grpc_tls: TlsContext | None
    passed: frozenset[Role]  # those that a supervisor has opened

    def refresh(self) -> None:
        """Take up renewed certificates."""
        for context in {self.tls, self.grpc_tls}:
            if context is not None:
                context.refresh()

    def location(self, listener: socket.socket, role: Role, options: ServeOptions) -> str:
        """Return the address of a socket: the host as the operator has written it, if the server has bound it."""
        return location(listener, "" if role in self.passed else options.host)


async def _serve(app: App, listeners: _Listeners, access: Access, *, early: _EarlySignals, notifier: Notifier) -> int:
    options = app.options
    try:
        await app.start()
        from geartrain.server.http import HttpServer
        from geartrain.transport.records import RequestCounts

        def on_tick() -> None:
            access.refresh()
            listeners.refresh()

        access_log = open_access_log(options.access_log)
        requests = RequestCounts(access_log)
        http = HttpServer(app, access, requests=requests, on_tick=on_tick)
        reload = Reload(app, on_tick)
        supervision = Supervision(
            notifier,
            app.catalogue.readiness,
            is_reloading=lambda: reload.is_running,
            is_stopping=lambda: http.is_stopping,
        )
        tune_collector()
        tune_memory()
        ending = _Ending(app, http, supervision)
        with access_log, requests, contextlib.closing(supervision), _signals(ending, reload, early=early):
            waiting = [*_listen(http, listeners, options), *_listen_grpc(http, listeners, app)]
            access.start()
            supervision.begin()
            async with trimmed_memory(), watching(app), _accepting(waiting, app, http):
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


@contextlib.asynccontextmanager
async def _accepting(waiting: list[Callable[[], None]], app: App, http: HttpServer) -> AsyncIterator[None]:
    """Accept on the sockets that wait, when the models are ready or cannot be."""

    async def accept() -> None:
        await app.settled()
        app.options.on_progress(Progress(stage="settled"))
        if not http.is_stopping:
            for begin in waiting:
                begin()

    accepting = asyncio.ensure_future(accept())
    try:
        yield
    finally:
        accepting.cancel()


def _listen(http: HttpServer, listeners: _Listeners, options: ServeOptions) -> list[Callable[[], None]]:
    """Accept on the ports of HTTP, and tell where they are; return what is to be done later for sockets that wait.

    A supervisor that passes a socket keeps connections waiting while there is no server. They wait for its models, too,
    and so do those of a server that follows another one. The port of administration tells why meanwhile.
    """
    waiting: list[Callable[[], None]] = []
    scheme = "http" if listeners.tls is None else "https"
    sockets: tuple[tuple[Role, str, tuple[socket.socket, ...]], ...] = (
        ("http", "listening", listeners.http),
        ("admin", "listening-admin", listeners.admin),
    )
    for role, stage, opened in sockets:
        for listener in opened:
            url = url_of(scheme, listeners.location(listener, role, options))
            begin = functools.partial(http.listen, listener, listeners.tls, is_admin=role == "admin")
            if role == "http" and role in listeners.passed:
                waiting.append(begin)
            else:
                begin()
            options.on_progress(Progress(stage=stage, model=_name(options), url=url))
    return waiting


def _listen_grpc(http: HttpServer, listeners: _Listeners, app: App) -> list[Callable[[], None]]:
    """Do the same for the port of gRPC; release it where there is no model to be called."""
    waiting: list[Callable[[], None]] = []
    for listener in listeners.grpc:
        if not app.serves_models:
            listener.close()
            continue
        url = listeners.location(listener, "grpc", app.options)
        begin = functools.partial(http.listen, listener, listeners.grpc_tls)
        if "grpc" in listeners.passed:
            waiting.append(begin)
        else:
            begin()
        app.options.on_progress(Progress(stage="listening-grpc", url=url))
    return waiting


def _name(options: ServeOptions) -> str:
    return "" if isinstance(options.source, Repository) else options.source.name


def listen(host: str, port: int) -> socket.socket:
    """Bind the address; raise `PortInUseError` if it cannot be had."""
    try:
        return bind(host, port)
    except OSError as error:
        where = address_text(host, port)
        reason = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own text has the address again
        msg = f"cannot listen on {where}: {reason}. Choose another with --host and --port."
        raise PortInUseError(msg) from error


@contextlib.contextmanager
def _signals(ending: _Ending, reload: Reload, *, early: _EarlySignals) -> Iterator[None]:
    """Let signals end the server, or reload its models; those that came `early` count, too."""
    loop = asyncio.get_running_loop()

    def on_hangup() -> None:
        if early.terminal.leave():
            ending.on_signal(signal.SIGTERM)
        elif not ending.has_begun:
            reload.request()
            ending.supervision.look()

    handlers: dict[int, Callable[[], None]] = {
        signal.SIGTERM: functools.partial(ending.on_signal, signal.SIGTERM, ending.drain_delay),
        signal.SIGINT: ending.on_interrupt,
    }
    if early.reloads:
        handlers[signal.SIGHUP] = on_hangup
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    for number in early.seen:  # the server is not announced yet, so there is nothing to wait for
        if number == signal.SIGHUP:
            on_hangup()
        else:
            ending.on_signal(number)
    try:
        yield
    finally:
        ending.close()
        reload.close()
        for number in handlers:
            loop.remove_signal_handler(number)


class _Ending:
    """SIGTERM lets predictions finish, SIGINT cancels them; a second signal ends at once, the workers included.

    Where a debugger has the terminal, SIGTERM cancels them as well: a run that waits for a person does not finish.
    With a drain delay, SIGTERM first makes the server no longer ready, and ends it when the delay is over.
    """

    def __init__(self, app: App, http: HttpServer, supervision: Supervision) -> None:
        """`supervision` is told."""
        self.drain_delay = app.options.drain_delay
        self.supervision = supervision
        self._app = app
        self._http = http
        self._delays: list[asyncio.TimerHandle] = []
        self._kills: list[asyncio.Future[None]] = []

    @property
    def has_begun(self) -> bool:
        """True if the server has been told to end."""
        return self._http.is_stopping or bool(self._delays)

    def on_interrupt(self) -> None:
        """Take SIGINT, unless it is for a debugger that has the terminal."""
        lender = self._app.options.debugging.lender
        if lender is None or not lender.interrupt():
            self.on_signal(signal.SIGINT)

    def on_signal(self, number: int, delay: float = 0.0) -> None:
        """Begin to end; `delay`: the seconds for which SIGTERM lets the server go on."""
        app = self._app
        if self.has_begun:
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
        self.supervision.look()

    def close(self) -> None:
        """Let what is delayed never come: the server has ended."""
        for delayed in self._delays:
            delayed.cancel()

    def _end(self) -> None:
        lender = self._app.options.debugging.lender
        if lender is not None:
            if lender.is_lent:
                self._app.cancel_all()
            lender.close()
        self._http.stop()
        self._app.catalogue.reconciler.cease()  # requests that were sent before still get predictions
