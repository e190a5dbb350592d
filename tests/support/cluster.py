"""Three servers on one store, each a process of its own, and clients of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from geartrain.store.store import Store, open_store
from tests.support import modes
from tests.support.clients import asyncio_client
from tests.support.servers import PATIENCE, ServerProcess, write_model

if TYPE_CHECKING:
    import httpx

MODEL: Final = """
    import asyncio, os
    from collections.abc import AsyncIterator
    from geartrain import BaseRunner, concurrent, streaming

    class Runner(BaseRunner):
        @streaming
        @concurrent(max=32)
        async def run(self, name: str) -> AsyncIterator[str]:
            with open("runs", "a") as runs:
                runs.write(name + "\\n")
            print("begun", name)
            yield "one"
            while not (name.startswith("free") or os.path.exists(name) or os.path.exists("all")):
                await asyncio.sleep(0.005)
            yield "two"
"""
LEASE: Final = 6.0  # seconds; what was accepted is taken over within a third of it after a lease has ended
EVENTS: Final = {"accept": "text/event-stream"}
ASYNC: Final = {"prefer": "respond-async"}


class Replica(NamedTuple):
    """One of the servers."""

    process: ServerProcess
    url: str

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]


class Cluster:
    """The servers, the folder of their model, and their store."""

    def __init__(self, folder: Path, store_url: str, *, lease: float = LEASE) -> None:
        """`lease`: seconds; a test in which nothing is taken over has a long one, for machines with slow disks."""
        self.folder = folder
        self.store_url = store_url
        self._lease = lease
        self.replicas: list[Replica] = []
        self.token = secrets.token_urlsafe(32)
        self.token_file = folder.parent / "token"
        self.token_file.write_text(f"{self.token}\n")

    def start(self, count: int) -> None:
        """Start some servers, and wait until they are ready."""
        processes = [self.spawn() for _ in range(count)]
        try:
            self.replicas += [Replica(process, ready(process)) for process in processes]
        except BaseException:
            for process in processes:
                process.end()
            raise

    def spawn(self) -> ServerProcess:
        credentials = modes.current().credentials
        trust = () if credentials is None else ("--cluster-ca", str(credentials.authority))
        store = ("--store", self.store_url, "--lease", f"{self._lease:g}s")
        options = (*store, "--queue", "2000", "--advertise", "127.0.0.1")
        token = ("--cluster-token-file", str(self.token_file))
        return ServerProcess(str(self.folder), *options, *token, *trust, "--access-log", "off")

    def end(self) -> None:
        for replica in self.replicas:
            replica.process.end()

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[list[httpx.AsyncClient]]:
        """A client of each server."""
        async with contextlib.AsyncExitStack() as stack:
            yield [await stack.enter_async_context(asyncio_client(replica.url, PATIENCE)) for replica in self.replicas]

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The store itself."""
        store = await open_store(self.store_url)
        try:
            yield store
        finally:
            await store.close()

    def runs(self, prefix: str) -> list[str]:
        """The runs of the model with such names, in the order in which they began."""
        path = self.folder / "runs"
        names = path.read_text().splitlines() if path.exists() else []
        return [name for name in names if name.startswith(prefix)]

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()


@contextlib.contextmanager
def running_cluster(parent: Path, store_url: str, count: int = 3) -> Iterator[Cluster]:
    """Run servers of one model."""
    cluster = Cluster(write_model(parent / "model", MODEL), store_url)
    try:
        cluster.start(count)
        yield cluster
    finally:
        cluster.end()


class PlainClient:
    """Sends one PUT after the other on a connection, at little cost: two processors are shared by all of a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, url: str) -> AsyncIterator[PlainClient]:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=modes.current().trust(url))
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def put(self, name: str) -> int:
        """PUT a prediction; return the status of the answer, whose body is read."""
        body = b'{"input":{"name":"%b"}}' % name.encode()
        fields = b"host: test\r\ncontent-type: application/json\r\ncontent-length: %d" % len(body)
        request = b"PUT /predictions/%b HTTP/1.1\r\n%b\r\n\r\n" % (name.encode(), fields)
        self._writer.write(modes.current().authorize(request) + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length: ")
        await self._reader.readexactly(int(length.split(b"\r\n", 1)[0]))
        return int(head.split(b" ", 2)[1])


def ready(process: ServerProcess) -> str:
    """Wait until a server is ready, and return its URL; it may listen before or after."""
    told: dict[str, dict[str, Any]] = {}
    while {"listening", "ready"} - told.keys():
        line = process.wait_for_one("listening", "ready")
        told[str(line.get("event") or line.get("message") or line.get("stage"))] = line
    return str(told["listening"]["url"])


async def put(client: httpx.AsyncClient, name: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return await client.put(f"/predictions/{name}", json={"input": {"name": name}}, headers=headers or {})


async def until(
    client: httpx.AsyncClient,
    name: str,
    condition: Callable[[dict[str, Any]], bool] = lambda body: "completed_at" in body,
) -> dict[str, Any]:
    """Ask for a prediction until the answer is as wanted, by default until it has ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            response = await client.get(f"/predictions/{name}")
            body: dict[str, Any] = response.json()
            if response.status_code == 200 and condition(body):
                return body
            assert response.status_code in {200, 503}, response.text
            await asyncio.sleep(0.01)
