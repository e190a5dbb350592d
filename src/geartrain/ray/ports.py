"""The ports that Ray Serve gives a replica, with the server of geartrain on them.

In HAProxy mode a replica has two ports, which the proxies of all nodes send requests to. Ray starts uvicorn on one of
them and grpcio on the other, and a request goes through its own accounting of tasks, metrics and logs before it is the
replica's. It has no option for another server. So two functions of `ray.serve._private.replica` are replaced, in the
process of the replica alone, by others that start geartrain's wire on the same ports. Ray still says when they open and
close, and answers its own probes.

Sources: ray/serve/_private/replica.py (`_maybe_start_direct_ingress_servers`, `_perform_graceful_shutdown`),
http_util.py (`start_asgi_http_server`) and grpc_util.py (`start_grpc_server`) of Ray 2.60. What is replaced is compared
with what it was there; in a Ray where it is another, the replica stays behind uvicorn, and the log says so.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, TypeVar

from ray.serve._private import replica as ray_replica
from ray.serve._private.proxy_request_response import gRPCStreamingType

from geartrain.ray.handler import Probe
from geartrain.ray.server import ReplicaServer
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.framing import whole
from geartrain.transport.grpc.heads import is_grpc
from geartrain.transport.grpc.status import failure
from geartrain.transport.wire.exchange import Answer, Head

logger = logging.getLogger("geartrain.ray")

ResultT = TypeVar("ResultT")
Serving = tuple["asyncio.Task[None]", "RayPort"]

_HTTP: Final = "start_asgi_http_server"
_GRPC: Final = "start_grpc_server"
_KNOWN: Final = {
    _HTTP: ("app", "http_options", "event_loop", "enable_so_reuseport"),
    _GRPC: ("service_handler_factory", "grpc_options", "event_loop", "enable_so_reuseport"),
}
_HTTP_PROBES: Final = frozenset({b"/-/healthz", b"/-/routes"})
_GRPC_PROBES: Final = frozenset(
    {b"/ray.serve.RayServeAPIService/Healthz", b"/ray.serve.RayServeAPIService/ListApplications"}
)
_BACKLOG: Final = 2048  # connections that wait to be accepted
_TEXT: Final = ((b"content-type", b"text/plain; charset=utf-8"),)


class RayPort:
    """A port that is open, as Ray holds it: it ends an HTTP server by `should_exit`, one of gRPC by `stop`."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._is_ending = False

    @property
    def should_exit(self) -> bool:
        """True if it has been told to end."""
        return self._is_ending

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value and not self._is_ending:
            self._is_ending = True
            self._server.loop.call_soon_threadsafe(self._server.close)

    async def stop(self, grace: float | None) -> None:
        """End, and wait for the answers that are owed, at most `grace` seconds."""
        self.should_exit = True
        async with asyncio.timeout(grace):
            await _in(self._server.loop, self._server.closed())


class Ports:
    """Opens the ports of one replica. It is the `Platform` of its handler."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._ray: Any = None  # Ray's side of the replica
        self._ray_loop = asyncio.get_running_loop()  # Ray's loop, in another thread for some of its settings
        self._grpc_handlers: dict[bytes, Callable[..., Awaitable[bytes]]] = {}
        server.handler.platform = self

    def take(self) -> bool:
        """Have Ray call what is here, instead of its own functions; return whether they are as they are known."""
        found: dict[str, Any] = {name: getattr(ray_replica, name, None) for name in _KNOWN}
        for name, function in found.items():
            names = () if function is None else tuple(inspect.signature(function).parameters)
            if names != _KNOWN[name]:
                logger.warning("this Ray has another %s(): requests go through its own server, and gRPC does not", name)
                return False
        self._ray_http = found[_HTTP]
        setattr(ray_replica, _HTTP, self._start_http)
        setattr(ray_replica, _GRPC, self._start_grpc)
        return True

    # calls of Ray, on the loop of its side

    async def _start_http(
        self, app: Any, http_options: Any, *, event_loop: asyncio.AbstractEventLoop, enable_so_reuseport: bool = False
    ) -> Any:
        if http_options.ssl_certfile or http_options.root_path or http_options.middlewares:
            logger.warning("Serve has TLS, a root path or middlewares: HTTP goes through Ray's own server")
            return await self._ray_http(
                app, http_options, event_loop=event_loop, enable_so_reuseport=enable_so_reuseport
            )
        self._ray, self._ray_loop = app.__self__, event_loop
        return await self._open(http_options.host, http_options.port, event_loop)

    async def _start_grpc(
        self,
        service_handler_factory: Callable[..., Any],
        grpc_options: Any,
        *,
        event_loop: asyncio.AbstractEventLoop,
        enable_so_reuseport: bool = False,  # noqa: ARG002 - as Ray's
    ) -> Serving:
        self._ray_loop = event_loop
        for path in _GRPC_PROBES:
            self._grpc_handlers[path] = service_handler_factory(
                service_method=path.decode(), streaming_type=gRPCStreamingType.UNARY_UNARY
            )
        return await self._open("::" if socket.has_dualstack_ipv6() else "0.0.0.0", grpc_options.port, event_loop)  # noqa: S104 - as Ray's

    async def _open(self, host: str, port: int, event_loop: asyncio.AbstractEventLoop) -> Serving:
        """Listen. Raises `RuntimeError` from the `OSError` of a port that is taken, which Ray tries another one for."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server(
                (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6
            )
        except OSError as error:
            raise RuntimeError(f"cannot listen on port {port} of {host}") from error
        await _in(self._server.loop, self._listen(listener))
        closed = event_loop.create_task(_in(self._server.loop, self._server.closed()))
        return closed, RayPort(self._server)

    async def _listen(self, listener: socket.socket) -> None:
        self._server.listen(listener)

    # calls of the handler, on the loop of the server

    def prefix(self) -> str:
        """Return the route prefix. See `Platform`."""
        prefix: str = getattr(self._ray, "_route_prefix", None) or ""
        return prefix.rstrip("/")

    def probe(self, head: Head) -> Probe | None:
        """Return the answer to a probe. See `Platform`."""
        if head.path in _HTTP_PROBES:
            return lambda: _in(self._ray_loop, self._ask(head.path.decode()))
        if head.path in _GRPC_PROBES and is_grpc(head):
            return lambda: _in(self._ray_loop, self._ask_grpc(head.path))
        return None

    async def _ask(self, path: str) -> Answer:
        """Ask Ray's side, as an ASGI application, for what it says of itself."""
        answered: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            answered.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": [], "query_string": b""}
        await self._ray._direct_ingress_asgi(scope, receive, send)  # noqa: SLF001 - what Ray itself gives uvicorn
        head, *bodies = answered
        return Answer(HTTPStatus(head["status"]), [body.get("body", b"") for body in bodies], _TEXT)

    async def _ask_grpc(self, path: bytes) -> Answer:
        context = _CallContext()
        message = await self._grpc_handlers[path](b"", context)
        if context.status is not GrpcStatus.OK:
            return failure(context.status, context.details)
        return whole((message,))


class _CallContext:
    """Context of Ray's call to itself: the part of grpcio's context that it uses."""

    def __init__(self) -> None:
        self.status = GrpcStatus.OK
        self.details = ""

    def set_code(self, code: Any) -> None:
        """Take a `grpc.StatusCode`."""
        self.status = GrpcStatus(code.value[0])

    def set_details(self, details: str) -> None:
        """Take the text of the status."""
        self.details = details


async def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of a coroutine that runs on another loop, or on this one."""
    if loop is asyncio.get_running_loop():
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
