"""Byte limits for the files of one prediction."""

from __future__ import annotations

from geartrain.outbound.errors import DownloadError

_TOGETHER = 10  # times the limit of one file: a request of ten thousand URLs must not fill the disk


class Allowance:
    """Counts the decoded bytes of one prediction's input files: each against `each`, all against ten times that."""

    def __init__(self, each: int) -> None:
        self.each = each
        self._left = each * _TOGETHER

    def foresee(self, size: int) -> None:
        """Refuse a file that announces `size` bytes, before any of them is read.

        Raises DownloadError: it is too large.
        """
        if size > self.each:
            raise self.too_large()

    def too_large(self) -> DownloadError:
        """The error of a file that is larger than `each`."""
        return DownloadError(f"the file is larger than the limit of {size_text(self.each)}")

    def take(self, size: int, more: int) -> int:
        """Add `more` bytes to a file that has `size`; returns its new size.

        Raises DownloadError: the file, or all files together, are too large.
        """
        size += more
        self.foresee(size)
        self._left -= more
        if self._left < 0:
            limit = size_text(self.each * _TOGETHER)
            raise DownloadError(f"the files of this prediction are together larger than the limit of {limit}")
        return size


def size_text(size: int) -> str:
    """A number of bytes for a person: `100 MiB`, `1.5 KiB`, `12 bytes`."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{round(size / (1 << power), 2):g} {unit}"
    return f"{size} bytes"
