"""Messages as they stand in a body: a flag, four bytes of length, and the message.

Source: the document "gRPC over HTTP2" (Length-Prefixed-Message).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport import compression
from geartrain.transport.grpc.errors import CallError
from geartrain.transport.grpc.heads import CallHead
from geartrain.transport.grpc.status import Status
from geartrain.transport.wire.exchange import UNKNOWN_LENGTH, Body

PREFIX_SIZE: Final = 5  # bytes
NO_LIMIT: Final = 0
SMALL_MESSAGE: Final = 262_144  # bytes of a message of any method but inference: the loop parses it

_PREFIX: Final = struct.Struct(">BI")
_PLAIN, _COMPRESSED = 0, 1  # the flag
_SMALL: Final = 8192  # bytes of a message that is cheaper to join than to send in parts
_LARGEST: Final = 2**32 - 1  # bytes of a message, which is what its length can say

read_prefix = _PREFIX.unpack_from


def announced(begin: Buffer) -> int:
    """Return the length of a body that holds one message, from its first bytes. See `Accepted.announced`."""
    return UNKNOWN_LENGTH if len(begin) < PREFIX_SIZE else PREFIX_SIZE + int(_PREFIX.unpack_from(begin)[1])


def too_large(limit: int) -> CallError:
    """Say that a message is larger than `limit` bytes."""
    text = f"Received message larger than the limit of {limit} bytes. "
    if limit == SMALL_MESSAGE:
        text += "It is that of all methods but ModelInfer and ModelStreamInfer."
    else:
        text += "The server's --grpc-max-message-size sets it."
    return CallError(Status.RESOURCE_EXHAUSTED, text)


def is_compressed(body: Body) -> bool:
    """True if the one message of a body is flagged as compressed."""
    return body[:1] == b"\x01"


def check_whole(body: Body, path: str) -> None:
    """Check that a body is exactly one message, as the method at `path` takes it; raises `CallError`.

    Any other number of messages is UNIMPLEMENTED, as gRPC's table of status codes has it.
    """
    size = len(body)
    if size < PREFIX_SIZE:
        if not size:
            raise CallError(Status.UNIMPLEMENTED, f"'{path}' requires exactly one request message.")
        raise _cut_off()
    flag, length = read_prefix(body)
    check_flag(flag)
    if size < PREFIX_SIZE + length:
        raise _cut_off()
    if size > PREFIX_SIZE + length:
        raise CallError(Status.UNIMPLEMENTED, f"'{path}' requires exactly one request message.")


def check_flag(flag: int) -> None:
    """Raise `CallError` for an unknown flag."""
    if flag not in {_PLAIN, _COMPRESSED}:
        raise CallError(Status.INTERNAL, f"A message has the flag {flag}: it is 0, or 1 for a compressed one.")


def _cut_off() -> CallError:
    return CallError(Status.INTERNAL, "The request ends within a message.")


async def unpack(body: Body, path: str, head: CallHead, *, limit: int) -> Buffer:
    """Return the one message of a body, decompressed if it has to be; raises `CallError`."""
    check_whole(body, path)
    message = memoryview(body)[PREFIX_SIZE:]
    return await inflate(message, head, limit) if is_compressed(body) else message


async def inflate(message: Buffer, head: CallHead, limit: int) -> bytes:
    """Return a message that is flagged as compressed as it was before; raises `CallError`.

    A thread does what takes long. The document has INTERNAL for a message that names no encoding.
    """
    if head.encoding is None:
        raise CallError(Status.INTERNAL, "A message is flagged as compressed, and there is no grpc-encoding.")
    try:
        return await compression.inflate(message, head.encoding, limit or _LARGEST)
    except GeartrainError as error:
        if error.code is Code.TOO_LARGE:
            raise too_large(limit or _LARGEST) from None
        raise CallError(Status.INTERNAL, f"A message could not be decompressed: {error.message}") from None


def frame(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts of a message with its prefix; raises `TOO_LARGE` if no prefix can tell its length."""
    size = sum(map(len, parts))
    if size <= _SMALL:
        return [b"".join((_PREFIX.pack(_PLAIN, size), *parts))]
    if size > _LARGEST:
        raise GeartrainError(Code.TOO_LARGE, f"The response has {size} bytes, and gRPC's limit is {_LARGEST}.")
    return [_PREFIX.pack(_PLAIN, size), *parts]


def frame_compressed(message: bytes) -> list[Buffer]:
    """Return the parts of a message that has been compressed."""
    return [_PREFIX.pack(_COMPRESSED, len(message)), message]
