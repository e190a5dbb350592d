"""The blocks of code in a page of the documentation, and the commands in them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that it begins in."""

    language: str
    text: str
    line: int

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


@dataclass(frozen=True)
class Command:
    """A command of a block, and what the block shows of its output: "" for nothing."""

    text: str
    shown: str


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the blocks of a page, given relative to the root of the repository."""
    return tuple(_blocks((ROOT / page).read_text(encoding="utf-8")))


def sources(page: str, language: str) -> list[str]:
    """Return the texts of the blocks of a page in a language."""
    return [block.text for block in blocks(page) if block.language == language]


def _blocks(text: str) -> Iterator[Block]:
    fence, language, line, lines = "", "", 0, list[str]()
    for number, each in enumerate(text.splitlines(), start=1):
        words = each.strip()
        if fence:
            if words == fence:
                yield Block(language, "".join(f"{inner}\n" for inner in lines), line)
                fence = ""
            else:
                lines.append(each)
        elif words.startswith("```"):
            fence = words[: len(words) - len(words.lstrip("`"))]
            language, line, lines = words.lstrip("`").strip(), number, []


def commands(block: Block) -> list[Command]:
    """Return the commands of a block: after each `$` with its output, or all lines of a block that shows none."""
    if not block.text.startswith("$ "):
        return [Command(text, "") for text in _statements(block.text.splitlines(keepends=True))]
    found: list[Command] = []
    for chunk in ("\n" + block.text).split("\n$ ")[1:]:
        lines = chunk.splitlines(keepends=True)
        text = next(_statements(lines))
        found.append(Command(text, "".join(lines[text.count("\n") + 1 :])))
    return found


def _statements(lines: list[str]) -> Iterator[str]:
    """Yield statements of the shell: a line, with those after it as long as a quote or a `\\` is open."""
    begun = ""
    for line in lines:
        begun += line
        if not begun.strip():
            begun = ""
        elif not begun.endswith("\\\n") and _is_whole(begun):
            yield begun.rstrip("\n")
            begun = ""


def _is_whole(text: str) -> bool:
    if not any(mark in text for mark in "'\"({<"):
        return True
    return subprocess.run(["bash", "-n", "-c", text], check=False, capture_output=True).returncode == 0
