"""State of a slot in the parent, and the table of its steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from geartrain.domain.state_machine import steps_to


class SlotState(StrEnum):
    """State of a slot."""

    FREE = "free"
    LOADING = "loading"  # the input of its call is being written to a file
    RUNNING = "running"
    DETACHED = "detached"  # its call has been ended from outside, and the worker is still busy with it
    CLOSED = "closed"


SLOT_STEPS: Final[dict[SlotState, frozenset[SlotState]]] = {
    SlotState.FREE: frozenset({SlotState.LOADING, SlotState.RUNNING, SlotState.CLOSED}),
    SlotState.LOADING: frozenset({SlotState.RUNNING, SlotState.FREE, SlotState.CLOSED}),
    SlotState.RUNNING: frozenset({SlotState.FREE, SlotState.DETACHED, SlotState.CLOSED}),
    SlotState.DETACHED: frozenset({SlotState.FREE, SlotState.CLOSED}),
    SlotState.CLOSED: frozenset(),
}
TO_SLOT_STATE: Final = steps_to("a slot", SLOT_STEPS)
