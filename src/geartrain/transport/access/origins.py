"""Pages and names that browsers may reach the server by: origins (CORS), and hosts.

A page of the web can make its own name lead to 127.0.0.1 (DNS rebinding), and is then of the same origin as the server
to its browser. What it cannot change is the name in `Host`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.wire.exchange import Answer, Head

ANY: Final = "*"

_PORT: Final = re.compile(r":\d*$")
_NAME: Final = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_LOCALHOST: Final = "localhost"
_USUAL: Final = frozenset({_LOCALHOST, "127.0.0.1", "[::1]"})  # known without a parser of addresses
_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing
_OWN: Final = frozenset({b"same-origin", b"none"})  # the server's own page, or the user
_FOREIGN: Final = frozenset({b"same-site", b"cross-site"})
_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

_ALLOWED_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_ALLOWED_HEADERS: Final = (
    b"Authorization, Content-Type, Content-Encoding, Prefer, Accept, Inference-Header-Content-Length, Last-Event-ID, "
    b"Traceparent, Tracestate, X-Request-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"
)
_EXPOSED_HEADERS: Final = (
    b"Inference-Header-Content-Length, Retry-After, WWW-Authenticate, X-Request-Id, X-Prediction-Id, Traceparent, "
    b"Mcp-Session-Id"
)
_MAX_AGE: Final = b"7200"  # seconds; no browser remembers longer


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


def read_origin(text: str) -> str:
    """Return an origin of `--cors-origin` as browsers write it; raises ValueError if it is not an origin."""
    origin = text.strip().lower().rstrip("/")
    if origin == ANY:
        return ANY
    if _ORIGIN.fullmatch(origin) is None:
        raise ValueError(f"{text!r} is no origin; write a scheme and a host, such as https://app.example.com, or *")
    return origin.removesuffix(_DEFAULT_PORTS[origin.partition(":")[0]])


class OriginPolicy:
    """Says which pages may do what. `allowed`: origins as of `read_origin`."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(origin.encode() for origin in allowed)
        self._is_open = ANY in allowed

    def check(self, head: Head) -> None:
        """Raise `FORBIDDEN` for a request that changes something and comes from a page of another site."""
        if head.method in _HARMLESS:
            return
        origin = head.header(b"origin")
        site = head.header(b"sec-fetch-site")
        if origin is None and site is None:
            return
        if self.allows(origin) or site in _OWN:
            return
        if site in _FOREIGN or (origin is not None and not _is_own(origin, head.header(b"host"))):
            where = "another site" if origin is None else f"'{origin[:200].decode('latin-1')}'"
            msg = f"A page of {where} may not send this request. If it should, start the server with --cors-origin."
            raise GeartrainError(Code.FORBIDDEN, msg)

    def allows(self, origin: bytes | None) -> bool:
        """True if pages of this origin may send any request and read the answers."""
        return origin is not None and (self._is_open or origin in self._allowed)

    def preflight(self, head: Head) -> Answer | None:
        """Answer what a browser asks before it sends a request of an allowed page; None for any other request."""
        if head.method != "OPTIONS" or head.header(b"access-control-request-method") is None:
            return None
        origin = head.header(b"origin")
        if origin is None or not self.allows(origin):
            return None
        headers = (
            *self._origin_headers(origin),
            (b"access-control-allow-methods", _ALLOWED_METHODS),
            (b"access-control-allow-headers", _ALLOWED_HEADERS),
            (b"access-control-max-age", _MAX_AGE),
        )
        return Answer(HTTPStatus.NO_CONTENT, (), headers)

    def headers(self, origin: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers without which a browser hides an answer from its page; none where it is to be hidden."""
        if origin is None or not self.allows(origin):
            return ()
        return (*self._origin_headers(origin), (b"access-control-expose-headers", _EXPOSED_HEADERS))

    def _origin_headers(self, origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
        if self._is_open:  # no credentials: an open policy does not include cookies of a proxy in front
            return ((b"access-control-allow-origin", b"*"),)
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"vary", b"Origin"),
        )


def _is_own(origin: bytes, host: bytes | None) -> bool:
    """True if an origin is that of the server, as its client calls it.

    The scheme is not compared: behind a proxy the client's is another one.
    """
    if host is None:
        return False
    parts = urlsplit(origin.decode("latin-1"))
    port = _DEFAULT_PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(port) == host.decode("latin-1").lower().removesuffix(port)
