"""What is printed, as a terminal would show it: whole, line by line, and on its way to readers."""

from __future__ import annotations

import io
import re
import sys
import tracemalloc

import pyte
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tqdm import tqdm

from geartrain.domain.printed.screen import MAX_HELD, MAX_ROWS, Screen
from geartrain.domain.printed.text import MAX_TEXT, Printed, PrintedLines
from geartrain.domain.printed.updates import INTERVAL, Updates, compact

_MOVES = ["\r", "\n", "\x1b[A", "\x1b[2A", "\x1b[K", "\x1b[2K"]
_WORDS = ["abc", "x ", " ", "hello world", "50%|███ |", "语", "e\u0301", "\u0301"]
bars = st.lists(st.sampled_from([*_MOVES, *_WORDS, "\x1b[32m", "\x1b[0m", "\r 5%|█ |", "\n\rinner"]), max_size=25)
every = st.lists(
    st.sampled_from(
        [
            *(*_MOVES, *_WORDS, "\x1b[B", "\x1b[1K", "\x1b[3C", "\x1b[2D", "\x1b[G", "\x1b[J", "\b", "["),
            *("\x1b[1;32m", "\x1b[0m", "\x1b[?25l", "\x1b]8;;http://x\x07", "\x1b", "\x1b["),
        ]
    ),
    max_size=30,
)
texts = every.map("".join)


def shown(text: str) -> str:
    """What a person sees of it: without colours and without spaces at the ends of lines."""
    seen = str(Printed(re.sub(r"\x1b\[[0-9;]*m", "", text)))
    return "\n".join([line.rstrip(" \r") for line in seen.split("\n")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain\nlines \n\n", "plain\nlines \n\n"),
        ("no end", "no end"),
        ("windows\r\nlines\r\n", "windows\r\nlines\r\n"),
        ("\x1b[32mgreen\x1b[0m\n", "\x1b[32mgreen\x1b[0m\n"),
        ("10%\r20%\rdone\n", "done\n"),
        ("\r 10%\r 20%\n", " 20%\n"),
        ("10%\r", "10%"),
        ("a\n10%\r20%\r\nb\n", "a\n20%\nb\n"),
        ("long line\rshort\n", "shortline\n"),  # as on a terminal: what is not overwritten stays
        ("long line\r\x1b[Kshort\n", "short\n"),
        ("long line\x1b[2K\rshort\n", "short\n"),
        ("\rbar       \r          \rgone\n", "gone\n"),
        ("one\ntwo\n\x1b[2AONE\n", "ONE\ntwo\n"),
        ("one\ntwo\x1b[A!\n", "one!\ntwo"),
        ("abc\b\bX\n", "aXc\n"),
        ("语言\rab\n", "ab言\n"),
        ("语言\ra\n", "a 言\n"),
        ("e\u0301e\rx\n", "xe\n"),
        ("\r\x1b[32mon\x1b[0m\r\x1b[31moff\x1b[0m\n", "\x1b[0m\x1b[31moff\x1b[0m\n"),
        ("\r 5%\x1b[?25l\r 6%\n", " 6%\n"),
    ],
)
def test_what_stays(text: str, expected: str) -> None:
    assert str(Printed(text)) == expected


@given(texts, st.data())
def test_pieces_make_no_difference(text: str, data: st.DataObject) -> None:
    printed = Printed()
    at = 0
    while at < len(text):
        size = data.draw(st.integers(1, len(text) - at))
        printed.add(text[at : at + size])
        at += size
    assert str(printed) == str(Printed(text))
    assert printed.size == len(text)


@given(st.lists(st.sampled_from(["\r", "\n", "\x1b[A", "\x1b[K", "\x1b[2K", "\x1b[C", "\b", "abc", "xy"]), max_size=25))
@example(["abc", "\n", "\x1b[A", "\r", "xy", "\n", "\n", "abc"])
def test_a_terminal_shows_the_same(parts: list[str]) -> None:
    screen = pyte.Screen(200, MAX_ROWS)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed("".join(parts))
    assert shown("".join(parts)).rstrip("\n") == "\n".join([line.rstrip() for line in screen.display]).rstrip("\n")


def test_lines_out_of_reach_stay_as_they_are() -> None:
    lines = [f"line {number}\n" for number in range(3 * MAX_ROWS)]
    printed = Printed("".join(lines))
    printed.add(f"\x1b[{10 * MAX_ROWS}A\rfirst of the screen")
    text = str(printed).splitlines(keepends=True)
    assert text[: 2 * MAX_ROWS + 1] == lines[: 2 * MAX_ROWS + 1]
    assert text[2 * MAX_ROWS + 1] == "first of the screen\n"
    assert text[2 * MAX_ROWS + 2 :] == lines[2 * MAX_ROWS + 2 :]


