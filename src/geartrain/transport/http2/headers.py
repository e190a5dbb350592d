"""Field blocks (RFC 9113, section 8; RFC 7541): the heads of requests in, the heads of answers and trailers out.

hpack decodes. What this server sends is encoded without the dynamic table: the same fields are then the same bytes on
every connection, at any time, and need not be encoded twice.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from geartrain.transport.http2.frames import END_HEADERS, END_STREAM, HEADERS, ConnectionFaultError
from geartrain.transport.http2.interface import UNKNOWN_LENGTH, ErrorCode, Fields, RequestHead

FIELD_OVERHEAD: Final = 32  # bytes that a field counts more (section 6.5.2)
MAX_BLOCKS: Final = 64
"""Blocks that are remembered of a connection, without a body and with one each."""

_LARGEST_KNOWN: Final = 1024  # bytes of a block
_LARGEST_DECODED: Final = 4096  # bytes of its fields, which may repeat a large one of the table with a byte each
_DECODED: Final = 4  # times the limit: so much is decoded to be refused with an answer
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_METHOD: Final = re.compile(_TOKEN)
_NAMES: Final = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9a-z]+\n)*")
_BAD_VALUES: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|(?:\A|\n)[ \t]|[ \t](?:\n|\Z)")
_PATH: Final = re.compile(rb"/[!\"$-~]*")
_AUTHORITY: Final = re.compile(rb"(?:[A-Za-z0-9\-._~%!$&'()*+,;=]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_SCHEMES: Final = {b"http": "http", b"https": "https"}
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_CONNECTION_FIELDS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_LONG: Final = 127  # bytes of a value whose length takes more than one byte
_SIZES: Final = tuple(bytes((size,)) for size in range(_LONG))
_UPDATE: Final = rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,4}[\x00-\x7f])"
_MANY_UPDATES: Final = re.compile(_UPDATE + rb"{3}")  # of the table's size: two are what a block can need


class MalformedError(Exception):
    """A head that is none (section 8.1.1)."""


class HeadTooLargeError(Exception):
    """A head beyond the limits, which has been decoded."""


class _WatchedTable(HeaderTable):
    """A dynamic table that tells whether it may have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.has_changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.has_changed = True
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        self.has_changed = True
        HeaderTable.maxsize.fset(self, newmax)  # type: ignore[attr-defined]


class HeadReader:
    """Reads the field blocks of one connection, each in its turn: the dynamic table depends on all before."""

    __slots__ = ("_decoder", "_known", "_max_fields", "_max_size", "_table")

    def __init__(self, *, max_size: int, max_fields: int, table_size: int) -> None:
        """Limits as `Http2Limits` has them."""
        self._max_size = max_size
        self._max_fields = max_fields
        self._table = _WatchedTable()
        self._decoder = Decoder(max_header_list_size=_DECODED * max_size)
        self._decoder.header_table = self._table
        self._decoder.max_allowed_table_size = max(table_size, HeaderTable.DEFAULT_SIZE)
        # By the bytes of blocks that have not changed the table: without a body, and with one.
        self._known: tuple[dict[bytes, RequestHead], dict[bytes, RequestHead]] = ({}, {})

    def limit_table(self, size: int) -> None:
        """Hold the client to the size of the table that it has acknowledged."""
        self._decoder.max_allowed_table_size = size

    def read_request(self, block: bytes, *, is_whole: bool) -> RequestHead:
        """Return the head in a block; raise `MalformedError`, `HeadTooLargeError` or `ConnectionFaultError`."""
        known = self._known[0 if is_whole else 1]
        head = known.get(block)
        if head is not None:
            return head
        fields = self.decode(block)
        size = self._check_size(fields)
        head = _request(fields, is_whole=is_whole)
        if not self._table.has_changed and len(block) <= _LARGEST_KNOWN and size <= _LARGEST_DECODED:
            if len(known) >= MAX_BLOCKS:
                known.clear()
            known[block] = head
        return head

    def read_trailers(self, block: bytes) -> None:
        """Check the trailers in a block; raise as `read_request` does."""
        fields = self.decode(block)
        self._check_size(fields)
        _check_fields(fields)

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return the fields in a block; raise `ConnectionFaultError`."""
        if _MANY_UPDATES.match(block) is not None:
            raise ConnectionFaultError(ErrorCode.COMPRESSION_ERROR, "A field block changes the table size too often.")
        self._table.has_changed = False
        try:
            fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            text = f"The fields of a request are larger than {_DECODED} times the limit of {self._max_size} bytes."
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, text) from None
        except HPACKError as error:
            raise ConnectionFaultError(
                ErrorCode.COMPRESSION_ERROR, f"A field block cannot be decoded: {error}"
            ) from None
        if self._table.has_changed:
            self.forget()
        return fields

    def forget(self) -> None:
        """Forget the blocks that are known: they may mean something else now."""
        for known in self._known:
            known.clear()

    def _check_size(self, fields: list[tuple[bytes, bytes]]) -> int:
        """Return the size of fields; raise `HeadTooLargeError`."""
        size = sum(len(name) + len(value) + FIELD_OVERHEAD for name, value in fields)
        if size > self._max_size or len(fields) > self._max_fields:
            raise HeadTooLargeError
        return size


def _request(fields: list[tuple[bytes, bytes]], *, is_whole: bool) -> RequestHead:
    """Return the head that a list of fields makes (section 8.3.1)."""
    pseudo: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] != b":":
            break
        if name in pseudo or name not in _PSEUDO:
            raise MalformedError("It has a pseudo-field twice, or one that no request has.")
        pseudo[name] = value
    regular = fields[len(pseudo) :]
    _check_fields(regular)
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    scheme = _SCHEMES.get(pseudo.get(b":scheme", b"").lower())
    if _METHOD.fullmatch(method) is None or method == b"CONNECT":
        raise MalformedError("It has no method, a method that is no token, or CONNECT.")
    if scheme is None:
        raise MalformedError("Its scheme is neither http nor https.")
    if _PATH.fullmatch(path) is None and (path != b"*" or method != b"OPTIONS"):
        raise MalformedError("Its path does not begin with a slash, or has characters that no path has.")
    host = _host(pseudo.get(b":authority"), [value for name, value in regular if name == b"host"])
    rest = _with_one_cookie([field for field in regular if field[0] != b"host"])
    return RequestHead(method.decode(), scheme, path, ((b"host", host), *rest), _length(rest, is_whole=is_whole))


def _host(authority: bytes | None, hosts: list[bytes]) -> bytes:
    """Return the host from `:authority` and `host`."""
    named = hosts if authority is None else [authority, *hosts]
    if len(hosts) > 1 or not named or any(name.lower() != named[0].lower() for name in named):
        raise MalformedError("It must have one authority: in :authority, in host, or the same in both.")
    if _AUTHORITY.fullmatch(named[0]) is None:
        raise MalformedError("Its authority is not a host with an optional port.")
    return named[0]


def _check_fields(fields: list[tuple[bytes, bytes]]) -> None:
    """Check names and values (section 8.2), all of them at once: a name or a value can have no line feed."""
    names = b"\n".join([name for name, _ in fields]) + b"\n" if fields else b""
    values = b"\n".join([value for _, value in fields])
    if names.count(b"\n") != len(fields) or _NAMES.fullmatch(names) is None:
        raise MalformedError("A name of a field has characters that it must not have.")
    if values.count(b"\n") >= max(len(fields), 1) or _BAD_VALUES.search(values):
        raise MalformedError("A value of a field has control characters, or spaces at its ends.")
    for name, value in fields:
        if name in _CONNECTION_FIELDS or (name == b"te" and value.lower() != b"trailers"):
            raise MalformedError("It has a field that belongs to a connection of HTTP/1.1.")


def _with_one_cookie(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the fields with all cookies in one (section 8.2.3)."""
    cookies = [value for name, value in fields if name == b"cookie"]
    if len(cookies) <= 1:
        return fields
    at = next(number for number, field in enumerate(fields) if field[0] == b"cookie")
    rest = [field for field in fields if field[0] != b"cookie"]
    return [*rest[:at], (b"cookie", b"; ".join(filter(None, cookies))), *rest[at:]]


