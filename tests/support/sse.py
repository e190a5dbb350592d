"""A client of server-sent events, and a model that does as a script says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from tests.support import modes
from tests.support.gates import Gates
from tests.support.servers import LiveServer, eventually
from tests.support.wire import Answer, Connection, connection

FLOOD = 80_000  # events of 200 bytes and more: much more than all buffers on the way hold

Event = tuple[str, Any]  # its name and what its data says; of a comment "" and its text

# Steps: ["yield", value], ["many", count, text], ["print", text], ["warn", text], ["metric", name, value, mode],
# ["wait", gate], ["raise", text], ["file", text], ["exit"].
SYNC = """
    import os, select, sys
    from collections.abc import Iterator
    from typing import Any
    from geartrain import BaseRunner, Path, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, script: list[Any] = []) -> Iterator[Any]:
            for step, *arguments in script:
                if step == "yield":
                    yield arguments[0]
                elif step == "many":
                    for i in range(arguments[0]):
                        yield arguments[1]
                elif step == "print":
                    print(arguments[0])
                elif step == "warn":
                    print(arguments[0], file=sys.stderr)
                elif step == "metric":
                    self.record_metric(*arguments)
                elif step == "wait":
                    with open(arguments[0], "rb", buffering=0) as gate:
                        select.select([gate], [], [])
                elif step == "raise":
                    raise ValueError(arguments[0])
                elif step == "file":
                    with open("part.txt", "w") as file:
                        file.write(arguments[0])
                    yield Path("part.txt")
                elif step == "exit":
                    os._exit(9)
"""
ASYNC = """
    import asyncio
    from collections.abc import AsyncIterator
    from typing import Any
    from geartrain import concurrent, streaming

    @streaming
    @concurrent(max=200)
    async def run(script: list[Any] = []) -> AsyncIterator[Any]:
        for step, *arguments in script:
            if step == "yield":
                yield arguments[0]
            elif step == "many":
                for i in range(arguments[0]):
                    yield arguments[1]
                    await asyncio.sleep(0)
            elif step == "wait":
                opened = asyncio.Event()
                with open(arguments[0], "rb", buffering=0) as gate:
                    loop = asyncio.get_running_loop()
                    loop.add_reader(gate, opened.set)
                    await opened.wait()
                    loop.remove_reader(gate)
"""


def parse(text: bytes) -> list[Event]:
    """Read whole events."""
    assert text.endswith(b"\n\n")
    events: list[Event] = []
    for block in text[:-2].decode().split("\n\n"):
        if block.startswith(":"):
            events.append(("", block[1:].strip()))
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


class EventStream:
    """An answer that streams."""

    def __init__(self, wire: Connection, answer: Answer) -> None:
        self.headers = answer.headers
        self._wire = wire
        self._pieces: list[bytes] = []  # all that has come
        self._waiting: list[Event] = []
        self._partial = bytearray()
        self._over = False

    @property
    def text(self) -> bytes:
        """All that has come."""
        return b"".join(self._pieces)

    async def next(self) -> Event:
        """The next event."""
        while not self._waiting:
            assert await self._read(), f"the stream ended after {self.text[-1000:]!r}"
        return self._waiting.pop(0)

    async def until(self, name: str) -> list[Event]:
        """The events up to the next one of that name, which is the last of them."""
        events = [await self.next()]
        while events[-1][0] != name:
            events.append(await self.next())
        return events

    async def rest(self) -> list[Event]:
        """The events up to the end of the answer."""
        while await self._read():
            pass
        events, self._waiting = self._waiting, []
        assert not self._partial
        return events

    async def _read(self) -> bool:
        chunk = b"" if self._over else await self._wire.chunk()
        self._over = not chunk
        self._pieces.append(chunk)
        self._partial += chunk
        begin = max(0, len(self._partial) - len(chunk) - 1)  # large events come in many pieces, read but once
        end = self._partial.rfind(b"\n\n", begin)
        if end >= 0:
            whole = end + len(b"\n\n")
            self._waiting += parse(bytes(self._partial[:whole]))
            del self._partial[:whole]
        return not self._over


def request(values: dict[str, Any], *, put: str | None = None, **fields: Any) -> bytes:
    """The bytes of a request for a stream."""
    body = json.dumps({"input": values, **fields}).encode()
    start = "POST /predictions" if put is None else f"PUT /predictions/{put}"
    lines = [f"{start} HTTP/1.1", "host: test", "accept: text/event-stream", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def ask(wire: Connection, values: dict[str, Any], *, put: str | None = None, **fields: Any) -> EventStream:
    """Ask for a stream on a connection; it must be granted."""
    await wire.send(request(values, put=put, **fields))
    answer = await wire.head()
    assert answer.status == 200
    return EventStream(wire, answer)


@contextlib.asynccontextmanager
async def stream(
    server: LiveServer, *script: list[Any], put: str | None = None, **fields: Any
) -> AsyncIterator[EventStream]:
    """Have a script run as a stream on a connection of its own, which is closed at the end of the block."""
    async with connection(server.url) as wire:
        yield await ask(wire, {"script": script} if script else {}, put=put, **fields)


async def events(server: LiveServer, *script: list[Any], **fields: Any) -> list[Event]:
    """All events of a script."""
    async with stream(server, *script, **fields) as opened:
        return await opened.rest()


def outputs(events: list[Event]) -> list[Any]:
    """The chunks among events, whose indices must count up from 0."""
    data = [data for name, data in events if name == "output"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["chunk"] for one in data]


def wait(gates: Gates, name: str = "gate") -> list[Any]:
    """A step that waits for a gate."""
    return ["wait", str(gates[name].path)]


async def idle(server: LiveServer) -> None:
    """Wait until every slot is back."""
    await eventually(lambda: server.workers.permits.idle == server.workers.permits.size)


async def stuck_reader(url: str, asked: bytes) -> socket.socket:
    """A client that asks and then reads nothing. It has little room for what comes, but enough for TCP to be quick."""
    return await asyncio.to_thread(_ask_and_be_stuck, url, asked)  # the server may be in this thread


def _ask_and_be_stuck(url: str, asked: bytes) -> socket.socket:
    mode = modes.current()
    parts = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.connect((parts.hostname, parts.port))
    trust = mode.trust(url)
    if trust is not None:
        client = trust.wrap_socket(client, server_hostname=parts.hostname)
    client.sendall(mode.authorize(asked))
    return client
