"""The uvicorn server, as we run it: our loop, our signals, our logging."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import uvicorn

from geartrain.service.predictions import PredictionService
from geartrain.service.trainings import Trainings
from geartrain.transport.http.app import make_app
from geartrain.transport.http.connection import Connection, IdleSweep
from geartrain.transport.http.predictions import PredictionEndpoints
from geartrain.transport.http.streams import QUIET
from geartrain.transport.http.system import SystemEndpoints
from geartrain.transport.http.trainings import TrainingEndpoints

_KEEP_ALIVE = 75  # seconds
_LAST_WORDS = 1.0  # seconds for canceled predictions to say so to their clients
_COLLECT_AFTER = 20_000  # objects more than before


def tune_collector() -> None:
    """Have the garbage collector look at what predictions leave behind, and seldom at the server itself."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


class HttpServer(uvicorn.Server):
    """A server that leaves the signals to whoever runs it, and that no client can keep from ending."""

    def __init__(self, config: uvicorn.Config, services: Sequence[PredictionService], *, grace: float | None) -> None:
        """`grace`: the seconds that what runs has to end once the server is to shut down; None for no limit."""
        super().__init__(config)
        self._services = services
        self._grace = grace
        self._ends_at: float | None = None  # on the loop's clock

    def grace_left(self) -> float | None:
        """The seconds that running predictions still have; None for no limit."""
        if self.force_exit:
            return 0.0
        if self._ends_at is None:
            return self._grace
        return max(0.0, self._ends_at - asyncio.get_running_loop().time())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn. After the grace all predictions are canceled; then whoever still reads slowly is hung up on."""
        loop = asyncio.get_running_loop()
        timers = []
        if self._grace is not None:
            self._ends_at = loop.time() + self._grace
            timers.append(loop.call_at(self._ends_at, self._cancel_all))
            timers.append(loop.call_at(self._ends_at + _LAST_WORDS, self._hang_up))
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()
        self._hang_up()
        await asyncio.sleep(0)  # they hear of it

    def _cancel_all(self) -> None:
        for service in self._services:
            service.cancel_all()

    def _hang_up(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn."""
        yield


def make_http_server(
    predictions: PredictionService | None,
    *,
    trainings: Trainings | None = None,
    max_body_bytes: int,
    log_level: int,
    quiet: float = QUIET,
    grace: float | None = None,
) -> HttpServer:
    """Build a server on the running loop; `serve(sockets=[…])` runs it until its `should_exit` is set.

    It serves predictions, trainings, or both. `quiet`: the seconds after which a stream without events is kept alive.
    `grace`: see `HttpServer`.
    """

    def shut_down() -> None:
        server.should_exit = True

    endpoints: dict[str, PredictionEndpoints] = {}
    if predictions is not None:
        endpoints["predictions"] = PredictionEndpoints(predictions, max_body_bytes=max_body_bytes, quiet=quiet)
    if trainings is not None:
        endpoints["trainings"] = TrainingEndpoints(trainings, max_body_bytes=max_body_bytes)
    app = make_app(endpoints, SystemEndpoints(predictions, trainings, shut_down))
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(Connection, endpoints.get("predictions"), IdleSweep(_KEEP_ALIVE))),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=log_level,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    services = [predictions] if predictions is not None else []
    services += [trainings.service] if trainings is not None else []
    server = HttpServer(config, services, grace=grace)
    return server
