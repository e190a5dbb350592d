"""Opens and closes the gRPC server, whose package is imported in a thread when HTTP already answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from geartrain.transport.access.authorizer import Authorizer
from geartrain.transport.grpc.options import GrpcOptions, GrpcOptionsError, ReservedPort
from geartrain.transport.wire import tls

if TYPE_CHECKING:
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.shared_memory import SharedRegions
    from geartrain.transport.grpc.server import GrpcServer

logger = logging.getLogger(__name__)

_VERBOSITY: Final = "GRPC_VERBOSITY"


class GrpcListener:
    """The port of gRPC, and the server on it once it has been imported."""

    def __init__(self, options: GrpcOptions, host: str) -> None:
        """Reserve the port; raise `GrpcOptionsError` or `TlsFilesError` if what the operator has asked for cannot be.

        A port that the operator has not asked for and that is taken, as by a second server on the machine, is no error:
        there is no gRPC then, and the log says so.
        """
        self._options = options
        self._port: ReservedPort | None = None
        self._opening: asyncio.Task[GrpcServer] | None = None
        if options.port is None:
            return
        if options.tls is not None:
            tls.check(options.tls)
        try:
            self._port = ReservedPort(host, options.port)
        except GrpcOptionsError as error:
            if options.is_explicit:
                raise
            logger.warning("%s This server goes on without gRPC.", error)

    def open(
        self,
        catalogue: Catalogue | None,
        regions: SharedRegions,
        on_open: Callable[[int], None],
        *,
        authorizer: Authorizer,
    ) -> None:
        """Begin to serve in the background; `on_open` is called with the port when the server listens.

        `authorizer` decides what the sender of a call may do. Without a catalogue there is no gRPC, and the port is
        released.
        """
        if self._port is None:
            return
        if catalogue is None:
            self._port.release()
            return
        self._opening = asyncio.ensure_future(self._open(self._port, catalogue, regions, authorizer=authorizer))
        self._opening.add_done_callback(functools.partial(_report, on_open))

    async def _open(
        self, port: ReservedPort, catalogue: Catalogue, regions: SharedRegions, *, authorizer: Authorizer
    ) -> GrpcServer:
        with _quiet():
            module = await asyncio.to_thread(importlib.import_module, "geartrain.transport.grpc.server")
            port.release()
            server: GrpcServer = await module.start_grpc_server(
                catalogue, self._options, address=port.address, regions=regions, authorizer=authorizer
            )
        return server

    async def close(self, grace: float | None) -> None:
        """Accept no further calls; those that run have `grace` seconds to end, then they are canceled."""
        if self._port is not None:
            self._port.release()
        if self._opening is None:
            return
        await asyncio.wait({self._opening})
        if self._opening.exception() is None:  # otherwise `_report` has logged it
            await self._opening.result().stop(grace)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep gRPC's C core from writing to stderr, such as when a client shows no certificate.

    It reads the variable when it begins. Models inherit the server's environment, and may need these messages for their
    own calls.
    """
    given = os.environ.get(_VERBOSITY)
    os.environ.setdefault(_VERBOSITY, "NONE")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(_VERBOSITY, None)


def _report(on_open: Callable[[int], None], opening: asyncio.Task[GrpcServer]) -> None:
    if opening.cancelled():
        return
    error = opening.exception()
    if error is not None:
        logger.error("there is no gRPC", exc_info=error)
    else:
        on_open(opening.result().port)
