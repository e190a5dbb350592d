"""Server of a replica: the same as that of `geartrain serve`, without signals, on the sockets that Ray gives it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Collection

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.project.repository import Repository
from geartrain.ray.handler import ReplicaHandler
from geartrain.server.app import build
from geartrain.server.cluster import with_address
from geartrain.server.http import HttpServer
from geartrain.server.options import ServeOptions
from geartrain.server.reloading import watching
from geartrain.server.sockets import bind
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import STOP_GRACE
from geartrain.service.models.entry import ModelEntry
from geartrain.transport.access.access import Access
from geartrain.transport.access_log import AccessLog
from geartrain.transport.asgi import AsgiApplication
from geartrain.transport.records import RequestCounts
from geartrain.transport.wire.exchange import Handler

logger = logging.getLogger("geartrain.ray")


class ReplicaLostError(Exception):
    """A model that was served is gone, such as by a crash; Ray starts another replica."""


class ReplicaModels:
    """Says how the models are, and loads and unloads them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def check_health(self) -> None:
        """Raise `ReplicaLostError` for a model that was served until its worker crashed, with no other to follow it.

        A model whose setup has failed is none of these: another replica would meet the same.
        """
        entries = (self._catalogue.entry(name) for name in self._catalogue.names())
        lost = [entry.describe_state() for entry in entries if _is_lost(entry)]
        if lost:
            raise ReplicaLostError(" ".join(lost))

    def load(self) -> float:
        """Return the number of replicas that its work would keep busy: 1 for used slots and an empty queue.

        It is that of the model with most to do for its slots.
        """
        return max(
            (
                len(deployment.executions.live) / deployment.workers.permits.size
                for deployment in self._catalogue.deployments()
                if deployment.workers.permits.size
            ),
            default=0.0,
        )

    async def reload(self) -> None:
        """Load every model anew, one after the other. One that cannot be loaded goes on as it is; the log says why."""
        for name in self._catalogue.names():
            if self._catalogue.entry(name).is_wanted:
                await self._change(name, is_wanted=True, anew=True)

    async def have(self, names: Collection[str]) -> None:
        """Have these models loaded, and no others."""
        catalogue = self._catalogue
        loaded = {name for name in catalogue.names() if catalogue.entry(name).is_wanted}
        for name in sorted(loaded ^ set(names)):
            await self._change(name, is_wanted=name in names)

    async def _change(self, name: str, *, is_wanted: bool, anew: bool = False) -> None:
        catalogue = self._catalogue
        try:
            await (catalogue.load(name, anew=anew) if is_wanted else catalogue.unload(name))
        except GeartrainError as error:
            logger.error("the model %r: %s", name, error.message)  # noqa: TRY400 - the sentence says all


def _is_lost(entry: ModelEntry) -> bool:
    return any(deployment.workers.health is Health.DEFUNCT for deployment in entry.available.values())


class ReplicaServer:
    """Serves models, and ends without losing a prediction that was accepted, as far as the grace allows.

    Needs a running loop, which is its own from then on.
    """

    def __init__(self, options: ServeOptions) -> None:
        """Spawn the workers; `start` follows.

        Raises `AccessError` for keys that cannot be read, `ClusterOptionError` for a token, `OSError` if there is no
        port for the other replicas.
        """
        self.loop = asyncio.get_running_loop()
        self.handler: ReplicaHandler
        self._access = Access(options.access, options.host)
        self._access_log = AccessLog(options.access_log)
        self._open = contextlib.AsyncExitStack()
        self._http: HttpServer
        self._serving: asyncio.Task[None]
        # Ray gives a replica its ports when the models are loaded. The others have to reach it before, as what it takes
        # up from a store runs at once.
        self._peers = _listen_for_peers(options.cluster.advertise)
        for listener in self._peers:
            options = with_address(options, listener)
        self.app = build(options)
        self.app.spawn()
        self.models = ReplicaModels(self.app.catalogue)

    async def start(self) -> None:
        """Go on with the workers; return when no model is being loaded.

        Raises `ModelSetupError` for a model that is served alone and cannot become ready, `StoreOptionError` for a
        store that cannot be opened. Of several models one that fails is unavailable, and the others are served.
        """
        app, access = self.app, self._access
        try:
            await app.start()
        except BaseException:
            await self._give_up()
            raise
        requests = RequestCounts(self._access_log)
        self._http = HttpServer(app, access, requests=requests, on_tick=access.refresh, mount=self._mount)
        self._serving = asyncio.ensure_future(self._http.serve())
        for listener in self._peers:
            self._http.listen(listener)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._end)
            stack.enter_context(self._access_log)
            stack.enter_context(requests)
            access.start()
            stack.push_async_callback(access.close)
            stack.push_async_callback(self._drain)
            await stack.enter_async_context(watching(app))
            if isinstance(app.options.source, Repository):
                await app.settled()
            else:
                await app.ready()
            self._open = stack.pop_all()

    async def stop(self) -> None:
        """Take no further request; return when what was accepted is over, or the grace is."""
        await self._open.aclose()

    # the ports

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on a listening socket, for HTTP and gRPC."""
        self._http.listen(listener)

    def close(self) -> None:
        """Take no further request by the ports."""
        self._http.stop()

    async def closed(self) -> None:
        """Wait until the last answer that is owed by the ports has been given, or the grace is over."""
        await asyncio.shield(self._serving)

    def application(self) -> AsgiApplication:
        """Return the same models for requests that come by Ray's own proxy. Its host starts and ends nothing."""
        embedded = self._http.embedded

        async def start() -> Handler:
            return embedded.handler

        async def stop() -> None:
            pass

        return AsgiApplication(start, stop, embedded.records)

    # its end

    def _mount(self, handler: Handler) -> Handler:
        self.handler = ReplicaHandler(handler, None if self.app.relay is None else self.app.relay.token)
        return self.handler

    async def _drain(self) -> None:
        self._http.stop()
        await self._serving

    async def _end(self) -> None:
        app, http = self.app, self._http
        try:
            await app.stop(
                grace=http.grace_left(),
                webhook_grace=lambda: STOP_GRACE if http.is_forced else app.options.webhooks.grace,
            )
        except BaseException:
            await self._give_up()
            raise

    async def _give_up(self) -> None:
        for listener in self._peers:
            listener.close()
        await self.app.kill()
        await self.app.outbound.close()


def _listen_for_peers(node: str) -> tuple[socket.socket, ...]:
    """Listen on the address of a node, on any port; nowhere if there is no address."""
    return (bind(node, 0),) if node else ()
