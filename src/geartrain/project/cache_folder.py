"""Folder of models and weights that were fetched from elsewhere."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Final

from geartrain.project.errors import ProjectError

CACHE: Final = "GEARTRAIN_CACHE"


def cache_folder(given: pathlib.Path | None, environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder of the cache: the one that is given, that of a variable, or the user's.

    Raises ProjectError where the user has no home.
    """
    if given is not None:
        return given.absolute()
    if environ.get(CACHE, "").strip():
        return pathlib.Path(environ[CACHE].strip()).absolute()
    base = pathlib.Path(environ.get("XDG_CACHE_HOME", "").strip())
    if base.is_absolute():  # a relative one is to be passed over (XDG Base Directory Specification)
        return base / "geartrain"
    try:
        return pathlib.Path("~").expanduser() / ".cache" / "geartrain"
    except RuntimeError:
        raise ProjectError(
            f"there is no home folder for the cache; choose a folder with --cache-dir or {CACHE}"
        ) from None
