"""What a client asks of one server, the others follow."""

from __future__ import annotations

import asyncio
import logging

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import WantedModel
from geartrain.service.durable.durability import Durability, DurableSettings
from geartrain.service.models.wanted import SharedControl
from tests.support.memory_store import MemoryStore


class Models:
    """Notes what is asked of it; some loads fail, and some wait."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.broken: set[str] = set()
        self.go = asyncio.Event()
        self.go.set()
        self.changed = asyncio.Event()

    async def load(self, name: str) -> None:
        await self._do(f"load {name}", name)

    async def unload(self, name: str) -> None:
        await self._do(f"unload {name}", name)

    async def _do(self, what: str, name: str) -> None:
        await self.go.wait()
        if name in self.broken:
            raise GeartrainError(Code.LOAD_FAILED, "no weights")
        self.done.append(what)
        self.changed.set()

    async def until(self, *done: str) -> None:
        async with asyncio.timeout(40):
            while self.done != list(done):
                self.changed.clear()
                await self.changed.wait()


class Server:
    def __init__(self, store: MemoryStore, owner: str) -> None:
        self.models = Models()
        durability = Durability(store, owner=owner, settings=DurableSettings(), encode_end=lambda _prediction: b"")
        self.control = SharedControl(self.models, durability)


async def followed(control: SharedControl) -> None:
    while control._following:  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0)


async def test_the_others_follow() -> None:
    store = MemoryStore()
    one, other = Server(store, "one"), Server(store, "other")
    one.control.start()
    other.control.start()
    await one.control.load("m")
    await other.models.until("load m")
    await other.control.unload("m")
    await one.models.until("load m", "unload m")
    late = Server(store, "late")  # learns what was asked last
    late.control.start()
    await late.models.until("unload m")
    for server in (one, other, late):
        await server.control.stop()
    assert other.models.done == ["load m", "unload m"]


async def test_what_one_server_cannot_load_is_asked_of_no_other() -> None:
    store = MemoryStore()
    one = Server(store, "one")
    one.models.broken.add("m")
    with pytest.raises(GeartrainError, match="no weights"):
        await one.control.load("m")
    assert await store.replicas.wanted() == ()


async def test_a_store_that_is_away_is_told_to_the_client_and_followed_later() -> None:
    store = MemoryStore()
    one, other = Server(store, "one"), Server(store, "other")
    store.fault = GeartrainError(Code.STORE_UNAVAILABLE, "The store is away.")
    other.control.start()
    with pytest.raises(GeartrainError, match="away"):
        await one.control.load("m")
    store.fault = None
    await one.control.load("m")
    await other.models.until("load m")
    await other.control.stop()


async def test_one_thing_after_the_other_and_only_what_is_new(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(MemoryStore(), "one")
    models, control = server.models, server.control
    models.go.clear()
    control.apply((WantedModel("m", is_wanted=True, revision=1),))
    control.apply((WantedModel("m", is_wanted=False, revision=2),))  # while the load goes on: at a later look
    models.go.set()
    await models.until("load m")
    await followed(control)
    control.apply((WantedModel("m", is_wanted=False, revision=2), WantedModel("n", is_wanted=True, revision=3)))
    await models.until("load m", "unload m", "load n")
    await followed(control)
    models.broken.add("n")
    with caplog.at_level(logging.WARNING):
        control.apply((WantedModel("m", is_wanted=False, revision=2), WantedModel("n", is_wanted=True, revision=4)))
        await followed(control)
    assert models.done == ["load m", "unload m", "load n"]
    assert "could not be loaded" in caplog.text
    await control.stop()
