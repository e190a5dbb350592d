"""Who gets the terminal, and when."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from geartrain.bridge.borrowing import Prompt
from geartrain.server.lending import TerminalLender


class Screen:
    def __init__(self) -> None:
        self.story: list[str] = []

    def settle(self) -> None:
        self.story.append("settle")

    def hold(self) -> None:
        self.story.append("hold")

    def release(self) -> None:
        self.story.append("release")


class Borrower(Prompt):
    def __init__(self, pid: int = 0) -> None:
        super().__init__(1, pid, lambda _: None)
        self.is_answered = asyncio.Event()
        self.reasons: list[str] = []

    def on_lent(self) -> None:
        self.is_answered.set()

    def on_refused(self, reason: str) -> None:
        self.reasons.append(reason)
        self.is_answered.set()


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def lender(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> Iterator[TerminalLender]:
    """One whose terminal is in the foreground."""
    ours, theirs = os.openpty()
    monkeypatch.setattr("geartrain.server.lending.os.tcgetpgrp", lambda _fd: os.getpgrp())
    yield TerminalLender(theirs, screen)
    os.close(ours)
    os.close(theirs)


async def answered(borrower: Borrower) -> None:
    async with asyncio.timeout(40):
        await borrower.is_answered.wait()


async def test_screen_is_silent_from_the_answer_to_the_end(lender: TerminalLender, screen: Screen) -> None:
    borrower = Borrower()
    lender.lend(borrower)
    assert not borrower.is_answered.is_set(), "what was printed before is shown first"
    await answered(borrower)
    assert screen.story == ["settle", "hold"]
    lender.take_back(borrower)
    assert screen.story == ["settle", "hold", "release"]
    lender.take_back(borrower)  # it has been taken back
    assert screen.story == ["settle", "hold", "release"]


async def test_borrowers_have_it_one_after_another(lender: TerminalLender) -> None:
    first, second, third = Borrower(), Borrower(), Borrower()
    for borrower in (first, second, third):
        lender.lend(borrower)
    await answered(first)
    lender.take_back(second)  # it does not wait any more
    assert not third.is_answered.is_set()
    lender.take_back(first)
    await answered(third)
    assert not second.is_answered.is_set()


async def test_terminal_is_as_it_was(lender: TerminalLender) -> None:
    import termios

    descriptor = lender.descriptor
    assert descriptor is not None
    before = termios.tcgetattr(descriptor)
    borrower = Borrower()
    lender.lend(borrower)
    await answered(borrower)
    changed = termios.tcgetattr(descriptor)
    assert changed[6][termios.VSUSP] == b"\0"  # Ctrl-Z would stop the command alone
    changed[3] &= ~termios.ECHO  # as readline has it, and a worker that is killed leaves it
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)
    lender.take_back(borrower)
    assert termios.tcgetattr(descriptor) == before


async def test_ctrl_c_is_for_who_has_the_terminal(lender: TerminalLender) -> None:
    assert not lender.interrupt()
    program = "import signal, sys; print('there', flush=True); signal.sigwait([signal.SIGINT])"
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]);"
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", block + program, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"there\n"
    borrower = Borrower(worker.pid)
    lender.lend(borrower)
    await answered(borrower)
    assert lender.interrupt()
    async with asyncio.timeout(40):
        assert await worker.wait() == 0
    assert lender.interrupt(), "it still has it, though it has gone"
    lender.take_back(borrower)
    assert not lender.interrupt()


async def test_command_in_the_background_lends_nothing(
    lender: TerminalLender, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain.server.lending.os.tcgetpgrp", lambda _fd: os.getpgrp() + 1)
    first, second = Borrower(), Borrower()
    lender.lend(first)
    lender.lend(second)
    await answered(first)
    await answered(second)
    assert "background" in first.reasons[0]
    assert first.reasons == second.reasons
    assert "hold" not in screen.story


async def test_command_that_ends_lends_nothing(lender: TerminalLender, screen: Screen) -> None:
    first, second = Borrower(), Borrower()
    lender.lend(first)
    lender.close()
    lender.lend(second)
    await answered(first)
    await answered(second)
    assert first.reasons == second.reasons == ["a debugger cannot ask: the command is about to end"]
    assert "hold" not in screen.story
    assert not lender.is_lent
