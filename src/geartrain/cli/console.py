"""Start of a model at a terminal: setup with its output and the time, then the URLs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from geartrain.cli.activity import Activity
from geartrain.server import DownloadLines, ProgressLines

if TYPE_CHECKING:
    from geartrain.project.repository import Repository
    from geartrain.project.source import ModelSource
    from geartrain.server import Progress

_STEPS = {
    "ready": ("ready", "green"),
    "setup-failed": ("setup failed", "bold red"),
    "reload-failed": ("not reloaded", "bold red"),
    "unloaded": ("unloaded", "dim"),
}
_OTHERS = {"listening-admin": "Admin", "listening-grpc": "gRPC"}
_ANY_ADDRESS = re.compile(r"^(https?://|)(?:0\.0\.0\.0|\[::\]):")


class ServeView:
    """The start of `geartrain serve`: call it with each step that the server reports."""

    def __init__(self, source: ModelSource, version: str, *, began: float) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._source = source
        self._began = began
        self._url = ""
        self._others: dict[str, str] = {}  # the addresses besides that of HTTP, by what they are
        self._slots = 0  # of the model, once it is ready
        self._is_settled = False  # so that all addresses are known
        self._is_ready = False  # and the person has been told of it, with the addresses
        title = Text.assemble(("geartrain ", "bold"), version, "  ", (source.name, "bold cyan"), "  ")
        if not source.is_pending:
            title.append(str(source.file or source.root / source.runner), style="dim")
        self._console.print(title, soft_wrap=True)
        self._setup = Activity(self._console, f"Setting up {source.name}", began=began)

    def __call__(self, progress: Progress) -> None:
        """Show one step."""
        match progress.stage:
            case "listening":
                self._url = reachable(progress.url)
            case "listening-admin" | "listening-grpc":
                self._others[_OTHERS[progress.stage]] = reachable(progress.url)
            case "settled":
                self._is_settled = True
                self._show_start()
            case "downloading":
                self._setup.add_bytes(progress.source, progress.bytes, progress.total_bytes or None)
            case "setup-output":
                self._setup.add_text(progress.text)
            case "ready":
                self._on_ready(progress.slots)
            case "reload-failed":
                text = Text.assemble(("Not reloaded: ", "bold red"), progress.text)
                self._console.print(text, soft_wrap=True)
            case "setup-failed":
                self._setup.end()
                self._console.print(Text.assemble(("Setup failed: ", "bold red"), _reason(progress)), soft_wrap=True)
                self._hint(f"{self._url}/health-check keeps the details. Ctrl-C stops.")
            case "stopping":
                self._setup.end()
                self._hint("Stopping.")

    def withdraw(self) -> None:
        """Leave nothing that moves: a debugger has the terminal."""
        self._setup.withdraw()

    def _on_ready(self, slots: int) -> None:
        if self._is_ready:
            self._console.print(Text.assemble(("Reloaded", "bold green"), f", {_count(slots, 'slot')}"))
            return
        self._setup.end()
        self._slots = slots
        self._show_start()

    def _show_start(self) -> None:
        """Show that the model is ready, and where. A training is ready after the server has settled."""
        if not (self._slots and self._is_settled):
            return
        after = f" after {time.monotonic() - self._began:.1f} s, {_count(self._slots, 'slot')}"
        self._console.print(Text.assemble(("Ready", "bold green"), after))
        source = self._source
        for name, address, is_there in (
            ("Predict", f"POST {self._url}/predictions", source.mode == "predict"),
            ("Train", f"POST {self._url}/trainings", source.mode == "train" or source.train is not None),
            *((name, address, True) for name, address in self._others.items()),
            ("Page", f"{self._url}/", True),
            ("Docs", f"{self._url}/docs", True),
            ("Health", f"{self._url}/health-check", True),
        ):
            if is_there:
                self._show(name, address)
        self._is_ready = True
        self._hint("Ctrl-C stops.")

    def _show(self, name: str, address: str) -> None:
        self._console.print(Text.assemble((f"  {name:8}", "dim"), address), soft_wrap=True)

    def _hint(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="dim"), soft_wrap=True)


class RepositoryView:
    """The life of the models of `geartrain serve` with a folder of them: a line for each step of each."""

    def __init__(self, repository: Repository, version: str, *, began: float) -> None:
        self._began = began
        self._are_ready: dict[tuple[str, str], bool] = {}  # by model and version; False: its setup has failed
        self._lines = ProgressLines()
        self._downloads = DownloadLines()
        self._console = Console(stderr=True, highlight=False)
        count = _count(len(repository.names()), "model")
        title = Text.assemble(("geartrain ", "bold"), version, "  ", (count, "bold cyan"), "  ")
        self._print(title.append(str(repository.root), style="dim"))

    def __call__(self, progress: Progress) -> None:
        """Show one step."""
        if self._downloads.is_due(progress):
            for step in self._lines.of(progress):
                self._show(step)

    def withdraw(self) -> None:
        """Nothing of it moves."""

    def _show(self, progress: Progress) -> None:
        match progress.stage:
            case "listening":
                url = reachable(progress.url)
                for label, path in (("Models", "models"), ("Page", ""), ("Docs", "docs"), ("Health", "health-check")):
                    self._show_address(label, f"{url}/{path}")
            case "listening-admin" | "listening-grpc":
                self._show_address(_OTHERS[progress.stage], reachable(progress.url))
            case "downloading":
                self._tell(progress, ("  ", "dim"), progress.text)
            case "setup-output":
                for line in progress.text.splitlines():
                    self._tell(progress, ("  | ", "dim"), line)
            case "stopping":
                self._print(Text("Stopping.", style="dim"))
            case "settled":
                self._show_count()
                self._print(Text("Ctrl-C stops.", style="dim"))
            case stage if stage in _STEPS:
                self._show_model(progress)

    def _show_address(self, label: str, address: str) -> None:
        self._print(Text.assemble((f"  {label:8}", "dim"), address))

    def _show_model(self, progress: Progress) -> None:
        is_ready = progress.stage == "ready"
        if is_ready or progress.stage == "setup-failed":
            self._are_ready[progress.model, progress.version] = is_ready
        word, style = _STEPS[progress.stage]
        slots, reason = f", {_count(progress.slots, 'slot')}", progress.text and f": {_reason(progress)}"
        self._tell(progress, (f"  {word}", style), slots if is_ready else reason)

    def _show_count(self) -> None:
        ready, count = sum(self._are_ready.values()), len(self._are_ready)
        if count:
            style = "bold green" if ready == count else "bold red"
            after = f" after {time.monotonic() - self._began:.1f} s"
            self._print(Text.assemble((f"{ready} of {count} ready", style), after))

    def _tell(self, progress: Progress, what: tuple[str, str], rest: str) -> None:
        name = (progress.model, "cyan")
        version = (f" {progress.version}" if progress.version else "", "dim")
        self._print(Text.assemble(name, version, what, rest))

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


def _reason(progress: Progress) -> str:
    """Return the reason of a failure behind words that name the step already."""
    return progress.text.removeprefix("setup() failed: ")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def reachable(url: str) -> str:
    """Turn the address that means every interface into one that a person can open."""
    return _ANY_ADDRESS.sub(r"\1localhost:", url)
