"""Metrics as a model records them: section 10 of the observed API, row by row, as coglet 0.23.1 answered."""

from __future__ import annotations

import asyncio
import math
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from geartrain import BaseRunner, current_scope
from geartrain.authoring.scope import MAX_METRICS, MAX_METRICS_SIZE, Scope, reset_scope, set_scope, use_scope
from geartrain.domain.predictions.prediction import apply_metric


class Recorder:
    """A scope, and what it sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, str]] = []
        self.folded: dict[str, Any] = {}
        self.scope = Scope(prediction_id="p", emit=self._emit)

    def _emit(self, name: str, value: Any, mode: Any) -> None:
        self.sent.append((name, value, mode))
        apply_metric(self.folded, name, value, mode=mode)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


# What adds up to what


def test_the_modes(recorder: Recorder) -> None:
    record = recorder.scope.record_metric
    record("i", 42)
    record("cnt", 1, mode="incr")
    record("cnt", 2, mode="incr")
    record("arr", "a", mode="append")
    record("arr", "b", mode="append")
    record("timing.a.b", 1.0)
    record("timing.c", 2)
    recorder.scope.metrics["b"] = True
    assert recorder.folded == {
        "i": 42,
        "cnt": 3,
        "arr": ["a", "b"],
        "timing": {"a": {"b": 1.0}, "c": 2},
        "b": True,
    }
    assert recorder.sent[1] == ("cnt", 1, "increment")
    assert recorder.sent[3] == ("arr", "a", "append")


def test_metrics_can_be_read_back(recorder: Recorder) -> None:
    metrics = recorder.scope.metrics
    metrics.record("cnt", 1, "incr")
    metrics.record("cnt", 2, "incr")
    metrics.record("a.b", "x", "append")
    metrics.record("a.b", "y", "append")
    assert metrics["cnt"] == 3
    assert dict(metrics) == {"cnt": 3, "a.b": ["x", "y"]}
    assert "a.b" in metrics
    assert len(metrics) == 2
    assert metrics.get("nope") is None
    assert repr(metrics) == "Metrics({'cnt': 3, 'a.b': ['x', 'y']})"


def test_append_makes_a_list_of_a_single_value(recorder: Recorder) -> None:
    recorder.scope.record_metric("e", "x")
    recorder.scope.record_metric("e", "y", "append")
    assert recorder.folded == {"e": ["x", "y"]} == dict(recorder.scope.metrics)


def test_the_word_increment_and_no_mode(recorder: Recorder) -> None:
    recorder.scope.record_metric("i", 1, "increment")
    recorder.scope.record_metric("q", 1, None)
    assert recorder.folded == {"i": 1, "q": 1}


@pytest.mark.parametrize("delete", ["del", "none", "method"])
def test_deleting_frees_the_name_for_another_type(recorder: Recorder, delete: str) -> None:
    metrics = recorder.scope.metrics
    metrics["p"] = 1
    if delete == "del":
        del metrics["p"]
    elif delete == "none":
        metrics["p"] = None
    else:
        metrics.delete("p")
    assert recorder.sent[-1] == ("p", None, "delete")
    assert recorder.folded == {} == dict(metrics)
    metrics["p"] = "x"
    assert recorder.folded == {"p": "x"}


def test_deleting_what_is_not_there(recorder: Recorder) -> None:
    del recorder.scope.metrics["nope"]
    recorder.scope.metrics["nope"] = None
    recorder.scope.metrics.delete("nope")
    assert recorder.sent == []


def test_a_recorded_list_is_a_copy(recorder: Recorder) -> None:
    values = [1]
    recorder.scope.record_metric("l", values)
    values.append(2)
    assert recorder.folded == {"l": [1]}


# Names


@pytest.mark.parametrize(
    "name",
    ["a", "A", "aB9", "cog", "cogx", "cog_x", "Predict_Time", "predict_time.x", "x.predict_time", "a.b.c.d", "a" * 128],
)
def test_good_names(recorder: Recorder, name: str) -> None:
    recorder.scope.record_metric(name, 1)
    assert list(recorder.scope.metrics) == [name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("predict_time", "'predict_time' is reserved by the runtime"),
        ("cog.x", "the 'cog.' prefix is reserved for system metrics"),
        ("", "metric name must not be empty"),
        (".a", "metric name must not start with a dot"),
        ("a.", "metric name must not end with a dot"),
        ("a..b", "metric name must not contain empty segments (consecutive dots)"),
        ("1a", "metric name segment '1a' must start with a letter"),
        ("_a", "metric name segment '_a' must start with a letter"),
        ("é", "metric name segment 'é' must start with a letter"),
        ("a.1b", "metric name segment '1b' must start with a letter"),
        ("a_", "metric name segment 'a_' must end with a letter or digit"),
        ("a.b_", "metric name segment 'b_' must end with a letter or digit"),
        ("a__b", "metric name segment 'a__b' must not contain consecutive underscores"),
        ("a-b", "metric name segment 'a-b' contains invalid character '-'"),
        ("a b", "metric name segment 'a b' contains invalid character ' '"),
        ("a²", "metric name segment 'a²' contains invalid character '²'"),
        ("a.b.c.d.e", "metric name must have at most 4 dot-separated segments (got 5)"),
        ("a" * 129, "metric name must be 128 characters or fewer (got 129 characters)"),
    ],
)
def test_bad_names(recorder: Recorder, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        recorder.scope.record_metric(name, 1)
    assert recorder.sent == []


def test_a_name_is_a_string(recorder: Recorder) -> None:
    with pytest.raises(TypeError, match="a metric's name is a string, not int"):
        recorder.scope.record_metric(1, 1)  # type: ignore[arg-type]


# Types and modes


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((1, "replace"), ("x", "replace"), "Metric 't' has type int, cannot set to str without deleting first"),
        ((1, "replace"), (1.5, "replace"), "Metric 't' has type int, cannot set to float without deleting first"),
        ((1, "incr"), (1.5, "incr"), "Metric 't' has type int, cannot set to float without deleting first"),
        ((1.5, "incr"), (1, "incr"), "Metric 't' has type float, cannot set to int without deleting first"),
        ((True, "replace"), (1, "replace"), "Metric 't' has type bool, cannot set to int without deleting first"),
        (([1], "replace"), ({}, "replace"), "Metric 't' has type list, cannot set to dict without deleting first"),
        (([1], "replace"), ("y", "append"), "Metric 't' has type list, cannot set to str without deleting first"),
        (("y", "append"), (1, "append"), "Metric 't' has type str, cannot set to int without deleting first"),
        (("x", "replace"), (1, "incr"), "Metric 't' has type str, cannot set to int without deleting first"),
    ],
)
def test_a_name_keeps_its_type(
    recorder: Recorder, first: tuple[Any, str], second: tuple[Any, str], message: str
) -> None:
    recorder.scope.record_metric("t", *first)
    with pytest.raises(TypeError) as raised:
        recorder.scope.record_metric("t", *second)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("value", "mode", "message"),
    [
        (1, "bogus", "Invalid metric mode: 'bogus'. Expected 'replace', 'incr', or 'append'."),
        (1, "Replace", "Invalid metric mode: 'Replace'. Expected 'replace', 'incr', or 'append'."),
        ("x", "incr", "Increment mode requires int or float, got str"),
        (True, "incr", "Increment mode requires int or float, got bool"),
        (
            None,
            "append",
            "Unsupported metric value type: NoneType. Expected bool, int, float, str, list, or dict.",
        ),
        (
            None,
            "replace",
            "Unsupported metric value type: NoneType. Expected bool, int, float, str, list, or dict.",
        ),
        (b"x", "replace", "Unsupported metric value type: bytes. Expected bool, int, float, str, list, or dict."),
        ((1,), "replace", "Unsupported metric value type: tuple. Expected bool, int, float, str, list, or dict."),
        ({"a": object()}, "replace", "Cannot convert object to JSON metric value"),
        ({1: 2}, "replace", "Cannot convert dict to JSON metric value"),
    ],
)
def test_bad_values_and_modes(recorder: Recorder, value: Any, mode: str, message: str) -> None:
    with pytest.raises(TypeError) as raised:
        recorder.scope.record_metric("t", value, mode)
    assert str(raised.value) == message
    assert recorder.sent == []


def test_a11_none_through_record_metric_is_an_error(recorder: Recorder) -> None:
    recorder.scope.record_metric("p", 1)
    with pytest.raises(TypeError, match="Unsupported metric value type: NoneType"):
        recorder.scope.record_metric("p", None)
    assert recorder.folded == {"p": 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, -math.inf], {"a": {"b": math.nan}}])
def test_what_json_cannot_carry_is_left_out_with_a_warning(recorder: Recorder, value: Any) -> None:
    with pytest.warns(RuntimeWarning, match="metric 't' holds NaN or Infinity and is left out"):
        recorder.scope.record_metric("t", value)
    assert recorder.sent == []


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (2**70, float(2**70)),
        (-(2**64), float(-(2**64))),
        (2**64 - 1, 2**64 - 1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        ({"a": None, "b": [None, (1, 2)]}, {"a": None, "b": [None, [1, 2]]}),
        (type("Text", (str,), {})("q"), "q"),
    ],
)
def test_values_become_plain_json(recorder: Recorder, value: Any, plain: Any) -> None:
    recorder.scope.record_metric("t", value)
    assert recorder.sent == [("t", plain, "replace")]
    assert type(recorder.sent[0][1]) is type(plain)


# How much is recorded


def test_names_of_metrics_are_bounded(recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2 * MAX_METRICS):
        recorder.scope.record_metric(f"m{number}", number)
    assert len(recorder.folded) == len(recorder.scope.metrics) == MAX_METRICS
    told = capsys.readouterr().err
    assert told.startswith(
        "metric 'm1000' is left out, and so are further ones: a prediction records at most 1000 names"
    )
    assert told.count("\n") == 1
    recorder.scope.record_metric("m0", 1, "incr")
    del recorder.scope.metrics["m1"]
    recorder.scope.record_metric("new", 5)
    assert (recorder.folded["m0"], recorder.folded["new"]) == (1, 5)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda number: f"{number:1000}", 6000),
        (lambda number: number + 0.5, 60_000),
        (lambda number: {"k": [number + 0.5] * 10}, 12_000),
    ],
    ids=["texts", "numbers", "objects"],
)
def test_values_of_metrics_are_bounded(
    recorder: Recorder, capsys: pytest.CaptureFixture[str], make: Callable[[int], Any], count: int
) -> None:
    tracemalloc.start()
    try:
        for number in range(count):
            recorder.scope.record_metric("all", make(number), "append")
            recorder.sent.clear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2.5 * MAX_METRICS_SIZE  # the list is here and where it is folded; its items are the same
    assert recorder.folded["all"] == recorder.scope.metrics["all"] == [*map(make, range(len(recorder.folded["all"])))]
    assert capsys.readouterr().err.startswith("metric 'all' is left out")
    recorder.scope.metrics.clear()
    recorder.scope.record_metric("all", make(1), "append")
    assert recorder.folded == {"all": [make(1)]}


def test_a_value_that_is_too_large_leaves_the_one_before(recorder: Recorder) -> None:
    recorder.scope.record_metric("t", "x")
    recorder.scope.record_metric("t", "x" * MAX_METRICS_SIZE)
    assert recorder.folded == {"t": "x"} == dict(recorder.scope.metrics)
    recorder.scope.record_metric("t", "y")
    assert recorder.folded == {"t": "y"}


def test_list_that_grows_is_not_the_one_that_was_sent(recorder: Recorder) -> None:
    recorder.scope.record_metric("l", [1])
    recorder.scope.record_metric("l", [2], "append")
    assert recorder.sent == [("l", [1], "replace"), ("l", [2], "append")]
    assert recorder.folded == {"l": [1, [2]]} == dict(recorder.scope.metrics)


# The current scope


def test_the_scope_knows_its_prediction() -> None:
    scope = Scope(prediction_id="p1", context={"user": "u"}, emit=lambda *_: None)
    with use_scope(scope) as current:
        assert current is scope is current_scope() is BaseRunner().scope
        assert current_scope().context == {"user": "u"}
        assert current_scope().prediction_id == "p1"
    assert current_scope().prediction_id == ""
    assert repr(scope) == "Scope(prediction_id='p1', context={'user': 'u'})"


def test_a_scope_can_be_set_and_reset(recorder: Recorder) -> None:
    token = set_scope(recorder.scope)
    BaseRunner().record_metric("a", 1)
    reset_scope(token)
    BaseRunner().record_metric("a", 2)
    assert recorder.folded == {"a": 1}


def test_outside_of_a_prediction_everything_is_ignored() -> None:
    scope = current_scope()
    scope.record_metric("", object(), "bogus")
    scope.metrics["a"] = 1
    del scope.metrics["a"]
    assert scope.context == {}
    assert dict(scope.metrics) == {}


async def test_concurrent_tasks_have_scopes_of_their_own() -> None:
    recorders = [Recorder() for _ in range(3)]

    async def predict(index: int) -> None:
        with use_scope(recorders[index].scope):
            await asyncio.sleep(0)
            current_scope().record_metric("index", index)

    await asyncio.gather(*(predict(index) for index in range(3)))
    assert [recorder.folded for recorder in recorders] == [{"index": 0}, {"index": 1}, {"index": 2}]
