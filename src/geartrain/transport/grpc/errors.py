"""Errors as the status of a call and a text."""

from __future__ import annotations

import logging
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.transport.errors import GRPC_STATUS
from geartrain.transport.grpc.status import Status, failure
from geartrain.transport.wire.exchange import Answer

logger = logging.getLogger(__name__)

_LONGEST: Final = 2000  # characters of a text
STATUS: Final = {code: Status[name] for code, name in GRPC_STATUS.items()}


class CallError(GeartrainError):
    """A call that breaks the rules of gRPC itself: its status, a sentence, and further fields of the answer."""

    def __init__(self, status: Status, text: str, *fields: tuple[bytes, bytes]) -> None:
        super().__init__(Code.UNPARSABLE, text)
        self.status = status
        self.answer_fields = fields


def as_geartrain_error(error: Exception) -> GeartrainError:
    """Return the error itself if it is a `GeartrainError`; otherwise log it and return `INTERNAL`."""
    if isinstance(error, GeartrainError):
        return error
    logger.error("a gRPC request could not be answered", exc_info=error)
    return GeartrainError(Code.INTERNAL, "The server could not answer this request; its log says why.")


def status_of(error: Exception) -> tuple[Status, str]:
    """Return the status and the text of an error. An unexpected one is logged, and the client gets no details."""
    foreseen = as_geartrain_error(error)
    status = foreseen.status if isinstance(foreseen, CallError) else STATUS[foreseen.code]
    return status, clip(foreseen.reason, _LONGEST)


def refusal(error: Exception) -> Answer:
    """Return the answer to a call that failed before anything was sent."""
    fields = error.answer_fields if isinstance(error, CallError) else ()
    return failure(*status_of(error), *fields)
