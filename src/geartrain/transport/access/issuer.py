"""The public keys of an issuer of tokens, kept up to date in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import jwt

from geartrain.outbound.issuer_keys import IssuerKeysError

logger = logging.getLogger(__name__)

# Algorithms with a private key. Neither `none` nor a shared secret: the keys of a JWK set are public.
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
RELOAD: Final = 600.0  # seconds after which keys are fetched again, so that withdrawn ones go
RETRY: Final = 10.0  # seconds after a failed fetch
LEAST: Final = 60.0  # seconds between two fetches because of unknown keys

Fetch = Callable[[], Awaitable[bytes]]


class IssuerKeys:
    """Finds keys by their ids without waiting; a task fetches them.

    An unknown id makes the task fetch earlier, once a minute at most, whatever clients send.
    """

    def __init__(
        self, fetch: Fetch, on_change: Callable[[], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._on_change = on_change
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}  # by id, `` for a key without one
        self._text = b""
        self._last_fetch = -LEAST
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Fetch the keys, and again from time to time."""
        self._task = asyncio.ensure_future(self._follow())

    async def close(self) -> None:
        """Fetch nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def find(self, key_id: str) -> jwt.PyJWK | None:
        """Return the key of this id, and the only one for an empty id; None for an unknown one, which is looked for."""
        key = self._keys.get(key_id)
        if key is None and not key_id and len(self._keys) == 1:
            key = next(iter(self._keys.values()))
        if key is None and self._clock() - self._last_fetch >= LEAST:
            self._wanted.set()
        return key

    async def fetch(self) -> bool:
        """Fetch the keys; False if that failed, which is logged, and the keys stay as they were."""
        self._last_fetch = self._clock()
        self._wanted.clear()
        try:
            text = await self._fetch()
            keys = self._keys if text == self._text else read_keys(text)
        except IssuerKeysError as error:
            logger.warning("Tokens: %s. The keys of the issuer stay as they were.", error)
            return False
        self._text = text
        if keys is not self._keys:
            self._keys = keys
            self._on_change()
        return True

    async def _follow(self) -> None:
        while True:
            pause = RELOAD if await self.fetch() else RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()


def read_keys(text: bytes) -> dict[str, jwt.PyJWK]:
    """Return the keys of a JWK set that tokens may be signed with, by id; raises `IssuerKeysError`."""
    try:
        found = jwt.PyJWKSet.from_json(text.decode()).keys
    except (jwt.PyJWTError, ValueError, AttributeError, TypeError) as error:
        raise IssuerKeysError(f"what the issuer has is no set of keys: {error}") from error
    usable = {
        key.key_id or "": key
        for key in found
        if key.algorithm_name in ALGORITHMS and key.public_key_use in {None, "sig"}
    }
    if not usable:
        raise IssuerKeysError(f"the issuer has no key that signs with one of {', '.join(sorted(ALGORITHMS))}")
    return usable
