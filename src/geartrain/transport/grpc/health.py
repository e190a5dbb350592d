"""The standard health service, grpc.health.v1: of the server as a whole, and of each model by its name."""

from __future__ import annotations

import asyncio
from typing import Final

from grpc_health.v1 import health_pb2

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.grpc.errors import Context, abort
from geartrain.transport.grpc.servicer import SERVICE

HEALTH_SERVICE: Final = "grpc.health.v1.Health"

_Answer = health_pb2.HealthCheckResponse
_WHOLE: Final = frozenset({"", SERVICE})
_LOOK: Final = 0.2  # seconds between two looks of a `Watch`


class HealthCalls:
    """Answers `Check` and `Watch`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Answer that nothing is serving any more, and end every `Watch`: the server is about to stop."""
        self._closing.set()

    async def check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Tell the state of a service, once."""
        status = self._status(request.service)
        if status == _Answer.SERVICE_UNKNOWN:
            msg = f"unknown service '{request.service}': name a model, or nothing for the server as a whole"
            await abort(context, GeartrainError(Code.NOT_FOUND, msg))
        return _Answer(status=status)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """Tell the state of a service, and again whenever it is another; a service may be yet to come."""
        last = -1
        while True:
            status = self._status(request.service)
            if status != last:
                await context.write(_Answer(status=status))
                last = status
            if self._closing.is_set():
                await abort(context, GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down."))
            try:
                async with asyncio.timeout(_LOOK):
                    await self._closing.wait()
            except TimeoutError:
                continue

    def _status(self, service: str) -> int:
        catalogue = self.catalogue
        ready = catalogue.readiness.is_ready if service in _WHOLE else information.is_ready(catalogue, service)
        if not ready and service not in _WHOLE and not any(entry.name == service for entry in catalogue.index()):
            return _Answer.SERVICE_UNKNOWN
        return _Answer.SERVING if ready and not self._closing.is_set() else _Answer.NOT_SERVING
