"""A server without a socket and without processes: a catalogue of a few models behind the routes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Annotated

import pytest

from geartrain import Input
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment, VersionRecord
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.open_inference.api import API
from geartrain.transport.open_inference.exchanges import ArrayLoader, ServerContext
from geartrain.transport.open_inference.routes import open_inference_routes
from geartrain.transport.routing import Router
from tests.support.deployments import catalogue_of, deploy
from tests.support.fakes import FakeWorker
from tests.support.responders import LIMIT

MAX_BODY = 1_000_000


class Numbers:
    """Counts; `times` is how many numbers it gives."""

    async def run(self, times: int = 1, start: int = 0) -> list[int]:
        if times < 0:
            raise ValueError("there are no such numbers")
        return list(range(start, start + times))


class Gate:
    """Says that it has begun, and waits to be let through."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def run(self, text: str = "") -> str:
        self.began.set()
        await self.go.wait()
        return text


class Talk:
    """Gives `words`, each when it is let through if it holds; then fails if it is to."""

    def __init__(self) -> None:
        self.steps = asyncio.Semaphore(0)

    async def run(
        self,
        prompt: str,
        words: Annotated[int, Input(ge=0)] = 2,
        hold: bool = False,
        fail: bool = False,
        large: bool = False,
    ) -> AsyncIterator[str]:
        for word in range(words):
            if hold:
                await self.steps.acquire()
            yield f"{prompt} {word}" + ("x" * 40_000 if large else "")
        if fail:
            raise RuntimeError("the model is lost")


class Zoo:
    """The server: its router, and the runners of its models."""

    def __init__(self, *, health_body: bool = False, shared_memory: bool = True) -> None:
        self.gate = Gate()
        self.talk = Talk()
        self.regions = SharedRegions(enabled=shared_memory)
        self.catalogue: Catalogue
        self.router: Router
        self._bodies = LargeBodies()
        self._health_body = health_body

    async def open(self) -> None:
        def model(runner: object, record: VersionRecord) -> Deployment:
            return deploy(functools.partial(FakeWorker, runner, slots=4), record=record)

        models = {"numbers": Numbers(), "gate": self.gate, "talk": self.talk}
        self.catalogue = await catalogue_of(
            **{name: functools.partial(model, runner) for name, runner in models.items()}
        )
        context = ServerContext(self.catalogue, self.regions, MAX_BODY, ArrayLoader(), self._bodies)
        self.router = Router(open_inference_routes(context, health_body=self._health_body), API)

    async def close(self) -> None:
        self.regions.close()
        self._bodies.close()
        for deployment in self.catalogue.deployments():
            deployment.executions.cancel_all()
        self.catalogue.loads.close()
        async with asyncio.timeout(LIMIT):
            await self.catalogue.loads.stop()

    def live(self, name: str) -> list[Prediction]:
        """Return what runs."""
        return [execution.prediction for execution in self.catalogue.find(name).predictions.live.values()]


@pytest.fixture
async def zoo() -> AsyncIterator[Zoo]:
    made = Zoo()
    await made.open()
    yield made
    await made.close()
