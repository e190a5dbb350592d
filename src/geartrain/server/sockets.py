"""The sockets that a server listens on."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

from geartrain.transport.routing import is_loopback

_BACKLOG: Final = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; raise `OSError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def address_text(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(listener: socket.socket) -> str:
    """Return the numeric address that a socket is bound to, empty for a path in the file system."""
    name = listener.getsockname()
    return str(name[0]) if isinstance(name, tuple) else ""


def served_host(listeners: Iterable[socket.socket]) -> str:
    """Return the address of these sockets that most clients can reach, empty if none has one."""
    hosts = [host for host in map(host_of, listeners) if host]
    return next((host for host in hosts if not is_loopback(host)), hosts[0] if hosts else "")


def location(listener: socket.socket, host: str = "") -> str:
    """Return the address of a socket, for a URL or behind `unix:`; `host` counts before its address."""
    name = listener.getsockname()
    if isinstance(name, tuple):
        return address_text(host or str(name[0]), name[1])
    path = name if isinstance(name, str) else name.decode(errors="surrogateescape")
    return f"unix:{path.replace(chr(0), '@', 1)}"


def url_of(scheme: str, where: str) -> str:
    """Return the URL of a server at a location."""
    return where if where.startswith("unix:") else f"{scheme}://{where}"
