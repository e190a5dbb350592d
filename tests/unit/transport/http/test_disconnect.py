"""The watch over clients that wait: one that disconnects is noticed, one that stays costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geartrain.transport.http import disconnect
from geartrain.transport.http.disconnect import DisconnectWatch


class Client:
    """A connection as the application sees it after the request's body."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self.times_gone = 0

    async def receive(self) -> dict[str, Any]:
        self.asked.set()
        return await self.messages.get()

    def hang_up(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    def on_disconnect(self) -> None:
        self.times_gone += 1
        self.gone.set()


@pytest.fixture(autouse=True)
def short_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "_TICK", 0.001)


def tasks() -> int:
    return len(asyncio.all_tasks()) - 1


def has_timer(watch: DisconnectWatch) -> bool:
    return watch._timer is not None


async def test_client_that_hangs_up_is_noticed_once() -> None:
    watch, client = DisconnectWatch(), Client()
    wait = watch.begin(client.receive, client.on_disconnect)
    client.hang_up()
    async with asyncio.timeout(10):
        await client.gone.wait()
    watch.end(wait)
    assert client.times_gone == 1


async def test_client_that_had_hung_up_before_is_noticed() -> None:
    watch, client = DisconnectWatch(), Client()
    client.hang_up()
    watch.begin(client.receive, client.on_disconnect)
    async with asyncio.timeout(10):
        await client.gone.wait()


async def test_other_messages_are_passed_over() -> None:
    watch, client = DisconnectWatch(), Client()
    watch.begin(client.receive, client.on_disconnect)
    client.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    client.hang_up()
    async with asyncio.timeout(10):
        await client.gone.wait()


async def test_answer_that_comes_first_ends_the_watch() -> None:
    watch, client = DisconnectWatch(), Client()
    wait = watch.begin(client.receive, client.on_disconnect)
    async with asyncio.timeout(10):
        await client.asked.wait()
    assert tasks() == 1
    task = wait.watch
    assert task is not None
    watch.end(wait)
    client.hang_up()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.times_gone, tasks()) == (0, 0)


async def test_who_is_answered_within_a_tick_gets_no_watch() -> None:
    watch, quick, slow = DisconnectWatch(), Client(), Client()
    watch.begin(slow.receive, slow.on_disconnect)
    watch.end(watch.begin(quick.receive, quick.on_disconnect))
    async with asyncio.timeout(10):
        await slow.asked.wait()
    assert not quick.asked.is_set()
    slow.hang_up()
    async with asyncio.timeout(10):
        await slow.gone.wait()


async def test_timer_runs_only_while_somebody_waits_unwatched() -> None:
    watch, client = DisconnectWatch(), Client()
    assert not has_timer(watch)
    for _ in range(2):
        wait = watch.begin(client.receive, client.on_disconnect)
        assert has_timer(watch)
        async with asyncio.timeout(10):
            await client.asked.wait()
            while has_timer(watch):  # noqa: ASYNC110 - it goes by itself
                await asyncio.sleep(0)
        watch.end(wait)
        client.asked.clear()


async def test_everybody_is_watched() -> None:
    watch = DisconnectWatch()
    clients = [Client() for _ in range(100)]
    waits = [watch.begin(client.receive, client.on_disconnect) for client in clients]
    for client in clients[::2]:
        client.hang_up()
    async with asyncio.timeout(10):
        for client in clients[::2]:
            await client.gone.wait()
    for wait in waits:
        watch.end(wait)
    assert sum(client.times_gone for client in clients) == 50
    assert not watch._waits
