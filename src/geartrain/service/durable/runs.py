"""The run of a prediction that a store knows, from the claim of its id to its end, and its execution."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import ItemInput, Succeeded
from geartrain.domain.predictions.ledger import (
    ClaimResult,
    Delivery,
    Hold,
    Key,
    LeaseEndedError,
    Ownership,
    Row,
)
from geartrain.domain.predictions.lifecycle import ExecutionState
from geartrain.domain.predictions.prediction import Prediction, Webhook
from geartrain.domain.state_machine import StateMachine
from geartrain.service.durable.history import HistoryWriter
from geartrain.service.scheduling.execution import CANCELED, Execution, Result, Ticket
from geartrain.service.scheduling.files import Attachments

if TYPE_CHECKING:
    from geartrain.service.durable.durability import Durability
    from geartrain.service.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

FENCED: Final = "Another server has taken this prediction over; its state there is the one that counts."


class RunState(StrEnum):
    """State of the run of a durable prediction."""

    CLAIMING = "claiming"  # its row is being written
    REFUSED = "refused"  # the id is not free, or the store gives no answer
    HELD = "held"  # the row is this server's
    ENDING = "ending"  # the end is being written
    LEFT = "left"  # it stays in the store as it is, for the next server
    ENDED = "ended"  # the end is written
    LOST = "lost"  # another server has the row, or none could be had to write the end


_S = RunState

RUN_STEPS: Final[dict[RunState, frozenset[RunState]]] = {
    _S.CLAIMING: frozenset({_S.HELD, _S.REFUSED}),
    _S.HELD: frozenset({_S.ENDING, _S.LEFT}),
    _S.ENDING: frozenset({_S.ENDED, _S.LOST, _S.LEFT}),
    _S.REFUSED: frozenset(),
    _S.LEFT: frozenset(),
    _S.ENDED: frozenset(),
    _S.LOST: frozenset(),
}
_KNOWN: Final = frozenset({_S.HELD, _S.ENDING, _S.ENDED})


def as_unavailable(error: Exception) -> Exception:
    """Return an error as clients are told it: a store that is full may have room again, as one that is down is back."""
    if isinstance(error, GeartrainError) and error.code is Code.NO_STORAGE:
        return GeartrainError(Code.STORE_UNAVAILABLE, error.message, retry_after=error.retry_after)
    return error


class DurableExecution(Execution):
    """An execution with a row; it differs in its beginning and its end."""

    __slots__ = ("_is_canceled", "_run", "_values")

    has_row = True

    def __init__(
        self,
        scheduler: Scheduler,
        prediction: Prediction,
        item: ItemInput,
        *,
        ticket: Ticket,
        run: DurableRun,
    ) -> None:
        """`run` writes its row."""
        self._run = run
        self._is_canceled = False
        super().__init__(scheduler, prediction, item, ticket=ticket)

    # until its row is written

    @property
    def is_claiming(self) -> bool:
        """True if its row is being written."""
        return self.state is ExecutionState.CLAIMING

    def claim(self) -> None:
        """Wait for the row."""
        self._step(ExecutionState.CLAIMING)

    def go_on(self, values: dict[str, Any] | None, attachments: Attachments | None) -> None:
        """The row is written: run. `values`: the decoded input, if it has files that are to be fetched first."""
        if self._is_canceled:
            self.end(CANCELED, at=self._scheduler.context.clock())
        elif values is None:
            self._scheduler.submit(self)
        else:
            self.prepare(values, attachments)

    def drop(self) -> None:
        """Forget an execution without a row: it never runs. Its readers have not been admitted."""
        self._step(ExecutionState.OVER)
        self._let_go()
        self._scheduler.on_over(self)

    def cancel(self) -> None:
        """Cancel the execution; while the row is being written the cancel is noted."""
        if self.is_claiming:
            self._is_canceled = True
        else:
            super().cancel()

    # its end

    def _finish(self, outcome: Result, at: float) -> None:
        if self._run.is_leaving and type(outcome) is not Succeeded:
            prediction = self.prediction
            self.prediction = prediction.draft()
            super()._finish(CANCELED, at)
            self._let_go().leave()
            return
        draft = self.prediction = self.prediction.draft()
        super()._finish(outcome, at)
        self._let_go().end(draft)

    def _let_go(self) -> DurableRun:
        """Return the run, which has nothing more to hear: they would keep each other alive."""
        run = self._run
        del self._run
        return run

    def refuse(self, reason: GeartrainError) -> None:
        """Refuse the execution, unless its row is being written."""
        if not self.is_claiming:
            super().refuse(reason)


class DurableRun:
    """Moves through the states of `RUN_STEPS`, and has the row written.

    `made` is done when the row is this server's, or is not: it gives None, or the row of another prediction that has
    the id, or raises `GeartrainError`.
    """

    key: Key
    prediction: Prediction
    execution: DurableExecution
    ownership: Ownership  # once the row is held
    _asked: asyncio.Future[ClaimResult]  # once the row has been asked for

    def __init__(self, durability: Durability, *, is_accepted: bool, webhook: tuple[Webhook, ...]) -> None:
        """`webhook`: the receivers that are told of the end. Nothing is written before `live`."""
        self.is_accepted = is_accepted
        self.made: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._durability = durability
        self._state = StateMachine("the run of a durable prediction", RUN_STEPS, _S.CLAIMING)
        self._webhook = webhook
        self._history: HistoryWriter

    @property
    def state(self) -> RunState:
        """State of the run."""
        return self._state.state

    @property
    def is_known(self) -> bool:
        """True if the row is this server's, so that clients may be told of the prediction."""
        return self.state in _KNOWN

    @property
    def writing(self) -> tuple[asyncio.Future[Any], ...]:
        """Pending writes of the row or of its end; the server waits for them when it stops."""
        if self.state is _S.CLAIMING:
            return (self._asked,)
        return (self._history.finishing,) if self.state is _S.ENDING else ()

    @property
    def is_leaving(self) -> bool:
        """True if the server ends, and what has not succeeded is left to the next one."""
        return self._durability.is_leaving and self.is_accepted

    # its beginning

    def live(self, key: Key, execution: DurableExecution) -> None:
        """The prediction has its place, and waits for the row."""
        self.key, self.execution, self.prediction = key, execution, execution.prediction
        execution.claim()

    def claim(self, ask: Callable[[], asyncio.Future[ClaimResult]], then: Callable[[], None]) -> None:
        """Ask for the row, once more if the lease has to be renewed first; call `then` when it is this server's."""
        self._asked = ask()
        self._asked.add_done_callback(functools.partial(self._on_claimed, ask, then))

    def _on_claimed(
        self,
        ask: Callable[[], asyncio.Future[ClaimResult]] | None,
        then: Callable[[], None],
        asked: asyncio.Future[ClaimResult],
    ) -> None:
        try:
            result = asked.result()
        except asyncio.CancelledError:
            self.refuse(GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down."))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            if ask is not None and isinstance(error, LeaseEndedError):
                self._asked = asyncio.ensure_future(self._claim_renewed(ask))
                self._asked.add_done_callback(functools.partial(self._on_claimed, None, then))
                return
            if isinstance(error, GeartrainError):
                self._durability.note(error)
            self.refuse(as_unavailable(error))
        else:
            self._durability.note(None)
            if result.is_granted:
                self.hold(result.row.ownership)
                then()
                self.made.set_result(None)
            else:
                self._close(_S.REFUSED)
                self.execution.drop()
                self.made.set_result(result.row)

    async def _claim_renewed(self, ask: Callable[[], asyncio.Future[ClaimResult]]) -> ClaimResult:
        await self._durability.renew()
        return await ask()

    def refuse(self, error: Exception) -> None:
        """There is no row."""
        self._close(_S.REFUSED)
        self.execution.drop()
        self.made.set_exception(error)
        self.made.exception()  # its client may have left

    def hold(self, ownership: Ownership) -> None:
        """The row is this server's."""
        self._state.step(_S.HELD)
        self.ownership = ownership
        self._history = HistoryWriter(self._durability.store, ownership, self.prediction, note=self._durability.note)
        if self.is_accepted:
            self._history.begin_checkpoints(self.on_hold)

    def on_hold(self, hold: Hold) -> None:
        """Do what the store says of the row: stop, if somebody has asked for that, or if it has another owner."""
        if hold is not Hold.HELD:
            self.execution.cancel()

    # its end

    def leave(self) -> None:
        """Leave the prediction in the store as it is: the next server runs it again."""
        self._history.stop_checkpoints()
        self._close(_S.LEFT)
        self.prediction.release()

    def end(self, draft: Prediction) -> None:
        """Write the end that a draft of the prediction has reached; its readers are told afterwards."""
        self._history.stop_checkpoints()
        self._state.step(_S.ENDING)

        def deliveries() -> tuple[Delivery, ...]:
            return tuple([Delivery(webhook, self._durability.encode_end(draft)) for webhook in self._webhook])

        then = functools.partial(self._on_written, draft)
        self._history.finish(draft, deliveries, for_ever=self.is_accepted, then=then)

    def _on_written(self, draft: Prediction, written: asyncio.Future[Hold]) -> None:
        prediction, fields = self.prediction, {"model": self.key.model, "prediction_id": self.key.id}
        try:
            hold = written.result()
        except asyncio.CancelledError:  # the server ends: the next one runs it again
            self._close(_S.LEFT)
            prediction.release()
            return
        except GeartrainError as error:
            logger.warning("the end of a prediction could not be written", extra={**fields, "reason": error.message})
            self._close(_S.LOST)
            prediction.end_as(draft)  # its client waits for it
            return
        self._durability.note(None)
        if hold is Hold.HELD:
            self._close(_S.ENDED)
            prediction.end_as(draft)
            if self._webhook:
                self._durability.on_delivery()
            return
        logger.warning("a prediction has ended that another server has taken over", extra=fields)
        self._close(_S.LOST)
        if self.is_accepted:
            prediction.release()
        else:
            at = draft.completed_at or draft.created_at
            prediction.fail(FENCED, at=at, code=Code.STORE_UNAVAILABLE)

    def _close(self, state: RunState) -> None:
        self._state.step(state)
        self._durability.on_over(self)
