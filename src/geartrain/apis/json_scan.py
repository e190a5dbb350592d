"""The structure of large JSON texts, found with numpy in pieces. Imported late, see `json_limits`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

PIECE: Final = 1 << 18  # bytes at a time; what is made of them stays in the processor's cache
_BACKSLASH: Final = 0x5C
_QUOTE: Final = 0x22
_IS_STRUCTURE: Final = np.isin(np.arange(256), list(b"[]{},:"))


def structure(text: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """Yield what `json_limits.structure` returns, in pieces."""
    is_inside = is_escaped = False
    for begin in range(0, len(text), PIECE):
        piece = np.frombuffer(text, np.uint8, min(PIECE, len(text) - begin), begin)
        quotes, is_escaped = _quotes(piece, is_escaped=is_escaped)
        if not quotes.size:
            if not is_inside:
                yield piece[_IS_STRUCTURE[piece]].tobytes()
            continue
        marks = np.zeros(piece.size, np.uint8)
        marks[quotes] = 1
        marks[0] ^= is_inside
        inside = np.bitwise_xor.accumulate(marks).view(bool)
        is_inside = bool(inside[-1])
        yield piece[_IS_STRUCTURE[piece] & ~inside].tobytes()


def count(text: bytes | bytearray, signs: bytes) -> int:
    """Count these characters in a text."""
    found = 0
    for begin in range(0, len(text), PIECE):
        piece = np.frombuffer(text, np.uint8, min(PIECE, len(text) - begin), begin)
        for sign in signs:
            found += int(np.count_nonzero(piece == sign))
    return found


def _quotes(piece: Any, *, is_escaped: bool) -> tuple[Any, bool]:
    """Return begin and end of the strings, and True if the first byte after the piece is escaped."""
    quotes = np.flatnonzero(piece == _QUOTE)
    slashes = np.flatnonzero(piece == _BACKSLASH)
    if is_escaped:
        quotes = quotes[quotes != 0]
        slashes = slashes[slashes != 0]
    if not slashes.size:
        return quotes, False
    # An odd run of backslashes escapes what follows it.
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=slashes.size)
    escaped = (slashes[begins] + lengths)[lengths % 2 == 1]
    is_escaped = bool(escaped.size) and int(escaped[-1]) == piece.size
    return np.setdiff1d(quotes, escaped, assume_unique=True), is_escaped
