"""The uvicorn server as geartrain runs it, with its own loop, signals and logging."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.trainings import Trainings
from geartrain.transport.http.app import make_app
from geartrain.transport.http.connection import Connection, IdleSweep
from geartrain.transport.http.handlers import Handler
from geartrain.transport.http.head_cache import AnswerHeads, HeadCache
from geartrain.transport.http.metrics import MetricsEndpoint
from geartrain.transport.http.models import CogEndpoints
from geartrain.transport.http.open_inference import OpenInferenceEndpoints, OpenInferenceOptions
from geartrain.transport.http.streams import QUIET

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_KEEP_ALIVE = 75  # seconds
_LAST_WORDS = 1.0  # seconds for canceled predictions to say so to their clients


class HttpServer(uvicorn.Server):
    """A server that leaves the signals to its caller, and that no client can keep from ending."""

    def __init__(self, config: uvicorn.Config, cancel_all: Callable[[], None], *, grace: float | None) -> None:
        """`grace`: the seconds that what runs has to end once the server is to shut down; None for no limit."""
        super().__init__(config)
        self._cancel_all = cancel_all
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
        """Wait for the grace, then cancel all predictions, then disconnect clients that still read slowly."""
        loop = asyncio.get_running_loop()
        timers = []
        if self._grace is not None:
            self._ends_at = loop.time() + self._grace
            timers.append(loop.call_at(self._ends_at, self._cancel_all))
            timers.append(loop.call_at(self._ends_at + _LAST_WORDS, self._disconnect))
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()
        self._disconnect()
        await asyncio.sleep(0)  # they hear of it

    def _disconnect(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_http_server(
    catalogue: Catalogue | None,
    trainings: Trainings | None,
    *,
    cancel_all: Callable[[], None],
    open_inference: OpenInferenceOptions,
    max_body_bytes: int,
    quiet: float = QUIET,
    grace: float | None = None,
) -> HttpServer:
    """Build a server on the running loop; `serve(sockets=[…])` runs it until its `should_exit` is set.

    At the root it serves the default model of `catalogue`, trainings, or both; all models of the catalogue at
    `/models`, and by the Open Inference Protocol. `quiet`: the seconds after which a stream without events is kept
    alive. `cancel_all` and `grace`: see `HttpServer`.
    """

    def shut_down() -> None:
        server.should_exit = True

    cog = CogEndpoints(max_body_bytes=max_body_bytes, quiet=quiet, shut_down=shut_down)
    root = cog.root(catalogue, trainings)
    handlers: list[Handler] = list(root.handlers)
    others: dict[str, ASGIApp] = {}
    if catalogue is not None:
        v2 = OpenInferenceEndpoints(catalogue, open_inference, max_body_bytes=max_body_bytes)
        handlers.append(v2.infer)
        others = {"v2": v2, "models": cog.models(catalogue), "metrics": MetricsEndpoint(catalogue)}
    app = make_app(root.endpoints, root.routes, others)
    config = uvicorn.Config(
        app,
        http=cast(
            "Any",
            partial(Connection, handlers, IdleSweep(_KEEP_ALIVE), head_cache=HeadCache(), answers=AnswerHeads()),
        ),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    server = HttpServer(config, cancel_all, grace=grace)
    return server
