"""Outputs of a run: JSON lines in a file or on stdout, or Parquet in a folder of parts.

A sink takes results in the order of the data set. What a manifest says is done is on the disk; all behind it is
written again by a run that goes on, so every row is there exactly once, whenever a run was cut off.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import mimetypes
import os
import shutil
import sys
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from geartrain.dataset.arrow_types import output_columns
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.locks import locked
from geartrain.dataset.manifest import Manifest, Origin, check_same, read_manifest, sync_folder, write_manifest
from geartrain.dataset.results import Result
from geartrain.dataset.shares import Share
from geartrain.dataset.sources import Source
from geartrain.domain.signature.types import FILE_KINDS, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

Errors = Literal["column", "skip", "fail"]

_COMMIT: Final = 1.0  # seconds between two commits of JSON lines
PART_ROWS: Final = 10_000
_FIRST_ROWS: Final = 10_000  # by which all shares know the types of columns
_PART_BYTES: Final = 64 * 1024**2
_LINES: Final = frozenset({".jsonl", ".ndjson", ".json"})
_LOCK: Final = "_lock"  # in a folder; beginning of the names of those of shares
_EXTENSIONS: Final = {"application/octet-stream": ".bin", "audio/wav": ".wav", "image/webp": ".webp"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Sink(ABC):
    """An output. All of its methods block, and raise `OSError` where it cannot be written."""

    done = 0  # rows of the data set that a run before has done

    @abstractmethod
    def write(self, results: Sequence[Result]) -> None:
        """Add results, in the order of their numbers."""

    @abstractmethod
    def close(self, *, is_whole: bool) -> None:
        """Have all that was added on the disk. `is_whole`: the data set is at its end."""


class Place(msgspec.Struct, frozen=True):
    """Destination of an output, and the treatment of one that is there."""

    path: str  # `-` for stdout
    resume: bool = False
    resume_changed: bool = False
    overwrite: bool = False
    errors: Errors = "column"
    part_rows: int = PART_ROWS
    share: Share | None = None  # the rows that are written, where others write the rest
    types: Mapping[str, str] = {}  # of kept columns, see `first_types`

    @property
    def is_lines(self) -> bool:
        """True for a file of JSON lines."""
        return Path(self.path).suffix.lower() in _LINES


class _Names(NamedTuple):
    """Names of an output. `path`: the file, or the folder; `parts`: the beginning of the names of its parts."""

    path: Path
    manifest: Path
    parts: str = ""

    def is_there(self) -> bool:
        """True if something is written already, locks aside: for one of several shares, of its own."""
        if not self.path.is_dir():
            return self.path.exists()
        return any(each.name.startswith(self.parts) and not each.name.startswith(_LOCK) for each in self.path.iterdir())

    def own_parts(self) -> list[tuple[int, Path]]:
        """Return its parts, with their numbers."""
        found = ((each.stem.removeprefix(self._start), each) for each in self.path.glob("part-*.parquet"))
        return [(int(number), each) for number, each in found if number.isdigit()]

    def part(self, number: int) -> Path:
        """Return the path of a part."""
        return self.path / f"{self._start}{number:05}.parquet"

    @property
    def _start(self) -> str:
        return self.parts or "part-"


def _names_of(place: Place) -> _Names:
    path, share = Path(place.path).expanduser(), place.share
    if place.is_lines:
        own = path if share is None else share.path_of(path)
        return _Names(own, own.with_name(f"{own.name}.progress"))
    if share is None:
        return _Names(path, path / "_progress.json")
    return _Names(path, path / f"_progress-{share.name}.json", f"part-{share.name}-")


@contextlib.contextmanager
def writing(place: Place) -> Iterator[None]:
    """Keep other processes from writing an output, or the same share of it, meanwhile.

    A folder is written by one process as a whole, or by some with a share each. Raises `DatasetError`.
    """
    path, share = Path(place.path).expanduser(), place.share
    with contextlib.ExitStack() as stack:
        if place.is_lines:
            own = path if share is None else share.path_of(path)
            stack.enter_context(locked(own.with_name(f"{own.name}.lock"), output=own))
        else:
            stack.enter_context(locked(path / _LOCK, output=path, is_shared=share is not None))
            if share is not None:
                stack.enter_context(locked(path / f"{_LOCK}-{share.name}", output=path))
        yield


def open_sink(place: Place, signature: Signature, origin: Origin, *, kept: Mapping[str, pa.DataType | None]) -> Sink:
    """Open the output of a run. `kept`: the columns that pass through, with their types where they are known.

    Raises `DatasetError`.
    """
    if place.path == "-":
        return Lines(_Printed(), None, signature.output, place=place)
    names = _names_of(place)
    manifest = _begin(place, names, origin)
    try:
        names.manifest.parent.mkdir(parents=True, exist_ok=True)
        write_manifest(names.manifest, manifest)  # before there is an output, which could not be gone on with otherwise
        if place.is_lines:
            return Lines(_File(names.path, manifest), (names.manifest, manifest), signature.output, place=place)
        return Parts(names, manifest, output=signature.output, place=place, kept=kept)
    except OSError as error:
        raise DatasetError(f"cannot write {names.path}: {error.strerror or error}") from error


def _begin(place: Place, names: _Names, origin: Origin) -> Manifest:
    """Return the manifest to go on with, or a new one. Raises `DatasetError`."""
    path, new = names.path, Manifest(origin, types=dict(place.types))
    if place.share is not None:
        place.share.check_neighbours(Path(place.path).expanduser(), is_lines=place.is_lines)
    found = read_manifest(names.manifest)
    if place.resume or place.resume_changed:
        if found is None:
            if names.is_there():
                raise DatasetError(f"{path} is complete, or was not begun by geartrain batch: nothing to go on with")
            return new
        if not place.resume_changed:
            check_same(found, origin, path=path)
        return found
    if place.overwrite:
        _remove_output(place, names)
    elif found is not None and not found.is_whole:
        raise DatasetError(f"{path} was begun and not ended; go on with --resume, or begin anew with --overwrite")
    elif found is not None or names.is_there():
        raise DatasetError(f"{path} is there already; write it anew with --overwrite")
    return new


def _remove_output(place: Place, names: _Names) -> None:
    """Remove an output; of a share, what is its own."""
    names.manifest.unlink(missing_ok=True)
    if place.share is None:
        _remove(names.path)
        _remove(files_of(names.path))
    elif place.is_lines:
        _remove(names.path)
    else:
        for _, path in names.own_parts():
            path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a file, or all that is in a folder but its lock."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for each in path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != _LOCK:
            each.unlink()


def _end(manifest_path: Path, manifest: Manifest, place: Place) -> None:
    """Let go of the manifest of a whole output. That of a share stays: others are not whole yet."""
    if place.share is None:
        manifest_path.unlink(missing_ok=True)
    else:
        manifest.is_whole = True
        write_manifest(manifest_path, manifest)


def files_of(path: Path) -> Path:
    """Return the folder for output files beside an output."""
    return path.with_name(f"{path.stem}_files") if path.suffix else path / "_files"


class Held(Sink):
    """Results that are kept: of a dry run."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def write(self, results: Sequence[Result]) -> None:
        """Keep results."""
        self.results += results

    def close(self, *, is_whole: bool) -> None:
        """Keep what there is."""


