"""Printed text of a model as a terminal would show it, whole or line by line."""

from __future__ import annotations

import re
import sys
from typing import Final

from geartrain.domain.printed.screen import MAX_ROWS, Screen

OVERWRITES: Final = re.compile(r"\r(?!\n)|\x08|\x1b\[[0-9;]{0,32}[A-GJK]")
"""Control characters that change text printed before; a return in front of a newline does not."""

MOVES_UP: Final = re.compile(r"\x1b\[[0-9]{0,2}[AF]")
"""Escape sequences that move the cursor back to finished lines."""


MAX_TEXT: Final = 16 * 1024**2
"""Characters of a text that are kept at least; of a longer one, the oldest are left out."""

_SLACK: Final = MAX_TEXT // 8  # characters more, so that what is old is left out now and then, and not with each line


class Printed:
    """A text that grows. A progress bar in it is its last state; all else is as it was printed.

    It may come in any pieces. Lines that `domain.printed.screen.MAX_ROWS` others have followed do not change any more.
    """

    __slots__ = ("_left_out", "_most", "_parts", "_screens", "_unfinished", "size")

    def __init__(self, text: str = "") -> None:
        self._parts: list[str] = []
        self._screens: list[Screen] = []  # one, once something has been overwritten
        self._unfinished = ""  # a return that a newline may follow, or the beginning of a sequence
        self._left_out = 0  # characters that are not kept
        self._most = MAX_TEXT + _SLACK  # the size beyond which the oldest are left out
        self.size = 0  # characters that have been added
        if text:
            self.add(text)

    def add(self, text: str) -> None:
        """Print some text."""
        self.size += len(text)
        if self._screens:
            self._feed(text)
        elif not self._unfinished and is_plain(text):
            self._parts.append(text)
        else:
            self._add_unusual(self._unfinished + text)
        if self.size > self._most:
            self._cut()

    @property
    def memory(self) -> int:
        """Bytes of memory that the text takes, within a few kB; exact after `pack`."""
        return sum(map(sys.getsizeof, self._parts))

    def pack(self) -> None:
        """Keep the text in one piece: many short ones take twice the memory or more, rows of a screen ten times.

        It can still grow.
        """
        if self._screens:
            self._parts.append("\n".join(self._screens.pop().lines()))
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]

    def _cut(self) -> None:
        """Leave out the oldest characters beyond `MAX_TEXT`."""
        text = "".join(self._parts)
        excess = max(0, len(text) - MAX_TEXT)
        self._left_out += excess
        self._parts = [text[excess:]]
        self._most = self.size + _SLACK

    def __str__(self) -> str:
        parts = self._parts
        if self._screens:
            parts = [*parts, "\n".join(self._screens[0].lines())]
        if self._left_out:
            parts = [f"[the first {self._left_out} characters are left out]\n", *parts]
        return "".join(parts)

    def _add_unusual(self, text: str) -> None:
        self._unfinished = _unfinished_of(text)
        known = text[: len(text) - len(self._unfinished)]
        overwriting = OVERWRITES.search(known)
        if overwriting is None:
            self._parts.append(known)
            return
        self._parts.append(known[: overwriting.start()])
        self._begin_screen()
        self._unfinished = ""
        self._feed(text[overwriting.start() :])

    def _feed(self, text: str) -> None:
        for line in self._screens[0].feed(text):
            self._parts.append(f"{line}\n")

    def _begin_screen(self) -> None:
        """Take the last lines of the text: they can be overwritten from now on."""
        taken: list[str] = []
        newlines = 0
        while self._parts and newlines < MAX_ROWS:
            part = self._parts.pop()
            newlines += part.count("\n")
            taken.append(part)
        lines = "".join(reversed(taken)).split("\n")
        if len(lines) > MAX_ROWS:
            self._parts.append("\n".join([*lines[:-MAX_ROWS], ""]))
        self._screens.append(Screen(lines[-MAX_ROWS:]))


def is_plain(text: str) -> bool:
    """Tell whether a text has nothing that could be a part of what overwrites."""
    return "\r" not in text and "\x1b" not in text and "\b" not in text


def _unfinished_of(text: str) -> str:
    if text.endswith("\r"):
        return "\r"
    at = text.rfind("\x1b", -40)
    return text[at:] if at >= 0 and re.fullmatch(r"\x1b(\[[0-9;]{0,32})?", text[at:]) else ""


class PrintedLines:
    """Gives each line when it is complete; of a progress bar that is its last state.

    A line that the cursor may come back to, because it has gone up that far before, is given when it is out of reach,
    or at the end.
    """

    def __init__(self) -> None:
        self._screen = Screen([""])
        self._given: list[str] = []  # text already returned of the first rows of the screen

    def add(self, text: str) -> list[str]:
        """Print some text; return the lines that are complete, without their ends."""
        screen = self._screen
        gone = [line for line in screen.feed(text) if not self._given or self._given.pop(0) != line]
        if "\n" not in text:  # so no line is complete that was not
            return gone
        return gone + self._new(screen.lines()[: max(len(screen.rows) - 1 - screen.reach, 0)])

    def end(self) -> list[str]:
        """Return the pending text; the next text begins a new line."""
        rows = self._screen.lines()
        rest = self._new(rows if rows[-1] else rows[:-1])
        self._screen = Screen([""])
        self._given = []
        return rest

    @property
    def holds(self) -> bool:
        """True if there is something that `end` would give."""
        return self._screen.lines() != [*self._given, ""]

    def _new(self, rows: list[str]) -> list[str]:
        """Return those of the complete rows that have not been given as they are now."""
        given = self._given
        lines = [row for at, row in enumerate(rows) if at >= len(given) or given[at] != row]
        self._given = [*rows, *given[len(rows) :]]
        return lines
