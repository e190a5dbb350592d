"""Negotiation of answers, and compressed bodies.

`Accept` (RFC 9110) and `Prefer` (RFC 7240) are fields that hold lists. Bodies are compressed with gzip or deflate, both
ways. Source: observed Triton, section 9; T11.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Final, Literal

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.bodies import too_large

_MEMBER: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_PARAMETER: Final = re.compile(rb'(?:[^;"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
Encoding = Literal["gzip", "deflate"]

ACCEPTED: Final = b"gzip, deflate"
_WINDOW: Final[dict[str, int]] = {"gzip": 31, "deflate": 15}  # deflate is the zlib format, as RFC 9110 has it
_PIECE: Final = 1_048_576  # bytes that are decompressed at a time
_LEVEL: Final = 1  # tensors are large and seldom worth more time
_LARGE: Final = 65_536  # bytes, from which on a thread does it
_LARGE_COMPRESSED: Final = 4096  # bytes, which may stand for a thousand times as many


def _members(values: Iterable[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield each member of a list, in lower case, with its parameters. Commas in quoted strings do not separate."""
    for value in values:
        for member in _MEMBER.findall(value.lower()):
            first, *parameters = [part.strip() for part in _PARAMETER.findall(member)] or [b""]
            if first:
                yield first, parameters


def prefers(values: Iterable[bytes], preference: bytes) -> bool:
    """Tell whether the values of `Prefer` have a preference. Its own value and its parameters are ignored."""
    return any(first.partition(b"=")[0].rstrip() == preference for first, _ in _members(values))


def accepted_weight(values: Iterable[bytes], media_type: bytes) -> float:
    """Return the weight that the values of `Accept` give to a media type: that of the most specific range, or 0."""
    whole = media_type.partition(b"/")[0] + b"/*"
    weights = {name: _weight(parameters) for name, parameters in _members(values)}
    return next((weights[name] for name in (media_type, whole, b"*/*") if name in weights), 0.0)


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.rstrip() == b"q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def content_encoding(value: bytes) -> Encoding | None:
    """Read a `Content-Encoding`: None for an unchanged body; raise `UNSUPPORTED_MEDIA_TYPE` for an unknown one."""
    name = value.strip().lower()
    if name in {b"", b"identity"}:
        return None
    if name in {b"gzip", b"x-gzip"}:
        return "gzip"
    if name == b"deflate":
        return "deflate"
    msg = f"Unsupported compression type. The body may be encoded with one of: {ACCEPTED.decode()}"
    raise GeartrainError(Code.UNSUPPORTED_MEDIA_TYPE, msg)


def accepted_encoding(value: bytes) -> Encoding | None:
    """Read an `Accept-Encoding`: the first supported encoding that it names and does not refuse; gzip comes first."""
    if not value:
        return None
    named = set()
    for part in value.lower().split(b","):
        name, _, rest = part.partition(b";")
        if not _is_zero(rest):
            named.add(name.strip())
    if b"gzip" in named:
        return "gzip"
    return "deflate" if b"deflate" in named else None


def _is_zero(parameters: bytes) -> bool:
    name, _, value = parameters.strip().partition(b"=")
    try:
        return name.strip() == b"q" and float(value) == 0
    except ValueError:
        return False


async def inflate(body: Buffer, encoding: Encoding, limit: int) -> bytes:
    """Return a body decompressed; raise `TOO_LARGE` beyond `limit` bytes, `UNPARSABLE` if it is not encoded so."""
    if len(body) < _LARGE_COMPRESSED:
        return _inflate(body, encoding, limit)
    return await asyncio.to_thread(_inflate, body, encoding, limit)


def _inflate(body: Buffer, encoding: Encoding, limit: int) -> bytes:
    """Decompress in pieces: each is a step in which the interpreter is free for the event loop."""
    inflater = zlib.decompressobj(_WINDOW[encoding])
    inflated = BytesIO()
    rest: Buffer = body
    try:
        while not inflater.eof:
            piece = inflater.decompress(rest, _PIECE)
            rest = inflater.unconsumed_tail
            if inflated.tell() + len(piece) > limit:
                raise too_large(limit)
            inflated.write(piece)
            if not piece and not rest and not inflater.eof:
                raise _corrupt(encoding, "its end is missing")
    except zlib.error as error:
        raise _corrupt(encoding, str(error)) from None
    if inflater.unused_data:
        raise _corrupt(encoding, "something follows after its end")
    return inflated.getvalue()


def _corrupt(encoding: Encoding, fault: str) -> GeartrainError:
    hint = " (deflate is the zlib format, with its header)" if encoding == "deflate" else ""
    return GeartrainError(Code.UNPARSABLE, f"the body is not valid {encoding}{hint}: {fault}")


def deflate(parts: Sequence[Buffer], encoding: Encoding) -> bytes:
    """Return the parts compressed, as one body."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[encoding])
    return b"".join([deflater.compress(part) for part in parts] + [deflater.flush()])


async def deflate_aside(parts: Sequence[Buffer], encoding: Encoding) -> bytes:
    """Deflate like `deflate`; in a thread if it takes long."""
    if sum(map(len, parts)) < _LARGE:
        return deflate(parts, encoding)
    return await asyncio.to_thread(deflate, parts, encoding)
