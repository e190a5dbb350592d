"""The ASGI application: predictions go straight to their endpoints, everything else through Starlette."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response

from geartrain.apis import cog
from geartrain.domain.errors import GeartrainError
from geartrain.transport.errors import HTTP_STATUS, retry_headers
from geartrain.transport.http.predictions import PredictionEndpoints
from geartrain.transport.http.wire import INTERNAL_ERROR, send_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

_CANCEL = "/cancel"

Endpoints = Mapping[str, PredictionEndpoints]  # by the first part of their paths: `predictions`, `trainings`


def make_app(endpoints: Endpoints, routes: Sequence[BaseRoute], others: Mapping[str, ASGIApp] | None = None) -> ASGIApp:
    """Build the application: the `routes` are those that no prediction takes.

    `others` are applications of their own, by the first part of their paths.
    """
    system = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _on_http_error, GeartrainError: _on_error, Exception: _on_bug},
    )
    system.router.redirect_slashes = False
    return _Dispatcher(endpoints, system, others or {})


class _Dispatcher:
    """Answers the routes of predictions itself: Starlette's router takes longer than a small prediction."""

    def __init__(self, endpoints: Endpoints, rest: ASGIApp, others: Mapping[str, ASGIApp]) -> None:
        self._endpoints = endpoints
        self._rest = rest
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root, slash, one_id = scope["path"][1:].partition("/")
            endpoints = self._endpoints.get(root)
            if endpoints is not None:
                if not slash:
                    if scope["method"] == "POST":
                        await endpoints.create(scope, receive, send)
                    else:
                        await _wrong_method(send, "POST")
                    return
                # A percent-encoded slash belongs to the id: only the raw path tells it from a real one.
                raw_id, action = _split(scope["raw_path"].decode("latin-1").removeprefix(f"/{root}/"))
                if raw_id and action is not None:
                    await _one(endpoints, scope, receive, send=send, one_id=one_id, action=action)
                    return
            elif root in self._others:
                await self._others[root](scope, receive, send)
                return
        await self._rest(scope, receive, send)


async def _one(
    endpoints: PredictionEndpoints, scope: Scope, receive: Receive, *, send: Send, one_id: str, action: str
) -> None:
    method = scope["method"]
    if action == _CANCEL:
        if method == "POST":
            await endpoints.cancel(send, one_id.removesuffix(_CANCEL))
        else:
            await _wrong_method(send, "POST")
    elif method == "PUT":
        await endpoints.create_or_join(scope, receive, send, prediction_id=one_id)
    elif method in {"GET", "HEAD"}:
        await endpoints.show(send, one_id)
    else:
        await _wrong_method(send, "GET, HEAD, PUT")


def _split(raw: str) -> tuple[str, str | None]:
    """Cut a raw path into id and action; the action is None where there is no such route."""
    raw_id, slash, rest = raw.partition("/")
    if not slash:
        return raw_id, ""
    return raw_id, _CANCEL if rest == "cancel" else None


async def _wrong_method(send: Send, allowed: str) -> None:
    body = msgspec.json.encode({"error": f"Method not allowed; this path takes {allowed}."})
    await send_json(send, HTTPStatus.METHOD_NOT_ALLOWED, body, headers=((b"allow", allowed.encode()),))


async def _on_http_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):  # pragma: no cover - registered for this type alone
        raise error
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"Method not allowed; this path takes {(error.headers or {}).get('Allow', 'another')}."
    elif error.status_code == HTTPStatus.NOT_FOUND:
        text = "No such path. GET / lists the endpoints."
    else:
        text = error.detail
    body = msgspec.json.encode({"error": text})
    return Response(body, status_code=error.status_code, headers=error.headers, media_type="application/json")


async def _on_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, GeartrainError):  # pragma: no cover - registered for this type alone
        raise error
    status = HTTP_STATUS[error.code]
    headers = {name.decode(): value.decode() for name, value in retry_headers(status, error)}
    return Response(cog.encode_error(error), status_code=status, headers=headers, media_type="application/json")


async def _on_bug(_request: Request, _error: Exception) -> Response:
    return Response(INTERNAL_ERROR, status_code=HTTPStatus.INTERNAL_SERVER_ERROR, media_type="application/json")
