"""Shared context of the calls of a server: its parts, and the scope that each call needs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.guard import EVERYTHING, Authorizer, Grant
from geartrain.transport.grpc.heads import CallHead
from geartrain.transport.grpc.request_heads import RequestReader, ResponseWriter
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.routing import Scope, Subject


class Need(NamedTuple):
    """A required scope: its subject, and the message field that names the model."""

    scope: Scope
    subject: Subject = "none"
    field: str = ""


NEEDS: Final[dict[str, Need]] = {
    "ServerLive": Need("open"),
    "ServerReady": Need("open"),
    "ModelReady": Need("open"),
    "ServerMetadata": Need("read"),
    "ModelMetadata": Need("read", "model", "name"),
    "ModelConfig": Need("read", "model", "name"),
    "ModelStatistics": Need("read", "model", "name"),
    "RepositoryIndex": Need("read", "all"),
    "RepositoryModelLoad": Need("admin", "model", "model_name"),
    "RepositoryModelUnload": Need("admin", "model", "model_name"),
    "SystemSharedMemoryStatus": Need("admin", "all"),
    "SystemSharedMemoryRegister": Need("admin", "all"),
    "SystemSharedMemoryUnregister": Need("admin", "all"),
}
"""Of each call with one message each way, but for inference: that has its own check, as have the requests of a stream.

The standard services, of health and of reflection, are open.
"""


class CallAccess:
    """Checks the keys of calls. The methods raise `UNAUTHENTICATED` and `FORBIDDEN`."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def grant(self, head: CallHead, scope: Scope) -> Grant:
        """Return the grant of a call with at least this scope; an open call needs no key."""
        if self._authorizer.is_open or scope == "open":
            return EVERYTHING
        grant = self._authorizer.authorize(head.authorization)
        grant.check_scope(scope)
        return grant


def check_message(grant: Grant, need: Need, message: Any) -> None:
    """Check what only the message of a call says: which model it concerns. Raises `FORBIDDEN`."""
    if need.subject == "none":
        return
    model = getattr(message, need.field) if need.field else ""
    # Without a name it is about all of them, such as of statistics.
    grant.check_subject(need.subject if model or not need.field else "all", model)


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
