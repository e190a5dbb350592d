"""A folder of models. Each is a folder with its files directly, which are version 1, or in numeric version folders."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Final

import msgspec

from geartrain.project.config import code_file
from geartrain.project.digest import Digests, unresolved
from geartrain.project.errors import ProjectError
from geartrain.project.modelfile import has_settings, seen_file, settings_of
from geartrain.project.precheck import precheck
from geartrain.project.settings import MLSERVER_NAME, SETTINGS_NAME, Settings
from geartrain.project.source import ModelSource, find_model

_UNPACKED: Final = "model"
_DIGITS: Final = 18  # of a version at most


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it lies on disk: the versions that are to be served, by number, or what is wrong with one.

    `default_version` is the one that a request without a version gets; None for the latest.
    """

    name: str
    versions: Mapping[str, ModelSource | ProjectError]
    default_version: str | None = None


class Repository:
    """The models below a folder, as they are at the moment of asking. Nothing of them is imported."""

    def __init__(
        self, root: pathlib.Path, *, environ: Mapping[str, str] = os.environ, no_pickle: bool = False, name: str = ""
    ) -> None:
        """`root`: a folder of models, or that of one model with version folders. `no_pickle` as for `find_model`.

        With a `name`, `root` is the folder of one model, which is served under that name.
        """
        self.root = root
        self._name = name or root.name  # of the model, where there is one
        self._environ = environ
        self._no_pickle = no_pickle
        self._digests = Digests()
        self._is_model = bool(name) or _is_versioned_model(root)

    def names(self) -> list[str]:
        """Return the names of the models, in order. Folders without a model are no models."""
        if self._is_model:
            return [self._name]
        return [folder.name for folder in _folders(self.root) if _may_be_model(_inside(folder))]

    def folder(self, name: str) -> pathlib.Path:
        """Return the place of a model, existing or not."""
        return self.root if self._is_model else _inside(self.root / name)

    def name_of(self, path: pathlib.Path) -> str | None:
        """Return the model that a path belongs to, or would; None for the root itself, and what lies elsewhere."""
        if not path.is_relative_to(self.root):
            return None
        if self._is_model:
            return self._name
        return next(iter(path.relative_to(self.root).parts), None)

    def candidates(self) -> list[str]:
        """Return the names of the folders that may be models, without a look into them."""
        return [self._name] if self._is_model else [folder.name for folder in _folders(self.root)]

    def digest(self, name: str) -> str:
        """Return the digest of a model's files, "" if there is no such folder; see `Digests`. May block."""
        if not self._is_model and name[:1] in {"", ".", "_"}:
            return ""
        return self._digests.of_model(self.folder(name))

    def content(self, name: str) -> str:
        """Return the digest of every file that may belong to a model; see `Digests.of_content`. May block."""
        return self._digests.of_content(self.folder(name))

    def holds_model(self, name: str) -> bool:
        """True if a folder is meant as a model. May block: it opens files whose names do not say it."""
        return self._is_model or _may_be_model(self.folder(name))

    def read(self, name: str) -> ModelFolder:
        """Return a model; raise ProjectError when it is wrong as a whole, such as in its `geartrain.yaml`."""
        folder = self.folder(name)
        settings = settings_of(folder)
        numbered = _version_folders(folder)
        direct = _model_in(folder)
        if direct is not None and any(map(_model_in, numbered.values())):
            raise ProjectError(f"{folder}: {direct} lies beside version folders; move it into one of them")
        is_one = direct is not None or ((settings.names_file or settings.pipeline is not None) and not numbered)
        folders = {1: folder} if is_one else numbered
        if not folders:
            raise ProjectError(
                f"{folder}: no model here; put a run.py into it, or a model file such as model.onnx, "
                "or either into a version folder such as 1/"
            )
        versions = {
            str(number): self._version(name, folders, number, settings=settings)
            for number in settings.selected(folders)
        }
        default = None if settings.default_version is None else str(settings.default_version)
        if default is not None and default not in versions:
            raise ProjectError(
                f"{folder / SETTINGS_NAME}: `default_version` is {default}, which is not served; "
                f"there are {', '.join(versions)}"
            )
        return ModelFolder(name=name, versions=versions, default_version=default)

    def steps_of(self, name: str) -> tuple[str, ...]:
        """Return the models that a model calls as a pipeline; none for any other, and for one that is wrong."""
        try:
            settings = settings_of(self.folder(name))
        except ProjectError:
            return ()
        return () if settings.pipeline is None else settings.pipeline.models

    def _version(
        self, name: str, folders: Mapping[int, pathlib.Path], number: int, *, settings: Settings
    ) -> ModelSource | ProjectError:
        try:
            if number in folders and (folders[number] / MLSERVER_NAME).is_file():  # Seldon Core's layout
                settings = settings_of(folders[number])
            if number not in folders:
                there = ", ".join(map(str, sorted(folders)))
                raise ProjectError(f"`versions` asks for {number}, and there is no such folder; there are {there}")
            source = find_model(
                str(folders[number]), environ=self._environ, settings=settings, no_pickle=self._no_pickle
            )
            precheck(source)
        except ProjectError as error:
            return error
        return msgspec.structs.replace(source, name=name)


