"""Servers with a store, one after the other, and what is asked of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from geartrain.server.options import StoreOptions
from geartrain.service.models.deployment import Limits
from geartrain.store.store import Store, open_store
from tests.support.servers import PATIENCE, LiveServer, Serve, eventually, readers

MODEL = """
    import os, time
    from collections.abc import Iterator
    from geartrain import BaseRunner, Path, Secret, current_scope, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, name: str, file: Path | None = None, key: Secret | None = None) -> Iterator[str]:
            with open("runs", "a") as runs:
                runs.write(name + "\\n")
            print("begun", name)
            current_scope().record_metric("steps", 1)
            yield "one"
            while not (os.path.exists(name) or os.path.exists("all")):
                time.sleep(0.002)
            if file is not None:
                yield file.read_text()
            if key is not None:
                yield key.get_secret_value()[::-1]
            yield "two"
"""
ASYNC = {"prefer": "respond-async"}
EVENTS = {"accept": "text/event-stream"}


class Servers:
    """The same model served again and again, over one store."""

    def __init__(self, serve: Serve, folder: Path, url: str) -> None:
        self._serve = serve
        self.folder = folder
        self.url = url

    def serve(self, *, queue: int = 10, **options: Any) -> contextlib.AbstractAsyncContextManager[LiveServer]:
        store = StoreOptions(url=self.url, lease=6.0, **options)
        return self._serve(self.folder, store=store, limits=Limits(queue=queue))

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The store itself, while no server has it."""
        store = await open_store(self.url)
        try:
            yield store
        finally:
            await store.close()

    def runs(self) -> list[str]:
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def open_gate(self, name: str = "all") -> None:
        (self.folder / name).touch()


async def put(server: LiveServer, name: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"input": {"name": name}, **fields}
    return await server.client.put(f"/predictions/{name}", json=body, headers=headers or {})


async def get(server: LiveServer, name: str) -> dict[str, Any]:
    response = await server.client.get(f"/predictions/{name}")
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def until(
    server: LiveServer, name: str, condition: Callable[[dict[str, Any]], bool] = lambda body: "completed_at" in body
) -> dict[str, Any]:
    """Ask for a prediction until the answer is as wanted, by default until it has ended."""
    async with asyncio.timeout(PATIENCE):
        while not condition(body := await get(server, name)):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
    return body


async def follow_after_a_restart(servers: Servers) -> None:
    """Check that what was accepted goes on in the next server, for GET and for a stream that joins there."""
    async with servers.serve() as server:
        assert (await put(server, "a", ASYNC)).status_code == 202
        await until(server, "a", has_output)
    async with servers.serve() as server:
        assert (await get(server, "a"))["status"] in {"starting", "processing"}
        joining = asyncio.ensure_future(_join(server, "a"))
        await eventually(lambda: has_given(server, "a") and is_followed(server, "a"))
        running = await get(server, "a")
        assert (running["status"], running["output"], running["logs"]) == ("processing", ["one"], "begun a\n")
        servers.open_gate()
        stream = await joining
        names = [line[7:] for line in stream.splitlines() if line.startswith("event: ")]
        assert names == ["start", "log", "metric", "output", "output", "completed"]
        ended = await get(server, "a")
        assert (ended["status"], ended["output"], ended["logs"]) == ("succeeded", ["one", "two"], "begun a\n")
    async with servers.serve() as server:
        assert await get(server, "a") == ended
    assert servers.runs() == ["a", "a"]


async def _join(server: LiveServer, name: str) -> str:
    """PUT until the prediction is taken up, and return the whole stream."""
    async with asyncio.timeout(PATIENCE):
        while (response := await put(server, name, EVENTS)).status_code == 503:  # noqa: ASYNC110 - as Retry-After says
            await asyncio.sleep(0.05)
    assert response.status_code == 200, response.text
    text: str = response.text
    return text


def has_given(server: LiveServer, name: str) -> bool:
    prediction = server.predictions.find(name)
    return prediction is not None and bool(prediction.chunks)


def is_followed(server: LiveServer, name: str) -> bool:
    prediction = server.predictions.find(name)
    return prediction is not None and readers(prediction) > 0


def has_output(body: dict[str, Any]) -> bool:
    return "output" in body
