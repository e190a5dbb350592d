"""The end of a printed text as a terminal shows it: rows that later text can overwrite, and a cursor.

It knows what progress bars use: carriage return, backspace, and the sequences that move the cursor or erase. Colours
are kept, and other sequences are left out of lines that have been overwritten. A row is as wide as it needs to be.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

MAX_ROWS: Final = 32  # rows that the cursor can go back to
MAX_HELD: Final = 256 * 1024  # characters of all rows, with their colours; beyond that the rows are given out
_MAX_COLUMNS: Final = 16_384  # of a row that is kept as cells, and the most that one sequence moves the cursor
_MAX_STYLE: Final = 2048  # characters of the colours in front of one character

_TOKEN: Final = re.compile(  # a longer sequence is text
    r"\x1b\[(?P<numbers>[0-9;:<=>?]{0,32})[ -/]{0,4}(?P<final>[@-~])"
    r"|(?P<osc>\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\))"  # such as a link
    r"|(?P<control>[\r\n\b])"
    r"|(?P<text>[^\x1b\r\n\b]+)"
    r"|\x1b[^\[\]\x1b\r\n\b]|\x1b"
)
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-9;:<=>?]{0,32}[ -/]{0,4}|\][^\x07\x1b]{0,512}\x1b?)?\Z")


class ScreenRow:
    """One row: text as it was printed, or, once a part of it has been overwritten, a cell for each column.

    A cell is a character with the colours before it and the accents after it. A wide character has a second, empty
    cell.
    """

    __slots__ = ("cells", "is_plain", "text", "trailing")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.is_plain = True
        self.cells: list[str] = []
        self.trailing = ""  # colours behind the last cell

    def __str__(self) -> str:
        return self.text if self.is_plain else "".join(self.cells).rstrip(" ") + self.trailing

    def split(self) -> None:
        """Make cells of the text."""
        if self.is_plain:
            self.is_plain = False
            text, self.text = self.text.removesuffix("\r"), ""
            if len(text) > _MAX_COLUMNS and text.isascii():
                self.cells = list(text)
                return
            lead, column = "", 0
            for token in _TOKEN.finditer(text):
                if token["text"]:
                    lead, column = self.put(token["text"], column, lead), len(self.cells)
                else:
                    lead += _kept(token)
            self.trailing = lead

    def put(self, text: str, column: int, lead: str) -> str:
        """Write text over the cells from a column on; return what is left of `lead`, the colours before it."""
        cells = self.cells
        if column > len(cells):
            cells.extend(" " * (column - len(cells)))
        for character in text:
            width = width_of(character)
            if width == 0:
                if column:
                    at = _leader(cells, column - 1)
                    if len(cells[at]) <= _MAX_STYLE:
                        cells[at] += character
                else:
                    lead = (lead + character)[-_MAX_STYLE:]
                continue
            if column == len(cells):
                lead, self.trailing = self.trailing + lead, ""
            elif not cells[column]:
                cells[column - 1] = " "  # the first half of a wide character is gone
            cells[column : column + width] = [lead + character, *[""] * (width - 1)]
            lead = ""
            column += width
            if column < len(cells) and not cells[column]:
                cells[column] = " "
        return lead

    def erase(self, column: int, kind: str) -> None:
        """Erase from the column on, up to it (`1`), or all (`2`)."""
        self.split()
        if kind in {"", "0"}:
            if column < len(self.cells) and not self.cells[column]:
                self.cells[column - 1] = " "
            del self.cells[column:]
            self.trailing = ""
        elif kind == "1":
            self.put(" " * min(column + 1, len(self.cells)), 0, "")
        elif kind == "2":
            self.cells.clear()
            self.trailing = ""


class Screen:
    """The last rows of a text. The text may come in any pieces: the rows are the same.

    When rows together grow beyond `MAX_HELD`, the first of them are given out.
    """

    def __init__(self, rows: list[str]) -> None:
        """`rows` are the last lines of what was printed before, with the cursor at the end of the last one."""
        self.rows = [ScreenRow(text) for text in rows]
        self.row = len(rows) - 1
        self.reach = 0  # rows above the last one that the cursor has reached
        self._column = 0
        self._is_at_end = True  # of its row, whatever the column is
        self._lead = ""  # colours for the next character
        self._unfinished = ""
        self._fed = sum(map(len, rows))  # characters since the rows were last measured, and what they had then

    def feed(self, text: str) -> list[str]:
        """Print text; return the lines that nothing can change any more."""
        text = self._unfinished + text
        cut = _UNFINISHED.search(text)
        self._unfinished = "" if cut is None else cut[0]
        done: list[str] = []
        for token in _TOKEN.finditer(text, 0, len(text) - len(self._unfinished)):
            if token["text"]:
                self._write(token["text"])
            elif token["control"]:
                self._control(token["control"], done)
            elif token["final"]:
                self._sequence(token["final"], token["numbers"], token[0])
            elif token["osc"]:
                self._style(token["osc"])
        self._fed += len(text)
        if self._fed > MAX_HELD:
            self._give_out(done)
        return done

    def lines(self) -> list[str]:
        """Return the rows as text."""
        texts = [str(row) for row in self.rows]
        texts[self.row] += self._lead
        return texts

    def _give_out(self, done: list[str]) -> None:
        """Move the first rows to `done` if they hold too much; an endless row ends where it is."""
        lines = self.lines()
        self._fed = sum(map(len, lines))
        count = 0
        while self._fed > MAX_HELD // 2:
            self._fed -= len(lines[count])
            count += 1
        if count <= self.row:
            del self.rows[:count]
            self.row -= count
        else:
            count = len(lines)
            self.rows, self.row, self._fed, self._lead = [ScreenRow()], 0, 0, ""
            self._move_to(0)
        done += lines[:count]

    def _write(self, text: str) -> None:
        row = self.rows[self.row]
        if self._is_at_end:
            if row.is_plain:
                row.text += text
            else:
                self._lead = row.put(text, len(row.cells), self._lead)
            return
        row.split()
        self._lead = row.put(text, self._column, self._lead)
        self._column += sum(map(width_of, text))
        self._is_at_end = self._column == len(row.cells)

    def _style(self, sequence: str) -> None:
        row = self.rows[self.row]
        if self._is_at_end and row.is_plain:
            row.text += sequence
        else:
            self._lead = (self._lead + sequence)[-_MAX_STYLE:]

    def _control(self, control: str, done: list[str]) -> None:
        if control == "\r":
            self.rows[self.row].split()
            self._move_to(0)
        elif control == "\b":
            self._move_to(self._place() - 1)
        else:
            self._end_line(done)

    def _end_line(self, done: list[str]) -> None:
        row = self.rows[self.row]
        if self._lead:
            row.split()
            row.trailing, self._lead = self._lead, ""
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append(ScreenRow())
            if len(self.rows) > MAX_ROWS:
                done.append(str(self.rows.pop(0)))
                self.row -= 1
        self._move_to(0)

    def _sequence(self, final: str, numbers: str, whole: str) -> None:
        if final == "m":
            self._style(whole)
        elif final in "AF":
            self._move_row(-_number(numbers), starts=final == "F")
        elif final in "BE":
            self._move_row(_number(numbers), starts=final == "E")
        elif final == "C":
            self._move_to(self._place() + _number(numbers))
        elif final == "D":
            self._move_to(self._place() - _number(numbers))
        elif final == "G":
            self._move_to(_number(numbers) - 1)
        elif final == "K":
            column = self._place()
            self.rows[self.row].erase(column, numbers)
            self._move_to(column)
        elif final == "J" and numbers in {"", "0"}:
            column = self._place()
            self.rows[self.row].erase(column, "")
            for row in self.rows[self.row + 1 :]:
                row.erase(0, "2")
            self._move_to(column)

    def _move_row(self, by: int, *, starts: bool) -> None:
        column = 0 if starts else self._place()
        self.row = max(0, min(self.row + by, len(self.rows) - 1))
        self.reach = max(self.reach, len(self.rows) - 1 - self.row)
        self._move_to(column)

    def _place(self) -> int:
        """Return the column of the cursor."""
        if self._is_at_end:
            row = self.rows[self.row]
            row.split()
            return len(row.cells)
        return self._column

    def _move_to(self, column: int) -> None:
        row = self.rows[self.row]
        self._column = max(0, min(column, _MAX_COLUMNS))
        self._is_at_end = not (row.text or row.cells) if self._column == 0 else self._column == len(row.cells)


@lru_cache(maxsize=4096)
def width_of(character: str) -> int:
    """Return the number of columns of a character: 0, 1 or 2."""
    if character < "\u0300":
        return 1
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _leader(cells: list[str], column: int) -> int:
    return column - 1 if column and not cells[column] else column


def _kept(token: re.Match[str]) -> str:
    return token[0] if token["final"] == "m" or token["osc"] else ""


def _number(numbers: str) -> int:
    return min(int(numbers), _MAX_COLUMNS) or 1 if numbers.isdecimal() else 1
