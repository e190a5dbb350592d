"""Results of a measurement, for display and files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from geartrain.bench.load import Level
from geartrain.bench.meter import Meter
from geartrain.bench.server_figures import ServerFigures
from geartrain.bench.streams import StreamFigures

FULL_CLIENT: Final = 0.85
"""The part of one processor from which on the client itself bounds what it measures."""
_CURVE: Final = (1, 5, *range(10, 100, 5), 96, 97, 98, 99, 99.5, 99.9, 100)


class Fault(msgspec.Struct, frozen=True):
    """Requests that came to nothing: their `kind`, how many, and what was said of the first one."""

    kind: str
    count: int
    example: str


class Latency(msgspec.Struct, frozen=True):
    """Latency of good answers, in seconds. `curve` has percentiles: pairs of a percentage and a time."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    curve: tuple[tuple[float, float], ...] = ()


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """One level.

    Attributes:
        kind: what `value` is: a number of requests in flight, or arrivals in a second.
        seconds: from the first request to the last answer.
        good: predictions that succeeded; `rate` is how many of them in a second.
        unsent: requests that were due and found no connection before the end.
        client_cpu: how much of one processor the client itself has used, from 0 to 1.
        is_partial: it was interrupted.
        streams: figures of answers that were streams with tokens.
    """

    kind: str
    value: float
    seconds: float
    sent: int
    good: int
    rate: float
    latency: Latency
    faults: tuple[Fault, ...]
    unsent: int
    client_cpu: float
    server: ServerFigures
    is_partial: bool = False
    streams: StreamFigures | None = None

    @property
    def failed(self) -> int:
        """Requests that came to nothing."""
        return sum(fault.count for fault in self.faults)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole measurement. `began` is a time of ISO 8601; `machine` describes where the client ran.

    `silence` says why there are no figures of the server, and is empty where there are. `slots`: how many calls of the
    model run at once; 0 where that is not known.
    """

    geartrain: str
    url: str
    model: str
    protocol: str
    inputs: int
    began: str
    machine: str
    seconds: float
    requests: int
    warmup: float
    slots: int
    silence: str
    levels: tuple[LevelResult, ...]
    advice: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Requests that came to nothing, of all levels."""
        return sum(level.failed for level in self.levels)


def result_of(
    level: Level, meter: Meter, *, cpu_seconds: float, server: ServerFigures, is_partial: bool
) -> LevelResult:
    """Return the result of a level."""
    seconds, latencies = meter.seconds, meter.latencies
    return LevelResult(
        kind=level.kind,
        value=level.value,
        seconds=seconds,
        sent=meter.sent,
        good=latencies.count,
        rate=latencies.count / seconds if seconds else 0.0,
        latency=Latency(
            latencies.mean,
            latencies.percentile(50),
            latencies.percentile(90),
            latencies.percentile(99),
            latencies.longest,
            tuple((percent, latencies.percentile(percent)) for percent in _CURVE),
        ),
        faults=tuple(Fault(kind, count, example) for kind, (count, example) in sorted(meter.faults.items())),
        unsent=meter.unsent,
        client_cpu=cpu_seconds / seconds if seconds else 0.0,
        server=server,
        is_partial=is_partial,
        streams=meter.streams.figures(seconds, _CURVE),
    )


def to_json(report: Report) -> bytes:
    """Return it as JSON; times are in seconds."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


_COLUMNS: Final = (
    *("concurrency", "rate_asked", "seconds", "requests", "succeeded", "failed", "unsent", "rate"),
    *("mean_s", "p50_s", "p90_s", "p99_s", "max_s"),
    *("queue_mean_s", "queue_p99_s", "run_mean_s", "run_p99_s", "batch_mean", "client_cpu"),
    *("first_token_mean_s", "first_token_p50_s", "first_token_p90_s", "first_token_p99_s", "first_token_max_s"),
    *("per_token_mean_s", "per_token_p50_s", "per_token_p99_s", "tokens", "tokens_rate"),
)


def to_csv(report: Report) -> bytes:
    """Return a line for each level, below the names of the columns; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_row(level) for level in report.levels)
    return text.getvalue().encode()


def _row(level: LevelResult) -> Iterable[Any]:
    latency, server = level.latency, level.server
    is_closed = level.kind == "concurrency"
    yield from (int(level.value) if is_closed else "", "" if is_closed else level.value)
    yield from (f"{level.seconds:.6f}", level.sent, level.good, level.failed, level.unsent, f"{level.rate:.3f}")
    for seconds in (latency.mean, latency.p50, latency.p90, latency.p99, latency.max):
        yield f"{seconds:.6f}" if level.good else ""
    for each in (server.queue, server.run):
        yield from ("", "") if each is None else (f"{each.mean:.6f}", f"{each.p99:.6f}")
    yield "" if server.batch is None else f"{server.batch.mean:.3f}"
    yield f"{level.client_cpu:.3f}"
    yield from _stream_columns(level.streams)


def _stream_columns(streams: StreamFigures | None) -> Iterable[Any]:
    if streams is None:
        yield from ("",) * 10
        return
    first, each = streams.first, streams.per_token
    for seconds in (first.mean, first.p50, first.p90, first.p99, first.max, each.mean, each.p50, each.p99):
        yield f"{seconds:.6f}"
    yield streams.tokens
    yield f"{streams.token_rate:.3f}"
