"""Contents of a folder of a model: its settings, and the model file where there is no code."""

from __future__ import annotations

import os
import pathlib
from pathlib import Path
from typing import NamedTuple

from geartrain.project import formats
from geartrain.project.config import CONFIG_NAME, code_file
from geartrain.project.errors import ProjectError
from geartrain.project.settings import (
    MLSERVER_NAME,
    NO_SETTINGS,
    SETTINGS_NAME,
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


_OWN = frozenset({CONFIG_NAME, *SETTINGS_NAMES})
_USUAL_NAME = "model"
_BESIDE = frozenset({".md", ".py", ".rst", ".yaml", ".yml", ".pbtxt"})  # allowed beside a model's one file


class ModelFile(NamedTuple):
    """A model without code: its file, or its folder, and the backend that runs it."""

    path: Path
    backend: str


def file_named(path: Path, settings: Settings) -> ModelFile:
    """Return the model file that the operator has named; raises ProjectError if it is none that can be served."""
    backend = settings.chosen_backend or _format_of(path)
    if backend is not None:
        return ModelFile(path, backend)
    refusal = formats.refusal(path)
    if refusal is not None:
        raise refusal
    known = ", ".join(formats.known_suffixes())
    raise ProjectError(
        f"{path.name} is no Python file, and no model file that is known ({known}); give a model's folder or its "
        f"run.py, or write a line such as `backend: onnx` into {path.parent / SETTINGS_NAME}"
    )


def file_in(folder: Path, settings: Settings) -> ModelFile | None:
    """Return the model file of a folder, which may be the folder itself; None if there is none.

    `settings` come first: they may name the file or its backend. Raises ProjectError when there are several, when it
    cannot be served, and when what the settings name is not there.
    """
    if settings.file is not None:
        path = folder / settings.file
        if not path.exists():
            raise _missing(folder, settings.file, settings.origin)
        return file_named(path, settings)
    wanted = settings.chosen_backend
    whole = _script_in(folder, wanted) or _whole_folder(folder, wanted)
    if whole is not None:
        return whole
    found = [each for each in _files(folder) if wanted in {None, each.backend}]
    if not found and wanted is not None:
        found = [ModelFile(path, wanted) for path in _entries(folder) if path.is_file() and path.suffix not in _BESIDE]
        if not found:
            raise ProjectError(f"{folder}: no file here for the backend {wanted!r}")
    if len(found) > 1:
        found = [each for each in found if each.backend in formats.CODE] or found  # it loads the other files
    if len(found) > 1:
        raise _several([each.path.name for each in found], folder)
    if not found:
        _refuse(folder)
        return None
    return found[0]


def _whole_folder(folder: Path, wanted: str | None) -> ModelFile | None:
    """The folder itself, if it is a model."""
    own = formats.backend_of(folder)
    if own is not None and wanted in {None, own}:
        return ModelFile(folder, own)
    if own is not None and wanted is not None and not any(each.backend == wanted for each in formats.FORMATS):
        return ModelFile(folder, wanted)  # a backend of another package in the place of ours
    return None


def _script_in(folder: Path, wanted: str | None) -> ModelFile | None:
    """A script, which loads the model whose folder it lies in; of several for LitServe the one that makes a server."""
    if formats.is_torch_archive(folder) and wanted in {None, "torchserve"}:
        return ModelFile(folder, "torchserve")
    found = [each for each in _files(folder) if each.backend in formats.SCRIPTS and wanted in {None, each.backend}]
    return next((each for each in found if formats.makes_server(each.path)), next(iter(found), None))


def seen_file(folder: Path) -> str | None:
    """Return the name of a model file in a folder, or of the folder if it is one; None if there is none.

    There may be more of them, and it may be one that cannot be served: what is wrong is told by `file_in`.
    """
    if formats.backend_of(folder) is not None:
        return folder.name
    refused = (path.name for path in _entries(folder) if formats.refusal(path) is not None)
    return next((each.path.name for each in _files(folder)), None) or next(refused, None)


def _format_of(path: Path) -> str | None:
    named = formats.named_format(path)
    return formats.backend_of(path) if named is None else named.backend


def _files(folder: Path) -> list[ModelFile]:
    """Return the model files of a folder; a folder in it is one only by its name, such as `model.savedmodel`."""
    found = []
    for path in _entries(folder):
        if path.suffix and (backend := formats.backend_of(path)) is not None:
            named = formats.named_format(path)
            if not path.is_dir() or (named is not None and path.suffix in named.suffixes):
                found.append(ModelFile(path, backend))
    return found or _usually_named(folder)


def _usually_named(folder: Path) -> list[ModelFile]:
    """Return the files that are models by their name, `model.json`, though their content does not look like it.

    One that is cut, or foreign, is then told as such, and not passed over.
    """
    named = [(path, formats.named_format(path)) for path in _entries(folder) if path.stem == _USUAL_NAME]
    return [ModelFile(path, each.backend) for path, each in named if each is not None and path.is_file()]


def _entries(folder: Path) -> list[Path]:
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []  # gone, or not to be read: there is nothing to be found
    return [folder / name for name in sorted(names) if name[0] not in "._" and name not in _OWN]


def _refuse(folder: Path) -> None:
    for path in _entries(folder):
        refusal = formats.refusal(path)
        if refusal is not None:
            raise refusal


def _missing(folder: Path, name: str, origin: str) -> ProjectError:
    if origin == SETTINGS_NAME:
        return ProjectError(f"{folder / SETTINGS_NAME}: `file` is {name}, and there is none in {folder}")
    return ProjectError(f"{folder}: there is no {name}, which {origin} asks for")


def _several(names: list[str], folder: Path) -> ProjectError:
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return ProjectError(
        f"{folder}: {len(names)} model files, {listed}; keep one, "
        f"or name it with a line such as `file: {names[0]}` in {folder / SETTINGS_NAME}"
    )
