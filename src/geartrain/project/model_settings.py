"""The settings of a model: those of its `geartrain.yaml`, and below them those of another server's file."""

from __future__ import annotations

import pathlib

from geartrain.project.config import code_file
from geartrain.project.settings import (
    MLSERVER_NAME,
    NO_SETTINGS,
    SETTINGS_NAMES,
    TRITON_NAME,
    Settings,
    read_settings,
)


def has_settings(folder: pathlib.Path) -> bool:
    """True if a folder has settings of a model, which say that it is meant as one."""
    return any((folder / name).is_file() for name in SETTINGS_NAMES)


def settings_of(folder: pathlib.Path) -> Settings:
    """Return the settings in a folder; raise ProjectError that names the file and what is wrong in it.

    Those of another server do not count where there is code: that was written for this one.
    """
    return read_settings(folder, NO_SETTINGS if _has_code(folder) else _foreign(folder))


def _has_code(folder: pathlib.Path) -> bool:
    """True if a folder, or one of its version folders, holds a model that is code."""
    try:
        versions = [each for each in folder.iterdir() if each.name.isdecimal()]
    except OSError:
        return False
    return any(code_file(each) is not None for each in (folder, *versions))


def _foreign(folder: pathlib.Path) -> Settings:
    if (folder / TRITON_NAME).is_file():
        from geartrain.project.foreign.triton_config import read_triton  # late: few models need protobuf's text format

        return read_triton(folder)
    if (folder / MLSERVER_NAME).is_file():
        from geartrain.project.foreign.mlserver_settings import read_mlserver

        return read_mlserver(folder)
    return NO_SETTINGS
