"""JSON Web Tokens of an issuer: their check, their grants, and the issuer's public keys.

The keys are kept up to date in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import jwt

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import Principal
from geartrain.domain.rendering import clip
from geartrain.outbound.issuer_keys import IssuerKeysError
from geartrain.transport.access.guard import ANY_MODEL, SCOPES, Grant
from geartrain.transport.access.options import JwtOptions

_DOTS: Final = 2  # in a token
_PREFIX: Final = "geartrain:"  # of a scope, where an issuer's scopes are for many services
_LEEWAY: Final = 30.0  # seconds by which clocks may differ
MAX_REMEMBERED: Final = 1024  # tokens
_CHECKS: Final[Any] = {"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True}
logger = logging.getLogger(__name__)

# Algorithms with a private key. Neither `none` nor a shared secret: the keys of a JWK set are public.
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
RELOAD: Final = 600.0  # seconds after which keys are fetched again, so that withdrawn ones go
RETRY: Final = 10.0  # seconds after a failed fetch
LEAST: Final = 60.0  # seconds between two fetches because of unknown keys

Fetch = Callable[[], Awaitable[bytes]]
FindKey = Callable[[str], jwt.PyJWK | None]
"""Returns the issuer's public key of an id, if it is known."""


class TokenVerifier:
    """Verifies tokens.

    To verify a signature takes a tenth of a millisecond, and clients send the same token with each request, so tokens
    that were valid are remembered until they expire. `forget` has to be called when the issuer's keys change.
    """

    def __init__(self, options: JwtOptions, find_key: FindKey, *, now: Callable[[], float] = time.time) -> None:
        self._options = options
        self._find_key = find_key
        self._now = now
        self._known: dict[str, tuple[Grant, float]] = {}  # and when it expires

    def find(self, token: str) -> Grant | None:
        """Return the grant of a token; None for other texts; raise `UNAUTHENTICATED` for an invalid one."""
        if token.count(".") != _DOTS:
            return None
        known = self._known.get(token)
        if known is not None and self._now() < known[1]:
            return known[0]
        try:
            claims = self._verify(token)
            grant, expires = self._grant(token, claims), float(claims["exp"]) + _LEEWAY
        except RecursionError:
            raise GeartrainError(Code.UNAUTHENTICATED, "The token is not valid: it is nested too deeply") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise GeartrainError(Code.UNAUTHENTICATED, f"The token is not valid: {str(error)[:200]}") from error
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[token] = grant, expires
        return grant

    def forget(self) -> None:
        """Verify all tokens anew."""
        self._known.clear()

    def _verify(self, token: str) -> dict[str, Any]:
        key_id = jwt.get_unverified_header(token).get("kid", "")
        key = self._find_key(key_id if isinstance(key_id, str) else "")
        if key is None:
            raise jwt.InvalidTokenError("its key is not one that the issuer is known to have; try again in a minute")
        options = self._options
        return jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],  # the key decides, never the token
            audience=options.audience,
            issuer=options.issuer,
            leeway=_LEEWAY,
            options=_CHECKS,
        )

    def _grant(self, token: str, claims: dict[str, Any]) -> Grant:
        options = self._options
        words = {word.removeprefix(_PREFIX) for word in _words(claims.get(options.scope_claim))}
        models = _words(claims.get(options.models_claim)) if options.models_claim else [ANY_MODEL]
        subject = claims.get("sub")
        name = clip(subject) if isinstance(subject, str) else ""
        # A token without a subject is a client of its own. The digest fits into a header field, whatever a subject is.
        identity = ["sub", options.issuer, subject] if isinstance(subject, str) else ["token", token]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        scopes = frozenset(words.intersection(SCOPES))
        principal = Principal(f"token:{digest}", "admin" in scopes)
        return Grant("token", scopes, tuple(models), is_lasting=False, name=name, principal=principal)


def _words(claim: object) -> list[str]:
    """Return the words of a claim, which is a text with spaces or a list of texts."""
    if isinstance(claim, str):
        return claim.split()
    return [word for word in claim if isinstance(word, str)] if isinstance(claim, list) else []


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
