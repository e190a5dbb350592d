"""Tracebacks for a person: the author's lines with the code around them, those of libraries by their place alone."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
from typing import TYPE_CHECKING, Final

from rich.text import Text
from rich.traceback import Frame, Stack, Trace, Traceback

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEADING: Final = "Traceback (most recent call last):\n"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)')
_LAST: Final = re.compile(r"(?P<type>[\w.]+)(?:: (?P<text>.*))?", re.DOTALL)
_BETWEEN: Final = re.compile(
    r"\n(?P<cause>The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
_EXTRA_LINES: Final = 2  # before and after the author's line
_MOST: Final = 20  # frames of an exception


def pretty(text: str, *, width: int) -> RenderableType:
    """Return a traceback, as Python prints it, to be shown by rich; as it is if it has another form."""
    stacks = _read(text)
    if not stacks:
        return Text(text)
    linecache.checkcache()  # the author may have changed the file since the last one
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return Traceback(
        Trace(stacks),
        width=width,
        code_width=None,
        extra_lines=_EXTRA_LINES,
        suppress=[*libraries, sys.prefix],
        max_frames=_MOST,
        word_wrap=True,
    )


def _read(text: str) -> list[Stack]:
    """Return the exceptions, the last one first; none if the text has another form."""
    parts = _BETWEEN.split(text.rstrip("\n"))
    stacks: list[Stack] = []
    for part, follows in zip(parts[::2], [*parts[1::2], ""], strict=True):
        stack = _read_one(part)
        if stack is None:
            return []
        stack.is_cause = "direct cause" in follows
        stacks.insert(0, stack)
    return stacks


def _read_one(text: str) -> Stack | None:
    if not text.startswith(_HEADING):
        return None
    lines = text.removeprefix(_HEADING).split("\n")
    frames = []
    while lines and lines[0].startswith("  "):
        match = _FRAME.fullmatch(lines.pop(0))
        if match is not None:
            frames.append(Frame(match["file"], int(match["line"]), match["name"]))
    last = _LAST.fullmatch("\n".join(lines))
    if last is None or not frames:
        return None
    return Stack(last["type"], last["text"] or "", frames=frames)
