"""Finds out by the `Authorization` of a request what its sender may do. HTTP and gRPC ask here alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.grants import EVERYTHING, Grant

_SCHEME: Final = "bearer"


class Source(Protocol):
    """Knows some of the keys or tokens."""

    def find(self, token: str) -> Grant | None:
        """Return the grant of a token; None for one that is not of this kind or unknown.

        Raises `UNAUTHENTICATED` with the reason for an invalid token of this kind.
        """


class Authorizer(Protocol):
    """Grants for the values of `Authorization`. `is_open`: true if everything is allowed without a key."""

    is_open: bool

    def authorize(self, values: Sequence[str]) -> Grant:
        """Return the grant for the values of `Authorization`, which must be a single one; raise `UNAUTHENTICATED`."""


class Everybody:
    """Lets everybody do everything: no keys are asked for."""

    is_open = True

    def authorize(self, values: Sequence[str]) -> Grant:  # noqa: ARG002 - as of `Authorizer`
        """Return the grant of everything."""
        return EVERYTHING


class BearerAuthorizer:
    """Asks for `Authorization: Bearer …`."""

    is_open = False

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)

    def authorize(self, values: Sequence[str]) -> Grant:
        """Return the grant of the source that knows the token."""
        if len(values) != 1:
            msg = "This server asks for a key, in one header: Authorization: Bearer KEY"
            raise GeartrainError(Code.UNAUTHENTICATED, msg)
        scheme, _, token = values[0].strip().partition(" ")
        token = token.strip()
        if scheme.lower() != _SCHEME or not token:
            msg = "The header Authorization has to be of the form: Bearer KEY"
            raise GeartrainError(Code.UNAUTHENTICATED, msg)
        for source in self._sources:
            grant = source.find(token)
            if grant is not None:
                return grant
        raise GeartrainError(Code.UNAUTHENTICATED, "The key is not known to this server, or was revoked.")


class NoAdministration:
    """An authorizer without administration, for any key; another authorizer decides the rest."""

    is_open = False

    def __init__(self, inner: Authorizer, reason: str) -> None:
        """`reason`: a sentence for those who try, which says what to do instead."""
        self._inner = inner
        self._reason = reason

    def authorize(self, values: Sequence[str]) -> Grant:
        """Return the other authorizer's grant without administration."""
        return msgspec.structs.replace(self._inner.authorize(values), no_administration=self._reason)
