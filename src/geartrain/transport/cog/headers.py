"""Header fields of requests of Cog's API. Source: observed Cog, sections 6, 11 and 14."""

from __future__ import annotations

import msgspec

from geartrain.transport.negotiation import accepted_weight, prefers
from geartrain.transport.wire.exchange import Headers


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
