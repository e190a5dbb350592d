"""Somebody who reads a page of the documentation and does what it says."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.docs.excused import COUNTED, NOT_COMPARED, NOT_RUN
from tests.docs.matching import count_nothing, is_as_shown, normalise
from tests.docs.plays import PLAYS, Play, Script, Shown
from tests.docs.terminal import PATIENCE, Terminal
from tests.support.pages import ROOT, Block, Command, blocks, commands

SHELL: Final = ("bash", "console", "sh", "shell")
OUTPUT: Final = ("", "json", "text")

_STOPS: Final = re.compile(r'^Stopping\.$|"message":"stopping"')  # what a server says when Ctrl-C ends it


def excuse(excuses: dict[tuple[str, str], str], page: str, text: str) -> str | None:
    """Return the beginning by which a command or a block is excused."""
    return next((start for of, start in excuses if of == page and text.startswith(start)), None)


def is_shell(block: Block) -> bool:
    return block.language in SHELL or (block.language == "" and block.text.startswith("$ "))


def asks(command: str) -> bool:
    """Whether a command only asks how things are. What goes on meanwhile may take its time, so it is given again."""
    if "repository/index" in command:
        return True
    return "curl" in command and not re.search(r" (-X|-d|-F|--json|--data\S*|-o|-m) ", command)


def is_compared(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed."""
    if shown.startswith(("{", "[")):
        try:
            return json.dumps(json.loads(normalise(shown))) == json.dumps(json.loads(normalise(printed)))
        except ValueError:
            pass
    if "listening" in shown or "Ctrl-C stops." in shown:  # of several models, whatever is ready first says so first
        shown, printed = ("\n".join(sorted(normalise(text).splitlines())) for text in (shown, printed))
    return is_as_shown(shown, printed)


class Reader:
    """Somebody who reads a page and does what it says."""

    def __init__(self, page: str, folder: Path, *, writes: bool = False) -> None:
        """`writes` puts what is printed into the page, where it is not as shown."""
        self.page = page
        self.writes = writes
        self.added = 0  # lines
        self.play = PLAYS.get(page, Play())
        self.terminal = Terminal(folder)
        self.waiting = dict(self.play.before)

    def read(self) -> None:
        try:
            self.play.prepare(self.terminal)
            self._write_files()
            found = blocks(self.page)
            python = 0
            for block, after in zip(found, (*found, Block("none", "", 0))[1:], strict=True):
                if block.language == "python":
                    self._read_python(block, self.play.python.get(python), after)
                    python += 1
                elif is_shell(block) and excuse(NOT_RUN, self.page, block.text) is None:
                    self._read_shell(block, after)
            for command in self.play.afterwards:
                self._carry_out(Command(command, ""), Block("sh", command, 0))
        finally:
            self.terminal.close()

    def _write_files(self) -> None:
        named = {("python", number): name for number, name in self.play.python.items() if isinstance(name, str)}
        counts = Counter[str]()
        for block in blocks(self.page):
            if name := {**named, **self.play.files}.get((block.language, counts[block.language])):
                path = self.terminal.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            counts[block.language] += 1

    def _read_python(self, block: Block, action: str | Script | Shown | None, after: Block) -> None:
        if excuse(NOT_RUN, self.page, block.text) is not None:
            return
        assert action, f"{self.page}:{block.line}: nothing is done with this block: see tests/docs/plays.py"
        if isinstance(action, Shown):
            shown = (ROOT / action.path).read_text(encoding="utf-8")
            assert shown.endswith(block.text), f"{action.path} is not as {self.page} shows it"
        elif isinstance(action, Script):
            self._prepare(block.text)
            (self.terminal.folder / "snippet.py").write_text(action.before + block.text)
            shown = after.text if after.language == "" and not is_shell(after) else ""
            self._carry_out(Command("python snippet.py", shown), block)

    def _read_shell(self, block: Block, after: Block) -> None:
        for command in commands(block):
            shown = command.shown
            if not block.text.startswith("$ ") and after.language in OUTPUT and not is_shell(after):
                shown = after.text if command == commands(block)[-1] else ""
            if excuse(NOT_RUN, self.page, f"{command.text}\n") is None:
                self._carry_out(Command(command.text, shown), block)

    def _prepare(self, text: str) -> None:
        for start in [start for start in self.waiting if text.startswith(start)]:
            for command in self.waiting.pop(start):
                self.terminal.do(command)

    def _carry_out(self, command: Command, block: Block) -> None:
        self._prepare(f"{command.text}\n{command.shown}")
        place = f"{self.page}:{block.line}: {command.text}"
        shown = "" if excuse(NOT_COMPARED, self.page, f"{command.text}\n") is not None else command.shown
        printed = self._printed(command.text, shown)
        if shown and self.writes and not self._is_compared(command.text, shown, printed):
            self._write(block, command.shown, printed)
        elif shown:
            assert self._is_compared(command.text, shown, printed), (
                f"{place}\n--- shown\n{normalise(shown)}\n--- printed\n{normalise(printed)}"
            )
        elif not block.text.startswith("$ "):
            assert self.terminal.status == 0, f"{place}\n{printed}"

    def _printed(self, command: str, shown: str) -> str:
        """Give a command, and return what it prints; one that only asks is given until the answer is as shown."""
        if asks(command):
            command = re.sub(r"^sleep [\d.]+; ", "", command)
        running = "".join(line for line in shown.splitlines(keepends=True) if not _STOPS.search(line))
        wanted = shown and not self.writes and not any(command.startswith(start) for start in self.play.meanwhile)
        printed = self.terminal.do(command, shown, (lambda text: is_compared(running, text)) if wanted else None)
        for start in [start for start in self.play.meanwhile if command.startswith(start)]:
            printed = self._watched(self.play.meanwhile[start], running)
        deadline = time.monotonic() + PATIENCE
        while (
            shown and asks(command) and not self._is_compared(command, shown, printed) and time.monotonic() < deadline
        ):
            printed = self.terminal.do(command)
        return printed if running == shown else self.terminal.stop()

    def _is_compared(self, command: str, shown: str, printed: str) -> bool:
        if excuse(COUNTED, self.page, f"{command}\n") is not None:
            shown, printed = count_nothing(shown), count_nothing(printed)
        return is_compared(shown, printed)

    def _watched(self, meanwhile: tuple[str, ...], shown: str) -> str:
        """Give commands while a server runs, and return what it prints until it is as shown."""
        for command in meanwhile:
            self.terminal.do(command)
        deadline = time.monotonic() + PATIENCE
        while not is_compared(shown, self.terminal.printed()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.terminal.printed()

    def _write(self, block: Block, shown: str, printed: str) -> None:
        path = ROOT / self.page
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = block.line + self.added
        end = shown[len(shown.rstrip("\n")) :]
        rest = "".join(lines[found:]).replace(shown, printed.strip("\n") + end, 1)
        path.write_text("".join(lines[:found]) + rest, encoding="utf-8")
        self.added += len(rest.splitlines()) - len(lines[found:])
