"""gRPC on the ports of HTTP, and the port that it has beside them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from geartrain.server.sockets import address_text, bind
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.guard import Authorizer
from geartrain.transport.grpc.heads import is_grpc
from geartrain.transport.grpc.options import GrpcOptions, GrpcOptionsError
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.wire.exchange import Decision, Handler, Head
from geartrain.transport.wire.tls import TlsContext

if TYPE_CHECKING:
    from geartrain.transport.grpc.handler import GrpcHandler

logger = logging.getLogger(__name__)

_HANDLER: Final = "geartrain.transport.grpc.handler"
_HTTP2: Final = "geartrain.transport.wire.http2_connection"
_PATIENCE: Final = 1.0  # seconds for models to become ready
_BREATH: Final = 0.02  # seconds for those who have waited for them


def listen_grpc(options: GrpcOptions, host: str) -> tuple[socket.socket, ...]:
    """Bind the port of gRPC, if it has one.

    A port that the operator has not asked for and that is taken, as by a second server on the machine, is no error: the
    log says so, and gRPC is on the port of HTTP alone. Raises `GrpcOptionsError` for any other that cannot be had.
    """
    if options.port is None:
        return ()
    try:
        return (_bind(host, options.port),)
    except GrpcOptionsError as error:
        if options.is_explicit:
            raise
        logger.warning("%s This server goes on without that port.", error)
        return ()


def grpc_tls(options: GrpcOptions, tls: TlsContext | None) -> TlsContext | None:
    """Return the TLS of the port of gRPC: its own, or else that of HTTP. Raises `TlsFilesError`."""
    return tls if options.tls is None else TlsContext(options.tls)


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own text has the address again
        msg = f"cannot listen for gRPC on {address_text(host, port)}: {reason}. "
        raise GrpcOptionsError(
            msg + "Choose another port with --grpc-port, or turn it off with --grpc-port off."
        ) from error


class GrpcCalls:
    """Takes calls of gRPC. What answers them is imported in the background, or by the first of them."""

    def __init__(
        self,
        catalogue: Catalogue,
        regions: SharedRegions,
        options: GrpcOptions,
        *,
        bodies: LargeBodies,
        authorizer: Authorizer,
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """`bodies` reads long messages. `authorizer` decides what the sender of a call may do.

        `settled` waits for models that start.
        """
        self._catalogue = catalogue
        self._regions = regions
        self._options = options
        self._bodies = bodies
        self._authorizer = authorizer
        self._handlers: list[GrpcHandler] = []  # the one, when it has been imported
        self._is_closed = False
        self._importing = asyncio.ensure_future(_import_after(settled))

    def begin(self, head: Head) -> Decision:
        """Decide what becomes of a call. See `Handler`."""
        return self._handler().begin(head)

    def close(self) -> None:
        """Begin no further calls in open streams; those that run may go on."""
        self._is_closed = True
        self._importing.cancel()
        for handler in self._handlers:
            handler.close()

    def _handler(self) -> GrpcHandler:
        if not self._handlers:
            module = importlib.import_module(_HANDLER)
            self._handlers.append(
                module.GrpcHandler(
                    self._catalogue,
                    self._regions,
                    self._bodies,
                    authorizer=self._authorizer,
                    options=self._options,
                )
            )
            if self._is_closed:
                self.close()
        return self._handlers[0]


async def _import_after(settled: Callable[[], Awaitable[None]]) -> None:
    """Import what answers gRPC, in a thread, and not while models start: it would delay them."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            await settled()
    await asyncio.sleep(_BREATH)
    thread = concurrent.futures.ThreadPoolExecutor(1, "geartrain-import")  # of its own, so that none is left
    try:
        for module in (_HTTP2, _HANDLER):
            await asyncio.get_running_loop().run_in_executor(thread, importlib.import_module, module)
    finally:
        thread.shutdown(wait=False)


class ProtocolSwitch:
    """Sends calls of gRPC where they belong, and other requests to the routes of HTTP. It is a `Handler`."""

    def __init__(self, http: Handler, grpc: GrpcCalls) -> None:
        self._http = http
        self._grpc = grpc

    def begin(self, head: Head) -> Decision:
        """Decide what becomes of a request."""
        return self._grpc.begin(head) if is_grpc(head) else self._http.begin(head)
