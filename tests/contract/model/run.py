"""A model that does what it is told: its input is a script. The fake worker and real ones run the same.

A script is JSON, a list of steps `[word, argument, …]`. What it gives is streamed by the runners that
stream; the others return what was given last.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path as LocalPath
from typing import Any

import geartrain

Wait = Callable[[str], Awaitable[None]]


async def wait_on_loop(gate: str) -> None:
    """Wait until a gate opens, `""` for ever."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()
    if not gate:
        await opened
    fd = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    loop.add_reader(fd, _open, opened)
    try:
        await opened
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _open(gate: asyncio.Future[None]) -> None:
    if not gate.done():
        gate.set_result(None)


async def wait_in_place(gate: str) -> None:
    """As `wait_on_loop`, and without a loop: blocks."""
    if not gate:
        select.select([], [], [])
    fd = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    try:
        select.select([fd], [], [])
    finally:
        os.close(fd)


def say(text: str, source: str) -> None:
    """Print; the fake worker has its own."""
    print(text, end="", file=sys.stdout if source == "stdout" else sys.stderr)


def write_file(path: str, content: str) -> geartrain.Path:
    """Make a file."""
    LocalPath(path).write_text(content, encoding="utf-8")
    return geartrain.Path(path)


def read_file(path: LocalPath | None) -> str | None:
    """The content of a file, if there is one."""
    return None if path is None else path.read_text(encoding="utf-8")


class _Scripted(geartrain.BaseRunner):
    wait: Wait
    say = staticmethod(say)

    async def play(self, script: str, image: LocalPath | None) -> AsyncIterator[Any]:
        """Do the steps of a script."""
        for word, *arguments in json.loads(script):
            match word:
                case "give":
                    yield arguments[0]
                case "give a file":
                    yield write_file(*arguments)
                case "give the image":
                    yield read_file(image)
                case "raise":
                    raise ValueError(arguments[0])
                case "exit":
                    sys.exit(arguments[0])
                case "say" | "cry" | "metric" | "open":
                    self.tell(word, *arguments)
                case _:
                    await self.pause(word, *arguments)

    def tell(self, word: str, text: str, *arguments: Any) -> None:
        """The steps that take no time."""
        match word:
            case "say":
                self.say(text, "stdout")
            case "cry":
                self.say(text, "stderr")
            case "metric":
                self.record_metric(text, *arguments)
            case _:  # a gate
                LocalPath(text).write_bytes(b"x")

    async def pause(self, word: str, gate: str = "", text: str = "") -> None:
        """The steps that take time; `text` is said when a cancel would be dealt with as the step says."""
        wait = type(self).wait
        try:
            self.say(text, "stdout")
            await wait(gate if word == "wait" else "")
        except (asyncio.CancelledError, geartrain.CancelationException):
            if word in {"wait", "for ever"}:
                raise
            if word == "tidy":  # when canceled, until a gate opens
                self.say("tidying\n", "stdout")
                await wait(gate)
                raise
            if word == "raise instead":  # of the cancel
                raise ValueError("something else") from None
            # "swallow" the cancel


class AsyncStream(_Scripted):
    """Streams, on a loop."""

    wait = staticmethod(wait_on_loop)

    async def run(self, script: str, image: geartrain.Path | None = None) -> AsyncIterator[Any]:
        """Do what the script says."""
        async for value in self.play(script, image):
            yield value


class AsyncValue(_Scripted):
    """Returns one value, on a loop."""

    wait = staticmethod(wait_on_loop)

    async def run(self, script: str, image: geartrain.Path | None = None) -> Any:
        """Do what the script says."""
        value = None
        async for given in self.play(script, image):
            value = given
        return value


class SyncStream(_Scripted):
    """Streams, without a loop."""

    wait = staticmethod(wait_in_place)

    def run(self, script: str, image: geartrain.Path | None = None) -> Iterator[Any]:
        """Do what the script says."""
        steps = self.play(script, image)
        while True:
            try:
                steps.__anext__().__await__().__next__()  # it never waits, so it ends here
            except StopIteration as given:
                yield given.value
            except StopAsyncIteration:
                return


class SyncValue(SyncStream):
    """Returns one value, without a loop."""

    def run(self, script: str, image: geartrain.Path | None = None) -> Any:
        """Do what the script says."""
        value = None
        for given in super().run(script, image):
            value = given
        return value
