"""Data sets that are read: JSON lines, CSV, Parquet, Arrow, folders of files, and stdin.

A source gives its rows in chunks, from a thread: reading blocks. Each file is read from its beginning to its end, so
memory does not grow with its size.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import msgspec

from geartrain.dataset.errors import DatasetError
from geartrain.dataset.records import MAX_ROW, Record, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["jsonl", "csv", "tsv", "parquet", "arrow", "files"]
FORMATS: Final[tuple[Format, ...]] = ("jsonl", "csv", "tsv", "parquet", "arrow", "files")

SUFFIXES: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_ROWS: Final = 256  # of a chunk
_SAMPLE: Final = 1024**2  # bytes at each end of a file that its fingerprint is made of
_BOM: Final = b"\xef\xbb\xbf"
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_is_value = msgspec.json.Decoder().decode


class Source(ABC):
    """A data set that is read once, from its beginning.

    Attributes:
        base: the folder that paths in its values are relative to.
        columns: the names of its columns, None where each row has its own.
        count: the number of its rows, None where it is not known before.
        first: the number of its first row; 0 but for a share of a data set.
        is_text: its values are texts, which are read by the types of the inputs.
        is_files: its rows are files.
    """

    base: Path
    columns: Sequence[str] | None = None
    count: int | None = None
    first: int = 0
    is_text: bool = False
    is_files: bool = False

    @abstractmethod
    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give the rows, without the first `skip`. Blocks. Raises `DatasetError` where reading cannot go on."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that changes with the content; empty where there is none. Blocks."""

    def schema(self) -> pa.Schema | None:
        """Return the types of the columns, where the format has them."""
        return None

    def counted(self) -> int:
        """Return the number of rows. Blocks; reads all of them where the format does not tell.

        Raises `DatasetError` for what can be read only once.
        """
        if self.count is None:
            self.count = self.count_rows()
        return self.count

    def count_rows(self) -> int:
        """Count the rows. Blocks."""
        return sum(1 for _ in self.rows())

    def chunks(self, skip: int = 0, *, size: int = _ROWS) -> Iterator[list[Record]]:
        """Give the rows in lists of at most `size`. Blocks."""
        rows = self.rows(skip)
        while chunk := list(islice(rows, size)):
            yield chunk


def open_source(name: str, form: Format | None = None) -> Source:
    """Find a data set: a file, a folder, or `-` for stdin. Raises `DatasetError`."""
    if name == "-":
        if form in {"parquet", "files"}:
            raise DatasetError(f"stdin cannot be {form}: write jsonl, csv, tsv or arrow")
        return _of_stream(form or "jsonl")
    path = Path(name).expanduser()
    if not path.exists():
        raise DatasetError(f"there is no {path}")
    if path.is_dir():
        return _of_folder(path, form)
    return _of_file(path, form or _format_of(path))


def _of_stream(form: Format) -> Source:
    if form == "jsonl":
        return JsonLines(None)
    return ArrowFile(None) if form == "arrow" else Table(None, "\t" if form == "tsv" else ",")


def _format_of(path: Path) -> Format:
    form = SUFFIXES.get(path.suffix.lower())
    if form is None:
        known = ", ".join(sorted(SUFFIXES))
        raise DatasetError(f"{path}: the format of a data set is known by its ending ({known}), or by --format")
    return form


def _of_file(path: Path, form: Format) -> Source:
    if form == "files":
        return Files(path.parent, [path])
    if form == "jsonl":
        return JsonLines(path)
    if form == "parquet":
        return Parquet(path)
    if form == "arrow":
        return ArrowFile(path)
    return Table(path, "\t" if form == "tsv" else ",")


def _of_folder(folder: Path, form: Format | None) -> Source:
    """Return the source of a folder: its data sets one after the other, or else its files, one a row."""
    files = sorted(each for each in folder.rglob("*") if each.is_file() and not _is_hidden(each, folder))
    if not files:
        raise DatasetError(f"{folder} has no files")
    if form != "files":
        formats = {form or SUFFIXES.get(each.suffix.lower()) for each in files}
        if len(formats) == 1 and (only := formats.pop()) is not None:
            return Several(folder, [_of_file(each, only) for each in files])
    return Files(folder, files)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


