"""Decides which predictions run together, when, and on which slot."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Final, Protocol

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.predictions.inference import NO_SCHEDULE, SchedulePolicy
from geartrain.domain.predictions.lifecycle import CallState, Health
from geartrain.domain.predictions.priorities import NO_PRIORITIES, Priorities
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.call import Call, Demand, Lookahead, Pace
from geartrain.service.scheduling.context import SHORTEST_TIMEOUT, RunContext
from geartrain.service.scheduling.execution import NO_TICKET, Execution, Ticket
from geartrain.service.scheduling.pending import DEFAULT_QUEUE, Pending

logger = logging.getLogger(__name__)

# On Python 3.11 it takes 0.07 to 0.2 µs to read a member of an enumeration from its class, and 0.01 µs as a global:
# in the scheduler, a call and an execution together 1 to 2 % of a small request.
_READY, _STARTING = Health.READY, Health.STARTING
_ASSIGNED, _RUNNING = CallState.ASSIGNED, CallState.RUNNING

# Seconds. What a prefetched call saves is a fraction of a millisecond, so it is not worth its price behind longer runs:
# another replica may be free before.
_SHORT: Final = 0.02


class PermitState(Enum):
    """State of a permit."""

    IDLE = "idle"
    IN_USE = "in use"


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


class ModelPort(Protocol):
    """The scheduler's model."""

    health: Health

    @property
    def replicas(self) -> Sequence[object]:
        """The equal workers, whether they live or not."""

    permits: PermitPool | SharedPermits  # the slots of the workers that live

    def not_ready(self) -> GeartrainError:
        """Say why no prediction can be made."""


