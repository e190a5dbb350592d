"""Shared context of all calls."""

from __future__ import annotations

import msgspec

from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc.access import CallAccess
from geartrain.transport.grpc.request_heads import RequestReader
from geartrain.transport.grpc.response_heads import ResponseWriter
from geartrain.transport.large_bodies import LargeBodies


class CallContext(msgspec.Struct, frozen=True):
    """The parts that all calls to one server share.

    Attributes:
        bodies: reads long messages.
        max_message: bytes of a message that comes in for inference, `NO_LIMIT` for any.
        max_small: bytes of one for any other method.
    """

    catalogue: Catalogue
    regions: SharedRegions
    access: CallAccess
    requests: RequestReader
    responses: ResponseWriter
    bodies: LargeBodies
    max_message: int
    max_small: int
