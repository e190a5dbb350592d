"""Fetches the public keys of an issuer of tokens. The URLs are the operator's: no policy holds for them.

Imports httpx only when there is something to fetch.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import httpx

_SECONDS: Final = 10.0  # for each request
_MAX_SIZE: Final = 1024**2
_DISCOVERY: Final = "/.well-known/openid-configuration"
_OK: Final = 200


class IssuerKeysError(Exception):
    """The keys cannot be had now; the text says why."""


class _Configuration(msgspec.Struct):
    issuer: str
    jwks_uri: str


async def fetch_issuer_keys(issuer: str, source: str) -> bytes:
    """Return a JWK set as JSON text, which is not looked at; raises `IssuerKeysError`.

    `source`: the URL or the file that has it; empty to ask the issuer, as OpenID Connect Discovery describes.
    """
    if source and not source.startswith(("http://", "https://")):
        return await asyncio.to_thread(_read, Path(source))
    import httpx

    from geartrain.outbound.connection import tls_context
    from geartrain.outbound.network import open_upload_client

    tls = await asyncio.to_thread(tls_context)
    try:
        async with open_upload_client(tls=tls, timeout=_SECONDS) as client:
            url = source or await _discover(client, issuer)
            return await _get(client, url)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise IssuerKeysError(f"the keys of {issuer} cannot be fetched: {why}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IssuerKeysError(f"cannot read {path}: {error.strerror or error}") from error


async def _discover(client: httpx.AsyncClient, issuer: str) -> str:
    url = issuer.rstrip("/") + _DISCOVERY
    try:
        found = msgspec.json.decode(await _get(client, url), type=_Configuration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IssuerKeysError(f"{url} is no OpenID configuration: {error}") from error
    if found.issuer != issuer:
        raise IssuerKeysError(f"{url} is that of another issuer, {found.issuer[:200]}: write it exactly so")
    return found.jwks_uri


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    async with asyncio.timeout(_SECONDS), client.stream("GET", url) as response:
        if response.status_code != _OK:
            raise IssuerKeysError(f"{url} answered {response.status_code}")
        data = bytearray()
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > _MAX_SIZE:
                raise IssuerKeysError(f"{url} has more than {_MAX_SIZE} bytes")
    return bytes(data)
