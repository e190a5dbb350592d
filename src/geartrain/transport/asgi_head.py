"""The head of a request as an ASGI scope has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from geartrain.transport.wire.exchange import NO_BODY, UNKNOWN_LENGTH, Head, Headers

_SAFE: Final = "/:@!$&'()*+,;=~"  # need not be percent-encoded in a path, RFC 3986, section 3.3
_MAX_DIGITS: Final = 18  # of a length
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})


class BadHeadError(Exception):
    """The head of a request that the host let pass, and that is refused all the same."""


def read_head(scope: Mapping[str, Any]) -> Head:
    """Return the head of the request of an `http` scope; raise `BadHeadError`."""
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    method: str = scope["method"]
    is_framed = scope.get("http_version", "1.1").startswith("1")
    # HTTP/2 and later have no header that says that a body comes without a length.
    unsaid = NO_BODY if is_framed or method in _WITHOUT_BODY else UNKNOWN_LENGTH
    query: bytes = scope.get("query_string", b"")
    root = _quote(scope.get("root_path", "").rstrip("/"))
    return Head(method, read_path(scope), query, headers, _read_length(headers, unsaid), root)


def read_path(scope: Mapping[str, Any]) -> bytes:
    """Return the path below the place where the application is mounted, percent-encoded as it came.

    `path` decides, because it is what the host and its middleware have looked at. `raw_path` only adds how it was
    encoded, where the two agree; servers differ in whether it, or `path` too, still has the `root_path` in it.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    raw = (scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    if unquote(raw) not in {path, root + path}:
        raw = _quote(path)
    if "://" in raw and not raw.startswith("/"):  # the absolute form, which servers should have taken apart
        raw = "/" + raw.partition("://")[2].partition("/")[2]
    below = (raw[_end_of_root(raw, root) :] or "/").encode("latin-1")
    if not below.startswith(b"/") and below != b"*":
        msg = "The target of the request is not a path."
        raise BadHeadError(msg)
    return below


def _quote(path: str) -> str:
    return quote(path, safe=_SAFE, errors="replace")


def _end_of_root(raw: str, root: str) -> int:
    """Return the index in a path at which what is below `root` begins; 0 if the path does not begin with it."""
    if not root:
        return 0
    wanted = root.encode()
    at = 0
    for byte in wanted:
        step = 3 if raw[at : at + 1] == "%" else 1
        if unquote(raw[at : at + step], "latin-1") != chr(byte):
            return 0
        at += step
    return at if raw[at : at + 1] in {"", "/"} else 0


def _read_length(headers: Headers, unsaid: int) -> int:
    lengths = {value for name, value in headers if name == b"content-length"}
    if any(not value.isdigit() or len(value) > _MAX_DIGITS for value in lengths) or len(lengths) > 1:
        msg = "The Content-Length of the request is not one number of bytes."
        raise BadHeadError(msg)
    if any(name == b"transfer-encoding" for name, _ in headers):
        return UNKNOWN_LENGTH
    return int(lengths.pop()) if lengths else unsaid
