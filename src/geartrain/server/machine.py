"""What processes and GPUs have in use: what `/metrics` tells of the machine. See `MachinePort`."""

from __future__ import annotations

import importlib
import logging
import os
import resource
import threading
from collections.abc import Iterator
from typing import Any, Final

from geartrain.apis.metric_values import GpuUse, ProcessUse

logger = logging.getLogger(__name__)

_PERCENT: Final = 100


class Machine:
    """Looks at processes by psutil, and at GPUs of NVIDIA by NVML. May be used from any thread."""

    def __init__(self) -> None:
        self._gpus = NvidiaGpus()

    def process(self, pid: int) -> tuple[ProcessUse, ...]:
        """Return what a process takes; nothing if it is gone, or may not be looked at."""
        import psutil

        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                disk = process.io_counters() if hasattr(process, "io_counters") else None  # macOS has none
                return (
                    ProcessUse(
                        cpu=times.user + times.system,
                        memory=process.memory_info().rss,
                        descriptors=process.num_fds(),
                        started=process.create_time(),
                        read=disk.read_bytes if disk else 0,
                        written=disk.write_bytes if disk else 0,
                    ),
                )
        except (psutil.Error, OSError):
            return ()

    def server(self) -> tuple[ProcessUse, ...]:
        """Return what the server's own process takes."""
        return self.process(os.getpid())

    def max_descriptors(self) -> int:
        """Return how many descriptors the server may have, 0 for no limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 0 if soft == resource.RLIM_INFINITY else soft

    def gpus(self) -> tuple[GpuUse, ...]:
        """Return the GPUs that there are."""
        return self._gpus.all()


class NvidiaGpus:
    """The GPUs that NVIDIA's driver knows, where `geartrain[gpu]` is installed and there is a driver."""

    def __init__(self) -> None:
        self._library: tuple[Any, ...] = ()  # NVML, once it has been loaded
        self._has_tried = False
        self._lock = threading.Lock()

    def all(self) -> tuple[GpuUse, ...]:
        """Return them; none where they cannot be asked."""
        with self._lock:
            return tuple(use for nvml in self._loaded() for use in _read(nvml))

    def _loaded(self) -> tuple[Any, ...]:
        if not self._has_tried:
            self._has_tried = True
            try:
                nvml = importlib.import_module("pynvml")
            except ImportError:
                return ()
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                logger.debug("there are no GPUs of NVIDIA to tell of: %s", error)
                return ()
            self._library = (nvml,)
        return self._library


def _read(nvml: Any) -> Iterator[GpuUse]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return
    for index in range(count):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            yield GpuUse(
                index=index,
                uuid=_text(nvml.nvmlDeviceGetUUID(device)),
                name=_text(nvml.nvmlDeviceGetName(device)),
                memory_used=memory.used,
                memory_total=memory.total,
                utilization=nvml.nvmlDeviceGetUtilizationRates(device).gpu / _PERCENT,
            )
        except nvml.NVMLError as error:  # such as a GPU that is cut into instances, which has no utilization
            logger.debug("GPU %d cannot be asked: %s", index, error)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older releases of the library give bytes
