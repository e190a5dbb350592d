"""A server's figures for the time of a level: the difference of its metrics before and after."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from geartrain.bench.connection import Connection, Target

_PATH: Final = "/metrics"
_CONNECT: Final = 10.0  # seconds for a connection
_WITHIN: Final = 10.0  # seconds for an answer
_OK: Final = 200
_INFINITE: Final = float("inf")
_NAMES: Final = {
    "queue": "geartrain_queue_duration_seconds",
    "run": "geartrain_run_duration_seconds",
    "first_output": "geartrain_first_output_seconds",
    "batch": "geartrain_batch_size",
}


class Distribution(msgspec.Struct, frozen=True):
    """Values that a histogram has counted. `p50` and `p99` are as near as its buckets allow.

    `buckets` are upper bounds with how many values fell below them and above the bound before; the last may be
    infinite, which is None.
    """

    count: int
    mean: float
    p50: float
    p99: float
    buckets: tuple[tuple[float | None, int], ...] = ()


class ServerFigures(msgspec.Struct, frozen=True):
    """Counts of the server: seconds in the queue, in the model and until the first output, and rows of its calls.

    None for values that were not counted. `memory_rows` are those that fitted into memory at once, after a batch that
    did not and was run in parts; 0 if all did.
    """

    queue: Distribution | None = None
    run: Distribution | None = None
    first_output: Distribution | None = None
    batch: Distribution | None = None
    memory_rows: int | None = None


class Snapshot(NamedTuple):
    """The metrics of one model at a moment: for each histogram its buckets, cumulated, and its sum; its slots.

    `memory_rows`: the rows that fitted into memory at once, after a batch that did not; 0 without one.
    """

    buckets: dict[str, dict[float, float]]
    sums: dict[str, float]
    slots: int
    memory_rows: int = 0


class MetricsError(Exception):
    """The server does not tell; the message says why."""


async def ask(target: Target, request: bytes) -> tuple[int, bytes]:
    """Send one request over a connection of its own; return status and content. Raises `OSError`."""
    asking = _Asking()
    connection = await target.connect(asking, timeout=_CONNECT)
    try:
        connection.send(request)
        return await asking.answer
    finally:
        connection.close()
        await connection.closed()


class _Asking:
    """Hears of one request."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def answered(self, connection: Connection, status: int, content: bytes) -> None:
        """Take the answer."""
        del connection
        self.answer.set_result((status, content))

    def broken(self, connection: Connection, reason: str) -> None:
        """Count the connection as lost."""
        del connection
        self.answer.set_exception(OSError(reason))


async def take_snapshot(target: Target, model: str) -> Snapshot:
    """Return the metrics of a model, all its versions together. Raises `MetricsError`."""
    try:
        async with asyncio.timeout(_WITHIN):
            status, content = await ask(target, target.request("GET", _PATH, headers={}, content=b""))
    except OSError as error:
        raise MetricsError(f"GET {_PATH}: {str(error) or 'there is no answer'}") from None
    if status != _OK:
        raise MetricsError(f"GET {_PATH} is answered with {status}")
    return read_snapshot(content.decode(errors="replace"), model)


def read_snapshot(text: str, model: str) -> Snapshot:
    """Read metrics as they come. Raises `MetricsError`."""
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    sums: dict[str, float] = defaultdict(float)
    single = {"geartrain_slots": 0.0, "geartrain_batch_memory_limit_rows": 0.0}
    kinds = {name: kind for kind, name in _NAMES.items()}
    try:
        for family in text_string_to_metric_families(text):
            kind = kinds.get(family.name)
            for sample in family.samples if kind or family.name in single else ():
                if sample.labels.get("model") != model:
                    continue
                if kind is None:
                    single[family.name] += sample.value
                elif sample.name.endswith("_bucket"):
                    buckets[kind][float(sample.labels["le"])] += sample.value
                elif sample.name.endswith("_sum"):
                    sums[kind] += sample.value
    except (ValueError, KeyError) as error:
        raise MetricsError(f"its metrics cannot be read: {error}") from None
    return Snapshot({kind: dict(each) for kind, each in buckets.items()}, dict(sums), *map(int, single.values()))


def difference(before: Snapshot, after: Snapshot) -> ServerFigures:
    """Return the counts between two moments."""
    found = {}
    for kind, buckets in after.buckets.items():
        earlier = before.buckets.get(kind, {})
        counts = {bound: buckets[bound] - earlier.get(bound, 0.0) for bound in sorted(buckets)}
        found[kind] = _distribution(counts, after.sums.get(kind, 0.0) - before.sums.get(kind, 0.0))
    return ServerFigures(**found, memory_rows=after.memory_rows)


def _distribution(cumulated: dict[float, float], total: float) -> Distribution | None:
    count = cumulated.get(_INFINITE, 0.0)
    if count <= 0:  # none; or the server has been started anew
        return None
    steps = [(0.0, 0.0), *cumulated.items()]
    inside = tuple(
        (None if bound == _INFINITE else bound, int(upto - below)) for (_, below), (bound, upto) in pairwise(steps)
    )
    return Distribution(
        int(count), total / count, _percentile(steps, count * 0.5), _percentile(steps, count * 0.99), inside
    )


def _percentile(steps: list[tuple[float, float]], rank: float) -> float:
    """Return the value of a rank, as if values were spread evenly within a bucket; at most the last bound there is."""
    for (low, below), (high, upto) in pairwise(steps):
        if upto >= rank:
            if high == _INFINITE:
                return low
            return low + (high - low) * (rank - below) / (upto - below)
    return 0.0
