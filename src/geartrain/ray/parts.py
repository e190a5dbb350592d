"""Parts of a run on Ray: rows that are read together, run by one actor, and written as one file.

The cuts between parts follow from the data set and the number of rows alone, and a part's name from its place in the
data set. So a run that goes on knows by the names of files which rows are done, and a part that is written twice, by an
actor of a run that was killed, is the same file. Nothing of ray is imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import fs

from geartrain.dataset.compare import Agreement
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.manifest import sync_folder
from geartrain.dataset.records import Record, unreadable
from geartrain.dataset.results import Tally
from geartrain.dataset.shares import Share
from geartrain.dataset.sources import SUFFIXES, Format, Several, Source, open_source

_MOST_BYTES: Final = 64 * 1024**2  # of the values of a part
_NAME: Final = re.compile(r"part-(\d{5,})-(\d{5,})\.(?:parquet|jsonl)", re.ASCII)
_WHOLE: Final = frozenset({"s3", "gcs", "abfs"})  # stores where a file is there when it is whole


class Part(msgspec.Struct, frozen=True):
    """Rows that belong together. `file` and `number` are its place in the data set.

    `first`: the number of its first row. `rows`: the columns of each, or why it cannot be read.
    """

    file: int
    number: int
    first: int
    rows: Sequence[Mapping[str, Any] | str]

    @property
    def name(self) -> str:
        """Name of its file, without the ending. Names sort as the rows do."""
        return f"part-{self.file:05}-{self.number:05}"

    def records(self) -> Iterator[Record]:
        """Give its rows."""
        return (unreadable(row) if isinstance(row, str) else Record(row) for row in self.rows)


class PartEnd(msgspec.Struct, frozen=True):
    """Account of a part that is written."""

    tally: Tally
    agreement: Agreement | None


class Shelf(msgspec.Struct, frozen=True):
    """A file of a data set, and the parts of it that are not to be run.

    `first`: the number of its first row. `done`: the numbers of its parts that are written.
    """

    source: Source
    file: int
    first: int
    part_rows: int
    done: Collection[int] = frozenset()
    share: Share | None = None

    def parts(self) -> Iterator[Part]:
        """Read the parts that are to be run. Blocks. Raises `DatasetError`."""
        first = self.first
        for number, rows in enumerate(_cut(self.source.rows(), self.part_rows)):
            if number not in self.done and is_of_share(self.share, self.file, number):
                yield Part(self.file, number, first, rows)
            first += len(rows)


def is_of_share(share: Share | None, file: int, number: int) -> bool:
    """True for a part that a share has: the shares take turns."""
    return share is None or (file + number) % share.of == share.index


def _cut(records: Iterable[Record], most_rows: int) -> Iterator[list[Mapping[str, Any] | str]]:
    part: list[Mapping[str, Any] | str] = []
    size = 0
    for record in records:
        part.append(record.fault or record.columns)
        size += sum([len(value) for value in record.columns.values() if isinstance(value, str | bytes | msgspec.Raw)])
        if len(part) >= most_rows or size >= _MOST_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def read_parts(batch: pa.Table) -> Iterator[pa.Table]:
    """Read the parts of files, a table with one row each: a task of Ray Data. Blocks. Raises `DatasetError`."""
    for shelf in values_of(batch):
        for part in shelf.parts():
            yield table_of(part)


def table_of(value: object) -> pa.Table:
    """Return a table with an object in its only row, which Ray does not divide."""
    return pa.table({"pickled": pa.array([pickle.dumps(value, protocol=5)], pa.large_binary())})


def values_of(batch: pa.Table) -> list[Any]:
    """Return the objects of a table."""
    return [pickle.loads(each.as_buffer()) for each in batch.column("pickled")]  # noqa: S301 - of this run


# the data set


def open_files(name: str, form: Format | None) -> tuple[Source, Sequence[Source]]:
    """Find a data set on this machine or elsewhere; return it, and its files. Blocks. Raises `DatasetError`."""
    if "://" not in name:
        whole = open_source(str(Path(name).expanduser().absolute()), form)
        return whole, whole.parts if isinstance(whole, Several) else [whole]
    try:
        return _remote(name, form)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise DatasetError(f"cannot read {name}: {error}") from error


def _system_of(place: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it: pyarrow's, or else one of fsspec, which Ray brings along."""
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(place)
    except pa.ArrowInvalid:
        import fsspec

        system, path = fsspec.core.url_to_fs(place)
        return fs.PyFileSystem(fs.FSSpecHandler(system)), path
    return found


