"""The standard health service, grpc.health.v1: of the server as a whole, and of each model by its name."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.grpc import health_pb2
from geartrain.transport.grpc.answers import MessageAnswer
from geartrain.transport.grpc.errors import status_of
from geartrain.transport.grpc.framing import frame, unpack
from geartrain.transport.grpc.heads import CallHead
from geartrain.transport.grpc.servicer import SERVICE
from geartrain.transport.grpc.status import Status
from geartrain.transport.grpc.streaming import SHUTTING_DOWN
from geartrain.transport.grpc.unary import parse_message
from geartrain.transport.wire.exchange import Body, ClientGoneError, Responder

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
CHECK: Final = f"/{HEALTH_SERVICE}/Check"
WATCH: Final = f"/{HEALTH_SERVICE}/Watch"

_Response = health_pb2.HealthCheckResponse
_WHOLE: Final = frozenset({"", SERVICE})
_LOOK: Final = 0.2  # seconds between two looks of a `Watch`


class HealthCalls:
    """Answers `Check`, and knows what a `Watch` is to say."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._closing = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """True if the server is about to stop."""
        return self._closing.is_set()

    def close(self) -> None:
        """Answer that nothing is serving any more, and end every `Watch`: the server is about to stop."""
        self._closing.set()

    def check(self, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
        """Return the state of a service, once; raise `NOT_FOUND` for an unknown one."""
        status = self.status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            msg = f"unknown service '{clip(request.service)}': name a model, or nothing for the server as a whole"
            raise GeartrainError(Code.NOT_FOUND, msg)
        return _Response(status=status)

    def status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        """Return the state of a service."""
        catalogue = self._catalogue
        ready = catalogue.readiness.is_ready if service in _WHOLE else information.is_ready(catalogue, service)
        if not ready and service not in _WHOLE and not any(entry.name == service for entry in catalogue.index()):
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if ready and not self.is_closing else _Response.NOT_SERVING

    async def pause(self) -> None:
        """Wait until it is time for the next look, or the server is about to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await self._closing.wait()


class WatchExchange:
    """One `Watch`: the state of a service, and again whenever it is another. A service may be yet to come."""

    __slots__ = ("_answer", "_calls", "_head", "_max_message", "_watching")

    def __init__(self, calls: HealthCalls, head: CallHead, responder: Responder, *, max_message: int) -> None:
        """`max_message`: bytes of its message, `NO_LIMIT` for any."""
        self._calls = calls
        self._head = head
        self._max_message = max_message
        self._watching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = MessageAnswer(responder, head.timeout, self._leave)

    def receive(self, body: Body) -> None:
        """Begin to watch."""
        self._watching = asyncio.ensure_future(self._run(body))

    def abandon(self) -> None:
        """End it: the client has gone."""
        self._answer.close()
        self._leave()

    def _leave(self) -> None:
        self._watching.cancel()

    async def _run(self, body: Body) -> None:
        try:
            message = await unpack(body, WATCH, self._head, limit=self._max_message)
            await self._watch(parse_message(health_pb2.HealthCheckRequest, message).service)
        except ClientGoneError:
            self._answer.close()
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            self._answer.finish(*status_of(error))

    async def _watch(self, service: str) -> None:
        calls, answer = self._calls, self._answer
        last = -1
        while True:
            status = calls.status(service)
            if status != last:
                answer.send(*frame((_Response(status=status).SerializeToString(),)))
                last = status
            if calls.is_closing:
                answer.finish(Status.UNAVAILABLE, SHUTTING_DOWN)
                return
            await answer.drained()
            await calls.pause()
