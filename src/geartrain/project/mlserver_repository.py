"""A folder of models as MLServer has them: each is where a `model-settings.json` lies, at whatever depth."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from geartrain.project.config import code_file
from geartrain.project.digest import Digests, is_passed_over, unresolved
from geartrain.project.errors import ProjectError
from geartrain.project.foreign.mlserver_settings import SERVER_NAME, identify, read_mlserver
from geartrain.project.precheck import precheck
from geartrain.project.repository import ModelFolder, Repository
from geartrain.project.settings import MLSERVER_NAME, read_settings
from geartrain.project.source import ModelSource, find_model

_MOST_FOLDERS: Final = 5000  # that are looked into
_ENVIRONMENT: Final = "pyvenv.cfg"  # a folder with this file is a virtual environment

Found = Mapping[str, Mapping[str, pathlib.Path]]
"""The folders of models, by name and version."""


class MlserverRepository(Repository):
    """The models below a folder by the names that their settings give them, each with its versions.

    A settings file that cannot be read is a model as well, called as its folder, so that its fault is told.
    """

    def __init__(self, root: pathlib.Path, *, environ: Mapping[str, str] = os.environ, no_pickle: bool = False) -> None:
        """Create it with the arguments of `Repository`."""
        super().__init__(root, environ=environ, no_pickle=no_pickle)
        self._digests = Digests()

    def names(self) -> list[str]:
        """Return the names of the models, in order."""
        return sorted(self._found())

    def candidates(self) -> list[str]:
        """Return the same: whether there are settings is known."""
        return self.names()

    def folder(self, name: str) -> pathlib.Path:
        """Return the place of a model's first version, existing or not."""
        return next(iter(self._found().get(name, {}).values()), self.root / name)

    def name_of(self, path: pathlib.Path) -> str | None:
        """Return the model in whose folder a path lies, the innermost if they are nested; None for none."""
        owners = {folder: name for name, versions in self._found().items() for folder in versions.values()}
        return next((owners[each] for each in (path, *path.parents) if each in owners), None)

    def digest(self, name: str) -> str:
        """Return the digest of the files of all versions, "" if there is no such model. May block."""
        versions = self._found().get(name)
        if versions is None:
            return ""
        lines = []
        for version, folder in versions.items():
            lines += [version, self._digests.of_folder(folder)]
            try:
                file = read_mlserver(folder, self.root).file
            except ProjectError:
                continue
            if file is not None and not (folder / file).resolve().is_relative_to(folder.resolve()):
                lines.append(self._digests.of_file(folder / file))
        server = self.root / SERVER_NAME
        lines.append(self._digests.of_file(server) if server.is_file() else "")
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    def holds_model(self, name: str) -> bool:
        """True if there are settings of a model of this name."""
        return name in self._found()

    def read(self, name: str) -> ModelFolder:
        """Return a model; raise ProjectError when there is none."""
        versions = self._found().get(name)
        if versions is None:
            raise ProjectError(f"{self.root}: no {MLSERVER_NAME} here has a model {name!r}")
        return ModelFolder(
            name=name, versions={version: self._source(name, folder) for version, folder in versions.items()}
        )

    def _source(self, name: str, folder: pathlib.Path) -> ModelSource | ProjectError:
        try:
            identify(folder)
            settings = read_settings(folder, read_mlserver(folder, self.root))
            source = find_model(str(folder), environ=self._environ, settings=settings, no_pickle=self._no_pickle)
            precheck(source)
        except ProjectError as error:
            return error
        return msgspec.structs.replace(source, name=name)

    def _found(self) -> Found:
        found: dict[str, dict[str, pathlib.Path]] = {}
        for folder in settings_folders(self.root):
            try:
                name, version = identify(folder)
            except ProjectError:
                name, version = folder.name, "1"
            found.setdefault(name, {}).setdefault(version, folder)
        return found


def find_mlserver(
    target: str | None, *, environ: Mapping[str, str] = os.environ, no_pickle: bool = False
) -> Repository | None:
    """Return the repository that `target` means, the current folder by default; None if it is none of MLServer's.

    It is one if `target` has settings of MLServer itself, or if they lie in every folder that holds a model.
    """
    root = pathlib.Path(target) if target else pathlib.Path.cwd()
    if not root.is_dir() or code_file(root) is not None:
        return None
    folders = list(settings_folders(root))
    if not folders:
        return None
    if root not in folders:
        models = [root / name for name in Repository(root).names()]
        if any(code_file(each) is not None or not any(map(_is_below(each), folders)) for each in models):
            return None
    return MlserverRepository(unresolved(root), environ=environ, no_pickle=no_pickle)


def _is_below(folder: pathlib.Path) -> Callable[[pathlib.Path], bool]:
    return lambda path: path.is_relative_to(folder)


def settings_folders(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Tell the folders at and below `root` that have a `model-settings.json`, links followed, in order."""
    visited: set[str] = set()
    for path, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(path)
        if real in visited or len(visited) == _MOST_FOLDERS or _ENVIRONMENT in files:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not is_passed_over(name))
        if MLSERVER_NAME in files:
            yield pathlib.Path(path)
