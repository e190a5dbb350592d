"""One slot of a worker: its channel, the memory that it shares with the parent, and the files of its calls."""

from __future__ import annotations

from geartrain.ipc.messages import Received, SlotMemory
from geartrain.ipc.payload import PayloadReader, PayloadWriter
from geartrain.ipc.shared_memory import MemoryRegion, kept_by_each
from geartrain.worker.channels.channel import Channel
from geartrain.worker.values.call_files import CallFiles


class SharedMemory:
    """The memory that a slot shares with the parent: opened when it is first needed, and then kept."""

    __slots__ = ("_inputs", "_kept", "_outputs", "paths")

    def __init__(self, kept: int) -> None:
        """`kept`: bytes of an input's memory that stay when it has been read."""
        self._kept = kept
        self.paths: SlotMemory | None = None  # from the last call
        self._inputs: tuple[MemoryRegion, ...] = ()
        self._outputs: tuple[MemoryRegion, ...] = ()

    def inputs(self) -> tuple[MemoryRegion, ...]:
        """The region that inputs lie in; none without shared memory. Raises `OSError` if it cannot be opened."""
        if self.paths is not None and not self._inputs:
            region = MemoryRegion.open(self.paths.input)
            region.kept = self._kept
            self._inputs = (region,)
        return self._inputs

    def outputs(self) -> tuple[MemoryRegion, ...]:
        """The regions for outputs; none without shared memory. Raises `OSError` if they cannot be opened."""
        if self.paths is not None and not self._outputs:
            self._outputs = tuple(map(MemoryRegion.open, self.paths.outputs))
        return self._outputs

    def close(self) -> None:
        """Close the memory. A worker does so by ending."""
        for region in (*self._inputs, *self._outputs):
            region.close()
        self._inputs = self._outputs = ()


class OpenedBodies:
    """The memory in which the parent receives bodies: opened when it is first needed, then kept, as it is not much."""

    def __init__(self) -> None:
        self._regions: dict[str, MemoryRegion] = {}

    def view(self, payload: Received) -> memoryview:
        """Return the contents of a body. Raises `OSError` if the memory cannot be opened."""
        region = self._regions.get(payload.path)
        if region is None:
            region = self._regions[payload.path] = MemoryRegion.open(payload.path)
        return region.view(payload.offset + payload.size)[payload.offset :]


class Slot:
    """Memory and channel of one slot, used by one call after the other."""

    __slots__ = ("channel", "files", "memory", "reader", "writer")

    def __init__(self, channel: Channel, files: CallFiles, bodies: OpenedBodies, *, slots: int = 1) -> None:
        """`bodies` are those of all slots; `slots`: how many the worker has."""
        self.channel = channel
        self.files = files
        self.memory = SharedMemory(kept_by_each(slots))
        self.reader = PayloadReader(self.memory.inputs, bodies.view)
        self.writer = PayloadWriter(self.memory.outputs, files.new_file)


def can_share(probe: str | None) -> bool:
    """True if memory of the parent's can be opened here; `probe` is the path of some, None if it has none."""
    if probe is None:
        return False
    try:
        MemoryRegion.open(probe).close()
    except OSError:
        return False
    return True
