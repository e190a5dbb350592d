"""Resource usage of processes and GPUs, for `/metrics`. See `MachinePort`."""

from __future__ import annotations

import importlib
import logging
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from geartrain.apis.metric_values import GpuUse, ProcessUse
from geartrain.transport.system.history import ProcessorAndMemory

logger = logging.getLogger(__name__)

_PERCENT: Final = 100
_USER_TIME, _SYSTEM_TIME, _RESIDENT = 11, 12, 21  # fields of /proc/PID/stat after the name: proc(5)


class Machine:
    """Looks at processes by psutil, and at GPUs of NVIDIA by NVML. May be used from any thread."""

    def __init__(self) -> None:
        self._gpus = NvidiaGpus()

    def process(self, pid: int) -> tuple[ProcessUse, ...]:
        """Resource usage of a process; empty if it has exited or is not permitted."""
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
        """Return the usage of the server's own process."""
        return self.process(os.getpid())

    def max_descriptors(self) -> int:
        """Return the limit of descriptors of the server, 0 for no limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 0 if soft == resource.RLIM_INFINITY else soft

    def gpus(self) -> tuple[GpuUse, ...]:
        """Return the GPUs of this machine."""
        return self._gpus.all()


def brief_use(pid: int) -> ProcessorAndMemory:
    """Return the processor time and the memory of a process; zeros if it is gone. On Linux it reads one file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        uses = Machine().process(pid) if not Path("/proc/self/stat").exists() else ()
        return ProcessorAndMemory(uses[0].cpu, uses[0].memory) if uses else ProcessorAndMemory()
    fields = text[text.rindex(b")") + 2 :].split()  # the name of a process may hold spaces
    ticks = int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    return ProcessorAndMemory(ticks / os.sysconf("SC_CLK_TCK"), int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE"))


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