def test_a_long_log_behind_a_bar_costs_no_more_than_its_lines() -> None:
    printed = Printed("\r100%\n")
    for number in range(1000):
        printed.add(f"{number}\n")
    assert str(printed) == "100%\n" + "".join(f"{number}\n" for number in range(1000))


# compact


@given(bars.map("".join), bars.map("".join), bars.map("".join), st.booleans(), st.integers(0, 4))
@example("", "\r 1%\r 2%\r 3%", "\n", True, 0)
@example("outer", "\n\r in 1%\x1b[A\n\r in 2%\x1b[A\r outer", "\n", False, 0)
@example("", "abc\r\n语\r", "x", False, 0)
@example("", "\r in 1\x1b[A\n\r in 2\x1b[A", "\r out\n", True, 1)
def test_a_compact_text_leaves_a_terminal_as_it_would_be(
    before: str, text: str, after: str, starts: bool, above: int
) -> None:
    before += "top\n" * above + ("\r" if starts else "")
    short = compact(text, is_at_start=starts, above=above)
    assert len(short) <= len(text)
    assert shown(before + short + after) == shown(before + text + after)


def test_of_many_updates_the_last_one_is_left() -> None:
    assert compact("".join(f"\r {i}%" for i in range(100)), is_at_start=False) == "\r 99%"
    assert compact("".join(f"{i}%\r" for i in range(10, 100)), is_at_start=True) == "\r99%\r"
    nested = "".join(f"\n\r in {i}\x1b[A" for i in range(100))
    assert compact(nested, is_at_start=False) == "\n\r in 99\x1b[1A"
    assert compact(nested[1:], is_at_start=False, above=1) == "\x1b[1A\n\r in 99\x1b[1A"
    assert compact(nested[1:], is_at_start=False) == nested[1:]  # there may be no row above


# on the way


def test_plain_text_is_given_at_once() -> None:
    updates = Updates[str]()
    assert updates.add("out", "a\n", 0.0) == [("out", "a\n")]
    assert updates.add("out", "part", 0.0) == [("out", "part")]
    assert not updates.holds


def test_updates_wait_for_each_other_and_lines_for_nothing() -> None:
    updates = Updates[str]()
    assert updates.add("err", "\r 1%", 10.0) == [("err", "\r 1%")]
    for percent in range(2, 50):
        assert updates.add("err", f"\r{percent:2}%", 10.0 + INTERVAL / 2) == []
    assert updates.holds
    assert not updates.is_due(10.0 + INTERVAL / 2)
    assert updates.is_due(10.0 + INTERVAL)
    assert updates.add("err", "\r50%", 10.0 + INTERVAL) == [("err", "\r50%")]
    assert updates.add("err", "\r51%", 10.0 + INTERVAL) == []
    assert updates.add("out", "a line\n", 10.0 + INTERVAL) == [("err", "\r51%"), ("out", "a line\n")]
    assert updates.add("err", "\n", 10.0 + INTERVAL) == []
    assert updates.take(10.0 + INTERVAL) == [("err", "\n")]
    assert updates.take(99.0) == []


def test_what_is_held_is_bounded() -> None:
    updates = Updates[str]()
    updates.add("err", "\r", 1.0)
    given_early = [piece for number in range(2000) for piece in updates.add("err", f"\b{'x' * 99}{number}", 1.0)]
    assert given_early
    held = sum(len(text) for _, text in updates.take(1.0))
    assert held < 100_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["out", "err"]),
            st.sampled_from([*_MOVES, *_WORDS, "\r 5%|█ |", "\n\rin\x1b[A"]),
            st.sampled_from([0.0, 0.03, 0.2]),
        ),
        max_size=30,
    )
)
def test_readers_see_in_the_end_what_was_printed(writes: list[tuple[str, str, float]]) -> None:
    updates = Updates[str]()
    now = 0.0
    heard: list[tuple[str, str]] = []
    for source, text, pause in writes:
        now += pause
        if updates.is_due(now):
            heard += updates.take(now)
        heard += updates.add(source, text, now)
    heard += updates.take(now)
    assert shown("".join(text for _, text in heard)) == shown("".join(text for _, text, _ in writes))


# line by line


def test_lines_are_given_when_they_are_complete() -> None:
    lines = PrintedLines()
    assert lines.add("one\ntw") == ["one"]
    assert lines.add("o\n") == ["two"]
    assert not lines.holds
    assert lines.add("\r 1%") == []
    assert lines.add("\r 2%\r") == []
    assert lines.add("\n") == [" 2%"]
    assert lines.add("rest") == []
    assert lines.end() == ["rest"]
    assert lines.end() == []


def test_lines_that_the_cursor_comes_back_to_are_given_when_it_has_left_them() -> None:
    lines = PrintedLines()
    assert lines.add("\r outer 0") == []
    given_lines = []
    for number in range(50):
        given_lines += lines.add(f"\n\r inner {number}\x1b[A")
    assert given_lines == []
    assert lines.add("\r outer 1") == []
    assert lines.add("\n") == []
    assert lines.add("done     \nnext\n") == [" outer 1", "done"]
    assert lines.end() == ["next"]