class Several(Source):
    """Data sets of one format, one after the other: its `parts`."""

    def __init__(self, folder: Path, sources: Sequence[Source]) -> None:
        self.base = folder
        self.parts = sources
        self.columns = sources[0].columns
        counts = [each.count for each in sources]
        known = [count for count in counts if count is not None]
        self.count = sum(known) if len(known) == len(counts) else None
        self.is_text, self.is_files = sources[0].is_text, sources[0].is_files

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give the rows of one after the other."""
        for source in self.parts:
            if source.count is not None and skip >= source.count:
                skip -= source.count
                continue
            rows = source.rows()
            skipped = sum(1 for _ in islice(rows, skip))
            skip -= skipped
            yield from rows

    def count_rows(self) -> int:
        """Count the rows of each."""
        return sum(each.counted() for each in self.parts)

    def fingerprint(self) -> str:
        """Return the hash of all fingerprints."""
        return _hash(each.fingerprint().encode() for each in self.parts)

    def schema(self) -> pa.Schema | None:
        """Return the types of the first one."""
        return self.parts[0].schema()


class JsonLines(Source):
    """A JSON object on each line. Empty lines are passed over."""

    def __init__(self, path: Path | None) -> None:
        """`path` None is stdin."""
        self._path = path
        self.base = Path.cwd() if path is None else path.parent

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give a record for each line."""
        with _opened(self._path) as file:
            for line in islice(_lines(file), skip, None):
                yield line if isinstance(line, Record) else _record_of_json(line)

    def count_rows(self) -> int:
        """Count the lines that are not empty, without reading their JSON."""
        _check_is_file(self._path)
        with _opened(self._path) as file:
            return sum(1 for _ in _lines(file))

    def fingerprint(self) -> str:
        """Return the hash of size, beginning and end."""
        return "" if self._path is None else _fingerprint(self._path)


def _lines(file: IO[bytes]) -> Iterator[bytes | Record]:
    """Give the lines that are not empty; in place of one that is too long, a record that says so."""
    first = True
    while line := _readline(file):
        if first:
            line, first = line.removeprefix(_BOM), False
        if len(line) > MAX_ROW:
            while not line.endswith(b"\n") and (line := _readline(file)):
                pass
            yield unreadable(f"the line has more than {MAX_ROW // 1024**2} MiB")
        elif line.strip():
            yield line


def _readline(file: IO[bytes]) -> bytes:
    try:
        return file.readline(MAX_ROW + 1)
    except OSError as error:
        raise DatasetError(f"cannot read {file.name}: {error.strerror or error}") from error


def _record_of_json(line: bytes) -> Record:
    try:
        if not line.isascii():
            line.decode()
        return Record(_read_object(line))
    except UnicodeDecodeError as error:
        return unreadable(f"the line is not UTF-8: byte {error.start + 1}")
    except (msgspec.DecodeError, RecursionError) as error:
        return unreadable(_fault_of_json(line, error))


def _fault_of_json(line: bytes, error: Exception) -> str:
    try:
        _is_value(line)
    except (msgspec.DecodeError, RecursionError):
        return f"the line is no JSON: {error}"
    return "the line is no JSON object: its members are the columns"