class Together(Repository):
    """One model, and those of a folder that it may call."""

    def __init__(self, model: ModelSource, folder: pathlib.Path, *, no_pickle: bool = False) -> None:
        """`model` takes the place of one of the same name in `folder`."""
        super().__init__(folder, no_pickle=no_pickle)
        self.model = model

    def names(self) -> list[str]:
        """Return the names of the models, in order."""
        return sorted({self.model.name, *super().names()})

    def folder(self, name: str) -> pathlib.Path:
        """Return the place of a model, existing or not."""
        return self.model.root if name == self.model.name else super().folder(name)

    def read(self, name: str) -> ModelFolder:
        """Return a model; raise ProjectError when it is wrong as a whole."""
        if name == self.model.name:
            return ModelFolder(name=name, versions={"1": self.model})
        return super().read(name)


def find_repository(
    target: str | None,
    *,
    environ: Mapping[str, str] = os.environ,
    no_pickle: bool = False,
    name: str = "",
    may_be_empty: bool = False,
) -> Repository | None:
    """Return the repository that `target` means, the current folder by default; None if it is anything else.

    A folder that is a model itself is none, whatever lies below it. So is one in which no folder holds a model, unless
    it `may_be_empty`. With a `name`, the only model of the folder is served under that name; raises ProjectError where
    there are several.
    """
    path = pathlib.Path(target) if target else pathlib.Path.cwd()
    if not path.is_dir() or _model_in(path) is not None:
        return None
    root = unresolved(path)
    repository = Repository(root, environ=environ, no_pickle=no_pickle)
    names = repository.names()
    if not name:
        return repository if names or may_be_empty else None
    if len(names) > 1:
        raise ProjectError(f"{root}: a name can be given to a single model, and here are {', '.join(names)}")
    only = [repository.folder(each) for each in names]
    return Repository(only[0], environ=environ, no_pickle=no_pickle, name=name) if only else None


def _model_in(folder: pathlib.Path) -> str | None:
    """Return the name of a file that makes a folder a model; None if there is none."""
    return code_file(folder) or seen_file(folder)


def _may_be_model(folder: pathlib.Path) -> bool:
    """True if a folder is meant as a model: it holds one, or versions of one, or settings."""
    if _model_in(folder) is not None or has_settings(folder):
        return True
    try:
        return any(_model_in(each) is not None or has_settings(each) for each in _version_folders(folder).values())
    except ProjectError:
        return True


def _inside(folder: pathlib.Path) -> pathlib.Path:
    """Return the folder of a model: the one named, or that in which SageMaker has unpacked it, `model`."""
    unpacked = folder / _UNPACKED
    is_inside = unpacked.is_dir() and not _may_be_model(folder) and _may_be_model(unpacked)
    return unpacked if is_inside else folder


def _is_versioned_model(root: pathlib.Path) -> bool:
    """True if a folder holds the versions of one model, and no other models."""
    models = [folder.name for folder in _folders(root) if _may_be_model(folder)]
    if not models and has_settings(root):  # which may say what the files in version folders are
        models = [folder.name for folder in _folders(root)]
    return bool(models) and all(name.isdecimal() and name.isascii() for name in models)


def _version_folders(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Return the numeric folders; raise ProjectError when two mean the same version."""
    found: dict[int, pathlib.Path] = {}
    for each in _folders(folder):
        if not (each.name.isdecimal() and each.name.isascii() and len(each.name) <= _DIGITS):
            continue
        number = int(each.name)
        if number in found:
            raise ProjectError(
                f"{folder}: {found[number].name} and {each.name} are the same version; remove one of them"
            )
        found[number] = each
    return found


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name[0] not in "._" and entry.is_dir()]
    except OSError:
        return []  # gone, or not to be read: there is nothing to be found
    return [folder / name for name in sorted(names)]
