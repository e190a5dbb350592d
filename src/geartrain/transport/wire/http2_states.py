"""The states of a connection of HTTP/2 and of its streams. An illegal step raises."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from geartrain.domain.state_machine import steps_to


class Http2State(StrEnum):
    """State of a connection."""

    OPEN = "open"
    DRAINING = "draining"  # no stream is accepted any more, and those that are open go on
    CLOSING = "closing"  # its end has been written; what comes is thrown away, so that the client can read that
    CLOSED = "closed"


class StreamState(StrEnum):
    """State of a request."""

    BODY = "body"  # its body is being gathered
    PARTS = "parts"  # its body is coming, and its exchange reads it in pieces
    RUNNING = "running"  # it is whole, and its answer is not
    OVER = "over"  # its answer is complete, or will never be


_H = Http2State
HTTP2_STEPS: Final[dict[Http2State, frozenset[Http2State]]] = {
    _H.OPEN: frozenset({_H.DRAINING, _H.CLOSING, _H.CLOSED}),
    _H.DRAINING: frozenset({_H.CLOSING, _H.CLOSED}),
    _H.CLOSING: frozenset({_H.CLOSED}),
    _H.CLOSED: frozenset(),
}

TO_HTTP2_STATE: Final = steps_to("a connection", HTTP2_STEPS)

ENDED: Final = frozenset({_H.CLOSING, _H.CLOSED})
"""The states in which nothing is served any more."""

_S = StreamState
STREAM_STEPS: Final[dict[StreamState, frozenset[StreamState]]] = {
    _S.BODY: frozenset({_S.PARTS, _S.RUNNING, _S.OVER}),
    _S.PARTS: frozenset({_S.RUNNING, _S.OVER}),
    _S.RUNNING: frozenset({_S.OVER}),
    _S.OVER: frozenset(),
}
TO_STREAM_STATE: Final = steps_to("a stream", STREAM_STEPS)
