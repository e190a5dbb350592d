"""Progress of a model's current download, and totals of its downloads so far."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

UNKNOWN_SIZE: Final = -1

_GIGA: Final = 10**9
_MEGA: Final = 10**6
_DECIMALS: Final = 10


class DownloadStep(StrEnum):
    """Step of a download."""

    NONE = "nothing"  # there is no download
    WAITING = "waiting"  # for another process that downloads the same
    LOOKING = "looking"  # listing the files
    FETCHING = "fetching"
    UNPACKING = "unpacking"
    VERIFYING = "verifying"


_SENTENCES: Final = {
    DownloadStep.NONE: "There is no download.",
    DownloadStep.WAITING: "Another process downloads {source}; waiting for it.",
    DownloadStep.LOOKING: "Looking at {source}.",
    DownloadStep.UNPACKING: "Unpacking {source}.",
    DownloadStep.VERIFYING: "Verifying {source}.",
}


class Download:
    """The downloads of one model. It is written by one thread at a time, and read by others at any time.

    Attributes:
        step: what is being done.
        source: of the download at hand, as it may be shown.
        bytes: those of it that are there; with what had come before and is not fetched again.
        total_bytes: all of them, `UNKNOWN_SIZE` where that is not known.
        files: those of it that are there.
        total_files: all of them.
        received_bytes: what has come over the network since the server began, for this model.
        received_files: the files that have come, likewise.
        failures: the downloads that have failed, likewise.
    """

    def __init__(self) -> None:
        self.step = DownloadStep.NONE
        self.source = ""
        self.bytes = self.total_bytes = 0
        self.files = self.total_files = 0
        self.received_bytes = self.received_files = 0
        self.failures = 0

    @property
    def is_active(self) -> bool:
        """True if something is being downloaded, or looked for."""
        return self.step is not DownloadStep.NONE

    def begin(self, source: str) -> None:
        """Begin with another source."""
        self.source, self.step = source, DownloadStep.LOOKING
        self.bytes = self.total_bytes = self.files = self.total_files = 0

    def expect(self, size: int, files: int) -> None:
        """Note how much there is to fetch: bytes, `UNKNOWN_SIZE` where that is not known, and files."""
        self.total_bytes, self.total_files = size, files
        self.bytes = self.files = 0
        self.step = DownloadStep.FETCHING

    def add(self, size: int) -> None:
        """Note that so many bytes have come."""
        self.bytes += size
        self.received_bytes += size

    def drop(self, size: int) -> None:
        """Note that so many bytes are of no use, and come again."""
        self.bytes -= size

    def finish_file(self, *, received: bool) -> None:
        """Note that a file is complete; `received`: it came over the network."""
        self.files += 1
        self.received_files += received

    def end(self) -> None:
        """Note the end of all downloads."""
        self.step = DownloadStep.NONE

    def describe(self) -> str:
        """Return a sentence that says how far it has come."""
        if self.step is not DownloadStep.FETCHING:
            return _SENTENCES[self.step].format(source=self.source)
        known = self.total_bytes != UNKNOWN_SIZE
        of_size = f" of {size_text(self.total_bytes)} ({self.percent} %)" if known else ""
        files = f", {self.files} of {self.total_files} files" if self.total_files != 1 else ""
        return f"Downloading {self.source}: {size_text(self.bytes)}{of_size}{files}."

    @property
    def percent(self) -> int:
        """Downloaded percentage, from 0 to 100; 0 for an unknown size."""
        if self.total_bytes == UNKNOWN_SIZE:
            return 0
        return min(100, self.bytes * 100 // self.total_bytes) if self.total_bytes else 100


def size_text(size: int) -> str:
    """Write a number of bytes for a person."""
    for unit, name in ((_GIGA, "GB"), (_MEGA, "MB")):
        if size >= unit:
            number = size / unit
            return f"{number:.1f} {name}" if number < _DECIMALS else f"{number:.0f} {name}"
    return f"{size:,} bytes"
