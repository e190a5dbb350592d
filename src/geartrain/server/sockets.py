"""The sockets that a server listens on."""

from __future__ import annotations

import socket
from typing import Final

_BACKLOG: Final = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; raise `OSError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def address_text(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
