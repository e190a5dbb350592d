"""One table of routes: a method and a path, and the endpoint that takes the request. Then the ports of the routes.

A path is cut at its slashes as it came and each step is decoded by itself, so a percent-encoded slash belongs to a name
or an id. Paths are exact: a slash at the end makes another path.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final, Literal, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.versions import is_version
from geartrain.transport.errors import BUG
from geartrain.transport.wire.exchange import Accepted, Answer, AnswerStream, Decision, Head, Responder

logger = logging.getLogger(__name__)

Params = Mapping[str, str]  # from the path, such as `model` and `version`; missing ones are left out
Scope = Literal["open", "predict", "read", "admin"]
Subject = Literal["model", "all", "none"]
Begin = Callable[[Head, Params], Decision]

GET: Final = ("GET", "HEAD")
POST: Final = ("POST",)
PUT: Final = ("PUT",)

_VERSION: Final = ":version}"
ROUTINE: Final = frozenset({"open", "read"})  # scopes of requests that look after a server
METRICS: Final = "/metrics"
HISTORY: Final = "/playground/history"  # the metrics of the last minutes
HEALTH: Final = frozenset({"/health-check", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"})


class Api(Protocol):
    """A protocol: its name, and the form of its refusals. Its routes refer to it, and nothing else lists it.

    Attributes:
        name: of the requests that run models, in logs, metrics and traces.
        shows_logs: true if its answers have a place for the prints of a run. Those of others are in the server's log.
    """

    name: str
    shows_logs: bool

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""

    def not_found(self) -> Answer:
        """Return the answer where there is no such path."""

    def wrong_method(self, allowed: str) -> Answer:
        """Return the answer to another method than those `allowed`, with the header that names them."""


class Route(msgspec.Struct, frozen=True):
    """A row of the table.

    Attributes:
        methods: those that it takes.
        path: a template. `{name}` stands for one step that is not empty, `{name:version}` for one that can be a
            version, `{name*}` at the end for all that follow.
        begin: takes the request; may raise `GeartrainError`, which `api` makes an answer of.
        api: the protocol that it belongs to. A request with the scope `predict` is counted as one of it, any other as
            `system`.
        scope: what a key must allow, where keys are asked for. `open` is for everybody.
        subject: what the request is about, for keys that are for some models only: `model`, the one that the path names
            or else the default model; `all` models, or the server as a whole; `none` of them.
        outline: takes the request of a client whose key does not allow it, and tells less. None: it is refused.
        is_relayable: whether other servers of a cluster may hand over requests of their clients.
        choose_api: returns the form of the refusals for a request, where `api` shares the path with another protocol.
    """

    methods: tuple[str, ...]
    path: str
    begin: Begin
    api: Api
    scope: Scope = "read"
    subject: Subject = "model"
    outline: Begin | None = None
    is_relayable: bool = False
    choose_api: Callable[[Head], Api] | None = None

    def api_for(self, head: Head) -> Api:
        """Return the protocol that refuses a request."""
        return self.api if self.choose_api is None else self.choose_api(head)


class Guard:
    """Lets everybody in. A subclass decides who may come in."""

    def check(self, head: Head, route: Route, params: Params) -> bool:  # noqa: ARG002 - for a subclass, as below
        """Let a request pass, or raise `GeartrainError`. False if the next one with this head must be checked again.

        The name of the key goes to `Head.notes`.
        """
        return True

    def intercept(self, head: Head) -> Answer | None:  # noqa: ARG002
        """Answer a request that never reaches a route, such as a preflight of CORS.

        Raises `GeartrainError` to refuse one, such as for a foreign host: the protocol of its path says so.
        """
        return None

    def dress(self, head: Head, answer: Answer) -> Answer:  # noqa: ARG002
        """Return an answer with the headers that a browser needs to show it to its page.

        Called for every answer of the router itself, and for every answer to a request that has an `Origin`: only a
        browser needs the headers. `answer` has no body where it is the head of a stream.
        """
        return answer


class _Node:
    """A step of the paths: what may follow it, and the routes that end here."""

    __slots__ = ("fixed", "named", "rest", "routes", "versions")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.versions: dict[str, _Node] = {}
        self.named: dict[str, _Node] = {}
        self.rest: dict[str, _Node] = {}
        self.routes: dict[str, Route] = {}  # by method

    def find(self, steps: list[str], at: int, params: dict[str, str]) -> tuple[_Node, dict[str, str]] | None:
        """Walk down; a fixed step comes before a name, and a name before the rest of a path."""
        if at == len(steps):
            return (self, params) if self.routes else None
        step = steps[at]
        if step in self.fixed:
            found = self.fixed[step].find(steps, at + 1, params)
            if found is not None:
                return found
        fitting = [*self.named.items()] if step else []
        if self.versions and is_version(step):
            fitting = [*self.versions.items(), *fitting]
        for name, following in fitting:
            found = following.find(steps, at + 1, {**params, name: step})
            if found is not None:
                return found
        for name, following in self.rest.items():
            return following, {**params, name: "/".join(steps[at:])}
        return None


class Router:
    """Finds the route of a request. It is the `Handler` of a server."""

    def __init__(self, routes: Iterable[Route], default: Api, guard: Guard | None = None) -> None:
        """`default`: the protocol that answers where there is no route."""
        self.routes = tuple(routes)
        self._default = default
        self._guard = guard or Guard()
        self._root = _Node()
        self._apis: dict[str, Api] = {}  # by the first step of a path
        for route in self.routes:
            self._add(route)

    def begin(self, head: Head) -> Decision:
        """Find who takes the request; refuse what has no route, or may not come in."""
        try:
            answer = self._guard.intercept(head)
        except GeartrainError as error:
            return self._guard.dress(head, self._api_of(split_path(head.path)).refuse(error))
        return _dress(self._guard, head, self._decide(head)) if answer is None else answer

    def template(self, method: str, path: str) -> str:
        """Return the path of the row that a request belongs to, whether or not it may come in; empty without one."""
        found = self._root.find(split_path(path.encode("latin-1")), 0, {})
        route = None if found is None else found[0].routes.get(method)
        return "" if route is None else route.path

    def _api_of(self, steps: list[str]) -> Api:
        return self._apis.get(steps[0], self._default)

    def _decide(self, head: Head) -> Decision:
        steps = split_path(head.path)
        found = self._root.find(steps, 0, {})
        if found is None:
            return self._api_of(steps).not_found()
        node, params = found
        route = node.routes.get(head.method)
        if route is None:
            allowed = ", ".join(sorted(node.routes))
            return next(iter(node.routes.values())).api_for(head).wrong_method(allowed)
        notes = head.notes
        notes.model = params.get("model", "")
        if route.scope == "predict":
            notes.protocol, notes.shows_logs = route.api.name, route.api.shows_logs
        try:
            begin, is_reusable = self._admit(head, route, params)
            head.notes.is_routine = route.scope in ROUTINE
            decision = begin(head, params)
        except GeartrainError as error:
            return route.api_for(head).refuse(error)
        except Exception:
            logger.exception("an endpoint failed")
            return route.api_for(head).refuse(BUG)
        if is_reusable or not isinstance(decision, Accepted):
            return decision
        return msgspec.structs.replace(decision, is_reusable=False)

    def _admit(self, head: Head, route: Route, params: Params) -> tuple[Begin, bool]:
        """Return the handler of a routed request, and True if the next one with this head goes there, too."""
        try:
            return route.begin, self._guard.check(head, route, params)
        except GeartrainError:
            if route.outline is None:
                raise
            return route.outline, False

    def _add(self, route: Route) -> None:
        node = self._root
        steps = route.path[1:].split("/")
        self._apis.setdefault(steps[0], route.api)
        for step in steps:
            if step.endswith("*}"):
                node = node.rest.setdefault(step[1:-2], _Node())
            elif step.endswith(_VERSION):
                node = node.versions.setdefault(step[1 : -len(_VERSION)], _Node())
            elif step.startswith("{"):
                node = node.named.setdefault(step[1:-1], _Node())
            else:
                node = node.fixed.setdefault(step, _Node())
        for method in route.methods:
            if method in node.routes:
                msg = f"two routes for {method} {route.path}"
                raise ValueError(msg)
            node.routes[method] = route


class _DressedResponder:
    """Gives every answer to one request the headers that its browser needs."""

    __slots__ = ("_dress", "_responder", "record")

    def __init__(self, responder: Responder, dress: Callable[[Answer], Answer]) -> None:
        self.record = responder.record
        self._responder = responder
        self._dress = dress

    def respond(self, answer: Answer) -> None:
        self._responder.respond(self._dress(answer))

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> AnswerStream:
        return self._responder.open_stream(status, self._dress(Answer(status, (), headers)).headers)


def _dress(guard: Guard, head: Head, decision: Decision) -> Decision:
    dress = functools.partial(guard.dress, head)
    if isinstance(decision, Answer):
        return dress(decision)
    if head.header(b"origin") is None:
        return decision
    new_exchange, refuse_size = decision.new_exchange, decision.refuse_size
    return msgspec.structs.replace(
        decision,
        new_exchange=lambda responder: new_exchange(_DressedResponder(responder, dress)),
        refuse_size=lambda limit: dress(refuse_size(limit)),
    )


def split_path(path: bytes) -> list[str]:
    """Return the decoded steps of a path; `/` has one, which is empty."""
    return [unquote_to_bytes(step).decode(errors="replace") for step in path[1:].split(b"/")]


def split_routes(routes: Iterable[Route], *, has_admin_port: bool) -> tuple[tuple[Route, ...], tuple[Route, ...]]:
    """Return the routes of the public port and those of the port of administration.

    The latter has administration, metrics, and health for probes; the former has the rest, and health too. Without a
    port of administration the public one has all.
    """
    rows = tuple(routes)
    if not has_admin_port:
        return rows, ()
    public = tuple(route for route in rows if not _is_administration(route))
    return public, tuple(route for route in rows if _is_administration(route) or route.path in HEALTH)


def _is_administration(route: Route) -> bool:
    return route.scope == "admin" or route.path in {METRICS, HISTORY}


def exposure_warning(address: str, *, has_keys: bool) -> str | None:
    """Return the warning about a server that asks for no keys and that other machines can reach; None for any other.

    `address` is what the socket is bound to, which is a number whatever name the operator has given.
    """
    if has_keys or is_loopback(address):
        return None
    return (
        f"everybody who can reach {_described(address)} may use this server and shut it down: it asks for no keys. "
        "Give keys to its clients with --keys, or listen on 127.0.0.1; see docs/security.md."
    )


def is_loopback(address: str) -> bool:
    """Return True if a numeric address is one that only this machine can reach."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    carried = getattr(found, "ipv4_mapped", None)
    return found.is_loopback if carried is None else bool(carried.is_loopback)


def _described(address: str) -> str:
    return "any address of this machine" if address in {"0.0.0.0", "::", ""} else address  # noqa: S104 - compared alone
