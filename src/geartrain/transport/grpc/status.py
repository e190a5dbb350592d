"""The status of a call, for errors too, and the answers that are nothing but a status.

Source: the document "gRPC over HTTP2" (Responses), and gRPC's table of status codes.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.transport.errors import GRPC_STATUS, GrpcStatus
from geartrain.transport.wire.exchange import Answer

Fields = tuple[tuple[bytes, bytes], ...]


# The wire remembers the encodings of fields by these very objects.
HEADERS: Final[Fields] = ((b"content-type", b"application/grpc"),)
GZIP_HEADERS: Final[Fields] = (*HEADERS, (b"grpc-encoding", b"gzip"))
OK_TRAILERS: Final[Fields] = ((b"grpc-status", b"0"),)

HTTP_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long

# A status travels in fields, percent-encoded, and clients take 8 KiB of them.
_MAX_DETAILS: Final = 6_000
_CUT: Final = " … (cut)"
_UNCHANGED: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # besides letters and digits: what is printable but for %


def trailers(status: GrpcStatus, text: str = "") -> Fields:
    """Return the fields of a status; a text that is too long for them is cut."""
    if status is GrpcStatus.OK:
        return OK_TRAILERS
    return ((b"grpc-status", b"%d" % status), (b"grpc-message", percent_encode(shorten(text))))


def failure(status: GrpcStatus, text: str, *fields: tuple[bytes, bytes]) -> Answer:
    """Return the answer that is a status alone, in its head ("Trailers-Only")."""
    return Answer(HTTP_OK, (), (*HEADERS, *trailers(status, text), *fields), error=text)


def percent_encode(text: str) -> bytes:
    """Encode a text for `grpc-message`: UTF-8 with only printable ASCII but `%` as it is.

    A field begins and ends with no space (RFC 9113, section 8.2.1), so a space there is encoded, too.
    """
    encoded = quote(text, safe=_UNCHANGED, errors="replace")
    if encoded[:1] == " " or encoded[-1:] == " ":
        bare = encoded.strip(" ")
        begin = len(encoded) - len(encoded.lstrip(" "))
        encoded = "%20" * begin + bare + "%20" * (len(encoded) - len(bare) - begin)
    return encoded.encode()


def shorten(text: str) -> str:
    """Cut a text to what a status can carry."""
    text = text.encode(errors="replace").decode()
    kept = text[:_MAX_DETAILS]
    while (size := len(quote(kept))) > _MAX_DETAILS:
        kept = kept[: len(kept) * _MAX_DETAILS // size]
    return text if len(kept) == len(text) else kept + _CUT


logger = logging.getLogger(__name__)

_LONGEST: Final = 2000  # characters of a text


class CallError(GeartrainError):
    """A call that breaks the rules of gRPC itself: its status, a sentence, and further fields of the answer."""

    def __init__(self, status: GrpcStatus, text: str, *fields: tuple[bytes, bytes]) -> None:
        super().__init__(Code.UNPARSABLE, text)
        self.status = status
        self.answer_fields = fields


def as_geartrain_error(error: Exception) -> GeartrainError:
    """Return the error itself if it is a `GeartrainError`; otherwise log it and return `INTERNAL`."""
    if isinstance(error, GeartrainError):
        return error
    logger.error("a gRPC request could not be answered", exc_info=error)
    return GeartrainError(Code.INTERNAL, "The server could not answer this request; its log says why.")


def status_of(error: Exception) -> tuple[GrpcStatus, str]:
    """Return the status and the text of an error. An unexpected one is logged, and the client gets no details."""
    foreseen = as_geartrain_error(error)
    status = foreseen.status if isinstance(foreseen, CallError) else GRPC_STATUS[foreseen.code]
    return status, clip(foreseen.reason, _LONGEST)


def refusal(error: Exception) -> Answer:
    """Return the answer to a call that failed before anything was sent."""
    fields = error.answer_fields if isinstance(error, CallError) else ()
    return failure(*status_of(error), *fields)
