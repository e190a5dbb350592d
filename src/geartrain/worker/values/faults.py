"""A value that `run()` gave, and that JSON cannot carry or that is not as annotated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FrameType
from typing import ClassVar

from geartrain.worker.errors import Place, ReportedError, place_of_code


class OutputError(ReportedError):
    """A fault of an output, with its place: `output.scores[3] is NaN, …`."""

    place_of_run: ClassVar[tuple[Place, ...]] = ()
    """Source location of the value of the model's `run()`; a worker has one model."""

    def __init__(self, fault: str, *, separator: str = " ") -> None:
        """`separator` stands between the place and the fault: a colon, where the fault is a sentence of its own."""
        super().__init__(fault)
        self._fault = fault
        self._separator = separator
        self.place = self.place_of_run
        self._path: list[str | int] = []  # from the inside out

    def inside(self, segment: str | int) -> OutputError:
        """Add the key or the index, one level further out, at which the faulty value stands."""
        self._path.append(segment)
        return self

    def __str__(self) -> str:
        return f"output{''.join(map(_segment, reversed(self._path)))}{self._separator}{self._fault}"


def note_run(run: Callable[..., object]) -> None:
    """Note the model's `run()`, for the errors of all outputs to come."""
    code = getattr(inspect.unwrap(run), "__code__", None)
    OutputError.place_of_run = () if code is None else (place_of_code(code),)


def note_yield(error: BaseException, frame: FrameType | None) -> None:
    """Note in an error of an output the line at which a generator, that stands there, has given it."""
    if isinstance(error, OutputError) and frame is not None:
        error.place = (Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),)


def _segment(segment: str | int) -> str:
    if isinstance(segment, int):
        return f"[{segment}]"
    return f".{segment}" if segment.isidentifier() else f"[{segment!r}]"
