"""The paths of files and batches of OpenAI's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from geartrain.service.durable.durability import Durability
from geartrain.transport.openai.routes import API
from geartrain.transport.routing import Begin, Params, Route
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

_MAX_JSON: Final = 262_144  # bytes of the body of a request that is no upload
_FORM_ROOM: Final = 1_048_576  # bytes of a form beside its file

_Streaming = Callable[[Request, Responder], Awaitable[None]]


def stored_routes(durability: Durability | None, *, max_bytes: int) -> Iterator[Route]:
    """Yield the routes of files and batches. Their handlers are imported with the first request.

    `durability`: None on a server without a store, which refuses each request. `max_bytes`: of the files of one client.
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
    yield route(("GET",), "/v1/files/{id}/content", _streaming(content))
    yield route(("POST",), "/v1/batches", batches("create"))
    yield route(("GET",), "/v1/batches", batches("list_all"))
    yield route(("GET",), "/v1/batches/{id}", batches("describe"))
    yield route(("POST",), "/v1/batches/{id}/cancel", batches("cancel"))


def _streaming(answer: _Streaming) -> Begin:
    def begin(head: Head, params: Params) -> Accepted:
        return Accepted(
            lambda responder: _StreamExchange(answer, Request(head, params, b""), responder), 0, size_refusal(API)
        )

    return begin


class _StreamExchange:
    """One request whose answer comes in pieces. See `Exchange`."""

    def __init__(self, answer: _Streaming, request: Request, responder: Responder) -> None:
        self._answer = answer
        self._request = request
        self._responder = responder

    def receive(self, body: Body) -> None:  # noqa: ARG002 - there is none
        """Begin to answer."""
        start(self._run())

    def abandon(self) -> None:
        """Leave it to the stream, whose next write raises."""

    async def _run(self) -> None:
        from geartrain.transport.openai.api import refusal

        try:
            await self._answer(self._request, self._responder)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self._responder.respond(refusal(error))
