"""The heads of calls: what they say besides the name of the method.

Source: the document "gRPC over HTTP2" (Requests). Nothing of protobuf is imported here.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

import msgspec

from geartrain.transport.compression import Encoding
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.status import CallError
from geartrain.transport.wire.exchange import Head

_CONTENT_TYPE: Final = b"application/grpc"
_PROTO: Final = frozenset({b"", b"+proto"})  # behind it, before any parameters
_BEHIND: Final = frozenset({b"", b"+", b";", b" "})  # may follow; `application/grpc-web` is another protocol
_ENCODINGS: Final[dict[bytes, Encoding | None]] = {b"identity": None, b"": None, b"gzip": "gzip", b"deflate": "deflate"}
ACCEPTED_ENCODINGS: Final = (b"grpc-accept-encoding", b"identity,gzip,deflate")

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

NO_TIMEOUT: Final = float("inf")


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


PLAIN: Final = CallHead()


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
        return PLAIN
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