class Table(Source):
    """A table of texts with a head: CSV, or with tabs. Source: RFC 4180."""

    is_text = True

    def __init__(self, path: Path | None, delimiter: str) -> None:
        """`path` None is stdin. Raises `DatasetError` for a head that is none."""
        self._path = path
        self._delimiter = delimiter
        self.base = Path.cwd() if path is None else path.parent
        if path is not None:
            with _opened(path) as file:
                self.columns = self._head(self._reader(file))

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give a record for each line behind the head."""
        with _opened(self._path) as file:
            reader = self._reader(file)
            columns = self._head(reader)
            for cells in islice(self._cells(reader), skip, None):
                yield cells if isinstance(cells, Record) else _record_of_cells(columns, cells)

    def count_rows(self) -> int:
        """Count the lines behind the head."""
        _check_is_file(self._path)
        with _opened(self._path) as file:
            reader = self._reader(file)
            self._head(reader)
            return sum(1 for _ in self._cells(reader))

    def fingerprint(self) -> str:
        """Return the hash of size, beginning and end."""
        return "" if self._path is None else _fingerprint(self._path)

    def _reader(self, file: IO[bytes]) -> Iterator[list[str]]:
        csv.field_size_limit(MAX_ROW)
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        return csv.reader(text, delimiter=self._delimiter, strict=True)

    def _cells(self, reader: Iterator[list[str]]) -> Iterator[list[str] | Record]:
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield unreadable(f"the line is no CSV: {error}")
                continue
            except OSError as error:
                raise DatasetError(f"cannot read {self._path or 'stdin'}: {error.strerror or error}") from error
            if cells:
                yield cells

    def _head(self, reader: Iterator[list[str]]) -> list[str]:
        place = self._path or "stdin"
        for cells in self._cells(reader):
            if isinstance(cells, Record):
                raise DatasetError(f"{place}: {cells.fault}")
            twice = sorted({cell for cell in cells if cells.count(cell) > 1})
            if twice:
                raise DatasetError(f"{place}: the column {twice[0]!r} is there twice")
            return cells
        raise DatasetError(f"{place} is empty: the first line has the names of the columns")


def _record_of_cells(columns: Sequence[str], cells: Sequence[str]) -> Record:
    if len(cells) != len(columns):
        return unreadable(f"the line has {len(cells)} cells, and the head {len(columns)}")
    for cell in cells:
        try:
            cell.encode()
        except UnicodeEncodeError:
            return unreadable("the line is not UTF-8")
    return Record(dict(zip(columns, cells, strict=True)))


class _Columnar(Source):
    """Rows of Arrow's batches."""

    _place: str

    @abstractmethod
    def _batches(self, first: int) -> Iterable[pa.RecordBatch]:
        """Open the file, and give its batches from the one with the number `first` on. Blocks."""

    def _sizes(self) -> Iterable[int]:
        """Give the rows of each batch that can be passed over without being read."""
        return ()

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give a record for each row."""
        import pyarrow as pa

        try:
            passed = 0
            for size in self._sizes():
                if skip < size:
                    break
                skip -= size
                passed += 1
            for batch in self._batches(passed):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                names = batch.schema.names
                for start in range(skip, batch.num_rows, _ROWS):
                    part = batch.slice(start, _ROWS)
                    columns = [column.to_pylist() for column in part.columns]
                    for values in zip(*columns, strict=True):
                        yield Record(dict(zip(names, values, strict=True)))
                skip = 0
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"cannot read {self._place}: {_first_line(error)}") from error

    def _check_columns(self, names: Sequence[str]) -> None:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DatasetError(f"{self._place}: the column {twice[0]!r} is there twice")


class Parquet(_Columnar):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        """Raise `DatasetError` for what is no Parquet."""
        _require_arrow()
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path, self._place, self.base = path, str(path), path.parent
        try:
            with pq.ParquetFile(path) as file:
                self._schema = file.schema_arrow
                self.count = file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"cannot read {path} as Parquet: {_first_line(error)}") from error
        self.columns = self._schema.names
        self._check_columns(self._schema.names)

    def fingerprint(self) -> str:
        """Return the hash of size, beginning and end."""
        return _fingerprint(self._path)

    def schema(self) -> pa.Schema:
        """Return the types of the columns."""
        return self._schema

    def _sizes(self) -> Iterable[int]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path) as file:
            for group in range(file.num_row_groups):
                yield file.metadata.row_group(group).num_rows

    def _batches(self, first: int) -> Iterable[pa.RecordBatch]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path) as file:
            groups = range(first, file.num_row_groups)
            yield from file.iter_batches(batch_size=4 * _ROWS, row_groups=groups)


class ArrowFile(_Columnar):
    """A file of Arrow's IPC format, or a stream of it."""

    def __init__(self, path: Path | None) -> None:
        """`path` None is stdin. Raises `DatasetError` for what is not Arrow."""
        _require_arrow()
        self._path, self._place = path, "stdin" if path is None else str(path)
        self.base = Path.cwd() if path is None else path.parent
        self._schema: pa.Schema | None = None
        if path is not None:
            import pyarrow as pa

            try:
                with self._reader() as reader:
                    self._schema = reader.schema
            except (pa.ArrowException, OSError) as error:
                raise DatasetError(f"cannot read {path} as Arrow: {_first_line(error)}") from error
            self.columns = self._schema.names
            self._check_columns(self._schema.names)

    def fingerprint(self) -> str:
        """Return the hash of size, beginning and end."""
        return "" if self._path is None else _fingerprint(self._path)

    def schema(self) -> pa.Schema | None:
        """Return the types of the columns; None for those of stdin."""
        return self._schema

    def _reader(self) -> Any:
        import pyarrow as pa

        if self._path is None:
            return pa.ipc.open_stream(sys.stdin.buffer)
        try:
            return pa.ipc.open_file(pa.memory_map(str(self._path)))
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(pa.memory_map(str(self._path)))

    def count_rows(self) -> int:
        """Count the rows of all batches, which are mapped and not read."""
        import pyarrow as pa

        _check_is_file(self._path)
        try:
            return sum(batch.num_rows for batch in self._batches(0))
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"cannot read {self._place}: {_first_line(error)}") from error

    def _batches(self, first: int) -> Iterable[pa.RecordBatch]:
        with self._reader() as reader:
            if hasattr(reader, "num_record_batches"):
                for index in range(first, reader.num_record_batches):
                    yield reader.get_batch(index)
            else:
                yield from islice(reader, first, None)


