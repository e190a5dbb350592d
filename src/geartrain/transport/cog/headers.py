"""What the header fields of a request of Cog's API say and ask for. Source: observed Cog, sections 6, 11 and 14."""

from __future__ import annotations

import msgspec

from geartrain.transport.wire.exchange import Headers


class PredictionHeaders(msgspec.Struct, frozen=True):
    """The fields that count.

    Attributes:
        media_type: `Content-Type` as it came, empty without one.
        has_json: whether that is JSON.
        respond_async: whether the answer shall not wait for the run.
        event_stream: whether server-sent events are accepted.
    """

    media_type: bytes
    has_json: bool
    respond_async: bool
    event_stream: bool


def read_headers(headers: Headers) -> PredictionHeaders:
    """Read the fields of a request."""
    media_type = b""
    respond_async = event_stream = False
    for name, value in headers:
        if name == b"content-type":
            media_type = value
        elif name == b"prefer":
            respond_async = value == b"respond-async"
        elif name == b"accept":
            event_stream = any(part.partition(b";")[0].strip() == b"text/event-stream" for part in value.split(b","))
    return PredictionHeaders(media_type, _is_json(media_type), respond_async, event_stream)


def _is_json(content_type: bytes) -> bool:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"application/json":
        return True
    return media_type.startswith(b"application/") and media_type.endswith(b"+json")
