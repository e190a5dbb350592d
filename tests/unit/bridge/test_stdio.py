"""Descriptors 1 and 2 of a worker, read through real pipes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import IO

import pytest

from geartrain.bridge.stdio import OutputPipes
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.printed.text import Printed


def a_pipe() -> tuple[IO[bytes], int]:
    read_end, write_end = os.pipe()
    return os.fdopen(read_end, "rb"), write_end


class Captured:
    """Both pipes, their writing ends, and what came out."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.news = asyncio.Event()
        stdout, out = a_pipe()
        stderr, err = a_pipe()
        self.read_ends = [stdout, stderr]
        self.write_ends = {"stdout": out, "stderr": err}
        self.pipes = OutputPipes(stdout, stderr, self._deliver)
        self.pipes.attach(asyncio.get_running_loop())

    def _deliver(self, source: LogSource, text: str) -> None:
        self.heard.append((source, text))
        self.news.set()

    def write(self, source: str, data: bytes) -> None:
        os.write(self.write_ends[source], data)

    def hang_up(self, source: str) -> None:
        os.close(self.write_ends.pop(source))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.heard)

    async def until(self, text: str) -> None:
        async with asyncio.timeout(40):
            while text not in self.text:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def captured() -> AsyncIterator[Captured]:
    captured = Captured()
    yield captured
    captured.pipes.close()
    assert all(pipe.closed for pipe in captured.read_ends)
    for source in tuple(captured.write_ends):
        captured.hang_up(source)


async def test_lines_come_as_they_are_written(captured: Captured) -> None:
    captured.write("stdout", b"one\n")
    await captured.until("one\n")
    captured.write("stderr", b"two\nthree\n")
    await captured.until("three\n")
    assert captured.heard == [("stdout", "one\n"), ("stderr", "two\nthree\n")]


async def test_line_in_pieces_is_whole(captured: Captured) -> None:
    stdout, stderr = captured.pipes._pipes
    captured.write("stdout", b"a l")
    captured.write("stderr", b"first\n")
    captured.pipes._on_readable(stdout)
    captured.pipes._on_readable(stderr)
    captured.write("stdout", b"ine\nand")
    captured.pipes._on_readable(stdout)
    assert captured.heard == [("stderr", "first\n"), ("stdout", "a line\n")]


async def test_a10_line_without_an_end_comes_soon(captured: Captured) -> None:
    captured.write("stdout", b"a li")
    await captured.until("a li")
    captured.write("stdout", b"ne\nnext " + "é".encode()[:1])
    await captured.until("next ")
    captured.write("stdout", "é".encode()[1:])
    await captured.until("é")
    assert captured.text == "a line\nnext é"


async def test_characters_in_pieces_are_whole(captured: Captured) -> None:
    for byte in "größe ☃\n".encode():
        captured.write("stdout", bytes([byte]))
        captured.pipes._on_readable(captured.pipes._pipes[0])
    assert captured.text == "größe ☃\n"


async def test_bytes_that_are_no_text(captured: Captured) -> None:
    captured.write("stdout", b"\xff\xfe\n")
    await captured.until("\n")
    assert captured.text == "��\n"


async def test_drain_takes_all_that_is_there(captured: Captured) -> None:
    """Also what has no end yet, and more than one read brings."""
    captured.write("stdout", b"x" * 60_000 + b"\nlast")
    captured.write("stderr", b"warning\n")
    captured.pipes.drain()
    assert captured.heard == [("stdout", "x" * 60_000 + "\n"), ("stderr", "warning\n"), ("stdout", "last")]


async def test_drain_of_nothing(captured: Captured) -> None:
    captured.pipes.drain()
    captured.pipes.drain()
    assert captured.heard == []


async def test_drain_lets_go_of_half_a_character(captured: Captured) -> None:
    """What belongs to one prediction must not begin the log of the next."""
    captured.write("stdout", "é".encode()[:1])
    captured.pipes.drain()
    captured.write("stdout", "é".encode()[1:])
    captured.pipes.drain()
    assert captured.text == "��"


async def test_drain_does_not_follow_a_flood(captured: Captured) -> None:
    """A subprocess that never stops writing must not hold up the end of a prediction, nor the server."""
    program = "import os\nwhile True: os.write(1, b'flood\\n' * 10_000)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=captured.write_ends["stdout"]) as flood:  # noqa: ASYNC220
        await captured.until("flood\n")
        for _ in range(20):
            before = len(captured.text)
            captured.pipes.drain()
            assert len(captured.text) - before <= 2**20
        flood.kill()


async def test_line_without_an_end_is_let_out_in_time(captured: Captured) -> None:
    """Memory has a limit, though a line has none."""
    piece = b"x" * 60_000
    written = 0
    while not captured.heard:
        captured.write("stdout", piece)
        written += len(piece)
        assert written < 10_000_000
        captured.pipes._on_readable(captured.pipes._pipes[0])
    assert len(captured.text) <= written
    assert len(captured.text) > 4 * 1024 * 1024


async def test_end_of_one_pipe_is_not_the_end_of_the_other(captured: Captured) -> None:
    captured.write("stdout", b"bye")
    captured.hang_up("stdout")
    await captured.until("bye")
    assert captured.read_ends[0].closed
    captured.write("stderr", b"still here\n")
    captured.pipes.drain()
    assert captured.heard == [("stdout", "bye"), ("stderr", "still here\n")]


async def test_last_words_on_both_pipes_are_drained(captured: Captured) -> None:
    """As a dying worker leaves them: a traceback on one, and both closed."""
    captured.write("stdout", b"so far\n")
    captured.write("stderr", b"Fatal Python error")
    captured.hang_up("stdout")
    captured.hang_up("stderr")
    captured.pipes.drain()
    assert captured.heard == [("stdout", "so far\n"), ("stderr", "Fatal Python error")]


async def test_close_lets_out_the_rest_and_gives_everything_back(captured: Captured) -> None:
    captured.write("stdout", b"half")
    captured.pipes._on_readable(captured.pipes._pipes[0])
    captured.pipes.close()
    assert captured.heard == [("stdout", "half")]
    assert all(pipe.closed for pipe in captured.read_ends)
    captured.pipes.close()
    captured.pipes.drain()


async def test_close_before_there_was_a_loop() -> None:
    stdout, out = a_pipe()
    stderr, err = a_pipe()
    OutputPipes(stdout, stderr, lambda *_: None).close()
    assert stdout.closed
    assert stderr.closed
    os.close(out)
    os.close(err)


async def test_a_bar_shows_its_last_state_before_its_end(captured: Captured) -> None:
    for percent in range(200):
        captured.write("stderr", f"\r{percent}%█".encode())
    await captured.until("199%█")
    assert str(Printed(captured.text)) == "199%█"
    captured.write("stderr", b"\ndone\n")
    await captured.until("done\n")
    assert str(Printed(captured.text)) == "199%█\ndone\n"


async def test_drain_delivers_what_is_held_of_a_bar(captured: Captured) -> None:
    captured.write("stderr", b"\r 1%")
    await captured.until(" 1%")
    captured.write("stderr", "\r 2%█".encode()[:-1])  # within a character
    captured.write("stdout", b"plain\n")
    captured.pipes.drain()
    assert str(Printed(captured.text.replace("plain\n", ""))) == " 2%\ufffd"
    assert ("stdout", "plain\n") in captured.heard
