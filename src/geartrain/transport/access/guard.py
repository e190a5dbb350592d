"""Decides about each request over HTTP. See `Guard`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.authorizer import Authorizer
from geartrain.transport.access.hosts import HostPolicy
from geartrain.transport.access.origins import OriginPolicy
from geartrain.transport.relay.token import KEY_FIELD, ClusterAccess, Sender, read_principal
from geartrain.transport.routing import Params, Route
from geartrain.transport.wire.exchange import Answer, Head


class AccessGuard:
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
        cluster: ClusterAccess,
    ) -> None:
        """`default_model`: the name of the model whose Cog API is at the root, None where there is none.

        `cluster` knows the requests that other servers hand over: these have checked their clients.
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
        grant.check_scope(route.scope)
        model = params.get("model")
        subject = "all" if route.scope == "admin" and model is None else route.subject
        grant.check_subject(subject, self._default_model() if model is None else model)
        return grant.is_lasting

    def intercept(self, head: Head) -> Answer | None:
        """Refuse foreign hosts and pages of other sites; answer the preflights of allowed ones.

        Other servers of the cluster call this one by the address that it has told them.
        """
        sender = self._cluster.sender(head)
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
