"""A prediction's events as server-sent events. Pure. Source: Cog's HTTP API; observed Cog, section 14."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from geartrain.apis.cog import encode_in_parts, encode_prediction
from geartrain.domain.predictions.events import Completed, Event, Log, Metric, Output, Released, Start
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.tensors.tensor import Buffer

KEEP_ALIVE: Final = b": keep-alive\n\n"
TRUNCATED: Final = "SSE stream replay truncated; events were dropped"
RELEASED: Final = "The server ends. The prediction runs again when a server takes it up; PUT its id again to follow it."
LAGGED: Final = "SSE stream lagged; events were dropped"

_OUTPUT: Final = b'event: output\ndata: {"chunk":%b,"index":%d}\n\n'
_FRAME: Final = len(_OUTPUT)  # bytes around a chunk, or a few less
_PIECE: Final = 65_536  # bytes: more than that a connection does not take at once

_encode = msgspec.json.Encoder(order="sorted").encode


def encode_events(prediction: Prediction, events: Iterable[Event]) -> Iterator[bytes]:
    """Yield the events as text of a stream, in their order, in pieces that end after about `_PIECE` bytes."""
    parts: list[bytes] = []
    size = 0
    for event in events:
        if type(event) is Output and (length := len(event.chunk)) <= _PIECE:  # nearly all of them
            parts.append(_OUTPUT % (event.chunk, event.index))
            size += length + _FRAME
        elif large := _large_parts(prediction, event):
            if parts:
                yield b"".join(parts)
            yield from map(bytes, large)  # no copies: nearly all are bytes
            parts, size = [], 0
            continue
        else:
            text = _encode_event(prediction, event)
            parts.append(text)
            size += len(text)
        if size > _PIECE:
            yield b"".join(parts)
            parts = []
            size = 0
    if parts:
        yield b"".join(parts)


def _large_parts(prediction: Prediction, event: Event) -> Sequence[Buffer]:
    """Return the text of a large event in parts; none for any other."""
    if type(event) is Output:
        head, _, tail = (_OUTPUT % (b"\0", event.index)).partition(b"\0")
        return head, event.chunk, tail
    if type(event) is Completed and (len(prediction.input) > _PIECE or sum(map(len, prediction.chunks)) > _PIECE):
        return encode_completed(prediction)
    return ()


def encode_completed(prediction: Prediction) -> tuple[Buffer, ...]:
    """Return the last event of a prediction in parts, without copies of large outputs."""
    return b"event: completed\ndata: ", *encode_in_parts(prediction), b"\n\n"


def encode_error(message: str, skipped: int) -> bytes:
    """Return the `error` event that ends a stream which has lost events."""
    return _block(b"error", _encode({"error": message, "skipped": skipped}))


def _encode_event(prediction: Prediction, event: Event) -> bytes:
    match event:
        case Output(chunk, index):
            return _OUTPUT % (chunk, index)
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
