"""Options of access, and the error for those that cannot be used; an operator reads it."""

from __future__ import annotations

from pathlib import Path

import msgspec


class AccessError(Exception):
    """A file or an option of access is wrong; the text says where, and what to do."""


class JwtOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens are accepted.

    Attributes:
        issuer: a URL, exactly as in the claim `iss`.
        audience: names of this server; a token is for one of them by its claim `aud`.
        jwks: a URL or a file with the issuer's public keys; empty to ask the issuer where they are.
        scope_claim: the claim that lists the scopes.
        models_claim: the claim that lists patterns of models; empty where a token is for all of them.
    """

    issuer: str
    audience: tuple[str, ...]
    jwks: str = ""
    scope_claim: str = "scope"
    models_claim: str = ""


class AccessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of access control. Without `keys` and `jwt` no key is required.

    Attributes:
        keys: the file of keys.
        jwt: tokens accepted beside the keys.
        cors_origins: the origins whose pages may send requests, `*` for any.
        allowed_hosts: names that clients may call the server by. None of them: any, but on a loopback address, where
            the names of the loopback are always allowed.
        no_administration: reason for which the server has no administration; empty if the scope `admin` allows it.
    """

    keys: Path | None = None
    jwt: JwtOptions | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    no_administration: str = ""

    @property
    def asks_for_keys(self) -> bool:
        """True if a client has to show who it is."""
        return self.keys is not None or self.jwt is not None
