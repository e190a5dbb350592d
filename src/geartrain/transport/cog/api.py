"""Refusals of Cog's API, and the common part of its endpoints."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.apis import cog
from geartrain.domain.errors import GeartrainError
from geartrain.transport.errors import HTTP_STATUS, error_headers
from geartrain.transport.wire.exchange import JSON, Answer

_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (b'{"error":"No such path. GET / lists the endpoints."}',))


class CogApi:
    """The error shapes of Cog's API. See `Api`."""

    @staticmethod
    def refuse(error: GeartrainError) -> Answer:
        """Return every wrong field, or one sentence."""
        status = HTTP_STATUS[error.code]
        headers = (*JSON, *error_headers(status, error))
        return Answer(status, (cog.encode_error(error),), headers, error=error.reason)

    @staticmethod
    def not_found() -> Answer:
        """Return the answer that lists the endpoints."""
        return _NOT_FOUND

    @staticmethod
    def wrong_method(allowed: str) -> Answer:
        """Return the methods that the path takes."""
        body = msgspec.json.encode({"error": f"Method not allowed; this path takes {allowed}."})
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (body,), (*JSON, (b"allow", allowed.encode())))


COG: Final = CogApi()


class CogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of Cog's API.

    Attributes:
        max_body: the largest body in bytes; 0 disables the limit.
        quiet: the seconds without an event after which a stream is kept alive.
        stream_grace: the seconds for which a prediction that POST made for a stream runs on without readers.
        has_shutdown: true if `POST /shutdown` is among the routes.
        logs_ends: True to log the end of each prediction that was answered with 202.
        can_load: true if those that load and unload models are.
    """

    max_body: int = 100 * 1024**2
    quiet: float = 15.0
    stream_grace: float = 30.0
    has_shutdown: bool = False
    logs_ends: bool = True
    can_load: bool = True


def json_answer(body: bytes, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return a body of JSON."""
    return Answer(status, (body,))
