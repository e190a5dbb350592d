"""Names of model versions and their order, and the version of Cog that geartrain stands in for."""

from __future__ import annotations

import re
from typing import Final

COG_VERSION: Final = "0.23.1"
"""The version of Cog's authoring and HTTP API: `cog.__version__` in a model, and in health checks."""

_NAME: Final = re.compile(r"v?\d[0-9A-Za-z.+-]{0,99}", re.ASCII)
_PARTS: Final = re.compile(r"\d+|[^\d]+", re.ASCII)


def is_version(text: str) -> bool:
    """True if a text can be a version: a number, or what begins with one, as `v0.1.0` does behind its letter."""
    return _NAME.fullmatch(text) is not None


def order_of(version: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key of a version: numbers as such, the parts of a longer name one after the other."""
    parts = _PARTS.findall(version.removeprefix("v"))
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
