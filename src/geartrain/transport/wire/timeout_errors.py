"""What a client is told whose request takes too long."""

from __future__ import annotations

from http import HTTPStatus

from geartrain.transport.wire.heads import WireError
from geartrain.transport.wire.limits import LEAST_BODY, WireLimits


def memory_error() -> WireError:
    """Return the error for a body that cannot go on because others take all the memory that there is for bodies."""
    text = "The bodies of other requests take all the memory that there is for bodies."
    hint = "Try again later. The server's --max-buffered-size sets it."
    return WireError(HTTPStatus.SERVICE_UNAVAILABLE, f"{text} {hint}")


def slow_head_error(limits: WireLimits) -> WireError:
    """Return the error for a head that does not become complete."""
    return _timeout(f"The head of the request took longer than {limits.head_timeout:g} s", "head")


def slow_body_error(limits: WireLimits) -> WireError:
    """Return the error for a body that comes too slowly."""
    return _timeout(f"Less than {LEAST_BODY} bytes of the request body came in {limits.body_timeout:g} s", "body")


def _timeout(text: str, limit: str) -> WireError:
    return WireError(HTTPStatus.REQUEST_TIMEOUT, f"{text}. The server's --{limit}-timeout sets the limit.")
