"""A prediction and its log, without a worker or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain.domain.predictions.events import (
    MAX_PRINTED,
    Completed,
    Event,
    EventLog,
    EventsDroppedError,
    Log,
    Metric,
    MetricMode,
    Output,
    Start,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord, apply_metric
from geartrain.domain.state_machine import IllegalStepError


def make() -> Prediction:
    return Prediction(PredictionRecord("p1", 100.0, 100.0), b"{}", 100.0)


def test_the_log_of_a_plain_run() -> None:
    prediction = make()
    prediction.start(101.0)
    prediction.add_log("stdout", "hi\n")
    prediction.succeed(b'"done"', at=103.0)
    assert prediction.log.read(0) == [Start(), Log("stdout", "hi\n"), Output(b'"done"', 0), Completed(Status.SUCCEEDED)]
    assert (prediction.output, prediction.logs, prediction.predict_time) == (b'"done"', "hi\n", 2.0)


def test_the_log_of_a_stream() -> None:
    prediction = make()
    prediction.start(101.0)
    prediction.add_output(b"1")
    prediction.add_output(b"2")
    prediction.succeed(None, at=102.0, predict_time=0.5)
    assert [event.index for event in prediction.log.read(0) if isinstance(event, Output)] == [0, 1]
    assert (prediction.output, prediction.predict_time) == (b"[1,2]", 0.5)


def test_a_stream_of_nothing_is_an_empty_list() -> None:
    prediction = make()
    prediction.start(101.0)
    prediction.succeed(None, at=102.0)
    assert prediction.output == b"[]"


def test_failure_keeps_logs_and_partial_output() -> None:
    prediction = make()
    prediction.start(101.0)
    prediction.add_output(b"1")
    prediction.add_log("stderr", "oh\n")
    prediction.fail("ValueError: no", at=102.0)
    assert (prediction.error, prediction.chunks, prediction.logs) == ("ValueError: no", [b"1"], "oh\n")
    assert prediction.output is None


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel"])
def test_terminal_means_terminal(end: str) -> None:
    prediction = make()
    prediction.start(101.0)
    prediction.succeed(b"1", at=102.0)
    endings: dict[str, Any] = {
        "succeed": lambda: prediction.succeed(b"2", at=103.0),
        "fail": lambda: prediction.fail("x", at=103.0),
        "cancel": lambda: prediction.cancel(at=103.0),
    }
    with pytest.raises(IllegalStepError):
        endings[end]()
    assert prediction.status is Status.SUCCEEDED
    assert prediction.is_terminal


def test_clock_that_is_set_back_in_a_run_gives_no_negative_time() -> None:
    prediction = make()
    prediction.start(4000.0)
    prediction.fail("no", at=400.0)
    assert prediction.predict_time == 0.0


def test_a9_predict_time_without_a_run_is_zero() -> None:
    prediction = make()
    prediction.cancel(at=104.0)
    assert prediction.predict_time == 0.0
    assert prediction.started_at is None


def test_a_reader_may_begin_anywhere_the_ring_still_holds() -> None:
    log = EventLog(capacity=3)
    for index in range(5):
        log.append(Output(b"x", index))
    assert (log.first_index, log.next_index) == (2, 5)
    assert [event.index for event in log.read(3) if isinstance(event, Output)] == [3, 4]
    assert log.read(5) == []
    with pytest.raises(EventsDroppedError) as dropped:
        log.read(0)
    assert dropped.value.skipped == 2


def test_a_ring_of_nothing_still_tells_its_listeners() -> None:
    log = EventLog(capacity=0)
    heard: list[Event] = []
    log.listen(heard.append)
    log.append(Start())
    assert heard == [Start()]
    assert log.read(1) == []


def test_listeners_hear_each_event_once_and_may_leave_while_being_told() -> None:
    log = EventLog()
    heard: list[str] = []

    def leaving(_event: Event) -> None:
        heard.append("leaving")
        log.unlisten(leaving)

    def staying(_event: Event) -> None:
        heard.append("staying")

    log.listen(leaving)
    log.listen(staying)
    log.append(Start())
    log.append(Start())
    assert heard == ["leaving", "staying", "staying"]
    log.unlisten(leaving)  # gone already: no fault


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("a", 1, "replace"), ("a", 2, "replace")], {"a": 2}),
        ([("a", 1, "increment"), ("a", 2, "increment")], {"a": 3}),
        ([("a", "x", "append"), ("a", "y", "append")], {"a": ["x", "y"]}),
        ([("a", 1, "replace"), ("a", 2, "append")], {"a": [1, 2]}),
        ([("a", 1, "replace"), ("a", None, "delete"), ("b", None, "delete")], {}),
        ([("t.a.b", 1.0, "replace"), ("t.a.c", 2, "replace")], {"t": {"a": {"b": 1.0, "c": 2}}}),
        ([("t", 1, "replace"), ("t.a", 2, "replace")], {"t": {"a": 2}}),
    ],
)
def test_metrics_add_up(steps: list[tuple[str, Any, MetricMode]], expected: dict[str, Any]) -> None:
    metrics: dict[str, Any] = {}
    for name, value, mode in steps:
        apply_metric(metrics, name, value, mode=mode)
    assert metrics == expected


def test_a_metric_is_an_event_with_the_value_given() -> None:
    prediction = make()
    prediction.start(1.0)
    prediction.add_metric("n", 2, "increment")
    prediction.add_metric("n", 3, "increment")
    assert prediction.log.read(1) == [Metric("n", 2, "increment"), Metric("n", 3, "increment")]
    assert prediction.metrics == {"n": 5}


def test_what_a_reader_raises_reaches_neither_the_run_nor_the_other_readers(caplog: pytest.LogCaptureFixture) -> None:
    prediction = Prediction(PredictionRecord("id", 1.0, 1.0), b"{}", 1.0)
    heard: list[object] = []

    def fail(*_: object) -> None:
        raise RuntimeError("a write to a closed transport")

    prediction.log.listen(fail)
    prediction.log.listen(heard.append)
    prediction.log.listen_for_end(fail)
    prediction.log.listen_for_end(lambda: heard.append("end"))
    prediction.start(1.0)
    prediction.succeed(b"1", at=2.0)
    assert prediction.status is Status.SUCCEEDED
    assert len(heard) == 4
    assert heard[-1] == "end"
    assert len([record for record in caplog.records if "a reader of a prediction has failed" in record.message]) == 4


def test_events_of_much_printed_text_are_dropped() -> None:
    """The latest are held, and outputs among them."""
    prediction = make()
    prediction.start(101.0)
    for number in range(40):
        prediction.add_log("stdout", f"{number:2}" * (MAX_PRINTED // 32))
        prediction.add_output(b"%d" % number)
        assert prediction.log.memory < 1.1 * MAX_PRINTED
    events = prediction.log.read(prediction.log.first_index)
    assert sum(len(event.data) for event in events if isinstance(event, Log)) >= MAX_PRINTED // 2
    assert events[-1] == Output(b"39", 39)
    assert prediction.log.next_index == 81
    with pytest.raises(EventsDroppedError, match=f"^{81 - len(events)} events"):
        prediction.log.read(0)
    assert len(prediction.logs) >= MAX_PRINTED


@pytest.mark.parametrize("value", ["x" * 500_000, [0.25] * 20_000], ids=["text", "list"])
def test_events_of_large_metrics_are_dropped(value: Any) -> None:
    prediction = make()
    prediction.start(101.0)
    for number in range(60):
        prediction.add_metric("all", type(value)(value[:-1]) if number % 2 else value, "replace")
        assert prediction.log.memory < 1.1 * MAX_PRINTED
    assert prediction.log.next_index == 61
    assert prediction.log.first_index == 0 or prediction.log.read(prediction.log.first_index)
    with pytest.raises(EventsDroppedError):
        prediction.log.read(0)
