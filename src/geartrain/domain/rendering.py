"""Values as they are shown in the sentences of errors."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_SHOWN_CHARACTERS = 400


def render(value: Any) -> str:
    """`value` as compact JSON, its middle left out when it is long: an error must not echo a whole upload."""
    if isinstance(value, float):
        return repr(value)  # 1e+300, where msgspec writes 1e300 and Cog does not
    if isinstance(value, str) and len(value) > MAX_SHOWN_CHARACTERS:
        half = MAX_SHOWN_CHARACTERS // 2
        value = f"{value[:half]}…{value[-half:]}"
    text = msgspec.json.encode(value, order="sorted").decode()
    if len(text) <= 2 * MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:MAX_SHOWN_CHARACTERS]}…{text[-MAX_SHOWN_CHARACTERS:]}"
