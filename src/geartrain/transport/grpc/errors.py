"""What went wrong, as a gRPC status and a text that fits into it."""

from __future__ import annotations

import logging
from typing import Any, Final, Never
from urllib.parse import quote

import grpc

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.errors import GRPC_STATUS

logger = logging.getLogger(__name__)

STATUS: Final = {code: grpc.StatusCode[name] for code, name in GRPC_STATUS.items()}

# A status travels in the trailing headers, percent-encoded, and clients take 8 KiB of headers.
_MAX_DETAILS: Final = 6_000
_CUT: Final = " … (cut)"

Context = grpc.aio.ServicerContext[Any, Any]


def describe(error: GeartrainError) -> str:
    """Return a sentence for the client, or what is wrong with each field, as over REST."""
    fields = "; ".join(f"{'.'.join(each.loc[1:]).removeprefix('input.')}: {each.msg}" for each in error.fields)
    return fields or error.message


async def abort(context: Context, error: Exception) -> Never:
    """End a call with the status of an error. An unexpected one is logged, and the client gets no details."""
    foreseen = as_geartrain_error(error)
    await context.abort(STATUS[foreseen.code], shorten(describe(foreseen)))


def as_geartrain_error(error: Exception) -> GeartrainError:
    """Return the error itself if it is a `GeartrainError`; otherwise log it and return `INTERNAL`."""
    if isinstance(error, GeartrainError):
        return error
    logger.error("a gRPC request could not be answered", exc_info=error)
    return GeartrainError(Code.INTERNAL, "The server could not answer this request; its log says why.")


def shorten(text: str) -> str:
    """Cut a text to what a status can carry."""
    text = text.encode(errors="replace").decode()
    kept = text[:_MAX_DETAILS]
    while (size := len(quote(kept))) > _MAX_DETAILS:
        kept = kept[: len(kept) * _MAX_DETAILS // size]
    return text if len(kept) == len(text) else kept + _CUT
