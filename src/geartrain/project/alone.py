"""A model that is served alone, as it lies on disk: what its digest is made of depends on how it has been named."""

from __future__ import annotations

import pathlib

from geartrain.project.digest import Digests, counts_as_code
from geartrain.project.source import ModelSource


class ModelAlone:
    """One model as `ModelsOnDisk`. It is always there: what cannot be loaded is told by the attempt to load it."""

    def __init__(self, source: ModelSource, target: str | None = None) -> None:
        """`target` is what `source` was found by; by default the folder of `source`."""
        self._name = source.name
        self._digests = Digests()
        path = pathlib.Path.cwd() if target is None else pathlib.Path(target)
        if target is not None and not path.exists():
            path = pathlib.Path(target.rpartition(":")[0])  # `run.py:Runner`, or else a module
        self.root = unresolved(path if path.is_dir() else path.parent) if path.exists() else source.root
        self._file = unresolved(path) if path.is_file() and source.backend is not None else None
        # A variable may name code that is not usual in this folder.
        self._is_folder = path.is_dir() and (source.backend is not None or counts_as_code(path))

    def candidates(self) -> list[str]:
        return [self._name]

    def name_of(self, _path: pathlib.Path) -> str:
        """Return the model that a path belongs to."""
        return self._name

    def digest(self, _name: str) -> str:
        if self._file is not None:
            return self._digests.of_file(self._file)
        return self._digests.of_folder(self.root) if self._is_folder else self._digests.of_code(self.root)

    def content(self, _name: str) -> str:
        """Return the digest of every file that may belong to the model; see `Digests.of_content`."""
        return self._digests.of_content(self.root)

    def holds_model(self, _name: str) -> bool:
        return True


def unresolved(path: pathlib.Path) -> pathlib.Path:
    """Return an absolute path whose links are kept, because they may be switched to something else."""
    return path.resolve() if ".." in path.parts else path.absolute()
