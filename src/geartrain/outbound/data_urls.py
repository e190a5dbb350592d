"""`data:` URLs (RFC 2397): read the head, judge the payload, decode it piece by piece.

Base64 is read as browsers read it: white space, percent-escapes and missing padding are forgiven, any other stray
character is an error. Payloads of tens of megabytes are the common case that must be cheap: nothing here copies a
payload as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Self
from urllib.parse import unquote, unquote_to_bytes

import msgspec
import pybase64

from geartrain.outbound.files import name_from_media_type

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PIECE = 1 << 18  # characters decoded at a time, a multiple of 4: the interpreter is free for others in between
_UNESCAPED = 1 << 14  # characters unescaped at a time: each escape is a few objects for a moment
_JUDGED = 1 << 16  # characters judged at a time: twice as fast as larger pieces, which the cache does not hold
_GROUP = 4  # characters of base64 that make 3 bytes
_DECODED = 3  # bytes of them
_MOST_PADDING = 2
_ESCAPE = 3  # characters: `%41`
_ESCAPE_CUT = re.compile(r"%[0-9A-Fa-f]?$")
_JSON_ESCAPE = 6  # characters at most: `\\u002b`
_LONGEST_HEAD = 1024  # characters before the comma; no media type is longer

_decode_text = msgspec.json.Decoder(str).decode


class DataUrlError(ValueError):
    """A malformed `data:` URL; the text is the end of a sentence for the client."""


class HeldUrl(str):
    """A `data:` URL whose payload stays in the JSON text that it came in: the string ends with the comma.

    `json[begin:end]` is the payload: ASCII of a valid JSON string, escapes included. See `holds`.
    """

    __slots__ = ("begin", "end", "json")
    json: bytes
    begin: int
    end: int

    def __new__(cls, head: str, json: bytes, *, begin: int, end: int) -> Self:
        """Make one; `head` is the URL up to its comma."""
        url = super().__new__(cls, head)
        url.json, url.begin, url.end = json, begin, end
        return url


class DataUrl(msgspec.Struct, frozen=True):
    """A `data:` URL: `text[start:end]` is its payload, which is part of a JSON text if it is bytes.

    `is_loose`: its base64 is not so to the letter.
    """

    media_type: str
    is_base64: bool
    text: str | bytes
    start: int
    end: int
    is_loose: bool = False

    @property
    def name(self) -> str:
        """`file` and the extension of the media type; the type's default is text/plain."""
        return name_from_media_type(self.media_type or "text/plain")

    def exceeds(self, limit: int) -> bool:
        """True if it is larger than `limit` bytes by the length of its payload, told without decoding it."""
        if self._least_size(self.end - self.start) <= limit:
            return False
        pieces = _groups(self, _UNESCAPED, loose=True) if self.is_base64 else _texts(self, _UNESCAPED)
        return self._least_size(sum(map(len, pieces))) > limit

    def _least_size(self, characters: int) -> int:
        """The least number of bytes of a payload of so many characters, if each of them belongs to it."""
        return max(0, characters // _GROUP * 3 - _MOST_PADDING) if self.is_base64 else -(-characters // _ESCAPE)

    def checked(self) -> DataUrl:
        """The URL that may be decoded: itself, unless its base64 has to be tidied; 0.15 ms for each MiB of base64.

        Raises DataUrlError: the base64 payload is none.
        """
        if not self.is_base64 or _well_formed(_groups(self, _JUDGED, loose=False)):
            return self
        if not _well_formed(_groups(self, _UNESCAPED, loose=True)):
            raise DataUrlError("holds malformed base64")
        return msgspec.structs.replace(self, is_loose=True)

    def pieces(self) -> Iterator[bytes]:
        """The decoded bytes, in order."""
        if self.is_base64:
            for piece in _groups(self, _UNESCAPED if self.is_loose else _PIECE, loose=self.is_loose):
                yield pybase64.b64decode(piece, validate=True)
        else:
            for piece in _whole_escapes(_texts(self, _UNESCAPED)):
                yield unquote_to_bytes(piece)


def split_data_url(url: str) -> DataUrl:
    """Read the head of a URL that begins with `data:` in any case. Its payload may be malformed.

    Raises DataUrlError: there is no comma.
    """
    comma = url.find(",", 0, _LONGEST_HEAD)
    if comma < 0:
        raise DataUrlError("is malformed: a data: URL is data:[<media type>][;base64],<data>")
    media_type, *parameters = (part.strip() for part in url[len("data:") : comma].split(";"))
    is_base64 = bool(parameters) and parameters[-1].lower() == "base64"
    if isinstance(url, HeldUrl):
        return DataUrl(media_type, is_base64, url.json, url.begin, url.end)
    return DataUrl(media_type, is_base64, url, comma + 1, len(url))


def parse_data_url(url: str) -> DataUrl:
    """Read a URL that begins with `data:` in any case.

    Raises DataUrlError: there is no comma, or the base64 payload is none.
    """
    return split_data_url(url).checked()


def _well_formed(pieces: Iterable[str]) -> bool:
    """True if a text is base64 to the letter: whole groups, padding at the end alone, no stray character.

    All pieces but the last one have whole groups.
    """
    last = ""  # the only group that may be padded
    for piece in pieces:
        whole = last + piece
        whole, last = whole[:-_GROUP], whole[-_GROUP:]
        try:
            size = len(pybase64.b64decode(whole, validate=True))
        except ValueError:  # also for text beyond ASCII
            return False
        if size * _GROUP != len(whole) * _DECODED:
            return False
    if len(last) % _GROUP:
        return False
    end = len(last)
    while end > max(0, len(last) - _MOST_PADDING) and last[end - 1] == "=":
        end -= 1
    group = last[:end]
    return group.isascii() and not group.encode().translate(None, _ALPHABET)


def _groups(url: DataUrl, size: int, *, loose: bool) -> Iterator[str]:
    """The base64 of a URL in pieces of whole groups; if `loose`, without what is forgiven.

    That is: escapes undone, white space gone, padding completed.
    """
    pieces = map(_tidied, _whole_escapes(_texts(url, size))) if loose else _texts(url, size)
    rest = ""
    for piece in pieces:
        text = rest + piece if rest else piece
        end = len(text) - len(text) % _GROUP
        rest = text[end:]
        if end:
            yield text[:end]
    if rest:
        yield rest + "=" * (-len(rest) % _GROUP) if loose and not rest.endswith("=") else rest


def _tidied(piece: str) -> str:
    # An escape of a byte that is not ASCII is no base64, so it need not be whole.
    return "".join(unquote(piece, encoding="ascii").split())


def _whole_escapes(pieces: Iterable[str]) -> Iterator[str]:
    """Cut a text anew, in pieces that each hold whole percent-escapes."""
    rest = ""
    for piece in pieces:
        text = rest + piece
        cut = _ESCAPE_CUT.search(text, max(0, len(text) - _ESCAPE + 1))
        end = len(text) if cut is None else cut.start()
        rest = text[end:]
        yield text[:end]
    yield rest


def _texts(url: DataUrl, size: int) -> Iterator[str]:
    """The payload as a text, in pieces of at most `size` characters."""
    text = url.text
    if isinstance(text, str):
        for begin in range(url.start, url.end, size):
            yield text[begin : min(begin + size, url.end)]
        return
    for piece in json_texts(text, url.start, url.end):
        for begin in range(0, len(piece), size):
            yield piece[begin : begin + size]


def json_texts(json: bytes | bytearray, begin: int, end: int) -> Iterator[str]:
    """Decode a part of the inside of a JSON string, which is ASCII, piece by piece.

    Raises ValueError: an escape is malformed.
    """
    while begin < end:
        piece = bytes(json[begin : min(begin + _JUDGED, end)])
        if b"\\" not in piece:
            yield piece.decode("ascii")
        else:
            if begin + len(piece) < end:
                piece = piece[: _whole_json(piece)]
            yield _decode_text(b'"%b"' % piece)
        begin += len(piece)


def _whole_json(piece: bytes) -> int:
    """The length of a piece of a JSON string without the escape that its end may have cut."""
    at = piece.rfind(b"\\")
    run = at + 1 - len(piece[: at + 1].rstrip(b"\\"))
    if run % 2 == 0:
        return len(piece)
    size = _JSON_ESCAPE if piece[at + 1 : at + 2] == b"u" else 2
    return len(piece) if at + size <= len(piece) else at