def _remote(name: str, form: Format | None) -> tuple[Source, Sequence[Source]]:
    system, root = _system_of(name)
    infos = [system.get_file_info(root)]
    if infos[0].type is fs.FileType.Directory:
        infos = system.get_file_info(fs.FileSelector(root, recursive=True))
    infos = [each for each in infos if each.is_file and not each.base_name.startswith((".", "_"))]
    if not infos:
        raise DatasetError(f"there is no {name}")
    infos.sort(key=lambda info: info.path)
    forms = {form or SUFFIXES.get(PurePosixPath(each.path).suffix.lower(), "files") for each in infos}
    only = forms.pop() if len(forms) == 1 else "files"
    files = [RemoteFile(system, info.path, only, size=info.size) for info in infos]
    if only == "files":
        whole: Source = RemoteFiles(files)
        return whole, [whole]
    with files[0].here() as first:
        for each in files:
            each.describe(first)
        return Several(first.base, files), files


class RemoteFile(Source):
    """A file elsewhere. It is copied to the machine that reads it, for as long as it reads."""

    def __init__(self, system: fs.FileSystem, path: str, form: Format, *, size: int) -> None:
        self.base = Path("/")
        self.system, self.path = system, path
        self._form = form
        self._size = size
        self._schema: pa.Schema | None = None

    def describe(self, like: Source) -> None:
        """Have the columns of another file."""
        self.columns, self.is_text, self._schema = like.columns, like.is_text, like.schema()

    @contextlib.contextmanager
    def here(self) -> Iterator[Source]:
        """Copy it; the copy is there for the block. Blocks."""
        with tempfile.TemporaryDirectory(prefix="geartrain-") as folder:
            path = Path(folder, PurePosixPath(self.path).name)
            fs.copy_files(self.path, str(path), self.system, fs.LocalFileSystem())
            yield open_source(str(path), self._form)

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give its rows."""
        with self.here() as source:
            yield from source.rows(skip)

    def count_rows(self) -> int:
        """Count its rows."""
        with self.here() as source:
            return source.counted()

    def fingerprint(self) -> str:
        """Return its path and size."""
        return f"{self.path}\0{self._size}"

    def schema(self) -> pa.Schema | None:
        """Return the types of the columns."""
        return self._schema


class RemoteFiles(Source):
    """Files elsewhere, a row each, with the columns `file`, its bytes, and `name`."""

    columns = ("file", "name")
    is_files = True

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self.base = Path("/")
        self.count = len(files)
        self._files = files

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Read each file."""
        for file in self._files[skip:]:
            with file.system.open_input_stream(file.path, compression=None) as stream:
                yield Record({"file": stream.read(), "name": PurePosixPath(file.path).name})

    def fingerprint(self) -> str:
        """Return the hash of names and sizes."""
        return hashlib.blake2b(
            "\0".join(each.fingerprint() for each in self._files).encode(), digest_size=16
        ).hexdigest()


# the output


class Folder:
    """A folder of an output, on this machine or elsewhere. Its files are written as a whole, or not at all.

    All methods block, and raise `OSError`.
    """

    def __init__(self, place: str) -> None:
        """Raise `DatasetError` for a place that pyarrow does not know."""
        self._system: fs.FileSystem = fs.LocalFileSystem()
        self._root = str(Path(place).expanduser().absolute())
        try:
            if "://" in place:
                self._system, self._root = _system_of(place)
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise DatasetError(f"cannot write {place}: {error}") from error
        if self._system.get_file_info(self._root).is_file:
            raise DatasetError(f"{place} is a file: with --ray the output is a folder of parts; write to another place")
        self.path = Path(self._root) if isinstance(self._system, fs.LocalFileSystem) else None  # on this machine

    def names(self) -> list[str]:
        """Return the names of its files; none where it is not there."""
        infos = self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return [each.base_name for each in infos if each.is_file]

    def read(self, name: str) -> bytes | None:
        """Return a file, None if there is none."""
        if not self._system.get_file_info(self._place(name)).is_file:
            return None
        with self._system.open_input_stream(self._place(name), compression=None) as stream:
            content: bytes = stream.read()
            return content

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write a file; one of this name is replaced."""
        if self._system.type_name in _WHOLE:
            self._write(self._place(name), content)
            return
        temporary = f"_{name}.{uuid.uuid4().hex}.tmp"  # of its own: another actor may write the same part
        self._system.create_dir(self._root, recursive=True)
        self._write(self._place(temporary), content)
        self._system.move(self._place(temporary), self._place(name))
        if self.path is not None:
            sync_folder(self.path)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._system.delete_file(self._place(name))

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _write(self, place: str, content: bytes | pa.Buffer) -> None:
        if self.path is None:
            with self._system.open_output_stream(place, compression=None) as stream:
                stream.write(content)
            return
        with Path(place).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def parts_among(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the parts among the names of files, with the numbers of their files and their own."""
    found = ((name, _NAME.fullmatch(name)) for name in names)
    return {name: (int(match[1]), int(match[2])) for name, match in found if match is not None}
