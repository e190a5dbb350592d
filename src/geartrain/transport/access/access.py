"""All parts of access put together: made once for a server, asked by HTTP and by gRPC."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from geartrain.transport.access.guard import (
    AccessGuard,
    Authorizer,
    BearerAuthorizer,
    Everybody,
    Source,
    WithoutAdministration,
)
from geartrain.transport.access.keys import KeyRing
from geartrain.transport.access.options import AccessError, AccessOptions, JwtOptions
from geartrain.transport.access.origins import HostPolicy, OriginPolicy
from geartrain.transport.relay.token import ClusterToken

if TYPE_CHECKING:
    from geartrain.transport.access.tokens import IssuerKeys


class Access:
    """Access control of a server.

    A request whose head is known to the wire does not reach the guard, so a revoked key has to be noticed without one.
    The server calls `refresh` about once a second, which costs one system call, and clears what it remembers of heads
    in the callbacks of `on_change`: a revoked or expired key works for one more second at most, and a request with a
    known key costs nothing. Without calls of `refresh`, the file is looked at once a second at most when a request has
    to be checked.
    """

    def __init__(self, options: AccessOptions, host: str) -> None:
        """Read the keys; raises `AccessError`. `host`: the address that the server listens on."""
        self._listeners: list[Callable[[], None]] = []
        self._rings: list[KeyRing] = []
        self._issuers: list[IssuerKeys] = []
        sources: list[Source] = []
        if options.keys is not None:
            self._rings.append(KeyRing(options.keys, self._tell_change))
            sources += self._rings
        if options.jwt is not None:
            sources.append(self._make_verifier(options.jwt))
        self.authorizer: Authorizer = BearerAuthorizer(sources) if sources else Everybody()
        if options.no_administration:
            self.authorizer = WithoutAdministration(self.authorizer, options.no_administration)
        self._hosts = HostPolicy(host, options.allowed_hosts)
        self._origins = OriginPolicy(options.cors_origins)

    def guard(self, default_model: Callable[[], str | None], cluster: ClusterToken | None = None) -> AccessGuard:
        """Return the guard of HTTP. `default_model` and `cluster`: see `AccessGuard`."""
        return AccessGuard(self.authorizer, self._hosts, self._origins, default_model=default_model, cluster=cluster)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever what was allowed may be allowed no longer."""
        self._listeners.append(callback)

    def start(self) -> None:
        """Begin to fetch the keys of the issuer, on the running loop."""
        for issuer in self._issuers:
            issuer.start()

    def refresh(self) -> None:
        """Look whether the keys have changed."""
        for ring in self._rings:
            ring.refresh()

    async def close(self) -> None:
        """End what `start` began."""
        for issuer in self._issuers:
            await issuer.close()

    def _make_verifier(self, options: JwtOptions) -> Source:
        try:
            import cryptography  # noqa: F401 - without it PyJWT knows no key of an issuer

            from geartrain.transport.access.tokens import IssuerKeys, TokenVerifier
        except ModuleNotFoundError as error:
            msg = f"--jwt-issuer needs a package that is not installed ({error.name}): pip install 'geartrain[jwt]'"
            raise AccessError(msg) from error
        from geartrain.outbound.issuer_keys import fetch_issuer_keys

        keys = IssuerKeys(functools.partial(fetch_issuer_keys, options.issuer, options.jwks), self._tell_change)
        verifier = TokenVerifier(options, keys.find)
        self.on_change(verifier.forget)
        self._issuers.append(keys)
        return verifier

    def _tell_change(self) -> None:
        for listener in self._listeners:
            listener()
