"""Contents of folders. Those of a large one are remembered, because a model may keep 100,000 files beside its code."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

_LARGE: Final = 1000  # entries from which on a folder is remembered
_FRESH: Final = 2.0  # seconds for which a change of a folder may not show in its time of modification
_LIFE: Final = 30.0  # seconds for which a listing is used, for file systems that do not keep that time

_IGNORED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})
_ENVIRONMENT: Final = "pyvenv.cfg"  # a folder with this file is a virtual environment


class Listing(NamedTuple):
    """The names of the folders and of the files that count in a folder, in order, and which of them are links."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    links: frozenset[str] = frozenset()
    is_environment: bool = False


class _Remembered(NamedTuple):
    modified_at: int  # nanoseconds
    listed_at: float  # seconds, of time.monotonic
    listing: Listing


class Listings:
    """Lists folders. It may be shared by threads."""

    def __init__(self) -> None:
        self._remembered: dict[tuple[str, object], _Remembered] = {}

    def list(self, folder: str, counts: Callable[[str], bool]) -> Listing:
        """Return the contents of a folder, without hidden files, an editor's or a cache; empty if it cannot be read.

        `counts` returns True for the name of a file that counts. It has to be the same object each time.
        """
        key = (folder, counts)
        known = self._remembered.get(key)
        if known is not None:
            is_young = time.monotonic() - known.listed_at < _LIFE
            if is_young and known.modified_at == _modified_at(folder):
                return known.listing
            self._remembered.pop(key, None)
        modified_at = _modified_at(folder)
        listing, number = _read(folder, counts)
        if number >= _LARGE and modified_at is not None and time.time() - modified_at / 1e9 > _FRESH:
            self._remembered[key] = _Remembered(modified_at, time.monotonic(), listing)
        return listing


def is_passed_over(name: str) -> bool:
    """True if a file or folder of this name never belongs to a model: it is hidden, an editor's or a cache."""
    return name[0] in ".#" or name[-1] == "~" or name in _IGNORED_FOLDERS


def _read(folder: str, counts: Callable[[str], bool]) -> tuple[Listing, int]:
    """Return the contents of a folder, and the number of all its entries."""
    folders: list[str] = []
    files: list[str] = []
    links: list[str] = []
    number, is_environment = 0, False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number += 1
                name = entry.name
                is_environment = is_environment or name == _ENVIRONMENT
                if is_passed_over(name):
                    continue
                is_folder = _is_folder(entry)
                if not is_folder and not counts(name):
                    continue
                (folders if is_folder else files).append(name)
                if entry.is_symlink():
                    links.append(name)
    except OSError:
        pass  # gone, or not to be read: what has been found is all there is
    listing = Listing(tuple(sorted(folders)), tuple(sorted(files)), frozenset(links), is_environment)
    return listing, number


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads to itself


def _modified_at(folder: str) -> int | None:
    try:
        return pathlib.Path(folder).stat().st_mtime_ns
    except OSError:
        return None
