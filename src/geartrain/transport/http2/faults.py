"""Exceptions of the codec for clients that break the rules (RFC 9113, section 5.4)."""

from __future__ import annotations

from geartrain.transport.http2.interface import ErrorCode


class ConnectionFaultError(Exception):
    """The connection has to end."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamFaultError(Exception):
    """One stream has to be reset; the others go on."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
