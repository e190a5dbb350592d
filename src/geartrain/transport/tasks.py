"""Endpoints that are coroutines: simple to write, and a task for each request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.service.models.waking import ModelAsleepError, when_loaded
from geartrain.transport.errors import BUG
from geartrain.transport.routing import Api, Begin, Params
from geartrain.transport.wire.bodies import too_large
from geartrain.transport.wire.exchange import Accepted, Answer, Body, Decision, Head, Responder

logger = logging.getLogger(__name__)

_running: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly


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
