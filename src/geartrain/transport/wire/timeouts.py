"""Ends connections that take too long: one timer for all of them, since a timer for each request costs too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from geartrain.transport.wire.connection import Connection
from geartrain.transport.wire.context import WireContext
from geartrain.transport.wire.limits import LAST_TIMEOUT, WireLimits
from geartrain.transport.wire.pace import LINGER, check_body, slow_head_error
from geartrain.transport.wire.registry import Served
from geartrain.transport.wire.sockets import has_sent_all, progress, reset
from geartrain.transport.wire.states import ConnectionState

_SHORTEST: Final = 0.02  # seconds between two looks
_LONGEST: Final = 1.0
_LAST_LOOKS: Final = 1.5  # after which a connection without a request is ended, in a server that ends
_PUT_OFF: Final = 0.001  # seconds for which a look is put off that comes late
_READING_HEAD: Final = frozenset({ConnectionState.PREFACE, ConnectionState.HEAD})
_READING_BODY: Final = frozenset({ConnectionState.BODY, ConnectionState.PARTS, ConnectionState.DISCARD})


class Sweep:
    """Looks at all connections again and again.

    A limit is held to within two looks, which are a quarter of the shortest limit apart, at most a second.
    """

    def __init__(
        self, context: WireContext, connections: Iterable[Served], on_tick: Callable[[], None] = lambda: None
    ) -> None:
        """`on_tick` is called with each look, at least once a second."""
        self._context = context
        self._connections = connections
        self._on_tick = on_tick
        self._pause = _pause(context.limits)
        self._due = context.loop.time() + self._pause
        self._is_put_off = False
        self._timer = context.loop.call_later(self._pause, self._tick)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        context = self._context
        context.now = now = context.loop.time()
        self._is_put_off = not self._is_put_off and now - self._due > self._pause / 2
        if self._is_put_off:  # the loop was held up, and has not read yet what clients have sent meanwhile
            self._timer = context.loop.call_later(_PUT_OFF, self._tick)
            return
        context.answers.renew()
        self._due = now + self._pause
        self._timer = context.loop.call_later(self._pause, self._tick)  # first: no failure may end the looks
        for connection in tuple(self._connections):
            if isinstance(connection, Connection):
                _check(connection, context, now, pause=self._pause)
            else:
                connection.watch.check(now)
        self._on_tick()


def _pause(limits: WireLimits) -> float:
    times = (limits.head_timeout, limits.body_timeout, limits.idle_timeout, limits.send_timeout)
    shortest = min((each for each in times if each), default=4 * _LONGEST)
    return min(max(shortest / 4, _SHORTEST), _LONGEST)


def _check(connection: Connection, context: WireContext, now: float, *, pause: float) -> None:
    limits, state, age = context.limits, connection.state, now - connection.since
    if state is ConnectionState.IDLE:
        # The age is that of the last look but one at the least: what its client has sent has been read.
        if 0 < limits.idle_timeout < age or (context.is_closed and age > _LAST_LOOKS * pause):
            connection.close()
    elif state in _READING_HEAD:
        if 0 < limits.head_timeout < age:
            connection.refuse(slow_head_error(limits))
    elif state in _READING_BODY:
        check_body(connection, connection.reader.intake, limits, now=now)
    elif state is ConnectionState.LINGER and age > LINGER:
        connection.close()
    elif (
        state is ConnectionState.CLOSING
        and age > LAST_TIMEOUT
        and has_sent_all(connection.transport)
        and not connection.outgoing.is_behind
    ):
        # Under TLS the client has been told of the end. It need not answer that, and one that is idle does not.
        connection.transport.abort()
    _check_sending(connection, limits, now)


def _check_sending(connection: Connection, limits: WireLimits, now: float) -> None:
    """Abort a connection whose client has taken nothing of what is unsent for too long."""
    outgoing = connection.outgoing
    outgoing.mark = progress(connection.transport, outgoing.mark, now, held=outgoing.size)
    if 0 < limits.send_timeout < now - outgoing.mark.since:
        reset(connection.transport)
