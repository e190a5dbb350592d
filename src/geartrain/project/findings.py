"""Findings of `geartrain doctor` about a model."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at. With an error the model cannot run as it is; `fix` says what to do."""

    level: Level
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warning(text: str, fix: str = "") -> Finding:
    """It works, but perhaps not as intended."""
    return Finding("warning", text, fix)


def error(text: str, fix: str = "") -> Finding:
    """It cannot work."""
    return Finding("error", text, fix)


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` may be a misspelling of."""
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1)), None)
