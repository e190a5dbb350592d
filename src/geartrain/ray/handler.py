"""Requests to a replica: Ray's own probes first, then the routes of the server below the route prefix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from geartrain.transport.relay.token import ClusterToken, Sender
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Accepted, Answer, Body, Decision, Handler, Head, Responder

Probe = Callable[[], Awaitable[Answer]]

_MAX_PROBE: Final = 4096  # bytes of a body, which is ignored
_TOO_LARGE: Final = Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_FAILED: Final = Answer(HTTPStatus.SERVICE_UNAVAILABLE)


class Platform(Protocol):
    """Ray Serve's view of a replica."""

    def prefix(self) -> str:
        """Return the route prefix of the application; empty for none."""

    def probe(self, head: Head) -> Probe | None:
        """Return the answer to a request of Ray's own; None for any other."""


class ReplicaHandler:
    """Passes requests on as if the prefix were not there; links in answers begin with it. It is a `Handler`.

    Those that other replicas hand over come without the prefix.
    """

    def __init__(self, inner: Handler, cluster: ClusterToken | None) -> None:
        """`cluster` knows the requests of other replicas; None for a replica that has none."""
        self.inner = inner
        self._cluster = cluster
        self.platform: Platform | None = None  # once the replica has a port of Ray's

    def begin(self, head: Head) -> Decision:
        """Decide what becomes of a request."""
        probe = None if self.platform is None else self.platform.probe(head)
        if probe is not None:
            head.notes.is_routine = True
            return Accepted(lambda responder: _ProbeExchange(probe, responder), _MAX_PROBE, lambda _: _TOO_LARGE)
        prefix = "" if self.platform is None else self.platform.prefix()
        below = head.path.removeprefix(prefix.encode())
        is_below = len(below) < len(head.path) and below[:1] in {b"", b"/"}
        if is_below and (self._cluster is None or self._cluster.sender(head) is not Sender.SERVER):
            head = msgspec.structs.replace(head, path=below or b"/", root=prefix)
        return self.inner.begin(head)


class _ProbeExchange:
    __slots__ = ("_probe", "_responder")

    def __init__(self, probe: Probe, responder: Responder) -> None:
        self._probe = probe
        self._responder = responder

    def receive(self, body: Body) -> None:  # noqa: ARG002 - as of `Exchange`
        """Answer when Ray has said what."""
        start(self._answer())

    def abandon(self) -> None:
        """Let it finish without a reader."""

    async def _answer(self) -> None:
        try:
            answer = await self._probe()
        except Exception:  # noqa: BLE001 - the border of a request: a probe that fails has one meaning
            answer = _FAILED
        self._responder.respond(answer)