class Files(Source):
    """A folder of files: each is a row with the columns `file`, its path, and `name`, its name."""

    columns = ("file", "name")
    is_files = True

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self.base = folder
        self._files = [each.relative_to(folder) for each in files]
        self.count = len(files)

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give a record for each file, in the order of their names."""
        for path in self._files[skip:]:
            yield Record({"file": str(path), "name": path.name})

    def fingerprint(self) -> str:
        """Return the hash of names and sizes."""
        return _hash(f"{path}\0{(self.base / path).stat().st_size}".encode() for path in self._files)


class Objects(Source):
    """Rows of a program: dicts, or values for the one input of a model."""

    def __init__(self, rows: Iterable[Any], *, count: int | None = None) -> None:
        self.base = Path.cwd()
        self.count = count
        self._rows = rows

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give a record for each row."""
        for row in islice(self._rows, skip, None):
            yield row if isinstance(row, Record) else Record(row)

    def fingerprint(self) -> str:
        """Return nothing: a program knows what it gives."""
        return ""


# parts of several


def _check_is_file(path: Path | None) -> None:
    if path is None:
        raise DatasetError("--part: stdin is read once, and by one process; name a file that all shares can read")


def _opened(path: Path | None) -> IO[bytes]:
    """Open a file; `path` None is stdin. Raises `DatasetError`."""
    if path is None:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return path.open("rb", buffering=1024**2)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error


def _fingerprint(path: Path) -> str:
    with _opened(path) as file:
        try:
            size = path.stat().st_size
            head = file.read(_SAMPLE)
            file.seek(max(0, size - _SAMPLE))
            return _hash((str(size).encode(), head, file.read(_SAMPLE)))
        except OSError as error:
            raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error


def _hash(parts: Iterable[bytes]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def _require_arrow() -> None:
    try:
        import pyarrow  # noqa: F401 - only whether it is there
    except ImportError:
        raise DatasetError("Parquet and Arrow need pyarrow: pip install 'geartrain[data]'") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
