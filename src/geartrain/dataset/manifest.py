"""The manifest of an output: how far it is, and of what it is made, so that a run can go on where one was cut off."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.dataset.errors import DatasetError

_VERSION: Final = 1


class Origin(msgspec.Struct, frozen=True):
    """All that decides what an output holds. Two runs with the same origin write the same rows.

    `source` and `model` are digests, empty where there is none.
    """

    source: str
    model: str
    settings: dict[str, Any]


class Manifest(msgspec.Struct):
    """State of an output. `rows`: those of the data set that are done; `size`: the bytes of a file that count."""

    origin: Origin
    rows: int = 0
    errors: int = 0
    size: int = 0
    parts: int = 0
    types: dict[str, str] = {}  # of kept columns, as the first part has them
    is_whole: bool = False  # of a share, whose manifest stays
    version: int = _VERSION


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if there is none. Raises `DatasetError` for one that cannot be used."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read, so the run cannot go on: {error}") from error
    return decode_manifest(content, str(path))


def decode_manifest(content: bytes, name: str) -> Manifest:
    """Return the manifest in a file. Raises `DatasetError` for one that cannot be used."""
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DatasetError(f"{name} cannot be read, so the run cannot go on: {error}") from error
    if found.version != _VERSION:
        raise DatasetError(f"{name} is of another version of geartrain; begin anew with --overwrite")
    return found


def check_same(found: Manifest, origin: Origin, *, path: str | Path) -> None:
    """Raise `DatasetError` if an output was made of something else."""
    for name, before, now in (
        ("the data set", found.origin.source, origin.source),
        ("the model", found.origin.model, origin.model),
    ):
        if before != now and before and now:
            raise DatasetError(
                f"{name} has changed since {path} was begun, so its rows would not fit together; begin anew with "
                "--overwrite, or go on all the same with --resume-changed"
            )
    settings, given = found.origin.settings, origin.settings
    for option in sorted(settings.keys() | given.keys()):
        if settings.get(option) != given.get(option):
            raise DatasetError(
                f"--{option} was {settings.get(option)!r} when {path} was begun, and is {given.get(option)!r} now; "
                "give the same, or begin anew with --overwrite"
            )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest as a whole, or not at all; it is on the disk when this returns. Raises `OSError`."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no such thing
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
