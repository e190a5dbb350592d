"""What processes and GPUs have in use."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import types
from typing import Any

import pytest

from geartrain.apis.metric_values import GpuUse
from geartrain.server.machine import Machine, NvidiaGpus


class NVMLError(Exception):
    """As of the real module."""


class FakeNvml(types.ModuleType):
    """The functions of `pynvml` that are used, as documented; the second GPU has no utilization."""

    NVMLError = NVMLError

    def __init__(self, *, has_driver: bool = True) -> None:
        super().__init__("pynvml")
        self.has_driver = has_driver
        self.inits = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1
        if not self.has_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, _device: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(used=10, total=100, free=90)

    def nvmlDeviceGetUUID(self, device: int) -> str:  # noqa: N802
        return f"GPU-{device}"

    def nvmlDeviceGetName(self, _device: int) -> bytes:  # noqa: N802 - as of older releases
        return b"NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        if device == 1:
            raise NVMLError("Not Supported")
        return types.SimpleNamespace(gpu=37, memory=5)


def test_own_process() -> None:
    (use,) = Machine().server()
    assert use.cpu > 0
    assert use.memory > 2**20
    assert use.descriptors >= 3
    assert use.started > 0
    assert Machine().max_descriptors() >= 0


def test_process_that_is_gone_tells_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert Machine().process(ended.pid) == ()
    assert Machine().process(os.getpid()) != ()


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = NvidiaGpus()
    expected = (GpuUse(0, "GPU-0", "NVIDIA H100", 10, 100, 0.37),)
    assert (gpus.all(), gpus.all()) == (expected, expected)
    assert nvml.inits == 1
    assert Machine().gpus() == expected


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(has_driver=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = NvidiaGpus()
    assert (gpus.all(), gpus.all()) == ((), ())
    assert nvml.inits == 1


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_the_real_library_has_what_is_used() -> None:
    nvml: Any = importlib.import_module("pynvml")
    for name in vars(FakeNvml):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(nvml, name)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvidiaGpus().all() == ()
