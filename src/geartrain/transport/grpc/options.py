"""Options of gRPC."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.transport.wire.tls import TlsFiles

DEFAULT_PORT: Final = 8081  # same as KServe's
DEFAULT_MAX_MESSAGE: Final = 256 * 1024**2  # bytes


class GrpcOptionsError(Exception):
    """gRPC cannot be served as it was asked for; the text says why and what to do."""


class GrpcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of gRPC."""

    port: int | None = DEFAULT_PORT  # of its own: 0 for any free one, None for none
    is_explicit: bool = False  # the operator has named the port: without it there shall be no server
    max_message_bytes: int = DEFAULT_MAX_MESSAGE  # of one message that comes in; 0 for no limit
    tls: TlsFiles | None = None
    has_torchserve: bool = False  # true with the inference service of TorchServe
    has_administration: bool = True  # true if models can be loaded and unloaded, and shared memory registered
