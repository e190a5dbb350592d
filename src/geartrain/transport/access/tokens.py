"""JSON Web Tokens of an issuer: whether one is valid, and what it allows."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import jwt

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import Principal
from geartrain.domain.rendering import clip
from geartrain.transport.access.grants import ANY_MODEL, SCOPES, Grant
from geartrain.transport.access.options import JwtOptions

_DOTS: Final = 2  # in a token
_PREFIX: Final = "geartrain:"  # of a scope, where an issuer's scopes are for many services
_LEEWAY: Final = 30.0  # seconds by which clocks may differ
MAX_REMEMBERED: Final = 1024  # tokens
_CHECKS: Final[Any] = {"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True}


class KeySource(Protocol):
    """Has the public keys of the issuer."""

    def find(self, key_id: str) -> jwt.PyJWK | None:
        """Return the key of this id, if it is known."""


class TokenVerifier:
    """Verifies tokens.

    To verify a signature takes a tenth of a millisecond, and clients send the same token with each request, so tokens
    that were valid are remembered until they expire. `forget` has to be called when the issuer's keys change.
    """

    def __init__(self, options: JwtOptions, keys: KeySource, *, now: Callable[[], float] = time.time) -> None:
        self._options = options
        self._keys = keys
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
        key = self._keys.find(key_id if isinstance(key_id, str) else "")
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
