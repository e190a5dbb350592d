"""Progress bars on their way to readers: at most one update in a while, and never without the last one."""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar

from geartrain.domain.printed.screen import MAX_ROWS, ScreenRow, width_of
from geartrain.domain.printed.text import OVERWRITES

INTERVAL: Final = 0.1  # seconds
_MAX_HELD: Final = 65_536  # characters; beyond that they are not held
_MAX_BARS: Final = 16  # below each other

_TOKEN: Final = re.compile(r"\x1b\[([0-9]{0,2})([AK])|\x1b\[[0-9;]{0,32}(m)|([\r\n])|([^\x1b\r\n\b]+)")
_VERTICAL: Final = re.compile(r"(\n)|\x1b\[([0-9]{0,2})A")
_FIRST: Final = re.compile(r"[\r\n]")

S = TypeVar("S")
"""Which stream a text was written to: stdout or stderr."""


class Updates(Generic[S]):
    """Text on its way from one origin: updates of progress bars wait for each other, other lines for nothing.

    The caller gives the time, in seconds on any clock. When `add` has left something held, it calls `take` as soon as
    that `is_due`, within `INTERVAL`, and at the end.
    """

    __slots__ = ("_above", "_due", "_has_updates", "_held", "_is_at_start", "_size")

    def __init__(self) -> None:
        """Create it behind earlier output without updates."""
        self._above = 0  # rows that are known to be above the cursor, where what was given last has left it
        self._held: list[tuple[S, str]] = []
        self._size = 0  # characters held
        self._due = 0.0  # when the next update may be given
        self._has_updates = False
        self._is_at_start = (
            False  # true if it is known that what was given last leaves the cursor at the start of a line
        )

    @property
    def holds(self) -> bool:
        """True if something is held."""
        return bool(self._held)

    def is_due(self, now: float) -> bool:
        """Tell whether something is held that may be given."""
        return bool(self._held) and now >= self._due

    def add(self, source: S, text: str, now: float) -> list[tuple[S, str]]:
        """Return the output that is due now, perhaps none."""
        is_update = OVERWRITES.search(text) is not None
        self._has_updates = self._has_updates or is_update
        if not self._has_updates:
            self._note(text)
            return [(source, text)]
        self._hold(source, text)
        is_blank = text.isspace() and not is_update  # perhaps on the way to a bar further down
        is_line = "\n" in text and not is_update and not is_blank
        if is_line or (now >= self._due and not is_blank) or self._size > _MAX_HELD:
            return self.take(now)
        return []

    def take(self, now: float) -> list[tuple[S, str]]:
        """Return the held output, without updates that the next one overwrites."""
        pieces: list[tuple[S, str]] = []
        for source, text in self._held:
            short = compact(text, is_at_start=self._is_at_start, above=self._above)
            self._note(short)
            pieces.append((source, short))
        self._held = []
        self._size = 0
        if pieces:
            self._due = now + INTERVAL
        return pieces

    def _hold(self, source: S, text: str) -> None:
        held = self._held
        self._size += len(text)
        if held and held[-1][0] == source:
            text = held.pop()[1] + text
        held.append((source, text))
        if self._size > _MAX_HELD // 2:
            is_first = len(held) == 1
            short = compact(text, is_at_start=self._is_at_start and is_first, above=self._above if is_first else 0)
            self._size -= len(text) - len(short)
            held[-1] = (source, short)

    def _note(self, text: str) -> None:
        """Note where a text that is given leaves the cursor."""
        self._is_at_start = text.endswith(("\r", "\n"))
        for down, up in _VERTICAL.findall(text):
            self._above += 1 if down else -(int(up or 1) or 1)
            self._above = max(0, min(self._above, MAX_ROWS - 1))


def compact(text: str, *, is_at_start: bool, above: int = 0) -> str:
    """Return a text that leaves a terminal in the same state, without what the text itself overwrites.

    `is_at_start`: the cursor is at the start of a line. If it is not, what is in front of the first return or line end
    is kept. `above`: so many rows are above the cursor, at least.

    A text with other sequences than those of usual progress bars is returned as it is.
    """
    start = 0
    if not is_at_start:
        first = _FIRST.search(text)
        if first is None:
            return text
        start = first.start()
    strip = _Strip()
    end = start
    for token in _TOKEN.finditer(text, start):
        if token.start() != end or not strip.take(token):
            return text
        end = token.end()
    if end != len(text) or not strip.can_redraw or strip.above > above:
        return text
    short = text[:start] + strip.redraw()
    return short if len(short) < len(text) else text


class _StripRow(ScreenRow):
    """A row with a known number of first cells."""

    __slots__ = ("is_erased", "is_returned")

    def __init__(self) -> None:
        super().__init__()
        self.split()
        self.is_returned = False  # true if the cursor has come back to it
        self.is_erased = False

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write to the row."""
        return not (self.cells or self.trailing or self.is_erased)

    def redraw(self) -> str:
        """Return the text that draws the row."""
        begin = ("\r" if self.is_returned else "") + ("\x1b[K" if self.is_erased else "")
        return begin + "".join(self.cells) + self.trailing


class _Strip:
    """The rows that a text writes, and those between them and the row that the cursor is in at its begin."""

    def __init__(self) -> None:
        self.above = 0  # rows above that one
        self._rows = [_StripRow()]
        self._row = self._column = 0
        self._lead = ""  # colours for the next character

    @property
    def is_known(self) -> bool:
        """True if all is known of the cursor's row in front of the cursor."""
        return self._column <= len(self._rows[self._row].cells)

    @property
    def can_redraw(self) -> bool:
        """True if `redraw` can leave the cursor where it is."""
        return self.is_known or self._column == len(self._rows[-1].cells)

    def take(self, token: re.Match[str]) -> bool:
        """Take a part of the text; return whether it could be taken."""
        number, final, style, control, text = token.groups()
        row = self._rows[self._row]
        if text:
            if not self.is_known:
                return False
            self._lead = row.put(text, self._column, self._lead)
            self._column += sum(map(width_of, text))
        elif control == "\r":
            row.is_returned = True
            self._column = 0
        elif control:
            self._end_line(row)
        elif style:
            self._lead += token[0]
        elif final == "A":
            self._go_up(int(number or 1) or 1)
        else:
            return self._erase(row, number)
        return len(self._rows) <= _MAX_BARS

    def redraw(self) -> str:
        """Return the text that draws all rows, and leaves the cursor in its place."""
        text = f"\x1b[{self.above}A" if self.above else ""
        text += "\n".join([*["" if row.is_empty else row.redraw() for row in self._rows[:-1]], self._rows[-1].redraw()])
        up = len(self._rows) - 1 - self._row
        if up:
            text += f"\x1b[{up}A"
        if self._column != len(self._rows[-1].cells):
            text += "\r" + "".join(self._rows[self._row].cells[: self._column])
        return text + self._lead

    def _end_line(self, row: _StripRow) -> None:
        if self._lead:
            row.trailing, self._lead = self._lead, ""
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append(_StripRow())

    def _go_up(self, number: int) -> None:
        self._row -= number
        missing = max(0, -self._row)
        self._rows[:0] = [_StripRow() for _ in range(missing)]
        self.above += missing
        self._row += missing
        self._rows[self._row].is_returned = True

    def _erase(self, row: _StripRow, number: str) -> bool:
        if number not in {"", "0", "2"} or not self.is_known:
            return False
        row.erase(self._column, number)
        row.is_erased = row.is_returned = True
        return True
