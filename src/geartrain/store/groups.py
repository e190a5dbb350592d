"""The thread of a store: what is asked for while a transaction is being committed becomes the next transaction.

To be safe on disk costs the same for one row as for hundreds, so the rate grows with the number of those who wait.
"""

from __future__ import annotations

import asyncio
import logging
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
    """An operation, and who waits for it."""

    __slots__ = ("future", "operation")

    def __init__(self, operation: Operation[T], future: asyncio.Future[T]) -> None:
        self.operation = operation
        self.future = future


class _Stop:
    """Put into the queue last."""


class Groups:
    """Runs operations in the thread that an engine belongs to."""

    def __init__(self, engine: Engine, *, answer_within: float) -> None:
        """`answer_within`: seconds after which a caller is told that the store gives no answer."""
        self._engine = engine
        self._answer_within = answer_within
        self._gathered: list[_Job[Any]] = []  # on the loop, until it has called all who are ready to ask
        self._waiting = 0  # jobs that have not been told of, those included of which nobody wants to hear any more
        self._queue: SimpleQueue[list[_Job[Any]] | _Stop] = SimpleQueue()
        self._undone: deque[Operation[None]] = deque(maxlen=MAX_UNDONE)  # of the thread
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
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

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation; raise `GeartrainError` if it was not done, or nobody knows whether it was.

        If the caller hears nothing of an operation that was done, what undoes it is run too.
        """
        if self._is_closed:
            raise unavailable("it has been closed")
        if self._waiting >= MAX_WAITING:
            raise unavailable("too much waits for it already")
        job: _Job[T] = _Job(operation, self._loop.create_future())
        self._gather(job)
        try:
            async with asyncio.timeout(self._answer_within):
                return await job.future
        except TimeoutError:
            self._disregard(job)
            raise unavailable(f"it has not answered within {self._answer_within:g} s", may_be_done=True) from None
        except asyncio.CancelledError:
            self._disregard(job)
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

    def _disregard(self, job: _Job[Any]) -> None:
        """Nobody heard of a job that may be done already; if it is not yet, `_tell` sees that its future is over."""
        if job.future.done() and not job.future.cancelled() and job.future.exception() is None:
            self._undo(job.operation)

    def _undo(self, operation: Operation[Any]) -> None:
        if operation.undo is not None:
            future: asyncio.Future[None] = self._loop.create_future()
            self._gather(_Job(operation.undo, future))

    # on the loop

    def _tell(self, jobs: Sequence[_Job[Any]], outcomes: Sequence[Outcome], *, left_out: int) -> None:
        self._waiting -= len(jobs) + left_out
        for job, outcome in zip(jobs, outcomes, strict=True):
            future = job.future
            if isinstance(outcome, Done):
                if not future.done():
                    future.set_result(outcome.value)
                else:
                    self._undo(job.operation)
                continue
            if isinstance(outcome.error, StoreFaultError) and outcome.error.may_be_done:
                self._undo(job.operation)
            if not future.done():
                future.set_exception(outcome.error)
                future.exception()  # nobody need be there to hear it

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
        wanted = [job for job in group if not job.future.cancelled()]
        self._run_group(wanted, left_out=len(group) - len(wanted))
        return goes_on

    def _run_group(self, group: Sequence[_Job[Any]], *, left_out: int) -> None:
        undone = list(self._undone)
        self._undone.clear()
        operations = [*undone, *(job.operation for job in group)]
        outcomes = self._run(operations) if operations else []
        # What undoes something and could not be done is tried again with the next group.
        self._undone.extend(
            operation
            for operation, outcome in zip(operations, outcomes, strict=True)
            if operation.is_undo and isinstance(outcome, Failed)
        )
        self._post(partial(self._tell, group, outcomes[len(undone) :], left_out=left_out))

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
        except RuntimeError:  # the loop has been closed: nobody waits
            return


def _explained(outcome: Outcome) -> Outcome:
    """Return an outcome whose error is one for clients."""
    if isinstance(outcome, Failed) and not isinstance(outcome.error, GeartrainError):
        logger.error("an operation of the store of predictions has failed", exc_info=outcome.error)
        return Failed(GeartrainError(Code.INTERNAL, "Internal server error"))
    return outcome
