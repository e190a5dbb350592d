"""The states of a connection; see `geartrain.domain.state_machine`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from geartrain.domain.state_machine import steps_to


class ConnectionState(StrEnum):
    """State of a connection."""

    IDLE = "idle"  # between two requests: nothing of the next one has been read
    PREFACE = "preface"  # the input may be the beginning of a connection over HTTP/2
    HEAD = "head"  # a part of a head has come
    BODY = "body"  # a body is being gathered
    PARTS = "parts"  # a body is coming, and its exchange reads it in pieces
    RUNNING = "running"  # the request is whole, and its answer is not
    DISCARD = "discard"  # the answer has been written, and the rest of a short body is thrown away
    LINGER = "linger"  # the last answer has been written; what comes is thrown away, so that the client can read it
    CLOSING = "closing"  # the output is still being sent
    CLOSED = "closed"


_S = ConnectionState
CONNECTION_STEPS: Final[dict[ConnectionState, frozenset[ConnectionState]]] = {
    # Past the head: one that is known is not read.
    _S.IDLE: frozenset({_S.PREFACE, _S.HEAD, _S.BODY, _S.PARTS, _S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.PREFACE: frozenset({_S.HEAD, _S.BODY, _S.PARTS, _S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.HEAD: frozenset({_S.BODY, _S.PARTS, _S.RUNNING, _S.DISCARD, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.BODY: frozenset({_S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.PARTS: frozenset({_S.RUNNING, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    # LINGER: more has come behind a request that wants the connection closed.
    _S.RUNNING: frozenset({_S.IDLE, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.DISCARD: frozenset({_S.IDLE, _S.LINGER, _S.CLOSING, _S.CLOSED}),
    _S.LINGER: frozenset({_S.CLOSING, _S.CLOSED}),
    _S.CLOSING: frozenset({_S.CLOSED}),
    _S.CLOSED: frozenset(),
}

TO_CONNECTION_STATE: Final = steps_to("a connection", CONNECTION_STEPS)

OVER: Final = frozenset({_S.LINGER, _S.CLOSING, _S.CLOSED})
"""The states in which the last answer has been written."""
