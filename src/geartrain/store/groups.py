"""The thread of a store: what is asked for while a transaction is being committed becomes the next transaction.

To be safe on disk costs the same for one row as for hundreds, so the rate grows with the number of those who wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from geartrain.domain.errors import Code, GeartrainError
from geartrain.store.errors import StoreFaultError, unavailable
from geartrain.store.operations import Done, Engine, Failed, Operation, Outcome

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP: Final = 512  # operations from which on a transaction takes no more
MAX_WAITING: Final = 20_000  # operations that wait for theirs
MAX_UNDONE: Final = 10_000


class _Job(Generic[T]):
    """An operation, and the future of its caller.

    The operation may hold an input or an output. It is None once the caller has an answer, which may be long before the
    thread of a store that stands still comes to the job.
    """

    __slots__ = ("future", "operation", "undo")

    def __init__(self, operation: Operation[T], future: asyncio.Future[T]) -> None:
        self.operation: Operation[T] | None = operation
        self.undo = operation.undo
        self.future = future


class _Stop:
    """Put into the queue last."""


class Deadlines:
    """See that each job is answered in time. All have the same time, so the oldest is always the next one due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, within: float) -> None:
        """`within`: seconds, from now on."""
        self.within = within
        self._loop = loop
        self._watched: deque[tuple[float, _Job[Any]]] = deque()
        self._looks_at = math.inf  # when a timer goes off

    def watch(self, job: _Job[Any]) -> None:
        """Let the future of a job fail when its time is up."""
        until = self._loop.time() + self.within
        self._watched.append((until, job))
        if until < self._looks_at:
            self._looks_at = until
            self._loop.call_later(self.within, self._look)

    def forget_done(self) -> None:
        """Some have been answered."""
        watched = self._watched
        while watched and watched[0][1].future.done():
            watched.popleft()[1].operation = None

    def _look(self) -> None:
        now, watched = self._loop.time(), self._watched
        self.forget_done()
        while watched and watched[0][0] <= now:
            reason = f"it has not answered within {self.within:g} s"
            _fail(watched[0][1].future, unavailable(reason, may_be_done=True))
            self.forget_done()
        self._looks_at = watched[0][0] if watched else math.inf
        if watched:
            self._loop.call_later(self._looks_at - now, self._look)


class Groups:
    """Runs operations in the thread that an engine belongs to."""

    def __init__(self, engine: Engine, *, answer_within: float) -> None:
        """`answer_within`: seconds after which a caller is told that the store gives no answer."""
        self._engine = engine
        self._gathered: list[_Job[Any]] = []  # on the loop, until it has called all who are ready to ask
        self._waiting = 0  # jobs without a reported result, including those that have lost their caller
        self._queue: SimpleQueue[list[_Job[Any]] | _Stop] = SimpleQueue()
        self._undone: deque[Operation[None]] = deque(maxlen=MAX_UNDONE)  # of the thread
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop, answer_within)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="geartrain-store", daemon=True)

    async def open(self) -> None:
        """Open the engine; raise what it raises."""
        self._thread.start()
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Run what was asked for before, and close the engine."""
        if not self._is_closed:
            self._is_closed = True
            self._hand_over()
            self._queue.put(_Stop())
        if self._thread.is_alive():
            await asyncio.shield(self._ended)

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Run an operation. The future has its result, or `GeartrainError` as `run` raises it.

        If the future is canceled before that, and the operation is done all the same, what undoes it is run too. It
        needs no task to wait for it, which would cost more than all else here.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_closed:
            _fail(future, unavailable("it has been closed"))
        elif self._waiting >= MAX_WAITING:
            _fail(future, unavailable("too much waits for it already"))
        else:
            job = _Job(operation, future)
            self._gather(job)
            self._deadlines.watch(job)
        return future

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation; raise `GeartrainError` if it was not done, or its result is unknown.

        If the result of a finished operation does not reach the caller, its undo is run too.
        """
        future = self.submit(operation)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:  # it was done a moment before
                self._undo(operation.undo)
            raise

    def _gather(self, job: _Job[Any]) -> None:
        """Have the thread run a job, together with those that come before the loop is done with what is ready."""
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(job)
        self._waiting += 1

    def _hand_over(self) -> None:
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def _undo(self, undo: Operation[None] | None) -> None:
        if undo is not None:
            future: asyncio.Future[None] = self._loop.create_future()
            self._gather(_Job(undo, future))

    # on the loop

    def _tell(self, jobs: Sequence[_Job[Any]], outcomes: Sequence[Outcome], *, left_out: int) -> None:
        self._waiting -= len(jobs) + left_out
        for job, outcome in zip(jobs, outcomes, strict=True):
            future = job.future
            if isinstance(outcome, Done):
                if not future.done():
                    future.set_result(outcome.value)
                else:
                    self._undo(job.undo)
                continue
            if isinstance(outcome.error, StoreFaultError) and outcome.error.may_be_done:
                self._undo(job.undo)
            if not future.done():
                _fail(future, outcome.error)
        self._deadlines.forget_done()

    # in the thread

    def _work(self) -> None:
        try:
            self._engine.open()
        except BaseException as error:  # noqa: BLE001 - told to whoever opens the store
            self._engine.close()
            self._post(self._opened.set_exception, error)
            self._post(self._ended.set_result, None)
            return
        self._post(self._opened.set_result, None)
        try:
            while self._run_next_group():
                pass
        finally:
            self._engine.close()
            self._post(self._ended.set_result, None)

    def _run_next_group(self) -> bool:
        """Run all that waits, or wait for something; return whether there may be more."""
        first = self._queue.get()
        if isinstance(first, _Stop):
            return False
        goes_on = True
        group = first
        while len(group) < MAX_GROUP:
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if isinstance(following, _Stop):
                goes_on = False
                break
            group += following
        wanted = [
            (job, operation)
            for job in group
            if not job.future.done() and (operation := job.operation) is not None  # the loop may take it meanwhile
        ]
        self._run_group(wanted, left_out=len(group) - len(wanted))
        return goes_on

    def _run_group(self, group: Sequence[tuple[_Job[Any], Operation[Any]]], *, left_out: int) -> None:
        undone = list(self._undone)
        self._undone.clear()
        operations = [*undone, *(operation for _, operation in group)]
        outcomes = self._run(operations) if operations else []
        # A failed undo is tried again with the next group.
        self._undone.extend(
            operation
            for operation, outcome in zip(operations, outcomes, strict=True)
            if operation.is_undo and isinstance(outcome, Failed)
        )
        self._post(partial(self._tell, [job for job, _ in group], outcomes[len(undone) :], left_out=left_out))

    def _run(self, operations: list[Operation[Any]]) -> list[Outcome]:
        try:
            outcomes = self._engine.run(operations)
        except Exception:
            logger.exception("the store of predictions has failed")
            bug = GeartrainError(Code.INTERNAL, "Internal server error")
            return [Failed(bug)] * len(operations)
        return [_explained(outcome) for outcome in outcomes]

    def _post(self, callback: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop has been closed, and the caller with it
            return


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # it may have lost its caller


def _explained(outcome: Outcome) -> Outcome:
    """Return an outcome whose error is one for clients."""
    if isinstance(outcome, Failed) and not isinstance(outcome.error, GeartrainError):
        logger.error("an operation of the store of predictions has failed", exc_info=outcome.error)
        return Failed(GeartrainError(Code.INTERNAL, "Internal server error"))
    return outcome
