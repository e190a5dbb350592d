"""The memory that parent and worker share for one slot, as the parent holds it."""

from __future__ import annotations

import logging

from geartrain.ipc.messages import SlotMemory
from geartrain.ipc.shared_memory import MemoryRegion, kept_by_each

logger = logging.getLogger(__name__)


class SharedSlotMemory:
    """Two regions, for inputs and for outputs: made for the first call with tensors, and held as long as the slot."""

    def __init__(self, *, is_possible: bool) -> None:
        self.is_possible = is_possible  # whether the worker can open what is made here
        self.kept = kept_by_each(1)  # bytes of an output's memory that stay when it has been read
        self._inputs: MemoryRegion | None = None
        self._outputs: MemoryRegion | None = None
        self._message: SlotMemory | None = None

    def inputs(self) -> MemoryRegion | None:
        """Return the region for inputs; None if parent and worker cannot share any."""
        if self._inputs is None and self.is_possible:
            try:
                self._inputs, self._outputs = MemoryRegion.create(), MemoryRegion.create()
                self._outputs.kept = self.kept
                self._message = SlotMemory(self._inputs.path, self._outputs.path)
            except OSError as error:
                logger.info("tensors travel without shared memory: %s", error)
                self.close()
        return self._inputs

    def outputs(self) -> MemoryRegion | None:
        """Return the region for outputs; None before there was a call with tensors."""
        return self._outputs

    def message(self) -> SlotMemory | None:
        """Return what tells the worker of the memory; None if parent and worker cannot share any."""
        self.inputs()
        return self._message

    def close(self) -> None:
        """Close the memory, and make no more."""
        self.is_possible = False
        for region in (self._inputs, self._outputs):
            if region is not None:
                region.close()
        self._inputs = self._outputs = self._message = None


def new_probe() -> MemoryRegion | None:
    """Return memory for a worker to try whether it can open the parent's; None where there is no such memory."""
    try:
        return MemoryRegion.create()
    except OSError as error:
        logger.info("tensors travel without shared memory: %s", error)
        return None