def _length(fields: list[tuple[bytes, bytes]], *, is_whole: bool) -> int:
    """Return the length of the body as `RequestHead.length` has it (section 8.1.1)."""
    lengths = [value for name, value in fields if name == b"content-length"]
    if not lengths:
        return 0 if is_whole else UNKNOWN_LENGTH
    if len(lengths) > 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise MalformedError("Its content-length must be one number of bytes.")
    length = int(lengths[0])
    if is_whole and length:
        raise MalformedError("It announces a body, and has none.")
    return length


# sent headers


@lru_cache(maxsize=256)
def head_frame(status: int, fields: tuple[tuple[bytes, bytes], ...], is_last: bool) -> tuple[bytes, bytes]:  # noqa: FBT001 - a key
    """Return a HEADERS frame in two pieces: what stands before the stream's number, and what stands behind it.

    `status`: 0 for trailers. The block may be too long for one frame.
    """
    return framed(encode(status, fields), is_last=is_last)


def framed(block: bytes, *, is_last: bool) -> tuple[bytes, bytes]:
    """Return a HEADERS frame around a block, in two pieces as above."""
    flags = END_HEADERS | (END_STREAM if is_last else 0)
    return len(block).to_bytes(3, "big") + bytes((HEADERS, flags)), block


def encode(status: int, fields: Fields) -> bytes:
    """Return a field block; it neither uses nor changes the dynamic table."""
    pieces = [_field(b":status", b"%d" % status)] if status else []
    pieces += [_field(name, value) for name, value in fields]
    return b"".join(pieces)


def encode_once(fields: Fields) -> bytes:
    """Encode fields with few names, and with values that differ each time."""
    block = b""
    for name, value in fields:
        size = len(value)
        block += _name(name) + (_SIZES[size] if size < _LONG else encode_integer(size, 7)) + value
    return block


@lru_cache(maxsize=64)
def _name(name: bytes) -> bytes:
    """Encode the beginning of a field without an index (RFC 7541, section 6.2.2)."""
    return b"\x00" + encode_integer(len(name), 7) + name


def _field(name: bytes, value: bytes) -> bytes:
    """Return one field: by its index in the static table, or literally (RFC 7541, sections 6.1 and 6.2.2)."""
    index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
    if value in values:
        return bytes((0x80 | values[value],))
    known = bytes(encode_integer(index, 4))
    literal = b"" if index else encode_integer(len(name), 7) + name
    return known + literal + encode_integer(len(value), 7) + value
