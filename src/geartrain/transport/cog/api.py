"""The parts that all endpoints of Cog's API share: refusals, options, and header fields of requests.

Source of the header fields: observed Cog, sections 6, 11 and 14.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.apis import cog
from geartrain.domain.errors import GeartrainError
from geartrain.transport.compression import accepted_weight, prefers
from geartrain.transport.errors import HTTP_STATUS, error_headers
from geartrain.transport.wire.exchange import JSON, Answer, Headers

_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (b'{"error":"No such path. GET / lists the endpoints."}',))


class CogApi:
    """The error shapes of Cog's API. See `Api`."""

    name = "cog"
    shows_logs = True

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


class PredictionHeaders(msgspec.Struct, frozen=True):
    """The fields that count.

    Attributes:
        media_type: `Content-Type` as it came, empty without one.
        has_json: whether that is JSON.
        respond_async: whether the answer shall not wait for the run.
        event_stream: whether server-sent events are named, and JSON is not preferred to them.
    """

    media_type: bytes
    has_json: bool
    respond_async: bool
    event_stream: bool


def read_headers(headers: Headers) -> PredictionHeaders:
    """Read the fields of a request."""
    media_type = b""
    accept: list[bytes] = []
    prefer: list[bytes] = []
    for name, value in headers:
        if name == b"content-type":
            media_type = value
        elif name == b"prefer":
            prefer.append(value)
        elif name == b"accept":
            accept.append(value)
    respond_async = bool(prefer) and prefers(prefer, b"respond-async")
    event_stream = bool(accept) and _wants_events(accept)
    return PredictionHeaders(media_type, _is_json(media_type), respond_async, event_stream)


def _wants_events(accept: list[bytes]) -> bool:
    if not any(b"event-stream" in value.lower() for value in accept):  # wildcards mean JSON
        return False
    weight = accepted_weight(accept, b"text/event-stream")
    return weight > 0 and weight >= accepted_weight(accept, b"application/json")


def _is_json(content_type: bytes) -> bool:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"application/json":
        return True
    return media_type.startswith(b"application/") and media_type.endswith(b"+json")
