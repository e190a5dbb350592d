"""The events of a prediction as a store keeps them, and the prediction that they make again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.events import (
    DEFAULT_CAPACITY,
    Event,
    Log,
    LogSource,
    Metric,
    MetricMode,
    Output,
    Start,
)
from geartrain.domain.predictions.ledger import Row, RowState
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.tensors.tensor import Buffer


class _Start(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """See `Start`."""


class _Output(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """See `Output`; the index follows from the order. Reading makes no copy of the chunk."""

    chunk: memoryview


class _Log(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """See `Log`."""

    source: LogSource
    data: str


class _Metric(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """See `Metric`."""

    name: str
    value: Any
    mode: MetricMode


class _End(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """The end: the output if the run has given one as a whole, and how long the run took in seconds."""

    output: memoryview | None
    predict_time: float | None


_Kept = _Start | _Output | _Log | _Metric | _End

_LARGE: Final = 65_536  # bytes of an output that is not copied by the encoder
# The beginnings of values in msgpack, before their length in four bytes: a list, an `_Output`, and an `_End`.
_ARRAY: Final = b"\xdd"
_OUTPUT: Final = b"\x92\xa1o\xc6"
_WHOLE: Final = b"\x93\xa1e\xc6"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Kept]).decode


def encode_events(events: Iterable[Event]) -> bytes:
    """Return events as one part of a history; the end is written by `encode_end`."""
    return _write(_kept(events))


def encode_end(events: Iterable[Event], prediction: Prediction, draft: Prediction) -> bytes:
    """Return the last part: events that are not written yet, and how the `draft` of a prediction has ended."""
    whole = draft.output if len(draft.chunks) > len(prediction.chunks) else None
    return _write([*_kept(events), _End(None if whole is None else memoryview(bytes(whole)), draft.predict_time)])


def _write(kept: list[_Kept]) -> bytes:
    """Encode a list. Large outputs are joined to it: that lets other threads run, and to encode them does not."""
    if not any(_size(one) > _LARGE for one in kept):
        return _encode(kept)
    parts: list[Buffer] = [_ARRAY + len(kept).to_bytes(4, "big")]
    for one in kept:
        size = _size(one)
        match one:
            case _Output(chunk) if size > _LARGE:
                parts += (_OUTPUT + size.to_bytes(4, "big"), chunk)
            case _End(memoryview() as output, predict_time) if size > _LARGE:
                parts += (_WHOLE + size.to_bytes(4, "big"), output, _encode(predict_time))
            case _:
                parts.append(_encode(one))
    return b"".join(parts)


def _size(one: _Kept) -> int:
    match one:
        case _Output(chunk):
            return len(chunk)
        case _End(memoryview() as output, _):
            return len(output)
    return 0


def _kept(events: Iterable[Event]) -> list[_Kept]:
    found: list[_Kept] = []
    for event in events:
        match event:
            case Output(chunk):
                found.append(_Output(memoryview(bytes(chunk))))
            case Log(source, data):
                found.append(_Log(source, data))
            case Metric(name, value, mode):
                found.append(_Metric(name, value, mode))
            case Start():
                found.append(_Start())
    return found


def restore(row: Row, parts: Sequence[bytes], *, history: int = DEFAULT_CAPACITY) -> Prediction:
    """Return the prediction of a row with these parts of its history. `history`: as of `EventLog.keep`."""
    key = row.ownership.key
    record = PredictionRecord(key.id, row.created_at, row.created_at, model=key.model, version=row.version)
    prediction = Prediction(record, row.echo, row.created_at)
    prediction.log.keep(history)
    end = _End(None, None)
    for part in parts:
        for kept in _decode(part):
            if isinstance(kept, _End):
                end = kept
            else:
                _add(prediction, kept, row)
    if row.state is RowState.ENDED:
        _end(prediction, row, end)
    return prediction


def _add(prediction: Prediction, kept: _Start | _Output | _Log | _Metric, row: Row) -> None:
    match kept:
        case _Start():
            prediction.start(row.created_at if row.started_at is None else row.started_at)
        case _Output(chunk):
            prediction.add_output(_own(chunk))
        case _Log(source, data):
            prediction.add_log(source, data)
        case _Metric(name, value, mode):
            prediction.add_metric(name, value, mode)


def _end(prediction: Prediction, row: Row, end: _End) -> None:
    at = row.created_at if row.completed_at is None else row.completed_at
    if row.status is Status.SUCCEEDED:
        output = None if end.output is None else _own(end.output)
        prediction.succeed(output, at=at, predict_time=end.predict_time)
    elif row.status is Status.CANCELED:
        prediction.cancel(at=at, error=row.error or None)
    else:
        prediction.fail(row.error, at=at)
    prediction.predict_time = end.predict_time


def _own(text: memoryview) -> Buffer:
    """Return a small text as an object of its own; a large one stays in its part, as a copy holds the interpreter."""
    return text if len(text) > _LARGE else bytes(text)
