"""Printed text line by line, for a log that cannot change its earlier lines."""

from __future__ import annotations

from geartrain.domain.printed.screen import Screen


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
