"""Values of a server's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.predictions.statistics import Histogram, Histograms, ModelStatistics, TextCounts


class ProcessUse(msgspec.Struct, frozen=True):
    """Usage of a process. `started`: seconds since the epoch; `read` and `written`: bytes from and to disks."""

    cpu: float  # seconds
    memory: int  # bytes, resident
    descriptors: int
    started: float
    read: int
    written: int


class GpuUse(msgspec.Struct, frozen=True):
    """Usage of a GPU. Memory in bytes; `utilization` from 0 to 1."""

    index: int
    uuid: str
    name: str
    memory_used: int
    memory_total: int
    utilization: float


class WorkerMetrics(msgspec.Struct, frozen=True):
    """Values of one replica; `process` is empty while it has none."""

    is_ready: bool
    process: tuple[ProcessUse, ...] = ()


class CallMetrics(msgspec.Struct, frozen=True):
    """Values of the calls from one model to another. `outcomes` are counts of those that have ended."""

    caller: str
    model: str
    outcomes: Mapping[str, int]
    seconds: float
    running: int


class ModelMetrics(msgspec.Struct, frozen=True):
    """Values of one model version; `failures` are counts by reason, a short word."""

    statistics: ModelStatistics
    failures: Mapping[Any, int]
    health: Health
    waiting: int  # for a slot
    running: int
    queue: int  # requests that may wait
    slots: int
    slots_in_use: int
    workers: tuple[WorkerMetrics, ...]
    restarts: int
    histograms: Histograms
    own: tuple[OwnReport, ...] = ()  # the author's
    texts: TextCounts | None = None  # None for a model that was asked for none
    max_cost: float | None = None  # of a call, 0 for any; None for a model whose requests have no cost


class DownloadMetrics(msgspec.Struct, frozen=True):
    """Downloads for a model: the current one, and all since the server began. In bytes."""

    name: str
    is_active: bool
    there: int  # of the download at hand
    total: int  # of it; 0 where that is not known
    received_bytes: int
    received_files: int
    failures: int


class RelayMetrics(msgspec.Struct, frozen=True):
    """Requests that were handed over to other servers: counts by outcome, and seconds to the heads of answers."""

    outcomes: Mapping[str, int]
    seconds: Histogram


class ServerMetrics(msgspec.Struct, frozen=True):
    """Values of a server.

    Attributes:
        version: of geartrain.
        models: the available ones.
        faults: name and version of models that could not be loaded, or not again.
        requests: numbers of answers, by protocol and status.
        process: that of the server, if it can be looked at.
        max_descriptors: its limit of descriptors, 0 if unknown.
        gpus: those of the machine.
        downloads: of models with remote parts.
        calls: those of models by other models.
        relay: requests handed over to other servers; None without a cluster.
        labels: added to every metric, such as those that tell equal servers apart.
    """

    version: str
    models: tuple[ModelMetrics, ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    requests: Mapping[tuple[str, str], int] = {}
    process: tuple[ProcessUse, ...] = ()
    max_descriptors: int = 0
    gpus: tuple[GpuUse, ...] = ()
    downloads: tuple[DownloadMetrics, ...] = ()
    calls: tuple[CallMetrics, ...] = ()  # of models by other models
    relay: RelayMetrics | None = None
    labels: Mapping[str, str] = {}
