"""What an operator decides of gRPC, checked before anything is started. Nothing of gRPC is imported here."""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from geartrain.transport.wire.tls import TlsFiles

DEFAULT_PORT: Final = 8081  # as KServe's


class GrpcOptionsError(Exception):
    """gRPC cannot be served as it was asked for; the text says why and what to do."""


class GrpcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How gRPC is served."""

    port: int | None = DEFAULT_PORT  # 0 for any free one, None for no gRPC
    is_explicit: bool = False  # the operator has named the port: without it there shall be no server
    max_message_bytes: int | None = None  # of one message, in or out; None for no limit
    tls: TlsFiles | None = None
    has_administration: bool = True  # whether models can be loaded and unloaded, and shared memory registered


class ReservedPort:
    """A reserved address, held until gRPC listens there: gRPC starts after HTTP, and must not fail then."""

    def __init__(self, host: str, port: int) -> None:
        """Reserve the address; raise `GrpcOptionsError` if that is impossible."""
        is_v6 = ":" in host
        where = f"[{host}]" if is_v6 else host
        self.address = f"{where}:{port}"
        self._holder: socket.socket | None = None
        if port == 0:
            return
        self._holder = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for a port that was just closed
            self._holder.bind((host, port))
            self._holder.listen(1)  # two may be bound to an address with that option, but only one may listen
        except OSError as error:
            self.release()
            msg = f"cannot listen for gRPC on {self.address}: {error.strerror or error}. "
            raise GrpcOptionsError(
                msg + "Choose another port with --grpc-port, or turn it off with --grpc-port off."
            ) from error

    def release(self) -> None:
        """Release the address."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None
