"""Metrics that an author defines."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from geartrain.authoring import metrics
from geartrain.authoring.metrics import MAX_SERIES, Change, Registry


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    fresh = Registry()
    monkeypatch.setattr(metrics, "registry", fresh)
    return fresh


def changes(registry: Registry) -> dict[str, list[Change]]:
    return {definition.name: sorted(found) for definition, found in registry.take()}


def test_counter_tells_its_increase_once(registry: Registry) -> None:
    tokens = metrics.counter("tokens", "Made", labels=["kind"])
    tokens.inc(kind="in")
    tokens.inc(2.5, kind="in")
    tokens.inc(kind=7)
    assert changes(registry) == {"tokens": [Change(("7",), 1.0), Change(("in",), 3.5)]}
    assert changes(registry) == {}
    tokens.inc(kind="in")
    assert changes(registry) == {"tokens": [Change(("in",), 1.0)]}


def test_gauge_tells_how_it_stands(registry: Registry) -> None:
    level = metrics.gauge("level", merge="max")
    level.set(5)
    level.inc(2)
    level.dec()
    assert changes(registry) == {"level": [Change((), 6.0)]}
    level.inc()
    assert changes(registry) == {"level": [Change((), 7.0)]}


def test_histogram_tells_the_increase_of_its_buckets(registry: Registry) -> None:
    decode = metrics.histogram("decode_seconds", buckets=[1, 2])
    for seconds in (1, 1.5, 3):
        decode.observe(seconds)
    assert changes(registry) == {"decode_seconds": [Change((), 5.5, (1, 1, 1))]}
    decode.observe(0)
    assert changes(registry) == {"decode_seconds": [Change((), 0.0, (1, 0, 0))]}


def test_same_definition_is_the_same_metric(registry: Registry) -> None:
    assert metrics.counter("tokens_total", "Made") is metrics.counter("tokens", "Made")
    assert registry.has_metrics
    with pytest.raises(ValueError, match="defined before in another way"):
        metrics.gauge("tokens")
    with pytest.raises(ValueError, match="defined before in another way"):
        metrics.counter("tokens", "Made", labels=["kind"])


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "é", "_x", "a.b", "x" * 129])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a metric"):
        metrics.gauge(name)


@pytest.mark.parametrize("name", ["geartrain_x", "nv_x", "process_x", "python_x"])
@pytest.mark.parametrize("end", ["", "_sum"])
def test_prefixes_of_the_server(name: str, end: str) -> None:
    with pytest.raises(ValueError, match="is the server's"):
        metrics.histogram(name + end)


@pytest.mark.parametrize("name", ["x_sum", "x_count", "x_bucket", "x_created", "x_info"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        metrics.gauge(name)


@pytest.mark.parametrize("label", ["model", "version", "le", "quantile", "replica", "amount", "value", "1", "a-b", ""])
def test_labels_that_cannot_be(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        metrics.counter("tokens", labels=["good", label])


def define(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **options)


@pytest.mark.parametrize(
    ("definition", "error", "text"),
    [
        (define(metrics.gauge, "x_total"), ValueError, "'_total'"),
        (define(metrics.counter, "x", labels="kind"), TypeError, r"labels=\['kind'\]"),
        (define(metrics.counter, "x", labels=["a", "a"]), ValueError, "twice"),
        (define(metrics.counter, "x", labels=[f"l{n}" for n in range(11)]), ValueError, "at most 10"),
        (define(metrics.counter, 7), TypeError, "not int"),
        (define(metrics.gauge, "x", merge="average"), ValueError, "'average'"),
        (define(metrics.histogram, "x", buckets=[]), ValueError, "1 to 50"),
        (define(metrics.histogram, "x", buckets=[1, float("inf")]), ValueError, "finite"),
        (define(metrics.histogram, "x", buckets=[2, 1]), ValueError, "rise"),
    ],
)
def test_other_faults_of_a_definition(definition: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        definition()


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf")])
def test_values_that_cannot_be(registry: Registry, amount: float) -> None:
    with pytest.raises(ValueError, match="'c'"):
        metrics.counter("c").inc(amount)
    if amount != -1:
        with pytest.raises(ValueError, match="'g'"):
            metrics.gauge("g").set(amount)
        with pytest.raises(ValueError, match="'h'"):
            metrics.histogram("h").observe(amount)
    assert changes(registry) == {}


@pytest.mark.parametrize("given", [{}, {"kind": 1, "other": 2}, {"other": 1}])
def test_labels_have_to_be_those_of_the_definition(given: dict[str, Any]) -> None:
    tokens = metrics.counter("tokens", labels=["kind"])
    with pytest.raises(ValueError, match="has the labels: kind; given: "):
        tokens.inc(**given)


def test_series_are_bounded_with_one_warning(registry: Registry) -> None:
    warnings: list[str] = []
    registry.warn = warnings.append
    users = metrics.counter("users", labels=["id"])
    level = metrics.gauge("level")
    for number in range(MAX_SERIES + 5):
        users.inc(id=number)
    level.set(1)
    assert len(changes(registry)["users"]) == MAX_SERIES
    assert len(warnings) == 1
    assert "1000 series" in warnings[0]
    users.inc(id=3)  # one that is there goes on
    assert changes(registry) == {"users": [Change(("3",), 1.0)]}


def test_metrics_are_bounded_with_the_same_warning(registry: Registry) -> None:
    """A model may make a name of a part of each request."""
    warnings: list[str] = []
    registry.warn = warnings.append
    for number in range(MAX_SERIES + 5):
        assert metrics.counter(f"of_{number}") is not metrics.counter("of_0" if number else "other")
    kept = weakref.ref(metrics.counter("beyond"))
    gc.collect()
    assert kept() is None
    assert len(warnings) == 1
    metrics.counter("of_3").inc()
    assert changes(registry) == {"of_3": [Change((), 1.0)]}


def test_too_many_series_are_warned_of_where_there_is_no_server() -> None:
    users = metrics.counter("users", labels=["id"])
    for number in range(MAX_SERIES):
        users.inc(id=number)
    with pytest.warns(RuntimeWarning, match="left out"):
        users.inc(id="one more")


def test_long_value_of_a_label_is_cut(registry: Registry) -> None:
    metrics.counter("users", labels=["id"]).inc(id="x" * 1000)
    assert changes(registry) == {"users": [Change(("x" * 128,), 1.0)]}


def test_change_is_told_once_until_it_is_taken(registry: Registry) -> None:
    told: list[None] = []
    registry.on_change = lambda: told.append(None)
    tokens = metrics.counter("tokens")
    for _ in range(3):
        tokens.inc()
    assert len(told) == 1
    registry.take()
    tokens.inc()
    assert len(told) == 2


def test_threads_lose_nothing(registry: Registry) -> None:
    tokens = metrics.counter("tokens")
    taken: list[float] = []

    def count() -> None:
        for _ in range(2000):
            tokens.inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += [change.value for _, found in registry.take() for change in found]
    taken += [change.value for _, found in registry.take() for change in found]
    assert sum(taken) == 8000


def test_fork_is_not_kept_waiting(registry: Registry) -> None:
    before = registry.lock
    registry.renew_lock()
    assert registry.lock is not before
    assert os.getpid()


def test_raw_metric_takes_any_labels_by_name() -> None:
    found = metrics.raw_metric("raw_seen_ns", "counter", "Time")
    assert metrics.raw_metric("raw_seen_ns", "counter", "Time") is found
    found.inc(2, version="1", model="m")
    found.inc(1)
    changes = {change.labels: change.value for change in found.take()}
    assert changes == {("model", "m", "version", "1"): 2.0, (): 1.0}
    metrics.check_raw_labels("raw_seen_ns", ["model", "version"])
    for call in (
        lambda: metrics.raw_metric("nv_own", "gauge"),
        lambda: metrics.raw_metric("1", "gauge"),
        lambda: metrics.check_raw_labels("raw", ["le"]),
        lambda: metrics.check_raw_labels("raw", map(str, "abcdefghijk")),
    ):
        with pytest.raises(ValueError, match=r"raw|nv_|'1'"):
            call()
