"""Names of parametrised tests that are the same in every process."""

from __future__ import annotations

import re


def short(value: object, length: int = 50) -> str:
    """Return the start of a value's repr without the address that an object's own has."""
    return re.sub(r" (object )?at 0x[0-9a-f]+", "", repr(value))[:length]
