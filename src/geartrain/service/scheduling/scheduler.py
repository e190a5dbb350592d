"""Decides which predictions run together, when, and on which slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from geartrain.domain.batch_items import BatchItems
from geartrain.domain.batching import BatchPolicy
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.inference import NO_SCHEDULE
from geartrain.domain.lifecycle import Health
from geartrain.domain.tensors import Tensor
from geartrain.domain.work import WorkerInfo
from geartrain.service.scheduling.call import Call
from geartrain.service.scheduling.context import RunContext
from geartrain.service.scheduling.demand import Demand
from geartrain.service.scheduling.execution import Execution
from geartrain.service.scheduling.pace import Pace
from geartrain.service.scheduling.permits import Permit, PermitPool, SharedPermits
from geartrain.service.scheduling.queue import BatchQueue, CallQueue, FirstComeQueue

DEFAULT_QUEUE: Final = 1024  # requests that may wait, where requests do
_LIGHT: Final = 128 * 1024  # bytes of a batch that may be prefetched into its worker's socket
# To read a member of an enumeration from its class takes several times as long as a global name.
_READY, _STARTING = Health.READY, Health.STARTING
_ONE_BY_ONE: Final = BatchPolicy(max_size=1)


class ModelPort(Protocol):
    """What a scheduler needs of its model."""

    health: Health

    @property
    def replicas(self) -> Sequence[object]:
        """The equal workers, whether they live or not."""

    permits: PermitPool | SharedPermits  # the slots of the workers that live

    def not_ready(self) -> GeartrainError:
        """Say why no prediction can be made."""


class _SingleItems:
    """Measures requests that share a call with nobody."""

    @staticmethod
    def measure(_json: bytes, _tensors: Sequence[Tensor] | None) -> tuple[Hashable, int]:
        return (), 1


class Scheduler:
    """Has one queue for the predictions of one model, and gives calls to free slots.

    How many predictions a call takes says the model's `BatchPolicy`; of a model without batches it is one.
    """

    def __init__(
        self, model: ModelPort, context: RunContext, *, queue: int, on_over: Callable[[Execution], None]
    ) -> None:
        """`queue`: how many predictions may wait beyond those that a free slot is there for.

        0: none, but `DEFAULT_QUEUE` for a model that takes batches. `on_over` hears of each execution that is about to
        reach its terminal state.
        """
        self.context = context
        self.on_over = on_over
        self.waiting = 0  # predictions that are admitted and have not begun
        self.is_batching = False
        self.pace = Pace()
        self._model = model
        self._size = self._room = queue
        self._policy = _ONE_BY_ONE
        self._queue = _new_queue(_ONE_BY_ONE)
        self._demand = Demand()
        self._running: dict[Permit, Call] = {}
        self._prefetched: dict[Permit, Call] = {}
        self._turn = _Turn(self.serve)
        self._can_prefetch = False
        self._has_timeouts = False  # whether there has been a prediction with a timeout
        self._measure: Callable[[bytes, Sequence[Tensor] | None], tuple[Hashable, int]] = _SingleItems.measure
        self._last_id = 0

    def configure(self, info: WorkerInfo) -> None:
        """Learn how the model takes its predictions, which may change when another worker follows.

        Those that wait go on waiting.
        """
        batching = info.batching
        self.is_batching = batching is not None
        self._room, self._policy, self._measure = self._size, _ONE_BY_ONE, _SingleItems.measure
        if batching is not None:
            self._room = self._size or DEFAULT_QUEUE
            self._policy = batching.policy
            self._measure = BatchItems(info.signature, batching).measure
        # With replicas another worker might be free before; and an async run would begin at once.
        self._can_prefetch = self.is_batching and len(self._model.replicas) == 1 and not info.is_async
        waiting, self._queue = self._queue, _new_queue(self._policy)
        for execution in waiting:
            self._wait_again(execution)

    def _wait_again(self, execution: Execution) -> None:
        """Put an execution that waits into a queue that is new."""
        try:
            key, rows = self._measure(execution.item.input, execution.item.tensors)
        except GeartrainError as error:
            execution.refuse(error)
            return
        execution.measured(key, rows)
        self._queue.add(execution, key, rows, now=time.monotonic())

    # admission

    def measure(self, json: bytes, tensors: Sequence[Tensor] | None) -> tuple[Hashable, int]:
        """Return what has to be equal in requests that share a call, and the rows of this one; see `BatchItems`."""
        return self._measure(json, tensors)

    @property
    def has_room(self) -> bool:
        """Whether one more prediction would be admitted without waiting, or, with batches, to wait for the next one."""
        return self.waiting < self._model.permits.idle + (self._room if self.is_batching else 0)

    def check_room(self, size: int | None) -> None:
        """Raise `AT_CAPACITY` or `QUEUE_FULL` if there is no free slot and no place in the queue.

        `size` is that of the queue of the client's protocol, None for the operator's.
        """
        room = self._room if size is None else size
        if self.waiting < room or self.waiting < room + self._model.permits.idle:
            return
        self.context.counts.add_fault("REJECTED", 0.0, ran=False, at=0.0)
        self.expect_others()
        retry_after = self.retry_after(self.waiting)
        if size is None:
            raise GeartrainError(Code.AT_CAPACITY, "At capacity - all prediction slots busy", retry_after=retry_after)
        raise GeartrainError(Code.QUEUE_FULL, "Exceeds maximum queue size", retry_after=retry_after)

    def retry_after(self, ahead: int) -> int:
        """Return in how many seconds there is likely to be a slot for one that has so many predictions before it."""
        return self.pace.retry_after(ahead, self._model.permits.size)

    def expect_others(self) -> None:
        """Note that several clients ask at the same time."""
        self._demand.end_call(alone=False)

    # the queue

    def submit(self, execution: Execution) -> None:
        """Run an execution whose files are there, or have it wait for a call."""
        model = self._model
        if model.health is not _READY and model.health is not _STARTING:
            execution.refuse(model.not_ready())
            return
        if execution.ticket.schedule is not NO_SCHEDULE:
            self._has_timeouts = True
            if execution.is_overdue(time.monotonic()):
                execution.expire()
                return
        is_single = self._demand.is_single()
        if (is_single or not self.is_batching) and not self._queue:
            permit = model.permits.acquire()
            if permit is not None:
                self._start(permit, (execution,), lone=is_single, at=execution.timing.ready)
                return
        may_run = self._enqueue(execution)
        if not self.is_batching or is_single or self._queue.rows >= self._policy.max_size:
            self.serve()
        elif may_run or not self._turn.has_timer:
            self._turn.at_end()  # who comes in the same turn of the loop shares a call

    def _enqueue(self, execution: Execution) -> bool:
        execution.wait()
        return self._queue.add(execution, execution.ticket.key, execution.item.rows, now=time.monotonic())

    def leave(self, execution: Execution) -> None:
        """Take an execution out of the queue."""
        self._queue.remove(execution)

    def refuse_all(self) -> None:
        """End all that wait: there will be no worker for them."""
        for execution in self._queue:
            execution.refuse(self._model.not_ready())

    def serve(self) -> None:
        """Start what can be started."""
        model = self._model
        while self._queue and model.health is _READY and model.permits.idle:
            now = time.monotonic()
            members = self._queue.take(now)
            if not members:
                due = self._queue.due()
                if due is not None:
                    self._turn.after(max(0.0, due - now))
                return
            if self._has_timeouts:
                members = [member for member in members if not member.is_overdue(now)]
                if not members:
                    continue
            permit = model.permits.acquire()
            if permit is None:
                msg = "an idle slot could not be had"
                raise RuntimeError(msg)
            self._start(permit, members)
        if self._can_prefetch and self._queue:
            self._prefetch()

    def _start(self, permit: Permit, members: Sequence[Execution], *, lone: bool = False, at: float = 0.0) -> None:
        call_id = members[0].prediction.id if len(members) == 1 else self._new_id()
        call = self._running[permit] = Call(call_id, self, permit, members=members, at=at)
        call.start(lone=lone)

    def _new_id(self) -> str:
        self._last_id += 1
        return f"batch-{self._last_id}"

    def _prefetch(self) -> None:
        """Hand a full batch to a worker that is busy: it need not wait for us when it is free."""
        for permit in self._running.keys() - self._prefetched.keys():
            members = self._queue.take_full(only=self._is_light)
            if members:
                call = Call(self._new_id(), self, permit, members=members, prefetched=True)
                self._prefetched[permit] = call
                call.start()
            return

    def _is_light(self, execution: Execution) -> bool:
        """Whether a batch of its like may go through a socket. What is heavier travels in memory that is in use."""
        item = execution.item
        size = len(item.input) + sum([len(tensor.data) for tensor in item.tensors or ()])
        return size * self._policy.max_size <= _LIGHT * item.rows

    # the calls

    def release(self, call: Call) -> None:
        """Take back the slot of a call that is over, and use it for the next one."""
        permit, running = call.permit, self._running
        running.pop(permit, None)
        if permit in self._prefetched:
            running[permit] = self._prefetched.pop(permit)  # the worker has begun it by itself
        else:
            permit.pool.release(permit)
        if self.is_batching:
            self._queue.end_call(call.rows, now=time.monotonic())
        self._demand.end_call(alone=call.size == 1 and not self.waiting and not running)
        if self.waiting:
            self.serve()

    def on_call_ended(self, call: Call) -> None:
        """Count no longer on the slot of a call whose members have ended."""
        self._running.pop(call.permit, None)

    def requeue(self, call: Call, members: Sequence[Execution]) -> None:
        """Have the members of a call that has not begun wait again."""
        self._running.pop(call.permit, None)
        self._prefetched.pop(call.permit, None)
        for member in members:
            if self._model.health in {_READY, _STARTING}:
                self._enqueue(member)
            else:
                member.refuse(self._model.not_ready())
        self._turn.at_end()


def _new_queue(policy: BatchPolicy) -> CallQueue[Execution]:
    return FirstComeQueue() if policy.max_size == 1 else BatchQueue(policy)


class _Turn:
    """Calls the scheduler at the end of this turn of the loop, or when a delay is over: once, however often asked."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._is_set = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_timer(self) -> bool:
        """Whether a delay is running."""
        return self._timer is not None

    def at_end(self) -> None:
        """Serve at the end of this turn of the loop."""
        if not self._is_set:
            self._is_set = True
            asyncio.get_running_loop().call_soon(self._on_end)

    def after(self, seconds: float) -> None:
        """Serve when so many seconds are over."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_end(self) -> None:
        self._is_set = False
        self._serve()

    def _on_timer(self) -> None:
        self._timer = None
        self._serve()
