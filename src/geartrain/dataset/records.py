"""Rows of data sets, as readers give them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

MAX_ROW: Final = 64 * 1024**2
"""Bytes of the longest row that is read."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One row of a data set.

    Attributes:
        columns: the values by the names of their columns. JSON text is in `msgspec.Raw`; a plain `str` of a CSV file is
            a text that has yet to be read by the type of its input.
        fault: why the row cannot be read; empty for a good one.
    """

    columns: Mapping[str, Any]
    fault: str = ""


NO_COLUMNS: Final[Mapping[str, Any]] = MappingProxyType({})


def unreadable(fault: str) -> Record:
    """Return the record of a row that cannot be read."""
    return Record(NO_COLUMNS, fault)
