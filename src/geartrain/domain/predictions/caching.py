"""Settings of a model whose answers are kept for equal requests."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

CacheControl = Literal["", "no-cache", "no-store"]
"""Wish of a client: an answer that is not kept from before, or one that is not kept at all."""

DEFAULT_TTL: Final = 3600.0
DEFAULT_BYTES: Final = 256 * 1024**2


class CacheSettings(msgspec.Struct, frozen=True):
    """Settings of the cache of one model.

    `ttl`: seconds for which an answer is kept. `max_bytes`: of all answers together, with what they take in memory.
    `share`: clients with different keys get each other's answers. `folder`: an absolute path, below which answers
    outlive the server; empty for none.
    """

    ttl: float = DEFAULT_TTL
    max_bytes: int = DEFAULT_BYTES
    share: bool = False
    folder: str = ""


NO_CACHE: Final = CacheSettings(ttl=0.0, max_bytes=0)
"""Settings of an operator who wants no answers to be kept, whatever the model declares."""


def effective_cache(written: CacheSettings | None, declared: CacheSettings | None) -> CacheSettings | None:
    """Return the settings of `geartrain.yaml`, else those of `@cached`; None if no answers are kept."""
    found = declared if written is None else written
    return None if found == NO_CACHE else found


def read_cache_control(value: bytes) -> CacheControl:
    """Return the wish in a `Cache-Control` field of a request. Source: RFC 9111, section 5.2.1."""
    names = {part.strip().partition(b"=")[0].lower() for part in value.split(b",")}
    if b"no-store" in names:
        return "no-store"
    return "no-cache" if b"no-cache" in names else ""
