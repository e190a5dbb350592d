"""The head of a call, and its status, for errors too.

Sources: the document "gRPC over HTTP2" (Requests, Responses), and gRPC's table of status codes.
"""

from __future__ import annotations

import binascii
import logging
import re
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.transport.compression import Encoding
from geartrain.transport.errors import GRPC_STATUS, GrpcStatus
from geartrain.transport.wire.exchange import Answer, Head

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
_CONTENT_TYPE: Final = b"application/grpc"
_PROTO: Final = frozenset({b"", b"+proto"})  # behind it, before any parameters
_BEHIND: Final = frozenset({b"", b"+", b";", b" "})  # may follow; `application/grpc-web` is another protocol
_ENCODINGS: Final[dict[bytes, Encoding | None]] = {b"identity": None, b"": None, b"gzip": "gzip", b"deflate": "deflate"}
ACCEPTED_ENCODINGS: Final = (b"grpc-accept-encoding", b"identity,gzip,deflate")

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

NO_TIMEOUT: Final = float("inf")


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


class CallHead(msgspec.Struct, frozen=True, gc=False):
    """Head of a call.

    Attributes:
        timeout: seconds that the client waits, `NO_TIMEOUT` by default.
        encoding: of messages that are flagged as compressed, None for none.
        mirrors: true if the answer may be compressed: the client sends and accepts gzip.
        authorization: the values of `authorization`.
    """

    timeout: float = NO_TIMEOUT
    encoding: Encoding | None = None
    mirrors: bool = False
    authorization: tuple[str, ...] = ()


USUAL_CALL: Final = CallHead()


def is_grpc(head: Head) -> bool:
    """True if a request is a call: POST, of gRPC's content type, on a wire that has trailers."""
    if not head.has_trailers or head.method != "POST":
        return False
    given = head.header(b"content-type") or b""
    size = len(_CONTENT_TYPE)
    return given[:size].lower() == _CONTENT_TYPE and given[size : size + 1] in _BEHIND


def read_head(head: Head) -> CallHead:
    """Read the head of a call; raises `CallError`.

    What is encoded as binary metadata is checked, whether or not anybody reads it.
    """
    timeout = NO_TIMEOUT
    encoding: Encoding | None = None
    accepted = b""
    authorization: tuple[str, ...] = ()
    for name, value in head.headers:
        if name == b"grpc-timeout":
            timeout = read_timeout(value)
        elif name == b"content-type":
            _check_content_type(value)
        elif name == b"grpc-encoding":
            encoding = _read_encoding(value)
        elif name == b"grpc-accept-encoding":
            accepted = value
        elif name == b"authorization":
            authorization = (*authorization, value.decode("latin-1"))
        elif name[-4:] == b"-bin":
            decode_binary(name, value)
    if timeout == NO_TIMEOUT and encoding is None and not authorization:
        return USUAL_CALL
    mirrors = encoding == "gzip" and b"gzip" in [each.strip() for each in accepted.split(b",")]
    return CallHead(timeout, encoding, mirrors, authorization)


def read_timeout(value: bytes) -> float:
    """Return the seconds of a `grpc-timeout`: at most eight digits, and a unit. Raises `CallError`."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        shown = value[:40].decode("latin-1")
        raise CallError(
            GrpcStatus.INTERNAL, f"malformed grpc-timeout '{shown}': up to 8 digits and one of H, M, S, m, u, n"
        )
    return int(match[1]) * _SECONDS[match[2]]


def decode_binary(name: bytes, value: bytes) -> tuple[bytes, ...]:
    """Return the values of binary metadata: base64, padded or not, several of them with commas in between.

    Raises `CallError`.
    """
    try:
        return tuple(_decode_base64(each.strip(b" \t")) for each in value.split(b","))
    except binascii.Error:
        text = f"malformed binary metadata: '{name.decode('latin-1')}' is not base64"
        raise CallError(GrpcStatus.INTERNAL, text) from None


def _decode_base64(text: bytes) -> bytes:
    bare = text.rstrip(b"=")
    return binascii.a2b_base64(bare + b"=" * (-len(bare) % 4), strict_mode=True)


def _check_content_type(value: bytes) -> None:
    kind = value[len(_CONTENT_TYPE) :].partition(b";")[0].strip().lower()
    if kind not in _PROTO:
        shown = value[:100].decode("latin-1")
        raise CallError(
            GrpcStatus.UNIMPLEMENTED, f"content type '{shown}' is not supported: send application/grpc+proto"
        )


def _read_encoding(value: bytes) -> Encoding | None:
    name = value.strip().lower()
    if name not in _ENCODINGS:
        shown = value[:40].decode("latin-1")
        text = f"grpc-encoding '{shown}' is not supported: send one of identity, gzip, deflate"
        raise CallError(GrpcStatus.UNIMPLEMENTED, text, ACCEPTED_ENCODINGS)
    return _ENCODINGS[name]
