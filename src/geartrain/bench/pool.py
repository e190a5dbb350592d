"""The connections to a server, which are used again from level to level."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from geartrain.bench.connection import Connection, Target

if TYPE_CHECKING:
    from geartrain.bench.load import Load

_ARRIVE: Final = 10.0  # seconds for a connection
_AFTER_FAILURE: Final = 0.2  # seconds until another is tried


class Pool:
    """The connections. One level at a time has them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._all: set[Connection] = set()
        self._free: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._most = 0

    async def begin(self, user: Load, count: int, *, most: int) -> None:
        """Have `count` connections for a user, who may open up to `most`. Raises `OSError`."""
        self._most = most
        self._all = set(self._free)
        for connection in self._all:
            connection.listener = user
        missing = count - len(self._all)
        connecting = [self._target.connect(user, timeout=_ARRIVE) for _ in range(missing)]
        results = await asyncio.gather(*connecting, return_exceptions=True)
        made = [each for each in results if isinstance(each, Connection)]
        self._all.update(made)
        self._free += made
        for each in results:
            if isinstance(each, BaseException):
                raise each

    def take(self) -> Connection | None:
        """Return one that is free, if there is one."""
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
            self._all.discard(connection)
        return None

    def give(self, connection: Connection) -> None:
        """Take one back."""
        if connection.is_open:
            self._free.append(connection)
        else:
            self._all.discard(connection)

    def open_another(self, user: Load) -> None:
        """Open one more, if there may be more."""
        if len(self._all) + len(self._opening) < self._most:
            task = asyncio.get_running_loop().create_task(self._open(user))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def fail_older(self, due: float, reason: str) -> None:
        """Give requests up that were due before a moment."""
        for connection in list(self._all):
            if connection.is_busy and connection.due < due:
                connection.fail(reason)

    def end(self) -> None:
        """Close what is of no use to the next level."""
        for task in self._opening:
            task.cancel()
        for connection in list(self._all):
            if connection.is_busy or not connection.is_open:
                connection.close()
        self._free = [connection for connection in self._all if connection.is_open]

    async def close(self) -> None:
        """Close all connections, and wait until they are gone."""
        for connection in self._all:
            connection.close()
        await asyncio.gather(*[connection.closed() for connection in self._all])

    async def _open(self, user: Load) -> None:
        try:
            connection = await self._target.connect(user, timeout=_ARRIVE)
        except OSError as error:
            user.unconnected(str(error) or "the server does not answer")
            await asyncio.sleep(_AFTER_FAILURE)
            self._opening.discard(asyncio.current_task())  # it makes room for another
            user.may_try_again()
        else:
            self._all.add(connection)
            user.connected(connection)
