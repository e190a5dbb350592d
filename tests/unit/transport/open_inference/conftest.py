"""A server without a socket and without processes: a catalogue of a few models behind the routes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.open_inference.exchanges import API, ArrayLoader, ServerContext
from geartrain.transport.open_inference.routes import open_inference_routes
from geartrain.transport.routing import Router
from tests.support.text_models import TextModels

MAX_BODY = 1_000_000


class Zoo(TextModels):
    """The server: its router, and the runners of its models."""

    def __init__(self, *, health_body: bool = False, shared_memory: bool = True) -> None:
        super().__init__(SharedRegions(enabled=shared_memory))
        self.router: Router
        self._bodies = LargeBodies()
        self._health_body = health_body

    async def open(self) -> None:
        await super().open()
        context = ServerContext(self.catalogue, self.regions, MAX_BODY, ArrayLoader(), self._bodies)
        self.router = Router(open_inference_routes(context, health_body=self._health_body), API)

    async def close(self) -> None:
        self._bodies.close()
        await super().close()


@pytest.fixture
async def zoo() -> AsyncIterator[Zoo]:
    made = Zoo()
    await made.open()
    yield made
    await made.close()
