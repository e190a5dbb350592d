"""What a person at a terminal sees while a model starts: setup with its output and the time, then the URLs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from geartrain.cli.activity import Activity

if TYPE_CHECKING:
    from geartrain.project.source import ModelSource
    from geartrain.server import Progress

_ANY_ADDRESS = ("http://0.0.0.0:", "http://[::]:")


class ServeView:
    """The start of `geartrain serve`: call it with each step that the server reports."""

    def __init__(self, source: ModelSource, version: str, *, began: float) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._source = source
        self._began = began
        self._url = ""
        title = Text.assemble(("geartrain ", "bold"), version, "  ", (source.name, "bold cyan"), "  ")
        self._console.print(title.append(f"{source.root}/{source.runner}", style="dim"), soft_wrap=True)
        self._setup = Activity(self._console, f"Setting up {source.name}", began=began)

    def __call__(self, progress: Progress) -> None:
        """Show one step."""
        match progress.stage:
            case "listening":
                self._url = _reachable(progress.url)
            case "setup-output":
                self._setup.add_text(progress.text)
            case "ready":
                self._setup.end()
                self._show_ready(progress.slots)
            case "setup-failed":
                self._setup.end()
                self._console.print(Text.assemble(("Setup failed: ", "bold red"), progress.text), soft_wrap=True)
                self._hint(f"{self._url}/health-check keeps the details. Ctrl-C stops.")
            case "stopping":
                self._setup.end()
                self._hint("Stopping.")

    def _show_ready(self, slots: int) -> None:
        after = f" after {time.monotonic() - self._began:.1f} s, {slots} slot{'' if slots == 1 else 's'}"
        self._console.print(Text.assemble(("Ready", "bold green"), after))
        source = self._source
        for name, address, is_there in (
            ("Predict", f"POST {self._url}/predictions", source.mode == "predict"),
            ("Train", f"POST {self._url}/trainings", source.mode == "train" or source.train is not None),
            ("Docs", f"{self._url}/docs", True),
            ("Health", f"{self._url}/health-check", True),
        ):
            if not is_there:
                continue
            self._console.print(Text.assemble((f"  {name:8}", "dim"), address), soft_wrap=True)
        self._hint("Ctrl-C stops.")

    def _hint(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="dim"), soft_wrap=True)


def _reachable(url: str) -> str:
    """Turn the address that means every interface into one that a person can open."""
    for prefix in _ANY_ADDRESS:
        if url.startswith(prefix):
            return f"http://localhost:{url.removeprefix(prefix)}"
    return url
