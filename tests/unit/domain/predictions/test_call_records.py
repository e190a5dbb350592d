"""Records of the calls of models: their bound, their order, and the memory that they are counted with."""

from __future__ import annotations

import tracemalloc

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import (
    MAX_CALL_TEXT,
    MAX_CALLS,
    CallRecord,
    CallRecords,
    Prediction,
    PredictionRecord,
)


def make(name: str) -> Prediction:
    return Prediction(PredictionRecord(name, 1.0, 1.0, model="m", version="1"), b"{}", 1.0)


def test_each_call_comes_before_its_own_ones() -> None:
    calls = CallRecords()
    for parent, name in [("", "a"), ("", "b"), ("b", "c"), ("a", "d"), ("d", "e"), ("a", "f")]:
        record = CallRecord(parent, name, 1, 1.0)
        assert calls.add(record)
        record.follow(make(name))
    assert [record.model for record in calls.in_tree_order()] == ["a", "d", "e", "f", "b", "c"]


def test_a_call_that_goes_on_has_the_state_of_its_prediction() -> None:
    record = CallRecord("", "a", 1, 1.0)
    assert record.now() == (Status.STARTING, 0.0)
    prediction = make("p")
    record.follow(prediction)
    prediction.start(2.0)
    assert record.now() == (Status.PROCESSING, 2.0)
    prediction.fail("no", at=3.0)
    record.end(Status.FAILED, "no", 3.5)
    assert (record.prediction, record.now(), record.completed) == (None, (Status.FAILED, 2.0), 3.5)


def test_memory_of_calls_is_counted_with_the_prediction() -> None:
    outer = make("outer")
    outer.start(1.0)
    before = outer.kept_size
    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    calls = outer.calls = CallRecords()
    for number in range(MAX_CALLS + 44):
        record = CallRecord("", "model " + "é" * number, 1, 1.0 + number)
        if calls.add(record):
            record.follow(make(f"pred_{number:032}"))
            record.end(Status.FAILED, f"{number} " + "ж" * number * 8, 2.0 + number)
    taken = tracemalloc.get_traced_memory()[0] - begin
    tracemalloc.stop()
    assert (len(calls.records), calls.left_out) == (MAX_CALLS, 44)
    assert max(len(each.error) for each in calls.records) == MAX_CALL_TEXT
    outer.succeed(b"1", at=300.0)
    assert taken <= outer.kept_size - before <= 1.3 * taken


def test_a_call_that_goes_on_is_counted_with_the_longest_error() -> None:
    record = CallRecord("", "a", 1, 1.0)
    counted = record.memory
    record.end(Status.FAILED, "\N{GRINNING FACE}" * 2 * MAX_CALL_TEXT, 2.0)
    assert record.memory - 100 <= counted
