"""The names that clients may call the server by.

A page of the web can make its own name lead to 127.0.0.1 (DNS rebinding), and is then of the same origin as the server
to its browser. What it cannot change is the name in `Host`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from geartrain.domain.errors import Code, GeartrainError

ANY: Final = "*"

_PORT: Final = re.compile(r":\d*$")
_NAME: Final = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_LOCALHOST: Final = "localhost"
_USUAL: Final = frozenset({_LOCALHOST, "127.0.0.1", "[::1]"})  # known without a parser of addresses


def is_loopback(host: str) -> bool:
    """True if a name or an address, an IPv6 one with brackets or without, is of the machine itself."""
    if host == _LOCALHOST or host.endswith(f".{_LOCALHOST}"):
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def read_name(text: str) -> str:
    """Return a name of `--allowed-host` as it is compared; raises ValueError if it is not the name of a host."""
    name = text.strip().lower().removesuffix(".")
    if ":" in name and not name.startswith("["):
        try:
            name = f"[{ipaddress.IPv6Address(name)}]"
        except ValueError:
            raise ValueError(f"{text!r} is no name of a host; write it without a scheme and a port") from None
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{text!r} is no name of a host; write one such as models.example.com or *.example.com")
    return name


class HostPolicy:
    """Says which names are served."""

    def __init__(self, listening: str, allowed: Sequence[str]) -> None:
        """`listening`: the address that the server listens on; `allowed`: names as of `read_name`."""
        self._names = _USUAL.union(allowed)
        self._suffixes = tuple(name[1:] for name in allowed if name.startswith("*."))
        self._is_open = ANY in allowed or not (allowed or is_loopback(listening.lower()))

    def check(self, host: bytes | None) -> None:
        """Raise `FORBIDDEN` for a name that is not served.

        A request without a name passes, as of HTTP/1.0: a browser always sends one.
        """
        if self._is_open or not host:
            return
        name = _PORT.sub("", host.decode("latin-1")).lower().removesuffix(".")
        if name in self._names or name.endswith(self._suffixes) or is_loopback(name):
            return
        msg = f"This server does not answer for the host '{name[:200]}'. If it should, start it with --allowed-host."
        raise GeartrainError(Code.FORBIDDEN, msg)
