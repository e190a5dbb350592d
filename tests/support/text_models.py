"""A catalogue of a few models of texts and numbers, without a socket and without processes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Annotated

from geartrain import Input
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment, VersionRecord
from geartrain.service.shared_memory import SharedRegions
from tests.support.deployments import catalogue_of, deploy
from tests.support.fakes import FakeWorker
from tests.support.responders import LIMIT


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


class TextModels:
    """The models, and those of `more`, each with so many slots."""

    def __init__(self, regions: SharedRegions, *, slots: int = 4, **more: object) -> None:
        self.gate = Gate()
        self.talk = Talk()
        self.regions = regions
        self.catalogue: Catalogue
        self._slots = slots
        self._runners: dict[str, object] = {"numbers": Numbers(), "gate": self.gate, "talk": self.talk, **more}

    async def open(self) -> None:
        """Have all of them ready."""

        def model(runner: object, record: VersionRecord) -> Deployment:
            return deploy(functools.partial(FakeWorker, runner, slots=self._slots), record=record)

        runners = self._runners.items()
        self.catalogue = await catalogue_of(**{name: functools.partial(model, runner) for name, runner in runners})

    async def close(self) -> None:
        """End what runs."""
        self.regions.close()
        for deployment in self.catalogue.deployments():
            deployment.executions.cancel_all()
        self.catalogue.reconciler.close()
        async with asyncio.timeout(LIMIT):
            await self.catalogue.reconciler.stop()

    def live(self, name: str) -> list[Prediction]:
        """Return what runs."""
        return [execution.prediction for execution in self.catalogue.find(name).predictions.live.values()]
