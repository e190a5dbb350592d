"""A value that `run()` gave, and that JSON cannot carry or that is not as annotated."""

from __future__ import annotations


class OutputError(ValueError):
    """What is wrong with an output, and where in it: `output.scores[3] is NaN, …`."""

    def __init__(self, fault: str, *, separator: str = " ") -> None:
        """`separator` stands between the place and the fault: a colon, where the fault is a sentence of its own."""
        super().__init__(fault)
        self._fault = fault
        self._separator = separator
        self._place: list[str | int] = []  # from the inside out

    def inside(self, segment: str | int) -> OutputError:
        """Add the key or the index, one level further out, at which the faulty value stands."""
        self._place.append(segment)
        return self

    def __str__(self) -> str:
        return f"output{''.join(map(_segment, reversed(self._place)))}{self._separator}{self._fault}"


def _segment(segment: str | int) -> str:
    if isinstance(segment, int):
        return f"[{segment}]"
    return f".{segment}" if segment.isidentifier() else f"[{segment!r}]"
