"""One slot of a worker: its channel, the memory that it shares with the parent, and the files of its calls."""

from __future__ import annotations

import os

from geartrain.ipc.memory import Region
from geartrain.ipc.payload import PayloadReader, PayloadWriter
from geartrain.worker.channels.channel import Channel
from geartrain.worker.values.call_files import CallFiles
from geartrain.worker.values.mapped import MappedAnswers


class OpenedMemory:
    """Regions of the parent's: opened when they are first needed, and kept until the worker ends; they are few."""

    def __init__(self) -> None:
        self._regions: dict[str, tuple[int, Region]] = {}

    def open(self, path: str) -> Region:
        """Return the region of a path. Raises `OSError` if it cannot be opened.

        The path is a number of a descriptor of the parent, which another region may have by now.
        """
        number = os.stat(path).st_ino  # noqa: PTH116 - at each call; 1.5 µs, and what is in shared memory takes 100 or more
        known = self._regions.get(path)
        if known is not None and known[0] == number:
            return known[1]
        if known is not None:
            known[1].close()
        region = Region.open(path)
        self._regions[path] = number, region
        return region

    def close(self) -> None:
        """Close the regions. A worker does so by ending."""
        while self._regions:
            self._regions.popitem()[1][1].close()


class Slot:
    """Memory and channel of one slot, used by one call after the other."""

    __slots__ = ("_memory", "answers", "channel", "files", "reader", "regions", "writer")

    def __init__(
        self, channel: Channel, files: CallFiles, memory: OpenedMemory, *, answers: MappedAnswers | None = None
    ) -> None:
        """`memory` is that of all slots, and `answers` are those of other models to all of them."""
        self.answers = answers
        self.channel = channel
        self.files = files
        self.regions: tuple[str, ...] = ()  # for outputs, by their paths: those of the last call
        self._memory = memory
        self.reader = PayloadReader(memory.open)
        self.writer = PayloadWriter(self._outputs, files.new_file)

    def _outputs(self) -> list[Region]:
        return [self._memory.open(path) for path in self.regions]


def can_share(probe: str | None) -> bool:
    """True if memory of the parent's can be opened here; `probe` is the path of some, None if it has none."""
    if probe is None:
        return False
    try:
        Region.open(probe).close()
    except OSError:
        return False
    return True
