"""Digests of models: from the names, sizes and times of their files, they tell whether something has changed.

No file's content is read, but for a `cog.yaml` or `geartrain.yaml` that says whether the model is code. Contents of
large folders are remembered, because a model may keep 100,000 files beside its code.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from geartrain.project.config import USUAL_FILES, code_file, read_config
from geartrain.project.errors import ProjectError
from geartrain.project.formats import known_suffixes
from geartrain.project.modelfile import settings_of
from geartrain.project.settings import SETTINGS_NAMES
from geartrain.project.source import ModelSource

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


_SOURCES: Final = frozenset({".pbtxt", ".py", ".yaml", ".yml"})
_SCRATCH: Final = frozenset({".lock", ".log", ".part", ".pyc", ".pyo", ".tmp"})
_NO_WEIGHTS: Final = _SCRATCH | {".md", ".rst"}
_MOST_FILES: Final = 20_000

Rule = Callable[[str], bool]  # true if a file counts, by its name


class Digests:
    """Makes the digests of models. All of it blocks; it may be shared by threads.

    Of a model that is code, its `.py`, `.yaml` and `.yml` files count, because models write other files into their own
    folder. Of a model that is a file, all files count, because its weights may lie in several.
    """

    def __init__(self) -> None:
        self._listings = Listings()

    def of_model(self, folder: pathlib.Path) -> str:
        """Return the digest of a model of a repository, with its version folders; "" if there is no such folder."""
        if not folder.is_dir():
            return ""
        own = self._listings.list(str(folder), _may_be_model)
        numbered = [each for each in own.folders if each.isdecimal() and each.isascii()]
        if not numbered or code_file(folder) is not None:
            return self.of_folder(folder)
        lines = list(_head(folder))
        for name in (*own.folders, *own.files):
            if _may_be_model(name):  # beside version folders it is a mistake, which is noticed when it has gone
                lines += _file(folder / name)
        for name in numbered:
            lines += [f"{name}/", *self._tree(folder / name, _rule(folder / name, settings=folder))]
        return _hash(lines)

    def of_folder(self, folder: pathlib.Path) -> str:
        """Return the digest of a model whose files are in this folder, without versions. It may have gone."""
        return _hash([*_head(folder), *self._tree(folder, _rule(folder, settings=folder))])

    def of_code(self, folder: pathlib.Path) -> str:
        """Return the digest of a folder with code, if one of its files or modules was named as the model."""
        return _hash([*_head(folder), *self._tree(folder, is_source)])

    def of_content(self, folder: pathlib.Path) -> str:
        """Return the digest of all files in a folder and below it, but for logs and the like.

        It is "" where there are none, and where there are too many to look at them whenever somebody asks.
        """
        lines = list(itertools.islice(self._tree(folder, _is_no_scratch), _MOST_FILES + 1))
        return _hash([*_head(folder), *lines]) if 0 < len(lines) <= _MOST_FILES else ""

    def of_file(self, path: pathlib.Path) -> str:
        """Return the digest of a model file that has been named.

        The code and the settings in its folder count as well, and the files whose name begins with that of the model,
        such as `model.onnx.data`.
        """
        folder = path.parent
        lines = [*_head(folder), *self._tree(folder, is_source), *_file(path)]
        for name in self._listings.list(str(folder), _may_be_weight).files:
            if name.startswith(path.name):
                lines += _file(folder / name)
        return _hash(lines)

    def _tree(self, root: pathlib.Path, rule: Rule) -> Iterator[str]:
        """Tell each file that counts below a folder, links followed, in an order that is always the same."""
        waiting = [(str(root), "")]
        visited: set[tuple[int, int]] = set()  # a link may lead to a folder that it lies in
        while waiting:
            folder, prefix = waiting.pop()
            try:
                found = os.stat(folder)  # noqa: PTH116 - a Path for each folder takes long
            except OSError:
                yield f"{prefix}?"
                continue
            listing = self._listings.list(folder, rule)
            if (found.st_dev, found.st_ino) in visited or (prefix and listing.is_environment):
                continue
            visited.add((found.st_dev, found.st_ino))
            for name in listing.folders:
                waiting.append((f"{folder}/{name}", f"{prefix}{name}/"))
                if name in listing.links:
                    yield f"{prefix}{name} -> {os.path.realpath(f'{folder}/{name}')}"
            for name in listing.files:
                yield prefix + _line(f"{folder}/{name}", name, is_link=name in listing.links)


def is_source(name: str) -> bool:
    """True if a file is code or settings, by its name."""
    return name.endswith((".py", ".yaml", ".yml")) and not name.startswith("flycheck_")


def counts_as_code(folder: pathlib.Path) -> bool:
    """True if the files of a folder say that it is a model that is code, or leave that open."""
    try:
        config = read_config(folder)
    except ProjectError:
        return True  # its cog.yaml is wrong, and is a source itself
    return config.run is not None or config.train is not None or any((folder / name).is_file() for name in USUAL_FILES)


def may_count(path: pathlib.Path, root: pathlib.Path) -> bool:
    """True if a change of what lies, or lay, at a path below `root` may change a digest; False only if it hardly can.

    It is a guess from the name, which saves looking at a model again for each file that it writes.
    """
    try:
        *folders, name = path.relative_to(root).parts
    except ValueError:  # the root itself, or elsewhere
        return True
    if any(map(is_passed_over, folders)):
        return False
    if path.is_symlink():
        return True  # hidden or not: `..data` is what Kubernetes switches
    if is_passed_over(name):
        return False
    suffix = path.suffix.lower()
    return not suffix or suffix in _SOURCES or suffix in _model_suffixes() or suffix == ".pb" or path.is_dir()


def _rule(folder: pathlib.Path, *, settings: pathlib.Path) -> Rule:
    """Return which of a folder's files count: its sources if it is code, otherwise all.

    `settings` is the folder with the `geartrain.yaml` that holds for it, which may name a file where there is code.
    """
    if not counts_as_code(folder):
        return _may_be_weight
    try:
        return _may_be_weight if settings_of(settings).names_file else is_source
    except ProjectError:
        return is_source


def _is_no_scratch(name: str) -> bool:
    return _suffix(name) not in _SCRATCH


def _may_be_weight(name: str) -> bool:
    return _suffix(name) not in _NO_WEIGHTS


def _may_be_model(name: str) -> bool:
    return is_source(name) or _suffix(name).lower() in _model_suffixes()


@functools.cache
def _model_suffixes() -> frozenset[str]:
    return frozenset(known_suffixes())


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]  # noqa: PTH122 - a Path for each file takes long


def _hash(lines: list[str]) -> str:
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _head(folder: pathlib.Path) -> Iterator[str]:
    """Tell where a folder really is, which changes when a link is switched, and its settings."""
    yield os.path.realpath(folder)
    for name in SETTINGS_NAMES:
        yield from _file(folder / name)


def _file(path: pathlib.Path) -> Iterator[str]:
    """Tell one file or folder; nothing if it is not there."""
    if path.exists() or path.is_symlink():
        yield _line(str(path), path.name, is_link=path.is_symlink())


def _line(path: str, name: str, *, is_link: bool) -> str:
    target = f" -> {os.path.realpath(path)}" if is_link else ""
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path for each file takes long
    except OSError:
        return f"{name}{target} ?"  # a link to nothing, or gone in this moment
    return f"{name}{target} {found.st_size} {found.st_mtime_ns}"


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
