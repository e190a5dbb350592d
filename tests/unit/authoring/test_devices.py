"""Which GPUs a process sees, by the vendors' variables and by an `nvidia-smi` of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from geartrain.authoring import devices
from geartrain.authoring.devices import find_visible
from geartrain.authoring.scope import current_scope
from tests.support.gpus import fake_smi

TWO = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-6b0c-00)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-6b0c-01)
"""
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)
  MIG 3g.20gb     Device  0: (UUID: MIG-c1)
  MIG 3g.20gb     Device  1: (UUID: MIG-c2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)
"""


@pytest.mark.parametrize(
    ("environ", "names", "variables"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"], ("CUDA_VISIBLE_DEVICES",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-6b0c, MIG-c1"}, ["GPU-6b0c", "MIG-c1"], ("CUDA_VISIBLE_DEVICES",)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-6b0c/1/0"}, ["MIG-GPU-6b0c/1/0"], ("CUDA_VISIBLE_DEVICES",)),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["1"], ("CUDA_VISIBLE_DEVICES",)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, [], ("CUDA_VISIBLE_DEVICES",)),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], ("CUDA_VISIBLE_DEVICES",)),
        ({"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "4,5"}, ["1"], ("HIP_VISIBLE_DEVICES",)),
        ({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "0,1,2"}, ["1", "2"], ("HIP_VISIBLE_DEVICES",)),
        (
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"},
            ["1"],
            ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ),
        ({"ROCR_VISIBLE_DEVICES": "4,GPU-4b2c"}, ["4", "GPU-4b2c"], ("ROCR_VISIBLE_DEVICES",)),
    ],
)
def test_a_variable_is_believed(environ: dict[str, str], names: list[str], variables: tuple[str, ...]) -> None:
    visible = find_visible(environ)
    assert [gpu.name for gpu in visible.gpus] == names
    assert visible.variables == variables


def test_nvidia_smi_is_asked_where_no_variable_says_it(tmp_path: Path) -> None:
    visible = find_visible({"PATH": fake_smi(tmp_path, TWO)})
    assert visible.gpus == (("0", "GPU-6b0c-00"), ("1", "GPU-6b0c-01"))
    assert visible.narrowed(visible.gpus[1:]) == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_of_a_divided_gpu_the_parts_can_be_used(tmp_path: Path) -> None:
    visible = find_visible({"PATH": fake_smi(tmp_path, DIVIDED)})
    assert [gpu.name for gpu in visible.gpus] == ["MIG-c1", "MIG-c2", "1"]


def test_an_nvidia_smi_that_fails_sees_none_and_is_quoted(tmp_path: Path) -> None:
    visible = find_visible({"PATH": fake_smi(tmp_path, "NVIDIA-SMI has failed.\nMake sure", code=9)})
    assert (visible.gpus, visible.source) == ((), "nvidia-smi failed: NVIDIA-SMI has failed.")


def test_gpus_of_amd_are_counted(tmp_path: Path) -> None:
    for node, units in enumerate((0, 304, 304)):
        (tmp_path / f"{node}").mkdir()
        (tmp_path / f"{node}/properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\n")
    visible = find_visible({"PATH": ""}, kfd=tmp_path)
    assert visible.narrowed(visible.gpus) == {"HIP_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        ({"GEARTRAIN_DEVICE": "cuda:0", "CUDA_VISIBLE_DEVICES": "-1"}, "cuda:0"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "cuda:0"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "cpu"),
    ],
)
def test_a_scope_knows_its_device(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], device: str) -> None:
    monkeypatch.delenv("GEARTRAIN_DEVICE", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    devices._found_device.cache_clear()
    try:
        assert current_scope().device == device
    finally:
        devices._found_device.cache_clear()


def test_torch_is_not_needed(tmp_path: Path) -> None:
    before = set(sys.modules)
    find_visible({"PATH": fake_smi(tmp_path, TWO)})
    assert "torch" not in set(sys.modules) - before


def test_servers_choice_counts_whenever_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of tests sets the variable after a model has read its device."""
    for device in ("cpu", "cuda:0", "cpu"):
        monkeypatch.setenv(devices.DEVICE, device)
        assert devices.own_device() == device
