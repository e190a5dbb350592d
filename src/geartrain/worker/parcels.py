"""The worker's side of the memory that a slot shares with the parent (`bridge.parcels`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geartrain.bridge.arena import LARGEST, WORTHWHILE, Arena
from geartrain.bridge.messages import Predict, PredictBatch, SlotMemory
from geartrain.domain.tensors import Buffer


class SharedMemory:
    """What one slot shares: opened when it is first needed, and then kept."""

    def __init__(self) -> None:
        self._down: Arena | None = None
        self._up: Arena | None = None

    def view(self, memory: SlotMemory) -> memoryview:
        """The input that the parent has left, in place; to be let go before the end of the job."""
        if self._down is None:
            self._down = Arena.open(memory.input)
        return self._down.view(memory.input_size)

    def leave(self, memory: SlotMemory, parts: Sequence[Buffer]) -> int:
        """Leave an output for the parent and return its size; 0 if that is not worth it, or not possible now.

        The parent has to be told at once, or the memory stays taken.
        """
        if not WORTHWHILE < sum(map(len, parts)) <= LARGEST:
            return 0
        try:
            if self._up is None:
                self._up = Arena.open(memory.output)
            return self._up.write(parts) if self._up.is_free() else 0
        except OSError:  # no memory for it: there are other ways
            return 0

    def withdraw(self) -> None:
        """Take back what was left: the parent will not be told."""
        if self._up is not None:
            self._up.free()

    def close(self) -> None:
        """Let go of it. A worker does so by ending."""
        for arena in (self._down, self._up):
            if arena is not None:
                arena.close()
        self._down = self._up = None


def read_input(message: Predict | PredictBatch, shared: SharedMemory) -> Buffer:
    """The input of a job, wherever it is; its file is removed, and what lies in memory is seen in place."""
    if message.input is not None:
        return message.input
    if message.input_file is not None:
        raw = Path(message.input_file).read_bytes()
        remove_input(message)
        return raw
    if message.memory is None:
        msg = "a job came without its input"
        raise RuntimeError(msg)
    return shared.view(message.memory)


def remove_input(message: Predict | PredictBatch) -> None:
    """Remove the file of an input, if it came in one that nobody has read. Repeating it is harmless."""
    if message.input_file is not None:
        Path(message.input_file).unlink(missing_ok=True)


def can_share(probe: str | None) -> bool:
    """Whether memory of the parent's can be opened here."""
    if probe is None:
        return False
    try:
        Arena.open(probe).close()
    except OSError:
        return False
    return True
