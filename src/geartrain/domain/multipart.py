"""Reads `multipart/form-data` (RFC 7578) piece by piece. Pure: what becomes of the parts is the listener's to say."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from geartrain.domain.errors import Code, GeartrainError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PARTS: Final = 128
MAX_PART_HEAD: Final = 8192  # bytes
_MAX_PART_FIELDS: Final = 16
_MAX_CONTENT_TYPE: Final = 1024  # bytes
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046, section 5.1.1
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_PLAIN_ENCODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})
_CHARSETS: Final = frozenset({b"", b"utf-8", b"utf8", b"us-ascii"})
_SILENT: Final = logging.getLogger(__name__)
_SILENT.setLevel(logging.CRITICAL + 1)  # the parser warns of what a client does wrong; the client is told instead


class PartHead(msgspec.Struct, frozen=True):
    """Head of a part.

    Attributes:
        name: of the field.
        file_name: as the client gave it, possibly empty or with folders.
        is_file: true with a file name.
        media_type: in lower case, without parameters; empty if it is not given.
    """

    name: str
    file_name: str = ""
    is_file: bool = False
    media_type: str = ""


class PartListener(Protocol):
    """Takes the parts of a form, one after the other. What it raises ends the reading."""

    def begin_part(self, head: PartHead) -> None:
        """A part begins."""

    def add_data(self, data: memoryview) -> None:
        """The next piece of the part; it may be used during the call only."""

    def end_part(self) -> None:
        """The part is complete."""


class MultipartReader:
    """Cuts a form into its parts; see `PartListener`. Holds no more of it than a boundary or the head of a part."""

    def __init__(self, content_type: bytes, listener: PartListener) -> None:
        """`content_type`: with the boundary; raises `GeartrainError` without a good one."""
        self._parts = _Parts(listener)
        boundary = _boundary(content_type)
        self._start = b"--" + boundary  # the expected first bytes
        self._has_started = False
        self._parser = MultipartParser(
            boundary,
            self._parts.callbacks(),
            max_header_count=_MAX_PART_FIELDS,
            max_header_size=MAX_PART_HEAD,
        )
        self._parser.logger = _SILENT

    def feed(self, data: bytes) -> None:
        """Read the next piece of the body.

        Raises `GeartrainError`: `UNPARSABLE` for what is no form, `TOO_LARGE` beyond a limit, and what the listener
        raises. No more is to be fed then.
        """
        if self._start:
            self._check_start(data)
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def end(self) -> None:
        """Note the end of the body; raises `GeartrainError` (`UNPARSABLE`) if the form is not complete."""
        if not self._parts.are_complete:
            raise _malformed("the last boundary is missing")

    def _check_start(self, data: bytes) -> None:
        """Refuse text before the first boundary: no client sends any, and parsers do not agree on where it ends.

        A line end alone may stand there, as some clients send it.
        """
        if not self._has_started:
            self._has_started = True
            self._start = b"\r\n" + self._start if data[:1] == b"\r" else self._start
        size = min(len(self._start), len(data))
        if data[:size] != self._start[:size]:
            raise _malformed("it does not begin with its boundary")
        self._start = self._start[size:]


def read_parts(body: bytes, content_type: str) -> list[tuple[PartHead, bytes]]:
    """Return the parts of a whole form in their order. Raises `GeartrainError` as `MultipartReader` does."""
    gathered = _Gathered()
    reader = MultipartReader(content_type.encode("latin-1", "replace"), gathered)
    reader.feed(body)
    reader.end()
    return gathered.parts


class _Gathered:
    """Keeps the parts of a form whole. See `PartListener`."""

    def __init__(self) -> None:
        self.parts: list[tuple[PartHead, bytes]] = []
        self._head = PartHead("")
        self._data = bytearray()

    def begin_part(self, head: PartHead) -> None:
        self._head, self._data = head, bytearray()

    def add_data(self, data: memoryview) -> None:
        self._data += data

    def end_part(self) -> None:
        self.parts.append((self._head, bytes(self._data)))


class _Parts:
    """The parts of a form, to which the parser refers: apart from the reader, which refers to the parser."""

    def __init__(self, listener: PartListener) -> None:
        self._listener = listener
        self._count = 0
        self._head_size = 0
        self._name = bytearray()
        self._value = bytearray()
        self._fields: dict[bytes, bytes] = {}
        self.are_complete = False

    def callbacks(self) -> MultipartCallbacks:
        """Return the functions that the parser calls."""
        return {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_name,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_head_end,
            "on_part_data": self._on_data,
            "on_part_end": self._listener.end_part,
            "on_end": self._on_end,
        }

    def _on_part_begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise GeartrainError(Code.TOO_LARGE, f"The form has more than {MAX_PARTS} parts")
        self._head_size = 0
        self._fields = {}

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._grow(end - start)
        self._name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._grow(end - start)
        self._value += data[start:end]

    def _grow(self, more: int) -> None:
        self._head_size += more
        if self._head_size > MAX_PART_HEAD:
            raise GeartrainError(Code.TOO_LARGE, f"The head of a part of the form has more than {MAX_PART_HEAD} bytes")

    def _on_header_end(self) -> None:
        name, value = bytes(self._name).lower(), bytes(self._value).strip(b" \t")
        self._name.clear()
        self._value.clear()
        if name in self._fields:
            raise _malformed("a part has the same header twice")
        if _CONTROLS.search(value):
            raise _malformed("a header of a part has a control character")
        self._fields[name] = value

    def _on_head_end(self) -> None:
        self._listener.begin_part(_read_head(self._fields))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._listener.add_data(memoryview(data)[start:end])

    def _on_end(self) -> None:
        self.are_complete = True


def _boundary(content_type: bytes) -> bytes:
    if len(content_type) > _MAX_CONTENT_TYPE:
        raise _malformed("its Content-Type is too long")
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not boundary:
        raise _malformed("its Content-Type names no boundary")
    if not _BOUNDARY.fullmatch(boundary):
        raise _malformed("its boundary is not one of 1 to 70 characters of RFC 2046")
    return boundary


def _read_head(fields: dict[bytes, bytes]) -> PartHead:
    kind, options = parse_options_header(fields.get(b"content-disposition"))
    if kind != b"form-data" or b"name" not in options:
        raise _malformed("a part has no `Content-Disposition: form-data` with a name")
    encoding = fields.get(b"content-transfer-encoding", b"binary").lower()
    if encoding not in _PLAIN_ENCODINGS:
        raise _malformed("the Content-Transfer-Encoding of a part is none of 7bit, 8bit and binary")
    media_type, parameters = parse_options_header(fields.get(b"content-type"))
    is_file = b"filename" in options
    if not is_file and parameters.get(b"charset", b"").lower() not in _CHARSETS:
        raise _malformed("the charset of a part is not UTF-8")
    try:
        return PartHead(
            options[b"name"].decode(), options.get(b"filename", b"").decode(), is_file, media_type.decode("ascii")
        )
    except UnicodeDecodeError:
        raise _malformed("a name in the head of a part is not valid UTF-8") from None


def _malformed(fault: str) -> GeartrainError:
    return GeartrainError(Code.UNPARSABLE, f"Failed to parse the request body as multipart/form-data: {fault}")
