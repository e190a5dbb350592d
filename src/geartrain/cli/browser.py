"""Opens the page of a server in the browser of the person who has started it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

from geartrain.cli import logs

_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


def open_page(url: str) -> None:
    """Open a URL if there is a person at a terminal, and a display; returns at once."""
    if logs.is_terminal(sys.stderr) and _has_display() and url.startswith(("http://", "https://")):
        threading.Thread(target=_open, args=(url,), name="geartrain-browser", daemon=True).start()


def _has_display() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)


def _open(url: str) -> None:
    import webbrowser  # it looks for browsers when it is imported

    webbrowser.open(url)
