"""The least that a server of batches with a worker process can do: no framework, no checks, no books.

`python benchmarks/batching_floor.py PORT`. One process reads requests and writes answers, on uvloop alone; its child
takes the numbers of a batch and 5 ms. It knows what no server can: that each connection asks again as soon as it is
answered, so a batch begins when all of them have asked, or 32. What geartrain adds to this is the price of geartrain.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SIZE = 32
SECONDS = 0.005
_CHUNK = 1 << 20
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_BODY = b'{"id":"pred_00000000000000000000000000","input":{"x":%d},"logs":"","output":%b,"status":"succeeded"}'


def work(slot: socket.socket) -> None:
    """The child: twice each number and one, until the parent is gone."""
    while data := slot.recv(_CHUNK):
        until = time.perf_counter() + SECONDS
        numbers = json.loads(data)
        time.sleep(SECONDS - 0.0005)
        while time.perf_counter() < until:
            pass
        slot.send(json.dumps([number * 2.0 + 1 for number in numbers]).encode())


class Gathering:
    """What waits for the child, and what it has."""

    def __init__(self, slot: socket.socket) -> None:
        self.clients = 0
        self._slot = slot
        self._waiting: list[tuple[Client, int]] = []
        self._running: Sequence[tuple[Client, int]] = ()

    def add(self, client: Client, number: int) -> None:
        """A client has asked."""
        self._waiting.append((client, number))
        self.begin()

    def begin(self) -> None:
        """Give the child a batch, if everybody has asked."""
        if self._running or len(self._waiting) < max(1, min(self.clients, MAX_SIZE)):
            return
        self._running, self._waiting = self._waiting[:MAX_SIZE], self._waiting[MAX_SIZE:]
        self._slot.send(json.dumps([number for _, number in self._running]).encode())

    def end(self) -> None:
        """The child has answered: next batch first, if it is there, then the answers."""
        outputs = json.loads(self._slot.recv(_CHUNK))
        over, self._running = self._running, ()
        self.begin()
        for (client, number), output in zip(over, outputs, strict=True):
            client.answer(_BODY % (number, repr(output).encode()))


class Client(asyncio.Protocol):
    """A connection."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        self._transport = cast("asyncio.Transport", transport)
        self._gathering.clients += 1

    def data_received(self, data: bytes) -> None:
        """Take the number, or say that the server is ready."""
        self._request += data
        head, _, body = self._request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            self._request = b""
            self.answer(b'{"status":"READY"}')
        elif body.endswith(b"}}"):  # the end of all that it is sent
            self._request = b""
            self._gathering.add(self, json.loads(body)["input"]["x"])

    def answer(self, body: bytes) -> None:
        """Write an answer."""
        self._transport.write(_HEAD % (len(body), body))

    def connection_lost(self, _error: Exception | None) -> None:
        """It is waited for no longer."""
        self._gathering.clients -= 1
        self._gathering.begin()


async def serve(port: int, slot: socket.socket) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    gathering = Gathering(slot)
    loop.add_reader(slot.fileno(), gathering.end)
    server = await loop.create_server(lambda: Client(gathering), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Fork the child, then serve."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        work(theirs)
        os._exit(0)
    theirs.close()
    uvloop.run(serve(int(sys.argv[1]), ours))


if __name__ == "__main__":
    main()
