"""True if a URL that a client gave can be one at all, told from its text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from geartrain.outbound.names import clip_text

if TYPE_CHECKING:
    from geartrain.outbound.policy import UrlPolicy

_LONGEST_URL = 8192  # characters
_LONGEST_SHOWN = 100  # characters of a value in a sentence
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")  # a numeric host, not a name
_NO_NAME = re.compile(r'[\x00-\x20"%<>\\^`{|}\x7f]')  # characters that no host has


def target_fault(url: str, policy: UrlPolicy) -> str | None:
    """Return the fault of a target URL that shows without a connection, as a sentence; None if it is good."""
    if len(url) > _LONGEST_URL:
        return f"the URL is {len(url)} characters long; at most {_LONGEST_URL} are accepted"
    scheme, colon, _ = url.partition(":")
    if not colon or scheme.lower() not in {"http", "https"}:
        return f'"{clip_text(url, _LONGEST_SHOWN)}" is no http: or https: URL'
    fault = http_fault(url)
    if fault is not None:
        return fault
    host = urlsplit(url).hostname or ""
    if not _ADDRESS.fullmatch(host):
        return host_fault(host)
    refusal = policy.refusal(host)
    return None if refusal is None else f"{host} is {refusal}"


def http_fault(url: str) -> str | None:
    """Return the fault of an http(s) URL's text, as a sentence; None if it is good."""
    try:
        parts = urlsplit(url)
        well_formed = bool(parts.hostname) and (parts.port or 1) > 0 and url.isprintable()
    except ValueError:  # a port that is none, brackets that hold no address
        well_formed = False
    return None if well_formed else f'"{clip_text(url, _LONGEST_SHOWN)}" is a malformed URL'


def host_fault(host: str) -> str | None:
    """Return the reason for which `host` is neither a name nor an address, as a sentence; None if it is one."""
    try:
        if ":" not in host:  # otherwise it is an IPv6 address, which has been in brackets
            host.encode("idna")
        possible = not _NO_NAME.search(host)
    except ValueError:  # a label that is empty or too long
        possible = False
    return None if possible else f'"{clip_text(host, _LONGEST_SHOWN)}" cannot be the name of a host'
