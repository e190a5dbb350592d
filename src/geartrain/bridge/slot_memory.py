"""The memory that parent and worker share for one slot, as the parent holds it."""

from __future__ import annotations

import logging
from typing import Final

from geartrain.ipc.messages import SlotMemory
from geartrain.ipc.shared_memory import MemoryRegion, kept_by_each

logger = logging.getLogger(__name__)

_FOR_OUTPUTS: Final = 2  # regions: one output may be on its way to a client while the next one is written


class SharedSlotMemory:
    """Regions for inputs and for outputs: made for the first call with tensors, and held as long as the slot."""

    def __init__(self, *, is_possible: bool) -> None:
        self.is_possible = is_possible  # true if the worker can open what is made here
        self._kept = kept_by_each(_FOR_OUTPUTS)
        self._inputs: list[MemoryRegion] = []
        self._outputs: list[MemoryRegion] = []
        self._message: SlotMemory | None = None

    def share(self, slots: int) -> None:
        """Note how many slots the worker has: what stays of their memory when it has been read is bounded."""
        self._kept = kept_by_each(_FOR_OUTPUTS * slots)

    def inputs(self) -> list[MemoryRegion]:
        """Return the region for inputs; none if parent and worker cannot share any."""
        if not self._inputs and self.is_possible:
            try:
                self._inputs.append(MemoryRegion.create())
                for _ in range(_FOR_OUTPUTS):
                    region = MemoryRegion.create()
                    self._outputs.append(region)
                    region.kept = self._kept
                self._message = SlotMemory(self._inputs[0].path, tuple(region.path for region in self._outputs))
            except OSError as error:
                logger.info("tensors travel without shared memory: %s", error)
                self.close()
        return self._inputs

    def outputs(self) -> list[MemoryRegion]:
        """Return the regions for outputs; none before there was a call with tensors."""
        return self._outputs

    def message(self) -> SlotMemory | None:
        """Return the message about the memory for the worker; None if parent and worker cannot share any."""
        self.inputs()
        return self._message

    def close(self) -> None:
        """Close the memory, and make no more."""
        self.is_possible = False
        for region in (*self._inputs, *self._outputs):
            region.close()
        self._inputs, self._outputs, self._message = [], [], None


def new_probe() -> MemoryRegion | None:
    """Return memory for a worker to try whether it can open the parent's; None where there is no such memory."""
    try:
        return MemoryRegion.create()
    except OSError as error:
        logger.info("tensors travel without shared memory: %s", error)
        return None
