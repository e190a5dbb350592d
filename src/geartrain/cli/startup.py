"""Start-up progress reporters for a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from geartrain.cli import logs
from geartrain.domain.printed.text import PrintedLines, is_plain
from geartrain.project.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from geartrain.cli.activity import Activity
    from geartrain.cli.console import RepositoryView, ServeView
    from geartrain.project.source import ModelSource
    from geartrain.server import Progress


class LoggedView:
    """Steps of a server as records of the log, for a machine."""

    def __init__(self) -> None:
        from geartrain.server import ProgressLog  # late: the server is imported after the checks of options

        self._log = ProgressLog()

    def __call__(self, progress: Progress) -> None:
        """Log one step."""
        self._log(progress)

    def withdraw(self) -> None:
        """Leave nothing that moves, for a debugger that has the terminal: nothing does."""


class ServeObserver:
    """Remembers which setups failed, and shows the steps of a start `for_person`, or else logs them.

    The view for a person is made at the first step, when the worker is on its way: rich takes time to import.
    """

    def __init__(
        self,
        source: ModelSource | Repository,
        *,
        for_person: bool,
        on_listening: Callable[[str], object] = lambda _url: None,
    ) -> None:
        """`on_listening` is called with the URL of the server."""
        self._on_listening = on_listening
        self._is_held = False
        self._waiting: list[Progress] = []
        self._failed: set[tuple[str, str]] = set()
        self._source = source
        self._began = time.monotonic()
        self._view: LoggedView | RepositoryView | ServeView | None = None
        self._for_person = for_person

    @property
    def has_failed(self) -> bool:
        """True if the latest setup of any model has failed."""
        return bool(self._failed)

    def __call__(self, progress: Progress) -> None:
        """Take one step."""
        if progress.stage == "setup-failed":
            self._failed.add((progress.model, progress.version))
        elif progress.stage in {"ready", "unloaded"}:
            self._failed -= {(progress.model, progress.version), (progress.model, "")}
        elif progress.stage == "listening":
            self._on_listening(progress.url)
        if self._is_held:
            self._waiting.append(progress)
        else:
            self._show(progress)

    def settle(self) -> None:
        """Nothing is on its way: all is shown at once."""

    def hold(self) -> None:
        """Show nothing from now on: a debugger has the terminal."""
        self._is_held = True
        if self._view is not None:
            self._view.withdraw()

    def release(self) -> None:
        """Show what has waited, and go on."""
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for progress in waiting:
            self._show(progress)

    def _show(self, progress: Progress) -> None:
        if self._view is None:
            self._view = self._new_view()
        self._view(progress)

    def _new_view(self) -> LoggedView | RepositoryView | ServeView:
        if not self._for_person:
            return LoggedView()
        from geartrain import __version__
        from geartrain.cli.console import RepositoryView, ServeView

        if isinstance(self._source, Repository):
            return RepositoryView(self._source, __version__, began=self._began)
        return ServeView(self._source, __version__, began=self._began)


class RunObserver:
    """Shows one prediction up to its output: busy with what for how long for a person, else only what is printed.

    While a debugger has the terminal, what is to be shown waits.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._activity: Activity | None = None
        self._file = _FileText()
        self._is_held = False
        self._waiting: list[Callable[[], None]] = []

    def begin(self, step: str = "") -> None:
        """Setup begins, or another step."""
        if logs.is_terminal(sys.stderr):
            from rich.console import Console

            from geartrain.cli.activity import Activity  # late: the worker starts while this is imported

            self._activity = Activity(Console(stderr=True, highlight=False), step or f"Setting up {self._name}")

    def __call__(self, progress: Progress) -> None:
        """Show what setup wrote."""
        if progress.stage == "setup-output":
            self.add_text(progress.text)

    def step(self, step: str) -> None:
        """Setup is over, and something else begins."""
        if self._activity is not None:
            self._activity.step(step)

    def settle(self) -> None:
        """Nothing is on its way: all is shown at once."""

    def hold(self) -> None:
        """Show nothing from now on."""
        self._is_held = True
        if self._activity is not None:
            self._activity.withdraw()

    def release(self) -> None:
        """Show what has waited, and go on."""
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for show in waiting:
            show()

    def add_text(self, text: str) -> None:
        """Show what the model wrote."""
        if self._is_held:
            self._waiting.append(lambda: self.add_text(text))
        elif self._activity is not None:
            self._activity.add_text(text)
        else:
            self._file.write(text)

    def add_bytes(self, file: str, size: int, total: int | None) -> None:
        """Show how far the download of an input's file has come."""
        if self._activity is not None and not self._is_held:
            self._activity.add_bytes(file, size, total)

    def leave_stdout(self) -> None:
        """Clear the line of the step: output is about to be written, perhaps on the same terminal."""
        if self._activity is not None and logs.is_terminal(sys.stdout):
            self.end()

    def end(self) -> None:
        """Output begins, or there will be none."""
        if self._activity is not None:
            self._activity.end()
            self._activity = None
        self._file.end()


class _FileText:
    """Stderr that is no terminal: of a progress bar it has only the last state, in a line."""

    def __init__(self) -> None:
        self._lines = PrintedLines()
        self._has_bars = False

    def write(self, text: str) -> None:
        """Write what is complete, and up to the first progress bar everything."""
        self._has_bars = self._has_bars or not is_plain(text)
        self._show(self._lines.add(text) if self._has_bars else (), text)

    def end(self) -> None:
        """Write what is left."""
        self._show(self._lines.end(), "")
        self._has_bars = False

    def _show(self, lines: Iterable[str], text: str) -> None:
        sys.stderr.write("".join([f"{line}\n" for line in lines]) if self._has_bars else text)
        sys.stderr.flush()
