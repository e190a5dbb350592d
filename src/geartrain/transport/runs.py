"""Exchanges of endpoints: coroutines with a task for each request, and runs of a model without one.

A small request for a run makes no task: it is admitted in the call that brings its body and answered in the call that
reports the end of its prediction.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models.waking import ModelAsleepError, when_loaded
from geartrain.transport.errors import BUG
from geartrain.transport.records import RequestRecord
from geartrain.transport.routing import Api, Begin, Params
from geartrain.transport.wire.bodies import too_large
from geartrain.transport.wire.exchange import Accepted, Answer, Body, Decision, Head, Responder

logger = logging.getLogger(__name__)

_running: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly
DIRECT_LIMIT: Final = 65_536  # bytes of a body that is read on the spot


def start(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that handles its own errors."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)


class Request(msgspec.Struct, frozen=True):
    """Request of an endpoint."""

    head: Head
    params: Params
    body: Body


Endpoint = Callable[[Request], Awaitable[Answer]]


def size_refusal(api: Api) -> Callable[[int], Answer]:
    """Create the refusal of bodies that are too large, in the form of `api`."""
    return lambda limit: api.refuse(too_large(limit))


def by_task(endpoint: Endpoint, api: Api, max_body: int) -> Begin:
    """Create the handler that passes requests to a coroutine, which goes on even when its client has left."""
    refuse_size = size_refusal(api)

    def begin(head: Head, params: Params) -> Decision:
        def new_exchange(responder: Responder) -> _TaskExchange:
            return _TaskExchange(endpoint, head, params, api=api, responder=responder)

        return Accepted(new_exchange, max_body, refuse_size)

    return begin


def when_awake(answer: Callable[[Head, Params], Answer], api: Api) -> Begin:
    """Create the handler that answers at once, or after the load of the requested model, if requests load it."""

    async def wait(request: Request) -> Answer:
        return await when_loaded(lambda: answer(request.head, request.params))

    late = by_task(wait, api, 0)

    def begin(head: Head, params: Params) -> Decision:
        try:
            return answer(head, params)
        except ModelAsleepError:
            return late(head, params)

    return begin


class _TaskExchange:
    __slots__ = ("_api", "_endpoint", "_head", "_params", "_responder")

    def __init__(self, endpoint: Endpoint, head: Head, params: Params, *, api: Api, responder: Responder) -> None:
        self._endpoint = endpoint
        self._head = head
        self._params = params
        self._api = api
        self._responder = responder

    def receive(self, body: Body) -> None:
        start(self._run(Request(self._head, self._params, body)))

    def abandon(self) -> None:
        """Let the endpoint finish without a reader: its change is complete."""

    async def _run(self, request: Request) -> None:
        try:
            answer = await self._endpoint(request)
        except GeartrainError as error:
            answer = self._api.refuse(error)
        except Exception:
            logger.exception("an endpoint failed")
            answer = self._api.refuse(BUG)
        self._responder.respond(answer)


class RunExchange(abc.ABC):
    """One request that runs a model. See `Exchange`. Endpoints differ in its steps."""

    __slots__ = ("_awaits_end", "_has_left", "_on_leave", "_prediction", "_responder", "record")

    def __init__(self, responder: Responder) -> None:
        # cheaper than `record_of`
        self.record: RequestRecord = responder.record  # type: ignore[assignment]
        self._responder = responder
        self._has_left = False
        self._awaits_end = False  # of its prediction
        self._on_leave: Callable[[], None] | None = None
        self._prediction: Prediction

    # steps

    @abc.abstractmethod
    def admit(self, body: Any) -> Prediction:
        """Start the prediction, `body` being what `read` or `prepare` made of it; raises `GeartrainError`."""

    @abc.abstractmethod
    def answer(self) -> Answer:
        """Return the answer; the prediction is over. Raises `GeartrainError`."""

    @abc.abstractmethod
    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""

    @abc.abstractmethod
    def forsake(self, prediction: Prediction) -> None:
        """Note that the client of a live prediction has disconnected."""

    def is_large(self, body: Body) -> bool:
        """True if `prepare` has to see the body first."""
        return len(body) > DIRECT_LIMIT

    def read(self, body: Body) -> Any:
        """Decode a body for `admit`; raise `GeartrainError`."""
        return body

    async def prepare(self, body: Body) -> Any:
        """Decode a large body like `read`, without holding the loop. Nothing else keeps the body."""
        return self.read(body)

    def wait_limit(self, body: Any) -> float | None:  # noqa: ARG002 - for those who know one
        """Return the seconds that the client waits for a model that has to be loaded, None for no limit.

        `body`: as for `admit`.
        """
        return None

    def is_answered_aside(self) -> bool:
        """True if `answer_aside` is to make the answer, because it takes long."""
        return False

    async def answer_aside(self) -> Answer:
        """Return the answer like `answer`, without holding the loop."""
        return self.answer()

    # calls of the wire

    def receive(self, body: Body) -> None:
        """Admit the prediction, now or when the body has been prepared."""
        if self.is_large(body):
            start(self._receive_large(body))
            return
        try:
            prediction = self.admit(self.read(body))
            self.record.prediction = prediction.record
            self.follow(prediction)
        except ModelAsleepError as asleep:
            start(self._receive_late(body, asleep))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Answer for a prediction that could not be admitted."""
        self._responder.respond(self._refusal(error))

    def abandon(self) -> None:
        """Forsake the prediction, if it has begun."""
        self._has_left = True
        if self._awaits_end:
            self.forsake(self._prediction)
        elif self._on_leave is not None:
            self._on_leave()

    # continuation

    def follow(self, prediction: Prediction) -> None:
        """Answer when the prediction has ended."""
        self._prediction = prediction
        if prediction.is_terminal:
            self._finish()
        else:
            self._awaits_end = True
            prediction.log.listen_for_end(self._finish)

    def hand_over(self, on_leave: Callable[[], None]) -> None:
        """Leave the answer to another, to whom `on_leave` belongs: it is called if the client disconnects."""
        self._on_leave = on_leave

    async def _receive_large(self, body: Body) -> None:
        try:
            prepared = await self._prepare_when_awake(body)
            del body
            await when_loaded(lambda: self._admit(prepared), self.wait_limit(prepared))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self.fail(error)

    async def _prepare_when_awake(self, body: Body) -> Any:
        while True:
            try:
                return await self.prepare(body)
            except ModelAsleepError as asleep:
                waiting = asleep
            await waiting.wait()

    async def _receive_late(self, body: Body, asleep: ModelAsleepError) -> None:
        """Receive a request whose model has to be loaded first."""
        try:
            limit = self._limit_asleep(body)
            await asleep.wait(limit)
            await when_loaded(lambda: self._admit(self.read(body)), limit)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self.fail(error)

    def _limit_asleep(self, body: Body) -> float | None:
        """Return the time for a load; None for bodies that cannot be read without the model."""
        try:
            return self.wait_limit(self.read(body))
        except ModelAsleepError:
            return None

    def _admit(self, prepared: Any) -> None:
        if not self._has_left:
            prediction = self.admit(prepared)
            self.record.prediction = prediction.record
            self.follow(prediction)

    def _finish(self) -> None:
        self._awaits_end = False
        if self._has_left:
            return
        if self.is_answered_aside():
            start(self._finish_aside())
            return
        try:
            answer = self.answer()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            answer = self._refusal(error)
        self._responder.respond(answer)

    async def _finish_aside(self) -> None:
        try:
            answer = await self.answer_aside()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            answer = self._refusal(error)
        self._responder.respond(answer)

    def _refusal(self, error: Exception) -> Answer:
        """Return the answer to a request that failed, and log an error that is none of its client's."""
        if isinstance(error, GeartrainError):
            return self.refuse(error)
        logger.error("an endpoint failed", exc_info=error)
        return self.refuse(BUG)
