"""What a supervisor such as systemd hears of a server, on a socket of the test."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.servers import PATIENCE


class Supervisor:
    """The socket that a supervisor listens on. `lines` are all that have been read."""

    def __init__(self) -> None:
        self.address = f"@geartrain-{uuid4()}"
        self.lines: set[str] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address[1:])
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """The lines of each message that has come and has not been read."""
        messages = []
        while True:
            try:
                messages.append(self._read(self._socket.recv(65536)))
            except BlockingIOError:
                return messages

    async def next(self) -> list[str]:
        """The lines of the next message."""
        async with asyncio.timeout(PATIENCE):
            return self._read(await asyncio.get_running_loop().sock_recv(self._socket, 65536))

    def wait_for(self, line: str) -> list[str]:
        """Wait for the message that has this line, and return its lines."""
        while select.select([self._socket], [], [], PATIENCE)[0]:
            lines = self._read(self._socket.recv(65536))
            if line in lines:
                return lines
        pytest.fail(f"the supervisor has not heard {line}, but {self.lines}")

    def _read(self, message: bytes) -> list[str]:
        lines = message.decode().split("\n")
        self.lines.update(lines)
        return lines

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor that listens for the time of a test."""
    made = Supervisor()
    yield made
    made.close()
