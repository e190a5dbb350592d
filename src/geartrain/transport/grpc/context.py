"""What all calls share."""

from __future__ import annotations

import msgspec

from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc.access import CallAccess
from geartrain.transport.grpc.request_heads import RequestReader
from geartrain.transport.grpc.response_heads import ResponseWriter


class CallContext(msgspec.Struct, frozen=True):
    """What all calls to one server share. `max_message`: bytes of a message that comes in, `NO_LIMIT` for any."""

    catalogue: Catalogue
    regions: SharedRegions
    access: CallAccess
    requests: RequestReader
    responses: ResponseWriter
    max_message: int
