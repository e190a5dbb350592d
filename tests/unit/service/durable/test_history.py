"""Events of a prediction as a store keeps them."""

from __future__ import annotations

import msgspec
import pytest

from geartrain.domain.predictions.events import Event, Log, Output, Start
from geartrain.domain.predictions.ledger import Key, Ownership, Row, RowState
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import (
    MAX_CALL_TEXT,
    MAX_CALLS,
    CallRecord,
    CallRecords,
    Prediction,
    PredictionRecord,
)
from geartrain.service.durable.history import encode_end, encode_events, ended_calls, restore


def prediction() -> Prediction:
    return Prediction(PredictionRecord("p", 1.0, 1.0), b"{}", 1.0)


def running_row() -> Row:
    return Row(
        Ownership(Key("model", "p"), "owner", 1),
        RowState.ACCEPTED,
        Status.PROCESSING,
        version="1",
        created_at=1.0,
        echo=b"{}",
        attempts=1,
        is_cancel_requested=False,
        started_at=1.0,
        completed_at=None,
        error="",
        owner_address="",
        is_owner_alive=True,
    )


@pytest.mark.parametrize("size", [3, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("count", [1, 3, 20, 4_000])
def test_events_are_a_list_in_msgpack_however_large_they_are(size: int, count: int) -> None:
    events: list[Event] = [Start(), Output(b"1" * size, 0), *[Log("stdout", "text")] * count]
    kept = msgspec.msgpack.decode(encode_events(events))
    assert kept == [["s"], ["o", b"1" * size], *[["l", "stdout", "text"]] * count]


@pytest.mark.parametrize("size", [3, 65_537])
@pytest.mark.parametrize("count", [4_094, 4_095, 4_096, 8_191, 70_000])
def test_many_events_come_back_from_their_pieces(size: int, count: int) -> None:
    outputs = [b'"%0*d"' % (size, number) if number % 5_000 == 0 else b"%d" % number for number in range(count)]
    events: list[Event] = [Start(), *[Output(output, number) for number, output in enumerate(outputs)]]
    found = restore(running_row(), [encode_events(events)])
    assert [bytes(chunk) for chunk in found.chunks] == outputs


@pytest.mark.parametrize("size", [3, 65_537, 20_000_000])
@pytest.mark.parametrize("seconds", [None, 0.5, 8.9e-300])
def test_end_is_the_last_of_them(size: int, seconds: float | None) -> None:
    draft = prediction()
    draft.start(1.0)
    draft.succeed(b"1" * size, at=2.0, predict_time=seconds)
    took = 1.0 if seconds is None else seconds
    kept = msgspec.msgpack.decode(encode_end([Start()], prediction(), draft))
    assert kept == [["s"], ["e", b"1" * size, took]]


class OlderEnd(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The end as it was read before it had calls."""

    output: memoryview | None
    predict_time: float | None


def ended_row() -> Row:
    return msgspec.structs.replace(running_row(), state=RowState.ENDED, status=Status.SUCCEEDED, completed_at=3.0)


def with_calls(size: int = 1) -> Prediction:
    draft = prediction()
    draft.record.admitted = 0.5
    draft.start(1.0)
    calls = draft.calls = CallRecords()
    first = CallRecord("", "middle", 1, 1.25, shared=3)
    first.follow(callee := Prediction(PredictionRecord("m", 1.25, 1.25, version="2"), b"{}", 1.25))
    callee.start(1.5)
    second = CallRecord("m", "echo\ud800", 2, 1.75)
    assert calls.add(first)
    assert calls.add(second)
    second.end(Status.FAILED, "no such th\ud800ing", 2.0)
    calls.left_out = 7
    draft.succeed(b"1" * size, at=3.0)
    return draft


def test_an_end_without_calls_is_read_as_it_always_was() -> None:
    parts = [msgspec.msgpack.encode([["s"], ["e", b"1", 1.0]])]
    found = restore(ended_row(), parts)
    assert (found.single_output, found.predict_time, found.calls) == (b"1", 1.0, None)


@pytest.mark.parametrize("size", [1, 65_537])
def test_calls_come_back(size: int) -> None:
    draft = with_calls(size)
    part = encode_end([Start()], prediction(), draft, calls=ended_calls(draft))
    found = restore(ended_row(), [part])
    assert bytes(found.output or b"") == b"1" * size
    assert found.record.admitted == 0.5
    assert found.calls is not None
    assert found.calls.left_out == 7
    middle, echo = found.calls.records
    assert (middle.parent, middle.model, middle.depth, middle.id, middle.version) == ("", "middle", 1, "m", "2")
    # It goes on while the end is written, which cancels it.
    assert (middle.created, middle.started, middle.completed, middle.status) == (1.25, 1.5, 3.0, Status.CANCELED)
    assert (echo.parent, echo.model, echo.depth, echo.id) == ("m", "echo?", 2, "")
    assert (echo.created, echo.started, echo.completed, echo.status) == (1.75, 0.0, 2.0, Status.FAILED)
    assert (echo.error, middle.shared, echo.shared) == ("no such th?ing", 3, 1)
    _, end = msgspec.msgpack.decode(part)
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(end), type=OlderEnd)
    assert older.output is not None
    assert (bytes(older.output), older.predict_time) == (b"1" * size, 2.0)


def test_calls_take_no_more_than_a_few_megabytes_of_a_store() -> None:
    draft = prediction()
    calls = draft.calls = CallRecords()
    for _ in range(2 * MAX_CALLS):
        record = CallRecord("p" * 40, "\U0001f40c" * MAX_CALL_TEXT, 1, 1.0)
        if calls.add(record):
            record.end(Status.FAILED, "\U0001f40c" * 5_000, 2.0)
    draft.start(1.0)
    draft.succeed(b"1", at=3.0)
    part = encode_end([], prediction(), draft, calls=ended_calls(draft))
    assert MAX_CALLS * 8 * MAX_CALL_TEXT < len(part) < MAX_CALLS * (8 * MAX_CALL_TEXT + 150)
