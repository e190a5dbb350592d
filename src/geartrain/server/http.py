"""The HTTP server of an app: its routes, its listeners, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from geartrain.authoring.litserve import api_paths
from geartrain.domain.predictions.tracing import TracerPort
from geartrain.ipc.memory import BodyMemory
from geartrain.project.formats import LITSERVE, SCRIPT_APIS
from geartrain.project.repository import Repository
from geartrain.project.script_models import ScriptModels
from geartrain.project.source import ModelSource
from geartrain.server.app import App
from geartrain.server.grpc import GrpcCalls, ProtocolSwitch
from geartrain.server.machine import Machine, brief_use
from geartrain.server.options import ServeOptions
from geartrain.service.durable.durability import Durability
from geartrain.transport.access.access import Access
from geartrain.transport.access.guard import AccessGuard
from geartrain.transport.bodies.routes import invoke_routes
from geartrain.transport.cog.api import COG, CogOptions
from geartrain.transport.cog.routes import cog_routes, shutdown_route
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.mcp.routes import mcp_routes
from geartrain.transport.open_inference.exchanges import ArrayLoader, ServerContext
from geartrain.transport.open_inference.routes import open_inference_routes
from geartrain.transport.openai.routes import API, openai_routes
from geartrain.transport.openai.stored_routes import stored_routes
from geartrain.transport.playground.routes import with_playground
from geartrain.transport.records import RequestCounts, RequestObserver, RequestRecords
from geartrain.transport.routing import Route, Router, split_routes
from geartrain.transport.system.history import StatusHistory
from geartrain.transport.system.metrics import metrics_route, probe_routes
from geartrain.transport.wire.exchange import Handler, Records
from geartrain.transport.wire.server import WireServer
from geartrain.transport.wire.tls import TlsContext

if TYPE_CHECKING:
    from geartrain.transport.bodies.foreign import ForeignRoutes

Mount = Callable[[Handler], Handler]

QUIET: Final = CogOptions().quiet
_ANSWER_GRACE: Final = 1.0  # seconds for canceled predictions to say so to their clients


def _routes(
    app: App,
    cog_options: CogOptions,
    bodies: LargeBodies,
    *,
    counts: RequestCounts,
    history: StatusHistory | None = None,
) -> list[Route]:
    options = app.options
    catalogue = app.catalogue if app.serves_models else None
    durability = app.outbound.durability
    foreign = _foreign_routes(app)
    others = () if foreign is None else foreign.others
    routes = cog_routes(
        catalogue,
        app.trainings,
        cog_options,
        bodies=bodies,
        durability=durability,
        relay=app.relay,
        others=others,
    )
    routes += probe_routes(app.catalogue, COG)
    if catalogue is not None:
        context = ServerContext(catalogue, app.regions, options.max_body_bytes, ArrayLoader(), bodies)
        routes += open_inference_routes(context, health_body=options.health_body)
        openai = _openai_routes(app, bodies)
        if durability is not None:
            _run_batches(app, durability, openai, counts=counts)
        routes += openai
        routes += stored_routes(durability, max_bytes=options.store.max_bytes, max_body_bytes=options.max_body_bytes)
        routes += invoke_routes(catalogue, options.max_body_bytes)
        routes += mcp_routes(catalogue, bodies, options.max_body_bytes, quiet=cog_options.quiet)
        routes.append(
            metrics_route(
                catalogue, COG, counts, relay=app.relay_counts, machine=Machine(), labels=options.metric_labels
            )
        )
    if history is not None:
        routes.append(history.route(COG))
    routes = with_playground(routes, COG, catalogue)
    return routes if foreign is None else foreign.added_to(routes)


def _foreign_routes(app: App) -> ForeignRoutes | None:
    """Return the endpoints of other servers; None where there are none."""
    options = app.options
    apis = _apis(options)
    if not apis or not app.serves_models:
        return None
    from geartrain.transport.bodies.foreign import ForeignRoutes  # few servers have any

    paths = _own_paths(options.source)
    return ForeignRoutes(apis, app.catalogue, max_body=options.max_body_bytes, paths=paths)


def _apis(options: ServeOptions) -> str:
    """Return the names of the endpoints of other servers: those asked for, or else those of the script."""
    return options.api or _own_api(options.source)


def _own_api(source: ModelSource | Repository) -> str:
    """Return the name of the endpoints that a script was written for, where it is served alone; else an empty one."""
    if isinstance(source, Repository) and not isinstance(source, ScriptModels):
        return ""
    return SCRIPT_APIS.get(source.backend or "", "")


def _own_paths(source: ModelSource | Repository) -> list[str]:
    """Return the paths of the models of a file for LitServe that is served alone."""
    if isinstance(source, Repository) or source.backend != LITSERVE or source.file is None:
        return []
    wanted = source.options.get("api_path")
    paths = api_paths(source.file.read_text(errors="replace")) if source.file.is_file() else []
    return paths if wanted is None else [path for path in paths if path == wanted]


def _openai_routes(app: App, bodies: LargeBodies) -> list[Route]:
    options = app.options
    return [
        *openai_routes(
            app.catalogue,
            bodies,
            options.max_body_bytes,
            new_store=app.outbound.new_attachments,
            gives_urls=options.upload_url is not None,
        )
    ]


def _run_batches(app: App, durability: Durability, routes: Iterable[Route], *, counts: RequestCounts) -> None:
    """Run the batches of clients from now on; their lines go through `routes`."""
    from geartrain.transport.openai.batch_lines import Lines
    from geartrain.transport.openai.batch_runner import BatchRunner

    router = Router(routes, API)
    lines = Lines(app.catalogue, router, records_of(counts, app.outbound.tracer, router))
    app.batches = BatchRunner(durability, lines)
    app.batches.start()


def status_history(app: App) -> StatusHistory | None:
    """Begin to sample the models of an app for the status page. None where it serves none. The caller closes it."""
    return StatusHistory(app.catalogue, brief_use) if app.serves_models else None


def make_handler(
    app: App,
    bodies: LargeBodies,
    *,
    counts: RequestCounts | None = None,
    quiet: float = QUIET,
    history: StatusHistory | None = None,
) -> Router:
    """Create the handler of requests to an app inside another server.

    That server controls the access, and no request shuts it down. `bodies` reads large ones. `counts` are shown in the
    metrics, and receive the requests from others. `quiet`: see `HttpServer`.
    """
    grace = app.options.limits.stream_grace
    logs_ends = app.options.access_log.mode == "on"
    cog_options = CogOptions(max_body=app.options.max_body_bytes, quiet=quiet, stream_grace=grace, logs_ends=logs_ends)
    return Router(_routes(app, cog_options, bodies, counts=counts or RequestCounts(), history=history), COG)


def large_bodies(app: App) -> LargeBodies:
    """Create the large-body reader within the limits of an app, also for calls of its models. The caller closes it."""
    options = app.options
    bodies = LargeBodies(max_elements=options.max_json_elements, max_file_bytes=options.max_download_bytes)
    caller = app.catalogue.caller
    if caller is not None:
        caller.is_large, caller.bind_large = bodies.is_large, bodies.bind_nested
    return bodies


def _grpc_calls(app: App, access: Access, bodies: LargeBodies) -> tuple[GrpcCalls, ...]:
    """Create the handler of gRPC calls, if there are models to call."""
    if not app.serves_models:
        return ()
    options = msgspec.structs.replace(app.options.grpc, has_torchserve="torchserve" in _apis(app.options).split(","))
    calls = GrpcCalls(
        app.catalogue, app.regions, options, bodies=bodies, authorizer=access.authorizer, settled=app.settled
    )
    return (calls,)


def _with_grpc(http: Handler, grpc: tuple[GrpcCalls, ...]) -> Handler:
    return ProtocolSwitch(http, *grpc) if grpc else http


def at_root(handler: Handler) -> Handler:
    """Put a handler at the root of its ports: it is asked about every request. See `HttpServer`."""
    return handler


def _guard(app: App, access: Access) -> AccessGuard:
    return access.guard(lambda: app.catalogue.default_model, None if app.relay is None else app.relay.token)


class Embedded(NamedTuple):
    """Parts of a server for requests that another one has read: their handler, without gRPC, and their records."""

    handler: Handler
    records: Records


class HttpServer:
    """Serves an app until it is told to stop, and lets no client keep it from ending."""

    def __init__(
        self,
        app: App,
        access: Access,
        *,
        requests: RequestCounts | None = None,
        quiet: float = QUIET,
        on_tick: Callable[[], None] = lambda: None,
        mount: Mount = at_root,
    ) -> None:
        """`quiet`: the seconds after which a stream without events is kept alive. Needs a running loop.

        `requests` hears of those that are over. `on_tick` is called about once a second. `mount` says where the
        routes are on the port: it returns the handler that the wire asks, which may pass requests on to the given one.
        """
        options = app.options
        self._cancel_all = app.cancel_all
        self._stop_batches = app.stop_batches
        self._grace = options.shutdown_grace
        self._loop = asyncio.get_running_loop()
        self._ends_at = 0.0  # on the loop's clock, once it is stopping
        self._stopping = asyncio.Event()
        self._is_forced = False
        has_admin_port = options.admin_port is not None
        cog_options = CogOptions(
            max_body=options.max_body_bytes,
            quiet=quiet,
            stream_grace=options.limits.stream_grace,
            has_shutdown=not has_admin_port,
            logs_ends=options.access_log.mode == "on",
            can_load=not has_admin_port and not options.access.no_administration,
        )
        self._bodies = large_bodies(app)
        counts = requests or RequestCounts()
        self._history = status_history(app)
        routes = _routes(app, cog_options, self._bodies, counts=counts, history=self._history)
        routes.append(shutdown_route(self.stop, cog_options))
        public, admin = split_routes(routes, has_admin_port=has_admin_port)
        guard = _guard(app, access)
        self._grpc = _grpc_calls(app, access, self._bodies)
        routers = (Router(public, COG, guard), Router(admin, COG, guard))
        scheme, tracer = "http" if options.tls is None else "https", app.outbound.tracer
        records = [records_of(counts, tracer, router, scheme=scheme) for router in routers]
        self.embedded = Embedded(routers[0], records[0])
        self._public = WireServer(
            mount(_with_grpc(routers[0], self._grpc)),
            options.wire,
            records=records[0],
            on_tick=on_tick,
            memory=BodyMemory(),
        )
        self._admin = WireServer(routers[1], options.wire, records=records[1])
        self._wires = (self._public, self._admin)
        access.on_change(self._forget_heads)

    @property
    def is_stopping(self) -> bool:
        """True if it has been told to stop."""
        return self._stopping.is_set()

    @property
    def is_forced(self) -> bool:
        """True if it has been told to stop at once."""
        return self._is_forced

    def listen(self, listener: socket.socket, tls: TlsContext | None = None, *, is_admin: bool = False) -> None:
        """Accept connections on a listening socket, which is the server's from now on.

        `is_admin`: it is for administration and metrics, where these have a port of their own.
        """
        wire = self._admin if is_admin else self._public
        wire.listen(listener, None if tls is None else tls.context)

    def leave(self) -> None:
        """Serve on, and let clients go elsewhere: see `WireServer.leave`."""
        for wire in self._wires:
            wire.leave()

    def stop(self) -> None:
        """Take no further request, and end when what runs is over, or the grace is."""
        self._stopping.set()

    def force_stop(self) -> None:
        """End at once."""
        self._is_forced = True
        self._stopping.set()
        self._disconnect()

    def grace_left(self) -> float | None:
        """Return the seconds that running predictions still have; None for no limit."""
        if self._is_forced:
            return 0.0
        if self._grace is None or not self.is_stopping:
            return self._grace
        return max(0.0, self._ends_at - self._loop.time())

    async def serve(self) -> None:
        """Serve until told to stop; then give every answer that is owed, as far as the grace allows."""
        await self._stopping.wait()
        batches = asyncio.ensure_future(self._stop_batches())
        grace = self._grace
        timers = []
        if grace is not None:
            self._ends_at = self._loop.time() + grace
            timers.append(self._loop.call_at(self._ends_at, self._cancel_all))
            timers.append(self._loop.call_at(self._ends_at + _ANSWER_GRACE, self._disconnect))
        if self._history is not None:
            self._history.close()
        for calls in self._grpc:
            calls.close()
        for wire in self._wires:
            wire.close()
        if self._is_forced:
            self._disconnect()
        for wire in self._wires:
            await wire.drained()
        await batches
        for timer in timers:
            timer.cancel()
        for wire in self._wires:
            wire.stop()
        self._bodies.close()

    def _disconnect(self) -> None:
        for wire in self._wires:
            wire.disconnect()

    def _forget_heads(self) -> None:
        for wire in self._wires:
            wire.forget_heads()


def records_of(observer: RequestObserver, tracer: TracerPort | None, router: Router, *, scheme: str = "") -> Records:
    """Create the factory of the records of requests to a router, with spans if there are traces.

    `scheme`: `http` or `https`, empty if it is not known.
    """
    if tracer is None:
        return RequestRecords(observer).of
    from geartrain.transport.tracing import TracedRecords

    return TracedRecords(observer, tracer, scheme=scheme, route_of=router.template).of
