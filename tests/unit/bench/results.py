"""Results of measurements that were never made."""

from __future__ import annotations

from typing import Any

from geartrain.bench.results import Fault, Latency, LevelResult, Report
from geartrain.bench.server_figures import Distribution, ServerFigures


def distribution(mean: float) -> Distribution:
    return Distribution(100, mean, mean, mean)


def level(value: float, rate: float, **given: Any) -> LevelResult:
    """A level of 10 s whose requests took as long as one after the other would."""
    seconds = value / rate
    sent = int(rate * 10)
    known: dict[str, Any] = {
        "kind": "concurrency",
        "seconds": 10.0,
        "sent": sent,
        "good": sent,
        "latency": Latency(seconds, seconds, seconds, 2 * seconds, 3 * seconds, ((50, seconds), (100, 3 * seconds))),
        "faults": (),
        "unsent": 0,
        "client_cpu": 0.1,
        "server": ServerFigures(),
        **given,
    }
    return LevelResult(value=value, rate=rate, **known)


def failing(value: float, rate: float, fault: Fault, **given: Any) -> LevelResult:
    """As `level`, with requests that have failed beside those that have not."""
    good = int(rate * 10)
    return level(value, rate, sent=good + fault.count, good=good, faults=(fault,), **given)


def report(*levels: LevelResult, **given: Any) -> Report:
    known: dict[str, Any] = {
        "geartrain": "1.2.3",
        "url": "http://127.0.0.1:5000",
        "model": "shout",
        "protocol": "cog",
        "inputs": 1,
        "began": "2026-01-02T03:04:05+00:00",
        "machine": "Linux x86_64, 2 processors",
        "seconds": 10.0,
        "requests": 0,
        "warmup": 1.0,
        "slots": 1,
        "silence": "",
        **given,
    }
    return Report(levels=levels, **known)
