"""One slot of a worker: its channel, the memory that it shares with the parent, and the files of its calls."""

from __future__ import annotations

from geartrain.ipc.messages import Received, SlotMemory
from geartrain.ipc.payload import PayloadReader, PayloadWriter
from geartrain.ipc.shared_memory import MemoryRegion, kept_by_each
from geartrain.worker.channels.channel import Channel
from geartrain.worker.values.call_files import CallFiles


class SharedMemory:
    """The memory that a slot shares with the parent: opened when it is first needed, and then kept."""

    __slots__ = ("_input", "_kept", "_output", "paths")

    def __init__(self, kept: int) -> None:
        """`kept`: bytes of an input's memory that stay when it has been read."""
        self._kept = kept
        self.paths: SlotMemory | None = None  # as the last call has named them
        self._input: MemoryRegion | None = None
        self._output: MemoryRegion | None = None

    def input(self) -> MemoryRegion | None:
        """The memory that inputs lie in; None if there is none. Raises `OSError` if it cannot be opened."""
        if self.paths is not None and self._input is None:
            self._input = MemoryRegion.open(self.paths.input)
            self._input.kept = self._kept
        return self._input

    def output(self) -> MemoryRegion | None:
        """The memory for outputs; None if there is none. Raises `OSError` if it cannot be opened."""
        if self.paths is not None and self._output is None:
            self._output = MemoryRegion.open(self.paths.output)
        return self._output

    def close(self) -> None:
        """Close the memory. A worker does so by ending."""
        for region in (self._input, self._output):
            if region is not None:
                region.close()
        self._input = self._output = None


class OpenedBodies:
    """The memory in which the parent receives bodies: opened when it is first needed, then kept, as it is not much."""

    def __init__(self) -> None:
        self._regions: dict[str, MemoryRegion] = {}

    def view(self, payload: Received) -> memoryview:
        """Return what lies in a body. Raises `OSError` if the memory cannot be opened."""
        region = self._regions.get(payload.path)
        if region is None:
            region = self._regions[payload.path] = MemoryRegion.open(payload.path)
        return region.view(payload.offset + payload.size)[payload.offset :]


class Slot:
    """What the calls of one slot use, one call after the other."""

    __slots__ = ("channel", "files", "memory", "reader", "writer")

    def __init__(self, channel: Channel, files: CallFiles, bodies: OpenedBodies, *, slots: int = 1) -> None:
        """`bodies` are those of all slots; `slots`: how many the worker has."""
        self.channel = channel
        self.files = files
        self.memory = SharedMemory(kept_by_each(slots))
        self.reader = PayloadReader(self.memory.input, bodies.view)
        self.writer = PayloadWriter(self.memory.output, files.new_file)


def can_share(probe: str | None) -> bool:
    """Whether memory of the parent's can be opened here; `probe` is the path of some, None if it has none."""
    if probe is None:
        return False
    try:
        MemoryRegion.open(probe).close()
    except OSError:
        return False
    return True
