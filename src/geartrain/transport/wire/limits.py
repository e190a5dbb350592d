"""Limits of clients: sizes in bytes, times in seconds; 0 disables a limit."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_FIELDS: Final = 128  # header fields of a request, and of the trailers of a body in chunks
LAST_TIMEOUT: Final = 1.0  # seconds that a server which ends waits for a client that sends nothing
LEAST_BODY: Final = 10 * 1024  # bytes of a body that have to come in each `body_timeout`


class WireLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of connections. The options of `geartrain serve` have the same names.

    Attributes:
        max_head_size: of the request line and the header fields of a request, and of the trailers of its body.
        max_buffered_size: of the bodies of all connections together. Beyond it reading pauses, then the answer is 503.
        max_connections: that may be open at once.
        max_connections_per_client: of one address.
        head_timeout: from the first byte of a head to its last.
        body_timeout: in which at least `LEAST_BODY` bytes of a body have to come.
        idle_timeout: without a request.
        send_timeout: in which a client has to take something of its answer.
    """

    max_head_size: int = 32 * 1024
    max_buffered_size: int = 0
    max_connections: int = 10_000
    max_connections_per_client: int = 0
    head_timeout: float = 10.0
    body_timeout: float = 10.0
    idle_timeout: float = 75.0
    send_timeout: float = 60.0

    def at_the_end(self) -> WireLimits:
        """Return the limits of a server that ends: a request that is coming may go on, but not stall."""
        return msgspec.structs.replace(
            self, head_timeout=_shorter(self.head_timeout), body_timeout=_shorter(self.body_timeout)
        )


def _shorter(timeout: float) -> float:
    return min(timeout, LAST_TIMEOUT) if timeout else LAST_TIMEOUT
