"""Shares of a data set, for processes on several machines that write one output between them.

A share is a range of rows, and keeps their numbers. So the outputs of all shares, one after the other, are the output
of a single run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from geartrain.dataset.errors import DatasetError
from geartrain.dataset.records import Record
from geartrain.dataset.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

INDEX: Final = "JOB_COMPLETION_INDEX"
"""The variable with the index of a pod in an indexed Job of Kubernetes."""

_SHARE: Final = re.compile(r"(\d{1,5}|auto)/(\d{1,5})", re.ASCII)
_NAME: Final = re.compile(r"\d{5}-of-(\d{5})", re.ASCII)


class Share(msgspec.Struct, frozen=True):
    """One of `of` shares; `index` is from 0 on."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    @property
    def name(self) -> str:
        """Part of the names of its files, which sort as the shares do."""
        return f"{self.index:05}-of-{self.of:05}"

    def path_of(self, path: Path) -> Path:
        """Return the path of its own file, for an output that is a file."""
        return path.with_name(f"{path.stem}-{self.name}{path.suffix}")

    def check_neighbours(self, path: Path, *, is_lines: bool) -> None:
        """Raise `DatasetError` where an output has files of another number of shares, or of none."""
        folder, stem, suffix = (path.parent, path.stem, path.suffix) if is_lines else (path, "part", ".parquet")
        if not folder.is_dir():
            return
        for each in folder.iterdir():
            if each.suffix != suffix or not each.stem.startswith(f"{stem}-"):
                continue
            name = each.stem.removeprefix(f"{stem}-")
            found = _NAME.fullmatch(name) if is_lines else _NAME.match(name)
            is_other = not is_lines if found is None else int(found[1]) != self.of
            if is_other:
                raise DatasetError(
                    f"{each} is not one of {self.of} shares, and would be read along with them; give --part I/N the "
                    "same N as before, or write to another place"
                )


def read_share(text: str, environ: Mapping[str, str]) -> Share:
    """Parse `I/N`, with I from 0 on, or `auto/N`. Raises `DatasetError`."""
    match = _SHARE.fullmatch(text)
    if match is None or not int(match[2]):
        raise DatasetError(f"--part {text!r}: write I/N, such as 0/8 for the first of eight shares, or auto/8")
    index, of = match[1], int(match[2])
    if index == "auto":
        index = environ.get(INDEX, "")
        if not (index.isascii() and index.isdigit()):
            raise DatasetError(
                f"--part {text}: {INDEX} is {'not set' if not index else repr(index)}; the pods of an indexed Job of "
                f"Kubernetes have it. Elsewhere write the number of the share, such as --part 0/{of}"
            )
    if int(index) >= of:
        raise DatasetError(f"--part {index}/{of}: there is no such share; they are numbered from 0 to {of - 1}")
    return Share(int(index), of)


class Shared(Source):
    """A share of the rows of a data set: those from `first` on, as many as `count`."""

    def __init__(self, source: Source, share: Share) -> None:
        """Count the rows of the data set. Blocks; reads all of a file that does not tell. Raises `DatasetError`."""
        self._source = source
        total = source.counted()
        self.first = total * share.index // share.of
        self._last = total * (share.index + 1) // share.of
        self.count = self._last - self.first
        self.base, self.columns = source.base, source.columns
        self.is_text, self.is_files = source.is_text, source.is_files

    def rows(self, skip: int = 0) -> Iterator[Record]:
        """Give the rows of the share. `skip` counts all rows of the data set."""
        skip = max(skip, self.first)
        return islice(self._source.rows(skip), max(0, self._last - skip))

    def fingerprint(self) -> str:
        """Return that of the whole data set."""
        return self._source.fingerprint()

    def schema(self) -> pa.Schema | None:
        """Return the types of the columns."""
        return self._source.schema()
