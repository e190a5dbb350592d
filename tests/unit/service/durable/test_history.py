"""Events of a prediction as a store keeps them."""

from __future__ import annotations

import msgspec
import pytest

from geartrain.domain.predictions.events import Event, Log, Output, Start
from geartrain.domain.predictions.ledger import Key, Ownership, Row, RowState
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.service.durable.history import encode_end, encode_events, restore


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
