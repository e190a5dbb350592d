"""Sends the metrics that the author defines to the parent: what has changed, at most once a second, by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Final

from geartrain.authoring.metrics import Registry
from geartrain.domain.predictions.own_metrics import OwnMetric, OwnReport, Series
from geartrain.ipc.messages import ControlToParent, OwnMetrics, WorkerLog

INTERVAL: Final = 1.0  # seconds from one message to the next


class MetricsSender:
    """Takes the changes of a registry. Its thread begins with the first metric, so most workers have none."""

    def __init__(
        self,
        registry: Registry,
        send: Callable[[ControlToParent], None],
        shield: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """`shield` keeps a cancel away in a `with` block: the author may define a metric in the midst of a run."""
        self._registry = registry
        self._send = send
        self._shield = shield
        self._changed: SimpleQueue[bool] = SimpleQueue()  # a cancel cannot interrupt its `put` halfway
        self._warnings: list[str] = []
        self._sending = threading.Lock()  # so that messages leave in their order
        self._has_thread = False

    def attach(self) -> None:
        """Hear of the registry from now on, and of what has happened before."""
        self._registry.on_change = partial(self._changed.put, True)
        self._registry.warn = self._warnings.append
        self._registry.on_definition = self._start
        if self._registry.has_metrics:
            self._changed.put(True)
            self._start()

    def flush(self) -> None:
        """Send what has changed."""
        with self._sending:
            while self._warnings:
                self._send(WorkerLog("geartrain.worker", "warning", self._warnings.pop()))
            reports = tuple(
                OwnReport(OwnMetric(*definition), tuple(Series(*change) for change in changes))
                for definition, changes in self._registry.take()
            )
            if reports:
                self._send(OwnMetrics(reports))

    def _start(self) -> None:
        if self._has_thread:
            return
        with self._shield():
            self._has_thread = True
            threading.Thread(target=self._run, name="geartrain-metrics", daemon=True).start()

    def _run(self) -> None:
        while self._changed.get():
            self.flush()
            time.sleep(INTERVAL)
