"""Prints: gathered into lines, and routed to whoever made them."""

# ruff: noqa: T201 - prints are what this is about

from __future__ import annotations

import contextlib
import contextvars
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from geartrain.domain.predictions.events import LogSource
from geartrain.domain.printed.text import Printed
from geartrain.worker.stdio.router import MAX_LINE, TRUNCATED, LineWriter, Router


class Heard:
    """What was let out, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []

    def __call__(self, source: LogSource, text: str) -> None:
        self.pieces.append((source, text))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


# lines


@pytest.mark.parametrize(
    ("writes", "pieces"),
    [
        (["whole\n"], ["whole\n"]),
        (["in ", "pie", "ces\n"], ["in pieces\n"]),
        (["two\nlines\n"], ["two\nlines\n"]),
        (["one\nand a half"], ["one\n"]),
        (["one\nand a half", " more\n"], ["one\n", "and a half more\n"]),
        (["\n"], ["\n"]),
        ([""], []),
        (["\x0b\x0c\x1c\u2028"], []),
    ],
)
def test_lines_are_let_out_when_they_are_whole(writes: list[str], pieces: list[str]) -> None:
    heard = Heard()
    writer = LineWriter(heard)
    for text in writes:
        writer.write("stdout", text)
    assert heard.pieces == [("stdout", piece) for piece in pieces]


def test_flush_and_end_let_out_what_has_no_end() -> None:
    heard = Heard()
    writer = LineWriter(heard)
    writer.write("stderr", "half")
    writer.flush()
    writer.write("stderr", " a line")
    writer.end()
    writer.end()
    writer.flush()
    assert heard.pieces == [("stderr", "half"), ("stderr", " a line")]


def test_change_of_stream_lets_out_what_has_no_end() -> None:
    """Observed Cog, section 10."""
    heard = Heard()
    writer = LineWriter(heard)
    writer.write("stdout", "nonl")
    writer.write("stderr", "e-nonl\n")
    assert heard.pieces == [("stdout", "nonl"), ("stderr", "e-nonl\n")]


def test_nothing_is_heard_after_the_end() -> None:
    heard, later = Heard(), Heard()
    writer = LineWriter(heard)
    writer.end(then=later)
    writer.write("stdout", "late\n")
    assert (heard.pieces, later.pieces) == ([], [("stdout", "late\n")])


def test_each_thread_has_its_own_line() -> None:
    heard = Heard()
    writer = LineWriter(heard)
    writer.write("stdout", "mine, ")
    done = threading.Event()

    def write() -> None:
        writer.write("stdout", "theirs, ")
        in_thread(lambda: writer.write("stdout", "another's\n"))
        done.set()

    in_thread(write)
    assert done.is_set()
    writer.flush()
    assert heard.pieces == [("stdout", "another's\n"), ("stdout", "mine, ")]
    writer.end()
    assert heard.pieces[2:] == [("stdout", "theirs, ")]


def test_threads_that_are_gone_are_not_remembered_for_ever() -> None:
    """Idents are used again, so many are alive at once here."""
    heard = Heard()
    writer = LineWriter(heard)
    barrier = threading.Barrier(400)

    def write() -> None:
        writer.write("stdout", "x")
        barrier.wait()

    threads = [threading.Thread(target=write) for _ in range(400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writer.lines) < 400
    writer.end()
    assert heard.text == "x" * 400


def test_lines_of_threads_stay_whole() -> None:
    heard = Heard()
    writer = LineWriter(heard)

    def write(name: int) -> None:
        for _ in range(50):
            for part in ("thread", " ", str(name), "\n"):
                writer.write("stdout", part)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = heard.text.splitlines()
    assert sorted(lines) == sorted(f"thread {name}" for name in range(8) for _ in range(50))


# lines that are too long


@pytest.mark.parametrize("step", [MAX_LINE + 5000, 1_000_000])
@pytest.mark.parametrize(
    ("length", "cut"), [(MAX_LINE - 1, False), (MAX_LINE, False), (MAX_LINE + 1, True), (MAX_LINE + 3000, True)]
)
def test_longest_line(length: int, step: int, *, cut: bool) -> None:
    heard = Heard()
    writer = LineWriter(heard)
    line = "x" * length + "\n"
    for start in range(0, len(line), step):
        writer.write("stdout", line[start : start + step])
    writer.write("stdout", "next\n")
    expected = "x" * MAX_LINE + TRUNCATED + "\n" if cut else line
    assert heard.text == expected + "next\n"
    assert max(len(text.encode()) for _, text in heard.pieces) <= 4 * 1024 * 1024


def test_long_text_of_short_lines_is_not_cut() -> None:
    heard = Heard()
    text = ("é" * 99 + "\n") * 60_000
    LineWriter(heard).write("stdout", text)
    assert heard.text == text
    assert max(len(text.encode()) for _, text in heard.pieces) <= 4 * 1024 * 1024


def test_long_line_between_others_is_cut_alone() -> None:
    heard = Heard()
    LineWriter(heard).write("stdout", "before\n" + "x" * (MAX_LINE + 1) + "\nafter\n")
    assert heard.text == "before\n" + "x" * MAX_LINE + TRUNCATED + "\nafter\n"


def test_rest_of_a_cut_line_is_left_out_though_the_other_stream_speaks() -> None:
    heard = Heard()
    writer = LineWriter(heard)
    writer.write("stdout", "x" * (MAX_LINE + 1))
    writer.write("stderr", "a warning\n")
    writer.write("stdout", "of the same line")
    writer.write("stdout", ", too\nnext\n")
    assert heard.text == "x" * MAX_LINE + TRUNCATED + "\na warning\nnext\n"


# whose they are


@pytest.fixture
def ambient() -> Heard:
    return Heard()


@pytest.fixture
def router(ambient: Heard) -> Router:
    return Router(ambient)


def test_writes_outside_a_prediction_are_ambient(router: Router, ambient: Heard) -> None:
    print("setting up", file=router.stdout)
    assert ambient.pieces == [("stdout", "setting up\n")]


def test_ambient_can_change(router: Router, ambient: Heard) -> None:
    later = Heard()
    router.stdout.write("partial")
    router.set_ambient(later)
    print("served", file=router.stderr)
    assert (ambient.text, later.pieces) == ("partial", [("stderr", "served\n")])


def test_partial_line_of_setup_can_be_let_out(router: Router, ambient: Heard) -> None:
    router.stdout.write("last words")
    router.flush_ambient()
    assert ambient.text == "last words"


def test_predictions_of_two_contexts_keep_apart(router: Router, ambient: Heard) -> None:
    first, second = Heard(), Heard()
    one, other = contextvars.Context(), contextvars.Context()
    one.run(router.begin, first)
    other.run(router.begin, second)
    one.run(router.stdout.write, "1\n")
    other.run(router.stderr.write, "2\n")
    router.stdout.write("whose?\n")
    assert (first.pieces, second.pieces) == ([("stdout", "1\n")], [("stderr", "2\n")])
    assert ambient.text == "whose?\n"


def test_thread_without_a_context_writes_for_the_only_prediction(router: Router, ambient: Heard) -> None:
    heard = Heard()
    writer = contextvars.Context().run(router.begin, heard)
    in_thread(lambda: router.stdout.write("from a thread\n"))
    assert heard.text == "from a thread\n"
    router.end(writer)
    in_thread(lambda: router.stdout.write("too late\n"))
    assert (heard.text, ambient.text) == ("from a thread\n", "too late\n")


def test_d2_end_lets_out_the_last_line(router: Router, ambient: Heard) -> None:
    heard = Heard()
    context = contextvars.Context()
    writer = context.run(router.begin, heard)
    context.run(router.stdout.write, "last")
    router.end(writer)
    assert heard.text == "last"
    context.run(router.stdout.write, "after the end\n")
    assert (heard.text, ambient.text) == ("last", "after the end\n")


def test_leftover_that_still_holds_the_writer_is_nobodys(router: Router, ambient: Heard) -> None:
    heard, following = Heard(), Heard()
    writer = contextvars.Context().run(router.begin, heard)
    router.end(writer)
    contextvars.Context().run(router.begin, following)
    writer.write("stdout", "a thread between two lines\n")
    assert (heard.text, following.text, ambient.text) == ("", "", "a thread between two lines\n")


def test_ended_twice_is_no_fault(router: Router) -> None:
    writer = router.begin(Heard())
    router.end(writer)
    router.end(writer)


# the streams themselves


@contextlib.contextmanager
def installed(router: Router) -> Iterator[None]:
    """Not a fixture: pytest changes the streams between a fixture and its test."""
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        router.install()
        yield


def test_installed_streams_take_prints_and_logging(router: Router, ambient: Heard) -> None:
    with installed(router):
        handler = logging.StreamHandler()
        print("printed")
        handler.emit(logging.makeLogRecord({"msg": "logged"}))
        sys.stderr.writelines(["a", "b\n"])
    assert ambient.pieces == [("stdout", "printed\n"), ("stderr", "logged\n"), ("stderr", "ab\n")]


def test_d31_replaced_stream_is_put_back(router: Router, ambient: Heard) -> None:
    with installed(router):
        sys.stdout = io.StringIO()
        print("into nothing")
        router.install()
        print("heard again")
    assert ambient.text == "heard again\n"


def test_flush_of_a_print(router: Router, ambient: Heard) -> None:
    print("no end", end="", flush=True, file=router.stdout)
    assert ambient.text == "no end"


def test_bytes_become_text(router: Router, ambient: Heard) -> None:
    buffer = router.stdout.buffer
    assert buffer.write("größe\n".encode()) == 8
    buffer.write(bytearray(b"\xff\n"))
    buffer.write("é".encode()[:1])
    buffer.write(memoryview("é\n".encode()[1:]))
    buffer.write(b"no end")
    buffer.flush()
    assert ambient.text == "größe\n�\né\nno end"


def test_half_a_character_is_nothing_to_another_prediction(router: Router) -> None:
    first, second = Heard(), Heard()
    context = contextvars.Context()
    writer = context.run(router.begin, first)
    context.run(router.stdout.buffer.write, b"\xc3")
    router.end(writer)
    other = contextvars.Context()
    other.run(router.begin, second)
    other.run(router.stdout.buffer.write, b"\xa9\n")
    assert second.text == "�\n"


def test_lone_surrogate_is_written_as_its_code(router: Router, ambient: Heard) -> None:
    assert router.stdout.write("\ud800é\n") == 3
    assert ambient.text == "\\ud800é\n"


def test_only_text_can_be_written(router: Router) -> None:
    with pytest.raises(TypeError, match="must be str, not bytes"):
        router.stdout.write(b"bytes")


def test_streams_look_like_the_interpreters_own(router: Router) -> None:
    for stream, name, fd in ((router.stdout, "<stdout>", 1), (router.stderr, "<stderr>", 2)):
        assert (stream.name, stream.fileno(), stream.encoding, stream.mode) == (name, fd, "utf-8", "w")
        assert stream.line_buffering
        assert stream.writable()
        assert not stream.isatty()
        assert not stream.readable()
        assert (stream.buffer.fileno(), stream.buffer.writable()) == (fd, True)
        stream.reconfigure(encoding="utf-8", line_buffering=True)


# progress bars


def test_the_last_state_of_a_bar_comes_without_a_further_write() -> None:
    heard = Heard()
    there = threading.Event()

    def hear(source: LogSource, text: str) -> None:
        heard(source, text)
        if text.endswith(" 99%"):
            there.set()

    writer = LineWriter(hear)
    for percent in range(100):
        writer.write("stderr", f"\r {percent}%")
        writer.flush()
    assert there.wait(40)


def test_what_is_held_of_a_bar_comes_with_a_line_and_with_the_end() -> None:
    heard = Heard()
    writer = LineWriter(heard)
    for percent in range(100):
        print(f"{percent}%", end="\r", file=Stream(writer))
    writer.write("stdout", "a line\n")
    assert str(Printed(heard.text)) == "a line\n"
    for percent in range(100):
        writer.write("stderr", f"\r{percent}%")
    writer.end()
    assert str(Printed(heard.text)) == "a line\n99%"
    writer.write("stdout", "late\n")
    assert heard.text.endswith("late\n")


class Stream(io.StringIO):
    """Gives a writer what is printed to it."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def write(self, text: str, /) -> int:
        self._writer.write("stdout", text)
        return len(text)
