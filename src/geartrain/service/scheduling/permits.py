"""The right to use a slot, as an object: idle or in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

from geartrain.service.ports import WorkerPort


class PermitState(Enum):
    """State of a permit."""

    IDLE = "idle"
    IN_USE = "in use"


# To read a member of an enumeration from its class takes several times as long as a global name.
_IDLE, _IN_USE = PermitState.IDLE, PermitState.IN_USE


class PermitError(RuntimeError):
    """A permit was returned twice, or to a pool that has not given it: a bug in the server."""


class Permit:
    """The right to use one slot of one worker."""

    __slots__ = ("pool", "slot", "state", "worker")

    def __init__(self, slot: int, pool: PermitPool, worker: WorkerPort) -> None:
        self.slot = slot
        self.pool = pool
        self.worker = worker
        self.state = _IDLE


class PermitPool:
    """The permits of a worker. The one that has been idle longest is given first."""

    def __init__(self) -> None:
        """Make a pool without permits."""
        self._permits: list[Permit] = []
        self._idle: deque[Permit] = deque()

    @classmethod
    def of(cls, worker: WorkerPort, slots: int) -> PermitPool:
        """Return the pool of a worker with so many slots, all of them idle."""
        pool = cls()
        pool._permits = [Permit(slot, pool, worker) for slot in range(slots)]
        pool._idle.extend(pool._permits)
        return pool

    def acquire(self) -> Permit | None:
        """Return a permit, now in use, or None when there is none."""
        if not self._idle:
            return None
        permit = self._idle.popleft()
        permit.state = _IN_USE
        return permit

    def release(self, permit: Permit) -> None:
        """Give a permit back."""
        if permit.state is not _IN_USE:
            msg = f"the permit of slot {permit.slot} is {permit.state.value}, not in use"
            raise PermitError(msg)
        permit.state = _IDLE
        self._idle.append(permit)

    @property
    def size(self) -> int:
        """The number of slots."""
        return len(self._permits)

    @property
    def idle(self) -> int:
        """Number of predictions that could begin now."""
        return len(self._idle)


class SharedPermits:
    """The permits of several equal workers. One of the least busy worker is given first; of equals, they take turns.

    A worker is as busy as the fraction of its slots that is in use.
    """

    def __init__(self, pools: Iterable[PermitPool]) -> None:
        self._pools = list(pools)

    def acquire(self) -> Permit | None:
        """Return a permit, now in use, or None when there is none. It goes back to its own pool."""
        freest = max(self._pools, key=_free_part, default=None)
        permit = None if freest is None else freest.acquire()
        if freest is not None and permit is not None:
            self._pools.remove(freest)
            self._pools.append(freest)
        return permit

    @staticmethod
    def release(permit: Permit) -> None:
        """Give a permit back, to the pool that it came from."""
        permit.pool.release(permit)

    @property
    def size(self) -> int:
        """The number of slots."""
        return sum(pool.size for pool in self._pools)

    @property
    def idle(self) -> int:
        """Number of predictions that could begin now."""
        return sum(pool.idle for pool in self._pools)


def _free_part(pool: PermitPool) -> float:
    return pool.idle / pool.size if pool.size else 0.0
