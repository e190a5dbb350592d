"""Exceptions of the author's code as one line, and as a traceback."""

from __future__ import annotations

import dis
import itertools
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

from geartrain.domain.errors import Code

_FRAMEWORK: Final = f"{Path(__file__).parents[1]}{os.sep}"
_ASYNCIO: Final = str(Path(os.__file__).parent / "asyncio") + os.sep  # between us and a coroutine of the author's
_IMPORTING: Final = "<frozen importlib"  # between us and a module of the author's
_HEADING: Final = "Traceback (most recent call last):\n"
_MAX_TEXT = 262_144  # characters of an error or a traceback


class Place(NamedTuple):
    """A line of the author's."""

    filename: str
    line: int
    function: str


def describe_error(error: BaseException) -> str:
    """Return `Type: message`, whatever the exception's own `str` does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the author's __str__ may raise anything
        text = "(its message could not be made)"
    text = clip(text)
    name = type(error).__name__
    if isinstance(error, (ClientError, AnswerError)):
        return text or name
    if _is_quit(error) and not text:
        text = "ended in the debugger"
    return f"{name}: {text}" if text else name


def _is_quit(error: BaseException) -> bool:
    """True if a person has ended the run in a debugger; by its name, because to import bdb takes time."""
    return type(error).__name__ == "BdbQuit"


class ReportedError(ValueError):
    """A fault of the author's or the client's value: the place in our code is of no use to them."""

    place: tuple[Place, ...] = ()
    """The author's line that it is about, if that is known."""


class ChatTemplateError(ReportedError):
    """A chat template that gives no prompt, through no fault of the client."""


class ClientError(ReportedError):
    """A request that its client has to change: the message is for the client, without a name of a class."""


class AnswerError(ReportedError):
    """An error that a model gives as an answer: the message is for the client, without a name of a class."""

    def __init__(self, message: str, code: Code | None = None) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> Code | None:
    """Return the code that a report of an error carries; None if the run is at fault."""
    if isinstance(error, AnswerError):
        return error.code
    return Code.INVALID_INPUT if isinstance(error, ClientError) else None


def format_error(error: BaseException) -> str:
    """Return the traceback as Python prints it, from the author's first line on and without our own frames.

    A run that was ended in a debugger has none.
    """
    if _is_quit(error):
        return ""
    try:
        text = _format_reported(error) if isinstance(error, ReportedError) else _format_raised(error)
    except Exception:  # noqa: BLE001 - the author's __str__ may raise anything
        text = f"{describe_error(error)}\n"
    return clip(text)


def _format_reported(error: ReportedError) -> str:
    """Return the author's line that the error is about, after the author's exception that it came from, if any."""
    cause = error.__cause__ if error.__suppress_context__ else error.__context__
    text = ""
    if cause is not None and _authors(traceback.extract_tb(cause.__traceback__)):
        text = f"{_format_raised(cause)}\nThe above exception was the direct cause of the following exception:\n\n"
    if error.place:
        frames = [traceback.FrameSummary(*place) for place in error.place]
        text += "".join([_HEADING, *traceback.StackSummary.from_list(frames).format()])
    return f"{text}{describe_error(error)}\n"


def _format_raised(error: BaseException) -> str:
    report = traceback.TracebackException.from_exception(error)
    _cut(report)
    return "".join(report.format())


def _cut(report: traceback.TracebackException) -> None:
    """Take our own frames out of a traceback and of those of its causes, unless there is nothing else."""
    frames = _authors(report.stack)
    if frames:
        report.stack = traceback.StackSummary.from_list(frames)
    for other in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if other is not None:
            _cut(other)


def _authors(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of the author's code, and of libraries that it has called."""
    before = (_FRAMEWORK, _ASYNCIO, _IMPORTING)
    frames = list(itertools.dropwhile(lambda frame: frame.filename.startswith(before), stack))
    return [frame for frame in frames if not frame.filename.startswith(_FRAMEWORK)]


def place_of_code(code: CodeType) -> Place:
    """Return the place where a function returns its value: its only `return`, otherwise its beginning."""
    returns = {
        instruction.positions.lineno
        for instruction in dis.get_instructions(code)
        if instruction.opname == "RETURN_VALUE" and instruction.positions is not None
    }
    line = returns.pop() if len(returns) == 1 else None
    return Place(code.co_filename, line or code.co_firstlineno, code.co_name)


def clip(text: str) -> str:
    """Make a text fit to travel: no lone surrogates, and no longer than a frame may be."""
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]} […] {text[-_MAX_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
