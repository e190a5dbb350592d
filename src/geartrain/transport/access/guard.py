"""Admission of requests: the grants of clients, and their check on the route that a request takes.

HTTP and gRPC read the `Authorization` of a request alike, with `Authorizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol, get_args

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import ANYONE, Principal
from geartrain.transport.access.origins import HostPolicy, OriginPolicy
from geartrain.transport.relay.token import KEY_FIELD, ClusterToken, Sender, read_principal
from geartrain.transport.routing import Guard, Params, Route, Scope, Subject
from geartrain.transport.wire.exchange import Answer, Head

SCOPES: Final = tuple(scope for scope in get_args(Scope) if scope != "open")
ANY_MODEL: Final = "*"
_SCHEME: Final = "bearer"
_REQUIRED: Final = "This server requires a key. Send it in a header: Authorization: Bearer KEY"


class Grant(msgspec.Struct, frozen=True):
    """Permissions of a key or a token.

    A scope includes no other one: a key with `admin` alone cannot predict.

    Attributes:
        holder: description for error messages, such as `key 'ada'`.
        scopes: the permitted ones.
        models: patterns as of a shell, in which case matters.
        is_lasting: true if it holds until its source reports a change; otherwise each request needs a new one.
        name: of the key, or the subject of the token, for the log.
        principal: the owner of the predictions that are made with it.
        no_administration: reason for which the scope `admin` is useless on this server; empty if it is not.
    """

    holder: str
    scopes: frozenset[str]
    models: tuple[str, ...] = (ANY_MODEL,)
    is_lasting: bool = True
    name: str = ""
    principal: Principal = Principal()
    no_administration: str = ""

    def check_scope(self, scope: Scope) -> None:
        """Raise `FORBIDDEN` without this scope; `open` needs none. `UNSUPPORTED`: the server has no administration."""
        if scope == "admin" and self.no_administration:
            raise GeartrainError(Code.UNSUPPORTED, self.no_administration)
        if scope not in self.scopes and scope != "open":
            raise GeartrainError(Code.FORBIDDEN, f"The {self.holder} does not have the scope '{scope}'.")

    def check_model(self, model: str) -> None:
        """Raise `FORBIDDEN` for a model that no pattern fits."""
        for pattern in self.models:
            if pattern == ANY_MODEL or fnmatchcase(model, pattern):
                return
        raise GeartrainError(Code.FORBIDDEN, f"The {self.holder} is not for the model '{model[:200]}'.")

    def check_subject(self, subject: Subject, model: str | None) -> None:
        """Raise `FORBIDDEN` for what concerns other models than those of the patterns.

        `model` counts where `subject` is `model`; None stands for a default model where there is none.
        """
        if subject == "model" and model is not None:
            self.check_model(model)
        elif subject == "all" and ANY_MODEL not in self.models:
            msg = f"The {self.holder} is for some models only, and this concerns all of them."
            raise GeartrainError(Code.FORBIDDEN, msg)


EVERYTHING: Final = Grant("server", frozenset(SCOPES), principal=ANYONE)


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
    """Authorizer of `Authorization: Bearer …` headers."""

    is_open = False

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)

    def authorize(self, values: Sequence[str]) -> Grant:
        """Return the grant of the source that knows the token."""
        if len(values) != 1:
            msg = f"Send one header Authorization, not {len(values)}" if values else _REQUIRED
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


class WithoutAdministration:
    """An authorizer without administration, for any key; another authorizer decides the rest."""

    is_open = False

    def __init__(self, inner: Authorizer, reason: str) -> None:
        """`reason`: a sentence for those who try, which says what to do instead."""
        self._inner = inner
        self._reason = reason

    def authorize(self, values: Sequence[str]) -> Grant:
        """Return the other authorizer's grant without administration."""
        return msgspec.structs.replace(self._inner.authorize(values), no_administration=self._reason)


class AccessGuard(Guard):
    """Checks the host, the origin and the key of a request, in this order.

    What it decides depends on the head of a request alone, on options that do not change, and on keys. A wire may
    therefore remember what became of a head whose `check` was True, until the access says that it has changed: see
    `Access`.
    """

    def __init__(
        self,
        authorizer: Authorizer,
        hosts: HostPolicy,
        origins: OriginPolicy,
        *,
        default_model: Callable[[], str | None],
        cluster: ClusterToken | None,
    ) -> None:
        """`default_model`: the name of the model whose Cog API is at the root, None where there is none.

        `cluster` knows the requests that other servers hand over: these have checked their clients. Without it, all
        requests are those of clients, whatever their header fields say.
        """
        self._authorizer = authorizer
        self._hosts = hosts
        self._origins = origins
        self._default_model = default_model
        self._cluster = cluster

    def check(self, head: Head, route: Route, params: Params) -> bool:
        """Ask for a key that is for this route. False for a token: it expires."""
        if head.notes.is_relayed:
            if not route.is_relayable:
                raise GeartrainError(Code.FORBIDDEN, "The token of a cluster does not allow this.")
            head.notes.key = (head.header(KEY_FIELD) or b"").decode("latin-1")
            head.notes.principal = read_principal(head)
            return True
        if self._authorizer.is_open or route.scope == "open":
            return True
        grant = self._authorizer.authorize(_keys(head))
        head.notes.key, head.notes.principal, head.notes.check_model = grant.name, grant.principal, grant.check_model
        head.notes.models = grant.models
        grant.check_scope(route.scope)
        model = params.get("model")
        subject = "all" if route.scope == "admin" and model is None else route.subject
        grant.check_subject(subject, self._default_model() if model is None else model)
        return grant.is_lasting

    def intercept(self, head: Head) -> Answer | None:
        """Refuse foreign hosts and pages of other sites; answer the preflights of allowed ones.

        Other servers of the cluster call this one by the address that it has told them.
        """
        sender = Sender.CLIENT if self._cluster is None else self._cluster.sender(head)
        if sender is Sender.STRANGER:
            raise GeartrainError(Code.UNAUTHENTICATED, "The token of the cluster is not the one of this server.")
        if sender is Sender.SERVER:
            head.notes.is_relayed = True
            return None
        self._hosts.check(head.header(b"host"))
        preflight = self._origins.preflight(head)
        if preflight is None:
            self._origins.check(head)
        return preflight

    def dress(self, head: Head, answer: Answer) -> Answer:
        """Return the answer with the headers of CORS, for a page of an allowed origin."""
        headers = self._origins.headers(head.header(b"origin"))
        return msgspec.structs.replace(answer, headers=(*answer.headers, *headers)) if headers else answer


def _keys(head: Head) -> list[str]:
    """Return the values of `Authorization`, or else those of `x-api-key`, which clients of Anthropic's API may send."""
    keys = [value.decode("latin-1") for name, value in head.headers if name == b"authorization"]
    return keys or [f"Bearer {value.decode('latin-1')}" for name, value in head.headers if name == b"x-api-key"]
