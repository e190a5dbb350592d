"""Limits of clients: sizes in bytes, times in seconds; 0 disables a limit. And the errors beyond them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from geartrain.transport.wire.http1 import Connection, RequestReader
    from geartrain.transport.wire.http2_stream import Http2Stream

MAX_FIELDS: Final = 128  # header fields of a request, and of the trailers of a body in chunks
LAST_TIMEOUT: Final = 1.0  # seconds that a server which ends waits for a client that sends nothing
LINGER: Final = 2.0  # seconds that a client has to read what is written last, while it still sends
LEAST_BODY: Final = 10 * 1024  # bytes of a body that have to come in each `body_timeout`


class WireError(Exception):
    """A request that is refused before anything has looked at its meaning; the connection ends after the answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


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


def slow_head_error(limits: WireLimits) -> WireError:
    """Return the error for a head that does not become complete."""
    return _timeout(f"The head of the request took longer than {limits.head_timeout:g} s", "head")


def check_body(
    request: Connection | Http2Stream, body: RequestReader | Http2Stream, limits: WireLimits, *, now: float
) -> None:
    """Refuse a request whose body comes too slowly, or begin to measure its pace anew."""
    if not limits.body_timeout or now - request.since <= limits.body_timeout:
        return
    if body.waits_for_memory:
        request.refuse(_memory_error())
    elif body.received < LEAST_BODY and not body.is_full:
        request.refuse(_slow_body_error(limits))
    else:
        body.received = 0
        request.since = now


def _memory_error() -> WireError:
    """Create the error for a body that waits for memory: other bodies have used up their shared budget."""
    text = "The bodies of other requests take all the memory that there is for bodies."
    hint = "Try again later. The server's --max-buffered-size sets it."
    return WireError(HTTPStatus.SERVICE_UNAVAILABLE, f"{text} {hint}")


def _slow_body_error(limits: WireLimits) -> WireError:
    """Return the error for a body that comes too slowly."""
    return _timeout(f"Less than {LEAST_BODY} bytes of the request body came in {limits.body_timeout:g} s", "body")


def _timeout(text: str, limit: str) -> WireError:
    return WireError(HTTPStatus.REQUEST_TIMEOUT, f"{text}. The server's --{limit}-timeout sets the limit.")
