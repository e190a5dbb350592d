"""True if the first dimension of a model is that of a batch, by the names that its file gives to dimensions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

Dimension = int | str | None
"""A size, the name of a size that is variable, or a variable one without a name."""

_NO_ROWS: Final = re.compile(r"seq|len|time|frame|token|chars|word", re.IGNORECASE)
"""Names of dimensions whose elements belong together: what is said of one row depends on those beside it."""


def are_rows(inputs: Sequence[Sequence[Dimension]], outputs: Sequence[Sequence[Dimension]]) -> bool:
    """True if requests may be laid one behind the other along the first dimension of every tensor.

    It must be variable everywhere, and where it has a name, the same everywhere and in no other place: a model that
    gives [n, n] for n rows compares them with each other. Without inputs, or with doubt, the answer is no.
    """
    shapes = (*inputs, *outputs)
    if not inputs or any(not shape or isinstance(shape[0], int) for shape in shapes):
        return False
    names = {shape[0] for shape in shapes} - {None}
    elsewhere = {dimension for shape in shapes for dimension in shape[1:]}
    return len(names) <= 1 and not names & elsewhere and not any(_NO_ROWS.search(str(name)) for name in names)
