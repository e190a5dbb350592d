"""Values as text, for sentences of errors and for answers."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

MAX_SHOWN_CHARACTERS: Final = 200  # of what a client sent
LONGEST_ERROR: Final = 4096  # bytes of the body of an error
_TRUNCATED: Final = "Input data was truncated"
_LONGEST_END: Final = 32  # bytes; what comes after the first half of a pair is looked for at the end alone
_LONE_SURROGATE: Final = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?:[^\\]|\\[^u])")


def render(value: Any) -> str:
    """`value` as compact JSON, its middle left out when it is long: an error must not echo a whole upload."""
    if isinstance(value, float):
        return repr(value)  # 1e+300, where msgspec writes 1e300 and Cog does not
    if isinstance(value, str):
        value = clip(value, MAX_SHOWN_CHARACTERS - 2)  # beside the quotes
    return clip(msgspec.json.encode(value, order="sorted").decode())


def clip(text: str, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """`text`, its middle left out when it has more than `most` characters."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def json_fault(text: bytes | bytearray, error: Exception) -> str:
    """Describe the fault of a text that msgspec does not accept as JSON.

    Of the first half of a surrogate pair at the end of the text msgspec says that the text is truncated.
    """
    fault = str(error)
    if fault == _TRUNCATED:
        found = _LONE_SURROGATE.search(bytes(text[-_LONGEST_END:]))
        if found is not None:
            return f"{found[1].decode()} is a lone surrogate: the other half of the pair is missing"
    return clip(fault)
