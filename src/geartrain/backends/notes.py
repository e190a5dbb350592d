"""Notes of a backend about a load that went well, for the log of the model's setup."""

from __future__ import annotations

import sys


def note(sentence: str) -> None:
    """Write one line to the log."""
    sys.stderr.write(f"{sentence}\n")
