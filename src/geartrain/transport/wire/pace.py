"""Minimum pace of a request, and the error for a slow client."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Protocol

from geartrain.transport.wire.heads import WireError
from geartrain.transport.wire.limits import LEAST_BODY, WireLimits

LINGER: Final = 2.0  # seconds that a client has to read what is written last, while it still sends


class Request(Protocol):
    """A request whose body is coming."""

    since: float

    def refuse(self, error: WireError) -> None:
        """Answer what cannot be served."""


class Body(Protocol):
    """The received part of a body."""

    received: int

    @property
    def waits_for_memory(self) -> bool:
        """True if the body waits for memory: other bodies have used up their shared budget."""

    @property
    def is_full(self) -> bool:
        """True if its reader has to take something first."""


def slow_head_error(limits: WireLimits) -> WireError:
    """Return the error for a head that does not become complete."""
    return _timeout(f"The head of the request took longer than {limits.head_timeout:g} s", "head")


def check_body(request: Request, body: Body, limits: WireLimits, *, now: float) -> None:
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
