"""A prediction's events as server-sent events. Pure. Source: Cog's HTTP API; observed Cog, section 14."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from geartrain.apis.cog import encode_prediction
from geartrain.domain.predictions.events import Completed, Event, Log, Metric, Output, Released, Start
from geartrain.domain.predictions.prediction import Prediction

KEEP_ALIVE: Final = b": keep-alive\n\n"
TRUNCATED: Final = "SSE stream replay truncated; events were dropped"
RELEASED: Final = "The server ends. The prediction runs again when a server takes it up; PUT its id again to follow it."
LAGGED: Final = "SSE stream lagged; events were dropped"

_OUTPUT: Final = b'event: output\ndata: {"chunk":%b,"index":%d}\n\n'
_PIECE: Final = 65_536  # bytes: more than that a connection does not take at once

_encode = msgspec.json.Encoder(order="sorted").encode


def encode_events(prediction: Prediction, events: Iterable[Event]) -> Iterator[bytes]:
    """Yield the events as text of a stream, in their order, in pieces that end after about `_PIECE` bytes."""
    parts = []
    size = 0
    for event in events:
        # Nearly all of them are outputs.
        text = _OUTPUT % (event.chunk, event.index) if type(event) is Output else _encode_event(prediction, event)
        parts.append(text)
        size += len(text)
        if size > _PIECE:
            yield b"".join(parts)
            parts = []
            size = 0
    if parts:
        yield b"".join(parts)


def encode_error(message: str, skipped: int) -> bytes:
    """Return the `error` event that ends a stream which has lost events."""
    return _block(b"error", _encode({"error": message, "skipped": skipped}))


def _encode_event(prediction: Prediction, event: Start | Log | Metric | Completed | Released) -> bytes:
    match event:
        case Log(source, data):
            return _block(b"log", _encode({"data": data, "source": source}))
        case Metric(name, value, mode):
            return _block(b"metric", _encode({"mode": mode, "name": name, "value": value}))
        case Start():
            return _block(b"start", _encode({"id": prediction.id, "status": "processing"}))
        case Completed():
            return _block(b"completed", encode_prediction(prediction))
        case Released():
            return encode_error(RELEASED, 0)


def _block(name: bytes, data: bytes) -> bytes:
    # JSON text has no line breaks of its own, so one `data` line carries it.
    return b"event: %b\ndata: %b\n\n" % (name, data)
