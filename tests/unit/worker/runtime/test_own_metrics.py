"""What a worker sends of the author's metrics."""

from __future__ import annotations

import contextlib
import queue

from geartrain.authoring.metrics import Counter, Definition, Registry
from geartrain.domain.predictions.own_metrics import OwnMetric, OwnReport, Series
from geartrain.ipc.messages import ControlToParent, OwnMetrics, WorkerLog
from geartrain.worker.runtime.own_metrics import MetricsSender

LIMIT = 40.0  # seconds


def new_counter(registry: Registry, name: str = "tokens") -> Counter:
    return registry.define(Counter(registry, Definition(name, "counter", "Made", ())))


def report(name: str, value: float) -> OwnMetrics:
    return OwnMetrics((OwnReport(OwnMetric(name, "counter", "Made"), (Series((), value),)),))


def test_thread_sends_what_has_changed() -> None:
    registry, sent = Registry(), queue.SimpleQueue[ControlToParent]()
    sender = MetricsSender(registry, sent.put, contextlib.nullcontext)
    sender.attach()
    new_counter(registry).inc(3)
    assert sent.get(timeout=LIMIT) == report("tokens", 3.0)


def test_what_was_counted_before_is_sent_too() -> None:
    registry, sent = Registry(), queue.SimpleQueue[ControlToParent]()
    new_counter(registry).inc()
    MetricsSender(registry, sent.put, contextlib.nullcontext).attach()
    assert sent.get(timeout=LIMIT) == report("tokens", 1.0)


def test_end_sends_the_rest_and_warnings_come_first() -> None:
    registry = Registry()
    sent: list[ControlToParent] = []
    sender = MetricsSender(registry, sent.append, contextlib.nullcontext)
    sender.flush()
    assert sent == []
    tokens = new_counter(registry)
    sender._warnings.append("too many")
    tokens.inc()
    sender.flush()
    assert sent == [WorkerLog("geartrain.worker", "warning", "too many"), report("tokens", 1.0)]
    sender.flush()
    assert len(sent) == 2
