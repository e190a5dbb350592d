"""One slot of a worker: its channel, the memory that it shares with the parent, and the files of its calls."""

from __future__ import annotations

from geartrain.ipc.memory import Region
from geartrain.ipc.payload import PayloadReader, PayloadWriter
from geartrain.worker.channels.channel import Channel
from geartrain.worker.values.call_files import CallFiles


class OpenedMemory:
    """Regions of the parent's: opened when they are first needed, and kept until the worker ends; they are few."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def open(self, path: str) -> Region:
        """Return the region of a path. Raises `OSError` if it cannot be opened."""
        region = self._regions.get(path)
        if region is None:
            region = self._regions[path] = Region.open(path)
        return region

    def close(self) -> None:
        """Close the regions. A worker does so by ending."""
        while self._regions:
            self._regions.popitem()[1].close()


class Slot:
    """Memory and channel of one slot, used by one call after the other."""

    __slots__ = ("_memory", "_opened", "_paths", "channel", "files", "reader", "regions", "writer")

    def __init__(self, channel: Channel, files: CallFiles, memory: OpenedMemory) -> None:
        """`memory` is that of all slots."""
        self.channel = channel
        self.files = files
        self.regions: tuple[str, ...] = ()  # for outputs, by their paths: those of the last call
        self._memory = memory
        self._paths: tuple[str, ...] = ()
        self._opened: list[Region] = []  # those of `_paths`
        self.reader = PayloadReader(memory.open)
        self.writer = PayloadWriter(self._outputs, files.new_file)

    def _outputs(self) -> list[Region]:
        if self._paths != self.regions:
            self._opened = [self._memory.open(path) for path in self.regions]
            self._paths = self.regions
        return self._opened


def can_share(probe: str | None) -> bool:
    """True if memory of the parent's can be opened here; `probe` is the path of some, None if it has none."""
    if probe is None:
        return False
    try:
        Region.open(probe).close()
    except OSError:
        return False
    return True
