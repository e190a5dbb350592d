"""Folders that a server writes to and deletes from while a test looks at them."""

from __future__ import annotations

import os
from pathlib import Path


def paths_below(folder: Path) -> list[Path]:
    """All files and folders below `folder`, at any depth.

    `Path.rglob` raises when a folder goes while it is being listed; this passes over such a folder.
    """
    return [Path(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files)]


def files_below(folder: Path) -> list[Path]:
    """All regular files below `folder`, at any depth."""
    return [path for path in paths_below(folder) if path.is_file()]
