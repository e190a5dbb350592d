"""The paths of files and batches of OpenAI's API, and of the batches of messages of Anthropic's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from geartrain.domain.errors import GeartrainError
from geartrain.service.durable.durability import Durability
from geartrain.transport.errors import BUG
from geartrain.transport.openai.routes import ANTHROPIC, API
from geartrain.transport.routing import Api, Begin, Params, Route
from geartrain.transport.runs import Request, by_task, size_refusal, start
from geartrain.transport.wire.exchange import (
    Accepted,
    AcceptedInParts,
    Answer,
    Body,
    Head,
    PartsExchange,
    Responder,
)

logger = logging.getLogger(__name__)

MAX_REQUESTS: Final = 67_108_864
"""Bytes of the body that makes a batch of messages."""

_MAX_JSON: Final = 262_144  # bytes of the body of a request that is no upload
_FORM_ROOM: Final = 1_048_576  # bytes of a form beside its file

_Streaming = Callable[[Request, Responder], Awaitable[None]]


def stored_routes(durability: Durability | None, *, max_bytes: int, max_body_bytes: int) -> Iterator[Route]:
    """Yield the routes of files and batches. Their handlers are imported with the first request.

    `durability`: None on a server without a store, which refuses each request. `max_bytes`: of the files of one client.
    `max_body_bytes`: of the body that makes a batch of messages, where its own limit is not lower.
    """

    def files(name: str) -> Begin:
        async def answer(request: Request) -> Answer:
            from geartrain.transport.openai.stored_files import Files

            endpoint: Any = getattr(Files(durability), name)
            found: Answer = await endpoint(request)
            return found

        return by_task(answer, API, _MAX_JSON)

    def batches(name: str) -> Begin:
        async def answer(request: Request) -> Answer:
            from geartrain.transport.openai.stored_batches import StoredBatches

            endpoint: Any = getattr(StoredBatches(durability), name)
            found: Answer = await endpoint(request)
            return found

        return by_task(answer, API, _MAX_JSON)

    def upload(head: Head, params: Params) -> AcceptedInParts:  # noqa: ARG001 - as of `Begin`
        from geartrain.transport.openai.stored_files import MAX_FILE

        return AcceptedInParts(partial(new_upload, head), MAX_FILE + _FORM_ROOM, size_refusal(API))

    def new_upload(head: Head, responder: Responder) -> PartsExchange:
        from geartrain.transport.openai.stored_files import UploadExchange

        return UploadExchange(durability, head, responder, max_bytes=max_bytes)

    async def content(request: Request, responder: Responder) -> None:
        from geartrain.transport.openai.stored_files import Files

        await Files(durability).content(request, responder)

    route = partial(Route, api=API, scope="predict", subject="none")
    yield route(("POST",), "/v1/files", upload)
    yield route(("GET",), "/v1/files", files("list_all"))
    yield route(("GET",), "/v1/files/{id}", files("describe"))
    yield route(("DELETE",), "/v1/files/{id}", files("remove"))
    yield route(("GET",), "/v1/files/{id}/content", _streaming(content, API))
    yield route(("POST",), "/v1/batches", batches("create"))
    yield route(("GET",), "/v1/batches", batches("list_all"))
    yield route(("GET",), "/v1/batches/{id}", batches("describe"))
    yield route(("POST",), "/v1/batches/{id}/cancel", batches("cancel"))
    yield from _message_routes(durability, max_bytes, min(max_body_bytes, MAX_REQUESTS))


def _message_routes(durability: Durability | None, max_bytes: int, max_body: int) -> Iterator[Route]:
    def messages(name: str, most: int = _MAX_JSON) -> Begin:
        async def answer(request: Request) -> Answer:
            from geartrain.transport.openai.message_batches import MessageBatches

            endpoint: Any = getattr(MessageBatches(durability, max_bytes=max_bytes), name)
            found: Answer = await endpoint(request)
            return found

        return by_task(answer, ANTHROPIC, most)

    async def results(request: Request, responder: Responder) -> None:
        from geartrain.transport.openai.message_batches import MessageBatches

        await MessageBatches(durability, max_bytes=max_bytes).results(request, responder)

    route = partial(Route, api=ANTHROPIC, scope="predict", subject="none")
    yield route(("POST",), "/v1/messages/batches", messages("create", max_body))
    yield route(("GET",), "/v1/messages/batches", messages("list_all"))
    yield route(("GET",), "/v1/messages/batches/{id}", messages("describe"))
    yield route(("DELETE",), "/v1/messages/batches/{id}", messages("remove"))
    yield route(("POST",), "/v1/messages/batches/{id}/cancel", messages("cancel"))
    yield route(("GET",), "/v1/messages/batches/{id}/results", _streaming(results, ANTHROPIC))


def _streaming(answer: _Streaming, api: Api) -> Begin:
    def begin(head: Head, params: Params) -> Accepted:
        return Accepted(
            lambda responder: _StreamExchange(answer, Request(head, params, b""), responder, api=api),
            0,
            size_refusal(api),
        )

    return begin


class _StreamExchange:
    """One request whose answer comes in pieces. See `Exchange`."""

    def __init__(self, answer: _Streaming, request: Request, responder: Responder, *, api: Api) -> None:
        self._answer = answer
        self._request = request
        self._responder = responder
        self._api = api

    def receive(self, body: Body) -> None:  # noqa: ARG002 - there is none
        """Begin to answer."""
        start(self._run())

    def abandon(self) -> None:
        """Leave it to the stream, whose next write raises."""

    async def _run(self) -> None:
        try:
            await self._answer(self._request, self._responder)
        except GeartrainError as error:
            self._responder.respond(self._api.refuse(error))
        except Exception as error:
            logger.exception("an endpoint failed", exc_info=error)
            self._responder.respond(self._api.refuse(BUG))
