"""Methods of gRPC for Ray's own proxy.

Ray serves gRPC only with such a function, and calls it in every proxy. In HAProxy mode a call never gets there: the
replica has its own server.
"""

from __future__ import annotations

from typing import Any

import grpc

from geartrain.transport.grpc.context import NEEDS
from geartrain.transport.grpc.servicer import SERVICE


def add_to_server(_servicer: object, server: Any) -> None:
    """Tell a server of grpcio of the methods of the Open Inference Protocol; what answers them is Ray's."""
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(_nothing) for name in (*NEEDS, "ModelInfer")}
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(_nothing)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _nothing(_request: object, _context: object) -> None:
    """Stand where Ray puts its own function."""