def test_many_lines_at_once() -> None:
    lines = PrintedLines()
    count = 4 * MAX_ROWS
    assert lines.add("".join(f"{number}\n" for number in range(count))) == [str(number) for number in range(count)]


@given(st.lists(st.sampled_from(["\r", "\n", *_WORDS, "\r 5%|█ |"]), max_size=30), st.integers(1, 9))
def test_lines_are_those_of_the_whole_text(parts: list[str], size: int) -> None:
    text = "".join(parts)
    lines = PrintedLines()
    found = [line for at in range(0, len(text), size) for line in lines.add(text[at : at + size])]
    found += lines.end()
    assert "\n".join([line.rstrip(" ") for line in found]).rstrip() == shown(text).rstrip()


# tqdm itself


class Written(io.StringIO):
    """Notes each write by itself, as a stream that is flushed does."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str, /) -> int:
        self.writes.append(text)
        return len(text)


@pytest.mark.parametrize("leave", [True, False])
def test_nested_bars_of_tqdm(leave: bool) -> None:
    written = Written()
    for outer in tqdm(range(3), file=written, mininterval=0, desc="outer", ncols=60):
        for _ in tqdm(range(20), file=written, mininterval=0, desc="inner", ncols=60, leave=leave):
            pass
        tqdm.write(f"wrote {outer}", file=written)
    screen = pyte.Screen(200, MAX_ROWS)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed("".join(written.writes))
    printed = Printed()
    for text in written.writes:
        printed.add(text)
    on_screen = "\n".join([line.rstrip() for line in screen.display]).rstrip("\n")
    assert shown(str(printed)).rstrip("\n") == on_screen
    assert str(printed).count("outer") == 1
    assert str(printed).count("inner") == (3 if leave else 0)


def test_s4_the_oldest_of_a_long_text_is_left_out() -> None:
    printed = Printed()
    for number in range(24):
        printed.add(f"{number:4}" * (256 * 1024))
    text = str(printed)
    assert text.startswith("[the first ")
    assert text.endswith("  23")
    note, _, rest = text.partition("\n")
    assert int(note.split()[2]) + len(rest) == 24 * 1024**2
    assert MAX_TEXT <= len(rest) <= printed.memory <= MAX_TEXT * 1.2


ENDLESS = {
    "a line": "\rx",
    "wide characters": "\r█進",
    "colours": "\r\x1b[31mx",
    "accents": "\ra\u0301\u0301",
    "accents of nothing": "\r\u0301",
    "rows": "\r\nxxxx",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_rows_that_can_be_overwritten_are_bounded(kind: str) -> None:
    begin, more = ENDLESS[kind][:1], ENDLESS[kind][1:] * 5000
    screen = Screen(["above"])
    gone = screen.feed("\n" + begin)
    for _ in range(2 * MAX_HELD // len(more)):
        gone += screen.feed(more)
        assert sum(map(len, screen.lines())) <= MAX_HELD
    gone += screen.feed("last\n")
    shown_lines = [*gone, *screen.lines()]
    assert shown_lines[0] == "above"
    assert shown_lines[-2].endswith("last")


def test_a_line_without_end_is_given_in_parts() -> None:
    lines = PrintedLines()
    given_lines = lines.add("\r")
    for _ in range(10):
        given_lines += lines.add("x" * (MAX_HELD // 4))
    assert len(given_lines) == 2
    assert "".join([*given_lines, *lines.end()]) == "x" * (10 * (MAX_HELD // 4))


def test_rows_take_little_memory() -> None:
    """A row has an object for each of its characters."""
    tracemalloc.start()
    try:
        screen = Screen([""])
        screen.feed("\r" + "█進" * (MAX_HELD // 2 - 100))
        taken, _ = tracemalloc.get_traced_memory()
        screen.feed("█進" * 200)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_000_000 < taken < 40_000_000


def test_rows_of_a_screen_are_packed_and_counted() -> None:
    printed = Printed("\r")
    for number in range(MAX_ROWS):
        printed.add(f"{number:02}\r{'█' * 4000}\n")
    text = str(printed)
    printed.pack()
    assert str(printed) == text
    assert sys.getsizeof(text) <= printed.memory < 1.1 * sys.getsizeof(text)


def test_a_line_before_a_bar_may_be_long() -> None:
    """It is given out by itself, and the bar stays one line."""
    printed = Printed("x" * (2 * MAX_HELD) + "\n")
    for percent in range(100):
        printed.add(f"\r{percent}%")
    assert str(printed) == "x" * (2 * MAX_HELD) + "\n99%"


def test_a_packed_text_still_grows() -> None:
    printed = Printed("one\n")
    printed.add("two\n")
    printed.pack()
    printed.add("thr\rthree\n")
    assert str(printed) == "one\ntwo\nthree\n"
