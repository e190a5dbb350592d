"""The right to use a slot, as an object: idle, in use, or poisoned."""

from __future__ import annotations

from collections import deque
from enum import Enum


class PermitState(Enum):
    """Where a permit stands."""

    IDLE = "idle"
    IN_USE = "in use"
    POISONED = "poisoned"  # its slot will never be idle again


class PermitError(RuntimeError):
    """A permit was returned twice, or by someone who does not hold it: a bug of ours."""


class Permit:
    """The right to use one slot."""

    __slots__ = ("pool", "slot", "state")

    def __init__(self, slot: int, pool: PermitPool) -> None:
        self.slot = slot
        self.pool = pool
        self.state = PermitState.IDLE


class PermitPool:
    """The permits of a worker. The one that has been idle longest is given first."""

    def __init__(self, slots: int) -> None:
        self._permits = [Permit(slot, self) for slot in range(slots)]
        self._idle = deque(self._permits)

    def acquire(self) -> Permit | None:
        """Return a permit, now in use, or None when there is none."""
        if not self._idle:
            return None
        permit = self._idle.popleft()
        permit.state = PermitState.IN_USE
        return permit

    def release(self, permit: Permit) -> None:
        """Give a permit back."""
        if permit.state is not PermitState.IN_USE:
            msg = f"the permit of slot {permit.slot} is {permit.state.value}, not in use"
            raise PermitError(msg)
        permit.state = PermitState.IDLE
        self._idle.append(permit)

    def poison(self, permit: Permit) -> None:
        """Take a permit out for good."""
        if permit.state is PermitState.IDLE:
            self._idle.remove(permit)
        permit.state = PermitState.POISONED

    @property
    def size(self) -> int:
        """How many slots there are, poisoned ones included."""
        return len(self._permits)

    @property
    def idle(self) -> int:
        """How many predictions could begin now."""
        return len(self._idle)
