"""Activity of a command at a terminal: a line with a spinner, the time and the download."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.progress import Progress as Display
from rich.text import Text

from geartrain.domain.printed.text import MOVES_UP

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MEGABYTE = 1_000_000


class Activity:
    """A step at a time, below what the model prints.

    A line that the model leaves open, such as a progress bar of its own, replaces the command's until it is closed;
    several bars, below each other, do so until the step ends.
    On a terminal that cannot move its cursor there is only what the model prints.
    """

    def __init__(self, console: Console, step: str, *, began: float | None = None) -> None:
        """`began` is the time of the step's begin by `time.monotonic()`; now by default."""
        self._console = console
        self._files: dict[str, tuple[int, int | None]] = {}
        self._tasks: dict[str, TaskID] = {}
        self._display: Display | None = None
        self._is_mid_line = False
        self._moves_up = False  # the model, in this step: there may be text of its below the cursor
        self._has_ended = False
        self._is_withdrawn = False
        self._step, self._began = step, time.monotonic() if began is None else began
        self._show()

    def step(self, step: str) -> None:
        """Begin the next step; a no-op after the end."""
        self._step, self._began = step, time.monotonic()
        self._files.clear()
        self._is_withdrawn = False
        self._moves_up = False
        self._hide()
        self._show()

    def add_text(self, text: str) -> None:
        """Show what the model has written."""
        if self._display is not None and text.endswith("\n"):
            for line in text[:-1].split("\n"):
                self._console.print(Text.from_ansi(line), soft_wrap=True)
            return
        self._hide()
        self._console.file.write(text)
        self._console.file.flush()
        self._is_mid_line = not text.endswith("\n") if text else self._is_mid_line
        self._moves_up = self._moves_up or MOVES_UP.search(text) is not None
        self._show()

    def add_bytes(self, file: str, size: int, total: int | None) -> None:
        """Show that `size` bytes of a file have come, of `total` if that is known. With the last of them it goes."""
        if size == total:
            self._files.pop(file, None)
            if self._display is not None and file in self._tasks:
                self._display.remove_task(self._tasks.pop(file))
            return
        self._files[file] = (size, total)
        if self._display is None:
            return
        if file not in self._tasks:
            self._add_row(self._display, file)
        self._display.update(self._tasks[file], completed=size, total=total)

    def withdraw(self) -> None:
        """Show nothing of this step any more: a debugger has the terminal, and will soon have it again."""
        self._is_withdrawn = True
        self._hide()

    def end(self) -> None:
        """Leave nothing but what the model has written; a no-op the second time."""
        self._has_ended = True
        self._hide()
        if self._is_mid_line:
            self._is_mid_line = False
            self._console.file.write("\n")
            self._console.file.flush()

    def _show(self) -> None:
        if self._has_ended or self._is_withdrawn or self._is_mid_line or self._moves_up:
            return
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            return
        display = Display(
            SpinnerColumn(), _What(), _Bar(), _HowMuch(), console=self._console, transient=True, redirect_stdout=False
        )
        display.add_task(self._step, total=None, began=self._began)
        for file in self._files:
            self._add_row(display, file)
        self._display = display
        display.start()

    def _add_row(self, display: Display, file: str) -> None:
        size, total = self._files[file]
        self._tasks[file] = display.add_task(file, completed=size, total=total, began=None)

    def _hide(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None
            self._tasks.clear()


class _What(ProgressColumn):
    def render(self, task: Task) -> Text:
        began = task.fields["began"]
        if began is None:
            return Text(task.description)
        return Text.assemble(f"{task.description} ", (f"{time.monotonic() - began:.1f} s", "cyan"))


class _Bar(BarColumn):
    def render(self, task: Task) -> RenderableType:  # type: ignore[override]
        return Text() if task.fields["began"] is not None else super().render(task)


class _HowMuch(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.fields["began"] is not None:
            return Text()
        size = f"{task.completed / _MEGABYTE:.1f}"
        return Text(f"{size} MB" if task.total is None else f"{size}/{task.total / _MEGABYTE:.1f} MB", style="cyan")
