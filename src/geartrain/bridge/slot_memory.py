"""The memory that parent and worker share for one slot, as the parent holds it."""

from __future__ import annotations

import logging

from geartrain.ipc.messages import SlotMemory
from geartrain.ipc.shared_memory import Arena

logger = logging.getLogger(__name__)


class SharedSlotMemory:
    """Two regions, for inputs and for outputs: made for the first call with tensors, and held as long as the slot."""

    def __init__(self) -> None:
        self.is_possible = False  # whether the worker can open what is made here
        self._inputs: Arena | None = None
        self._outputs: Arena | None = None
        self._message: SlotMemory | None = None

    def inputs(self) -> Arena | None:
        """Return the region for inputs; None if parent and worker cannot share any."""
        if self._inputs is None and self.is_possible:
            try:
                self._inputs, self._outputs = Arena.create(), Arena.create()
                self._message = SlotMemory(self._inputs.path, self._outputs.path)
            except OSError as error:
                logger.info("tensors travel without shared memory: %s", error)
                self.close()
        return self._inputs

    def outputs(self) -> Arena | None:
        """Return the region for outputs; None before there was a call with tensors."""
        return self._outputs

    def message(self) -> SlotMemory | None:
        """Return what tells the worker of the memory; None if parent and worker cannot share any."""
        self.inputs()
        return self._message

    def close(self) -> None:
        """Give the memory back, and make none any more."""
        self.is_possible = False
        for arena in (self._inputs, self._outputs):
            if arena is not None:
                arena.close()
        self._inputs = self._outputs = self._message = None


def new_probe() -> Arena | None:
    """Return memory by which a worker can tell whether it can open ours; None where there is no such memory."""
    try:
        return Arena.create()
    except OSError as error:
        logger.info("tensors travel without shared memory: %s", error)
        return None
