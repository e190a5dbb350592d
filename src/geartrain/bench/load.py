"""When each request is sent.

A closed loop sends the next request when one is answered, so that as many as there are connections are in flight. An
open loop sends requests when they are due, whether those before them are answered or not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import Final, Literal, NamedTuple

from geartrain.bench.connection import Connection
from geartrain.bench.meter import Meter
from geartrain.bench.pool import Pool
from geartrain.bench.work import Fault, Work

_LOOK: Final = 0.1  # seconds from one look for requests that take too long to the next
_NEVER: Final = 10.0**7  # seconds
_LATE: Final = 0.002  # seconds that a timer may be late

_now = time.perf_counter


class Level(NamedTuple):
    """Load of a measurement: a number of requests in flight, or arrivals in a second, at random moments."""

    kind: Literal["concurrency", "rate"]
    value: float


class Limits(NamedTuple):
    """Length of a level: `seconds`, or a number of `requests`; 0 for no such limit.

    `timeout`: seconds for an answer. `connections`: the most of them, of an open loop.
    """

    seconds: float
    requests: int
    timeout: float
    connections: int


class Load:
    """One stretch of load. `meter` hears of every request that was sent."""

    def __init__(self, pool: Pool, work: Work, *, meter: Meter, limits: Limits) -> None:
        self._meter = meter
        self._pool = pool
        self._requests: Iterator[bytes] = cycle(work.requests)
        self._judge = work.judge
        self._stream = work.stream
        self._limits = limits
        self._waiting: deque[float] = deque()  # when requests were due for which there is no connection
        self._ended = asyncio.Event()
        self._is_closed_loop = False
        self._is_over = False  # no request is to be sent any more

    async def run(self, level: Level) -> None:
        """Send until a limit is reached, and wait for the answers. Raises `OSError` if the server is not there."""
        self._is_closed_loop = level.kind == "concurrency"
        count = int(level.value) if self._is_closed_loop else 1
        await self._pool.begin(self, count, most=count if self._is_closed_loop else self._limits.connections)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._look())]
        self._meter.begin(_now())
        timer = loop.call_later(self._limits.seconds or _NEVER, self.finish)
        if self._is_closed_loop:
            for _ in range(count):
                self._ask(_now())
        else:
            tasks.append(loop.create_task(self._arrive(level.value)))
        try:
            await self._ended.wait()
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()
            self._pool.end()

    def finish(self) -> None:
        """Send no more, and wait for the answers to what was sent."""
        self._is_over = True
        if not self._is_closed_loop:
            self._meter.unsent += len(self._waiting)
        self._waiting.clear()
        self._go_on()

    def abort(self) -> None:
        """End now, without the answers."""
        self.finish()
        self._ended.set()

    # calls of the connections

    def answered(self, connection: Connection, status: int, content: bytes) -> None:
        """Count an answer, and go on."""
        now = _now()
        fault = self._judge(status, content)
        if fault is None:
            self._meter.add(now - connection.due, now)
            if self._stream is not None:
                count, is_counted = self._stream.tokens(content)
                self._meter.streams.add(
                    count, is_counted=is_counted, due=connection.due, first=connection.first, ended=now
                )
        else:
            self._meter.fail(fault, now)
        self._pool.give(connection)
        self._go_on()

    def broken(self, connection: Connection, reason: str) -> None:
        """Count a request that has no answer, and go on."""
        self._pool.give(connection)
        self._meter.fail(Fault("connection", reason), _now())
        self._go_on()

    def connected(self, connection: Connection) -> None:
        """Use it for the request that has waited longest."""
        self._pool.give(connection)
        self._send()

    def unconnected(self, reason: str) -> None:
        """Count a request that cannot be sent."""
        if self._waiting:
            self._waiting.popleft()
            self._meter.fail(Fault("no connection", reason), _now())
            self._count_sent()

    def may_try_again(self) -> None:
        """Go on where `unconnected` has stopped."""
        if self._is_closed_loop:
            self._ask(_now())
        else:
            self._send()

    # requests

    def _ask(self, due: float) -> None:
        """Send a request that is due, or have it wait for a connection."""
        if not self._is_over:
            self._waiting.append(due)
            self._send()

    def _send(self) -> None:
        """Send what is due, as far as there are connections."""
        while self._waiting:
            connection = self._pool.take()
            if connection is None:
                self._pool.open_another(self)
                return
            connection.due = self._waiting.popleft()
            connection.token = None if self._stream is None else self._stream.token
            connection.send(next(self._requests))
            self._count_sent()

    def _count_sent(self) -> None:
        self._meter.sent += 1
        if self._meter.sent == self._limits.requests:
            self.finish()

    def _go_on(self) -> None:
        """Send what is next, or end."""
        if self._is_over:
            if self._meter.ended == self._meter.sent:
                self._ended.set()
        elif self._is_closed_loop:
            self._ask(_now())
        else:
            self._send()

    async def _arrive(self, rate: float) -> None:
        """Send requests at random moments, `rate` in a second."""
        due = _now()
        while not self._is_over:
            due += random.expovariate(rate)
            wait = due - _now()
            if wait > 0:
                await asyncio.sleep(wait)
            now = _now()
            # A timer that is a moment late is no fault of the server; a client that has too much to do tells of it.
            self._ask(due if now - due > _LATE else now)

    async def _look(self) -> None:
        """Give requests up that take too long."""
        while True:
            await asyncio.sleep(_LOOK)
            self._pool.fail_older(_now() - self._limits.timeout, f"no answer within {self._limits.timeout:g} s")