# JSON lines


class _Printed:
    """Lines on stdout."""

    def write(self, data: bytes) -> None:
        """Print lines."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def sync(self) -> int:
        """Do nothing more: there is no way back."""
        return 0

    def close(self) -> None:
        """Leave stdout open."""


class _File:
    """Lines in a file, from the end of those that count."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("r+b" if path.exists() else "x+b")
        self._file.truncate(manifest.size)
        self._file.seek(manifest.size)
        sync_folder(path.parent)

    def write(self, data: bytes) -> None:
        """Add lines."""
        self._file.write(data)

    def sync(self) -> int:
        """Have all lines on the disk; return the size of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Lines(Sink):
    """A JSON object for each row: `row`, the kept columns, and `output` or `error`."""

    def __init__(
        self, target: _File | _Printed, state: tuple[Path, Manifest] | None, output: OutputSpec, *, place: Place
    ) -> None:
        """`state`: the manifest, where there is one."""
        self._target = target
        self._state = state
        self._place = place
        self._errors = place.errors
        self.done = 0 if state is None else state[1].rows
        self._files = _Files(None if place.path == "-" else Path(place.path).expanduser(), output)
        self._committed = time.monotonic()

    def write(self, results: Sequence[Result]) -> None:
        """Write a line for each result, and commit from time to time."""
        self._target.write(lines_of(results, self._errors, saved=self._files.saved))
        if self._state is not None and results:
            manifest = self._state[1]
            manifest.rows = results[-1].number + 1
            manifest.errors += sum(1 for result in results if result.error)
            if time.monotonic() - self._committed > _COMMIT:
                self._commit()

    def close(self, *, is_whole: bool) -> None:
        """Commit; a whole output needs its manifest no longer."""
        try:
            if self._state is not None:
                self._commit()
                if is_whole:
                    _end(*self._state, self._place)
        finally:
            self._target.close()

    def _commit(self) -> None:
        if self._state is not None:
            path, manifest = self._state
            manifest.size = self._target.sync()
            write_manifest(path, manifest)
            self._committed = time.monotonic()


def _output_of(result: Result) -> Buffer | None:
    return result.output


def lines_of(
    results: Sequence[Result],
    errors: Errors,
    *,
    saved: Callable[[Result], Buffer | None] = _output_of,
) -> bytes:
    """Return a JSON object on a line for each result. `saved` returns the JSON text of an output."""
    # Joined by hand, as the output is JSON already: an encoder takes 1 µs more, and `%` 0.5 µs, 5 and 3 % of a row.
    pieces: list[Buffer] = []
    for result in results:
        if not result.error:
            kept = _encode(result.kept)[1:-1] + b"," if result.kept else b""
            pieces += (b'{"row":', b"%d" % result.number, b",", kept, b'"output":', saved(result) or b"null", b"}\n")
        elif errors != "skip":
            pieces += (_encode({"row": result.number, **result.kept, "error": result.error}), b"\n")
    return b"".join(pieces)


# Parquet


class Tables:
    """Makes the table of a part. `kept`: the types of the columns that pass through, where they are known.

    `types` has the names of the others, and gets those that the first table has found.
    """

    def __init__(
        self,
        output: OutputSpec,
        *,
        kept: Mapping[str, pa.DataType | None],
        types: dict[str, str],
        errors: Errors,
        saved: Callable[[Result], Buffer | None] = _output_of,
    ) -> None:
        self._output = output
        self._kept = dict(kept)
        self._types = types
        self._errors = errors
        self._saved = saved

    def table(self, results: Sequence[Result]) -> pa.Table:
        """Make a table of results. Raises `DatasetError` for a kept value that does not fit its column."""
        import pyarrow as pa

        results = [each for each in results if not (each.error and self._errors == "skip")]
        names, columns = ["row"], [pa.array([each.number for each in results], pa.int64())]
        for name, known in self._kept.items():
            names.append(name)
            columns.append(self._kept_column(name, known, results))
        names += ["output", "error"]
        columns += output_columns(results, self._output, self._saved)
        return pa.table(columns, names=names)

    def _kept_column(self, name: str, known: pa.DataType | None, results: Sequence[Result]) -> pa.Array:
        """Return the values of a column that passes through, of the type that the first part has found for it."""
        import pyarrow as pa

        values = [_plain(result.kept.get(name)) for result in results]
        if known is not None:
            return pa.array(values, known)
        kind = self._types.setdefault(name, _name_of_type({type(value) for value in values if value is not None}))
        try:
            if kind != "json":
                return pa.array(values, kind)
        except (pa.ArrowException, TypeError):
            raise DatasetError(
                f"the column {name!r} has values of several types ({kind} at first): write FILE.jsonl, or leave it out "
                "of --keep"
            ) from None
        return pa.array([None if value is None else _encode(value).decode() for value in values], pa.string())


class Parts(Sink):
    """A folder of Parquet files, each written as a whole.

    A part ends after a number of rows, or of bytes, so a run that was cut off makes the same parts as one that was not.
    """

    def __init__(
        self,
        names: _Names,
        manifest: Manifest,
        *,
        output: OutputSpec,
        place: Place,
        kept: Mapping[str, pa.DataType | None],
    ) -> None:
        try:
            import pyarrow  # noqa: F401 - only whether it is there
        except ImportError:
            raise DatasetError("Parquet needs pyarrow: pip install 'geartrain[data]'; or write FILE.jsonl") from None
        names.path.mkdir(parents=True, exist_ok=True)
        self._names, self._manifest, self._place = names, manifest, place
        self._part_rows = place.part_rows
        saved = _Files(names.path, output).saved
        self._tables = Tables(output, kept=kept, types=manifest.types, errors=place.errors, saved=saved)
        self._held: list[Result] = []
        self._size = 0
        self.done = manifest.rows
        for number, path in names.own_parts():
            if number >= manifest.parts:
                path.unlink()

    def write(self, results: Sequence[Result]) -> None:
        """Hold results until there is a part of them."""
        for result in results:
            self._held.append(result)
            self._size += len(result.output or b"")
            if len(self._held) >= self._part_rows or self._size >= _PART_BYTES:
                self._write_part()

    def close(self, *, is_whole: bool) -> None:
        """Write the last part, if the data set is at its end; rows of an unfinished part are run again."""
        if is_whole:
            if self._held or not self._manifest.parts:
                self._write_part()
            _end(self._names.manifest, self._manifest, self._place)

    def _write_part(self) -> None:
        import pyarrow.parquet as pq

        results, self._held, self._size = self._held, [], 0
        manifest = self._manifest
        table = self._tables.table(results)
        path = self._names.part(manifest.parts)
        temporary = path.with_name(f"_{path.stem}.tmp")
        with temporary.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        manifest.parts += 1
        if results:
            manifest.rows = results[-1].number + 1
        manifest.errors += sum(1 for result in results if result.error)
        write_manifest(self._names.manifest, manifest)


def _plain(value: Any) -> Any:
    return _decode(value) if isinstance(value, msgspec.Raw) else value


def first_types(source: Source, kept: Mapping[str, str]) -> dict[str, str]:
    """Return the types of kept columns by the first rows of a data set, so that all shares have the same. Blocks."""
    kinds: dict[str, set[type]] = {name: set() for name in kept}
    for record in islice(source.rows(), _FIRST_ROWS):
        for name, column in kept.items():
            value = _plain(record.columns.get(column))
            if value is not None:
                kinds[name].add(type(value))
    return {name: _name_of_type(each) for name, each in kinds.items()}


def _name_of_type(kinds: Collection[type]) -> str:
    """Return the name of the type that all values have; `json` where they have none in common."""
    kinds = set(kinds)
    if kinds <= {int, float} and float in kinds:
        return "float64"
    if len(kinds) != 1:
        return "json" if kinds else "string"
    return {int: "int64", str: "string", bool: "bool"}.get(kinds.pop(), "json")


# output files


class _Files:
    """Saves the files of outputs beside the output, and puts their paths in place of their URLs."""

    def __init__(self, path: Path | None, output: OutputSpec) -> None:
        """`path` None: they stay URLs."""
        self._path = path
        self._output = output
        self._can_have = path is not None and _may_have_files(output.type)

    def saved(self, result: Result) -> Buffer | None:
        """Return the output of a result with its files saved."""
        if result.output is None or not self._can_have:
            return result.output
        text = bytes(result.output)
        if b'"data:' not in text:
            return text
        value = _decode(text)
        stem = f"{result.number:08}"
        if self._output.mode != "value" and isinstance(value, list):
            return _encode([self._replace(each, self._output.type, f"{stem}.{at}") for at, each in enumerate(value)])
        return _encode(self._replace(value, self._output.type, stem))

    def _replace(self, value: Any, spec: TypeSpec, stem: str) -> Any:
        if isinstance(value, str) and spec.kind in FILE_KINDS and value.startswith("data:"):
            return self._save(value, stem)
        if isinstance(value, list) and spec.items is not None:
            return [self._replace(each, spec.items, f"{stem}.{at}") for at, each in enumerate(value)]
        if isinstance(value, dict):
            types = {field.name: field.type for field in spec.fields}
            return {
                name: self._replace(each, types[name], f"{stem}.{name}") if name in types else each
                for name, each in value.items()
            }
        return value

    def _save(self, url: str, stem: str) -> str:
        """Write a file; return its path, relative to the folder of the output."""
        assert self._path is not None  # noqa: S101 - `_can_have` says so
        head, _, data = url.partition(",")
        media_type = head.removeprefix("data:").partition(";")[0] or "application/octet-stream"
        extension = _EXTENSIONS.get(media_type) or mimetypes.guess_extension(media_type) or ".bin"
        try:
            content = (
                base64.b64decode(data, validate=True)
                if head.endswith(";base64")
                else urllib.parse.unquote_to_bytes(data)
            )
        except binascii.Error as error:
            raise DatasetError(f"row {stem}: the file in the output cannot be read: {error}") from error
        folder = files_of(self._path)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}{extension}"
        path.write_bytes(content)
        return str(path.relative_to(self._path if self._path.is_dir() else self._path.parent))


def _may_have_files(spec: TypeSpec) -> bool:
    return (
        spec.kind in FILE_KINDS
        or (spec.items is not None and _may_have_files(spec.items))
        or any(_may_have_files(field.type) for field in spec.fields)
    )
