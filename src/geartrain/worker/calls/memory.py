"""Batches that do not fit into memory: which errors say so, and how many rows are run at once from then on."""

from __future__ import annotations

import contextlib
import gc
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from geartrain.authoring.metrics import Counter, Definition, Gauge, Registry
from geartrain.worker.errors import describe_error

REMEMBERED: Final = 600.0  # seconds for which a limit holds, after which a whole batch is tried again

_TYPES: Final = frozenset({"ResourceExhaustedError", "XlaRuntimeError"})
_TEXTS: Final = re.compile(
    r"out of memory|not enough memory|can't allocate memory|cannot allocate memory|failed to allocate memory|"
    r"bad[ _]alloc|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|OOM when allocating",
    re.IGNORECASE,
)
_MOST_TEXT: Final = 10_000  # characters of an error that are looked at


def is_out_of_memory(error: BaseException) -> bool:
    """True for a `MemoryError`, and for errors of torch, onnxruntime, TensorFlow, JAX and CUDA of this kind."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    is_of_library = isinstance(error, RuntimeError) or any(
        kind.__name__ in _TYPES or kind.__module__.startswith("onnxruntime") for kind in type(error).__mro__
    )
    return is_of_library and _TEXTS.search(describe_error(error)[:_MOST_TEXT]) is not None


class MemoryLimit:
    """The rows that a model takes at once, as far as its memory has taught it."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        """`registry` gets the metrics with the first batch that fails; `clock` is in seconds."""
        self._registry = registry
        self._clock = clock
        self._rows = 0  # without a limit
        self._until = 0.0
        self._is_full = False  # true while memory of a failed run is still held
        self._is_confined = False

    @property
    def rows(self) -> int:
        """The most rows at once, 0 without a limit."""
        if self._rows and self._clock() >= self._until:
            self._rows = 0
            self._show()
        return self._rows

    def fail(self, limit: int) -> None:
        """Note that a run had no room: `limit` is the most rows from now on."""
        self._rows = limit
        self._until = self._clock() + REMEMBERED
        self.fill()
        self._failures().inc()
        self._show()

    def fill(self) -> None:
        """Note that a failed run has left memory behind."""
        self._is_full = True

    @contextlib.contextmanager
    def confined(self, room: int) -> Iterator[None]:
        """Let allocations beyond `room` more bytes fail inside the block, instead of being killed for them (Linux)."""
        data = re.search(r"^VmData:\s*(\d+) kB", _status(), re.MULTILINE)
        if data is None or self._is_confined:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        self._is_confined = True
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (min(int(data[1]) * 1024 + room, sys.maxsize, *limits), hard))
            yield
        finally:
            self._is_confined = False
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def relieve(self) -> None:
        """Give memory back that a failed run has left behind. Called before the next run, when its frames are gone."""
        if not self._is_full:
            return
        self._is_full = False
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _failures(self) -> Counter:
        text = "Batches that did not fit into memory and were run again in parts"
        return self._registry.define(
            Counter(self._registry, Definition("geartrain_batches_out_of_memory", "counter", text, ()))
        )

    def _show(self) -> None:
        text = "Rows at once that fit into memory, after a batch that did not; 0: no limit"
        definition = Definition("geartrain_batch_memory_limit_rows", "gauge", text, (), "max")
        self._registry.define(Gauge(self._registry, definition)).set(self._rows)


def _status() -> str:
    """The figures of this process; empty on a system without them."""
    try:
        return Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return ""


def parts_of(items: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Cut items, of so many rows each, into parts of at most `limit` rows; a larger item is a part by itself."""
    parts: list[list[int]] = []
    rows = limit
    for item, size in zip(items, sizes, strict=True):
        if rows + size > limit:
            parts.append([])
            rows = 0
        parts[-1].append(item)
        rows += size
    return parts
