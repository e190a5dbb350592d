"""Imports the files of a model without Python's cached bytecode.

Python takes cached bytecode for current if the source has the same size and was changed in the same second. An author
who saves twice in a second and reloads would get the first version. Packages of an environment keep their caches.
"""

from __future__ import annotations

import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any, Final

_ENVIRONMENT: Final = "site-packages"


class UncachedSource(SourceFileLoader):
    """Compiles a source each time that it is imported."""

    def path_stats(self, path: Any) -> Any:
        """Give no date to compare with: without one, `SourceLoader` neither reads nor writes bytecode."""
        raise OSError(f"{path} is compiled anew")


_find: Final = FileFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (UncachedSource, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


def import_uncached(root: Path) -> None:
    """Have every import from a model's folder compile its source; an environment inside of it is left alone."""

    def hook(path: str) -> Any:
        place = Path(path)
        if not place.is_relative_to(root) or _ENVIRONMENT in place.relative_to(root).parts:
            raise ImportError(f"{path} is no folder of the model")
        return _find(path)

    sys.path_hooks.insert(0, hook)
    for known in list(sys.path_importer_cache):
        if Path(known).is_relative_to(root):
            del sys.path_importer_cache[known]
