"""Which routes are on which port, and the warning about an address that other machines can reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from geartrain.transport.routing import Route

METRICS: Final = "/metrics"
HISTORY: Final = "/playground/history"  # the metrics of the last minutes
HEALTH: Final = frozenset({"/health-check", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"})


def split_routes(routes: Iterable[Route], *, has_admin_port: bool) -> tuple[tuple[Route, ...], tuple[Route, ...]]:
    """Return the routes of the public port and those of the port of administration.

    The latter has administration, metrics, and health for probes; the former has the rest, and health too. Without a
    port of administration the public one has all.
    """
    rows = tuple(routes)
    if not has_admin_port:
        return rows, ()
    public = tuple(route for route in rows if not _is_administration(route))
    return public, tuple(route for route in rows if _is_administration(route) or route.path in HEALTH)


def _is_administration(route: Route) -> bool:
    return route.scope == "admin" or route.path in {METRICS, HISTORY}


def exposure_warning(address: str, *, has_keys: bool) -> str | None:
    """Return the warning about a server that asks for no keys and that other machines can reach; None for any other.

    `address` is what the socket is bound to, which is a number whatever name the operator has given.
    """
    if has_keys or is_loopback(address):
        return None
    return (
        f"everybody who can reach {_described(address)} may use this server and shut it down: it asks for no keys. "
        "Give keys to its clients with --keys, or listen on 127.0.0.1; see docs/security.md."
    )


def is_loopback(address: str) -> bool:
    """Return True if a numeric address is one that only this machine can reach."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    carried = getattr(found, "ipv4_mapped", None)
    return found.is_loopback if carried is None else bool(carried.is_loopback)


def _described(address: str) -> str:
    return "any address of this machine" if address in {"0.0.0.0", "::", ""} else address  # noqa: S104 - compared alone