class Scheduler:
    """Has one queue for the predictions of one model, and gives calls to free slots.

    How many predictions a call takes says the model's `BatchPolicy`; of a model without batches it is one.
    """

    def __init__(
        self,
        model: ModelPort,
        context: RunContext,
        *,
        queue: int,
        on_over: Callable[[Execution], None],
        priorities: Priorities = NO_PRIORITIES,
        sorts_all: bool = False,
    ) -> None:
        """`queue`: how many predictions may wait beyond those that a free slot is there for.

        0: none, but `DEFAULT_QUEUE` for a model that takes batches. `on_over` hears of each execution that is about to
        reach its terminal state. `sorts_all`: see `Pending`.
        """
        self.context = context
        self.on_over = on_over
        self.waiting = 0  # predictions that are admitted and have not begun
        self.is_batching = False
        self.is_apart = False
        self.pending = Pending(self.serve, priorities, sorts_all=sorts_all)
        self.pace = Pace()
        self.lookahead = Lookahead()
        self._model = model
        self._priorities = priorities
        self._wanted_size = self._size = queue  # of the queue, where the protocol of a client does not say it
        self._demand = Demand()
        self._running: dict[Permit, Call] = {}
        self.prefetched: dict[Permit, deque[Call]] = {}  # no entry is empty
        self.can_prefetch = False
        self._has_one_slot = False

    def configure(self, info: WorkerInfo) -> None:
        """Learn how the model takes its predictions, which may change when another worker follows."""
        self.is_batching = info.batching is not None
        self.is_apart = info.batching is not None and info.batching.travels_apart
        self._size = self._wanted_size or (DEFAULT_QUEUE if self.is_batching else 0)
        # An async run would begin at once; and with levels, somebody who comes later might have to overtake.
        self.can_prefetch = not info.is_async and not self.pending.has_levels
        has_one_slot = len(self._model.replicas) == 1 and info.slots == 1
        self._has_one_slot = has_one_slot and not self.is_batching
        self.pending.configure(info, learns=has_one_slot)

    # admission

    @property
    def has_capacity(self) -> bool:
        """True if one more prediction would be admitted without waiting, or, with batches, to wait for the next one."""
        return self.waiting < (self._size if self.is_batching else 0) + self._model.permits.idle

    def admit(self, key: Hashable, schedule: SchedulePolicy, *, size: int | None) -> Ticket:
        """Return a place in the queue.

        `size` is that of the queue of the client's protocol, None for the operator's. Raises `AT_CAPACITY` or
        `QUEUE_FULL` if there is no free slot and no place in the queue, `INVALID_INPUT` for a priority that the model
        does not have, `TIMED_OUT` if there is no time left.
        """
        has_levels = self.pending.has_levels
        limit = self._size if size is None else size
        # Idle slots are counted only where the queue has no place.
        fits = self.waiting < limit or self.waiting < limit + self._model.permits.idle
        if fits and schedule is NO_SCHEDULE and not has_levels and not self.is_batching:
            return NO_TICKET
        if schedule.timeout is not None and schedule.timeout < SHORTEST_TIMEOUT:
            self.context.counts.add_refusal("REJECTED")
            raise GeartrainError(Code.TIMED_OUT, f"timed out after {schedule.timeout:g} s")
        level = self._priorities.level_of(schedule.priority) if has_levels else 0
        if fits and (not has_levels or schedule.is_nested or self._fits_level(level)):
            return Ticket(key, schedule, level)
        self.context.counts.add_refusal("REJECTED")
        self._demand.end_call(alone=False)  # several clients ask at the same time
        ahead = self.pending.queue.ahead_of(level) if has_levels else self.waiting
        if size is None:
            code, message = Code.AT_CAPACITY, "At capacity - all prediction slots busy (--queue lets requests wait)"
        else:
            code, message = Code.QUEUE_FULL, "Exceeds maximum queue size"
        raise GeartrainError(code, message, retry_after=self.pace.retry_after(ahead, self._model.permits.size))

    def _fits_level(self, level: int) -> bool:
        """True if one more may wait in a level."""
        largest = self._priorities.levels[level].max_queue
        return largest is None or self.pending.queue.size_of(level) < largest or self._model.permits.idle > 0

    @property
    def running(self) -> Iterable[Call]:
        """The calls that have a slot."""
        return self._running.values()

    @property
    def has_free_slot(self) -> bool:
        """True if a slot is idle, or will be without the end of a call: a worker starts."""
        return self._model.permits.idle > 0 or self._model.health is _STARTING

    def retry_after(self) -> int:
        """Return in how many seconds there is likely to be a slot for one more."""
        return self.pace.retry_after(self.waiting, self._model.permits.size)

    # the queue

    def submit(self, execution: Execution) -> None:
        """Run an execution whose files are there, or have it wait for a call."""
        model, pending = self._model, self.pending
        if model.health is not _READY and model.health is not _STARTING:
            execution.refuse(model.not_ready())
            return
        if execution.ticket.schedule is not NO_SCHEDULE and pending.note_timeout(execution):
            execution.expire()
            return
        is_single = self._demand.is_single
        # The one that waits may be this one: that is cheaper to find out than whether the queue is empty.
        may_start = (is_single or not self.is_batching) and (self.waiting == 1 or not pending.queue)
        if may_start and self._start((execution,), single_client=is_single, at=execution.record.ready):
            return
        if may_start and self.can_prefetch and self._send_ahead(execution):
            return
        may_run = pending.add(execution)
        if self._has_one_slot and self.prefetched:  # the end of a call refills the slot: 5 % of a queued request
            return
        if not self.is_batching or is_single or pending.queue.rows >= pending.max_size:
            self.serve()
        elif may_run or not pending.turn.has_timer:
            pending.turn.at_end()  # predictions of the same turn of the loop share a call

    def submit_all(self, executions: Sequence[Execution]) -> None:
        """Have executions without files or time limits wait for calls. The workers are ready."""
        pending = self.pending
        may_run = pending.add_all(executions)
        if not self.is_batching or pending.queue.rows >= pending.max_size:
            self.serve()
        elif may_run or not pending.turn.has_timer:
            pending.turn.at_end()

    def leave(self, execution: Execution) -> None:
        """Take an execution out of the queue."""
        self.pending.queue.remove(execution)

    def refuse_all(self) -> None:
        """End all that wait: there will be no worker for them."""
        for execution in self.pending.queue:
            execution.refuse(self._model.not_ready())

    def serve(self) -> None:
        """Start what can be started."""
        model, pending = self._model, self.pending
        if pending.has_levels:
            pending.expire()
        while model.permits.idle and pending.queue and model.health is _READY:  # mostly there is no idle slot
            members = pending.take()
            if not members:
                return
            try:
                if not self._start(members):
                    msg = "an idle slot could not be had"
                    raise RuntimeError(msg)
            except Exception as error:  # noqa: BLE001 - whatever it is, the clients of the members are told
                self._fail(members, error)
        if self.can_prefetch and pending.queue and self.pace.longest <= _SHORT:
            if self._has_one_slot:
                self._fill()
            else:
                self._prefetch()

    def _start(self, members: Sequence[Execution], *, single_client: bool = False, at: float = 0.0) -> bool:
        """Start a call on an idle slot, and return True; return False if there is none."""
        permit = self._model.permits.acquire()
        if permit is None:
            return False
        call: Call | None = None
        try:
            call = self._running[permit] = Call(self, permit, members)
            call.start(single_client=single_client, at=at)
        except BaseException:
            if call is None or call.state is _ASSIGNED:  # a call that has begun gives its slot back at its end
                self._running.pop(permit, None)
                permit.pool.release(permit)
            raise
        return True

    def _fail(self, members: Sequence[Execution], error: Exception) -> None:
        """End the members of a call that could not be started, so that their clients are answered."""
        logger.error("a call could not be started", exc_info=error)
        for member in members:
            member.fail(f"The call could not be started: {error}")

    def _prefetch(self) -> None:
        """Hand full calls to busy workers, which begin them as soon as they are free.

        With several workers there has to be one for each of them, so that no call waits behind a run while another
        worker is idle. The first is for the worker whose call has been running longest: it is likely to be free next.
        """
        prefetched = self.prefetched
        for permit, running in tuple(self._running.items()):
            if permit in prefetched or running.state is not _RUNNING or not permit.worker.may_prefetch:
                continue
            if len(self.pending.queue) < len(self._running) - len(prefetched):
                return
            members = self.pending.take_full()
            if not members:
                return
            self._lay(permit, members)

    def _fill(self) -> None:
        """Hand calls to the only worker while it is busy, as many as `Lookahead` says, and several at a time."""
        depth = self.lookahead.depth
        for permit, running in tuple(self._running.items()):
            ahead = len(self.prefetched.get(permit, ()))
            if 2 * ahead >= depth or running.state is not _RUNNING or not permit.worker.may_prefetch:
                return
            if not ahead:
                members = self.pending.take_full()
                if not members:
                    return
                self._lay(permit, members)
                if permit not in self.prefetched:  # it could not be handed over
                    return
                ahead = 1
            for execution in self.pending.take_light(depth - ahead, depth):
                self._lay(permit, (execution,))

    def _send_ahead(self, execution: Execution) -> bool:
        """Hand a call of its own to the only worker, behind others that lie there; return False if it has to wait.

        The queue is empty: `serve` would do the same, for several times as much.
        """
        if not self._has_one_slot or not self.prefetched:
            return False
        ((permit, following),) = self.prefetched.items()
        running, depth = self._running.get(permit), self.lookahead.depth
        if running is None or running.state is not _RUNNING or len(following) >= depth:
            return False
        if not permit.worker.may_prefetch or not self.pending.is_light(execution, depth):
            return False
        self._lay(permit, (execution,))
        return True

    def _lay(self, permit: Permit, members: Sequence[Execution]) -> None:
        """Hand a call to a busy worker."""
        call: Call | None = None
        following = self.prefetched.setdefault(permit, deque())
        try:
            call = Call(self, permit, members, prefetched=True)
            following.append(call)
            call.start()
        except Exception as error:  # noqa: BLE001 - as in `serve`
            if call is not None:
                following.remove(call)
            if not following:
                self.prefetched.pop(permit, None)
            self._fail(members, error)

    # the calls

    def release(self, call: Call) -> None:
        """Take back the slot of a call that is over, and use it for the next one."""
        permit, running = call.permit, self._running
        running.pop(permit, None)
        following = self.prefetched.get(permit)
        if following is not None:
            running[permit] = following.popleft()  # the worker has begun it by itself
            if not following:
                del self.prefetched[permit]
            elif 2 * len(following) >= self.lookahead.depth:  # enough for now, see `_fill`
                self._demand.end_call(alone=False)
                return
        else:
            permit.pool.release(permit)
        if self.is_batching:
            self.pending.end_call(call.rows, call.took)
        self._demand.end_call(alone=call.size == 1 and not self.waiting and not running)
        if self.waiting:
            self.serve()

    def on_call_ended(self, call: Call) -> None:
        """Count no longer on the slot of a call whose members have ended."""
        self._running.pop(call.permit, None)

    def is_followed(self, call: Call) -> bool:
        """True if another call was prefetched on the slot of this one."""
        return call.permit in self.prefetched

    def began_after(self, call: Call) -> float:
        """Return when the call behind this one on its slot has begun, 0 if it has not."""
        following = self.prefetched.get(call.permit)
        return following[0].began_at if following else 0.0

    def requeue(self, call: Call, members: Sequence[Execution]) -> None:
        """Have the members of a call that has not begun wait again."""
        self._running.pop(call.permit, None)
        self.prefetched.pop(call.permit, None)
        if self._model.health in {_READY, _STARTING}:
            self.pending.put_back(members)
        else:
            for member in members:
                member.refuse(self._model.not_ready())
        self.pending.turn.at_end()
