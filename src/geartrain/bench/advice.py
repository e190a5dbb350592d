"""Meaning of the figures, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from geartrain.bench.results import FULL_CLIENT, LevelResult, Report
from geartrain.bench.sweep import RISE
from geartrain.bench.texts import duration, rate

_NEAR: Final = 1 / RISE  # of the best rate: what counts as having reached it
_BUSY: Final = frozenset({"HTTP 409", "HTTP 429", "HTTP 503"})
_MOST_WAITING: Final = 0.5  # of the time of a request, in the queue
_REACHED: Final = 0.95  # of the rate that was asked for


def advise(report: Report) -> tuple[str, ...]:
    """Return the sentences about the figures, the most important first."""
    if not report.levels:
        return ()
    return tuple(sentence for find in _FINDINGS for sentence in find(report))


def _on_errors(report: Report) -> Iterator[str]:
    if not report.failed:
        return
    sent = sum(level.sent for level in report.levels)
    yield f"{report.failed} of {sent} requests failed: the throughput counts only those that succeeded."
    kinds = {fault.kind for level in report.levels for fault in level.faults}
    if kinds & _BUSY:
        yield "The server had no place for some requests: `geartrain serve --queue` says how many may wait."


def _on_throughput(report: Report) -> Iterator[str]:
    levels = [level for level in report.levels if level.kind == "concurrency" and level.good]
    if len(levels) < 2:  # noqa: PLR2004 - there is nothing to compare
        return
    best = max(level.rate for level in levels)
    knee = next(level for level in levels if level.rate >= _NEAR * best)
    if knee is levels[-1]:
        yield (
            f"Throughput still rises at a concurrency of {_count(knee.value)}: {_rate(knee)}. "
            f"Measure on with --concurrency {_count(knee.value)},{_count(2 * knee.value)},{_count(4 * knee.value)}."
        )
        return
    yield (
        f"Throughput stops rising at a concurrency of {_count(knee.value)}: {_rate(knee)}, {_tail(knee)}. "
        f"{_reason(report, knee)}"
    )


def _reason(report: Report, knee: LevelResult) -> str:
    """Say what bounds the throughput, as far as the figures tell."""
    if knee.client_cpu >= FULL_CLIENT:
        return "There the client itself has no processor time left."
    batch = knee.server.batch
    if batch is not None and batch.mean > 1:
        return (
            f"The model's calls had {batch.mean:.1f} rows on average; larger batches, or more replicas, may give more: "
            "see docs/batching.md."
        )
    if report.slots == 1:
        return (
            "The model's concurrency is 1: more requests only wait for each other. See docs/batching.md for several in "
            "one call, `@concurrent` for an async model, and `--replicas` for more workers."
        )
    if report.slots > 1 and knee.value >= report.slots:
        return f"The model's concurrency is {report.slots}: more requests only wait. `--replicas` gives more workers."
    return "The processors, or what the model itself waits for, are the bound."


def _on_waiting(report: Report) -> Iterator[str]:
    last = report.levels[-1]
    queue = last.server.queue
    if queue is not None and last.good and queue.mean > _MOST_WAITING * last.latency.mean:
        part = min(1.0, queue.mean / last.latency.mean)
        yield f"At {_level(last)} a request waits in the server's queue for {part:.0%} of its time."


def _on_arrivals(report: Report) -> Iterator[str]:
    for level in report.levels:
        if level.kind == "rate" and not level.is_partial and level.good + level.failed:
            due = (level.sent + level.unsent) / level.seconds
            if level.unsent or level.good < _REACHED * (level.sent + level.unsent):
                yield f"Of {rate(due)} requests a second {rate(level.rate)} succeeded: the server cannot do more."
                return


def _on_client(report: Report) -> Iterator[str]:
    full = [level for level in report.levels if level.client_cpu >= FULL_CLIENT]
    if full:
        yield (
            f"The client used {full[0].client_cpu:.0%} of a processor at {_level(full[0])}: the server may do better "
            "than these figures. Measure from a machine of its own, or with several clients."
        )


def _on_silence(report: Report) -> Iterator[str]:
    if report.silence:
        yield f"There are no figures of the server itself: {report.silence}."


_FINDINGS: Final = (_on_errors, _on_throughput, _on_waiting, _on_arrivals, _on_client, _on_silence)


def _level(level: LevelResult) -> str:
    return f"{_count(level.value)} at once" if level.kind == "concurrency" else f"{level.value:g} a second"


def _count(value: float) -> str:
    return f"{int(value)}"


def _rate(level: LevelResult) -> str:
    return f"{rate(level.rate)} a second"


def _tail(level: LevelResult) -> str:
    return f"99% of them within {duration(level.latency.p99)}"
