"""Replicas of real workers on GPUs that are only said to be there, and on processors that are."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from geartrain.bridge.resources import usable_cores
from geartrain.project.setting_values import AUTO, Devices
from geartrain.project.source import find_model
from geartrain.server import Progress, ServeOptions, build
from tests.support.gpus import fake_smi
from tests.support.servers import LiveServer, Serve, eventually, serve, write_model

__all__ = ["serve"]

MODEL = """
    import json, os
    import geartrain

    NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GEARTRAIN_REPLICA", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

    class Runner(geartrain.BaseRunner):
        def setup(self, device: str = "none") -> None:
            found = {name: os.environ[name] for name in NAMES if name in os.environ}
            found["devices"] = [device, geartrain.current_scope().device]
            found["cpus"] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
            print(json.dumps(found))

        def run(self) -> str:
            return geartrain.current_scope().device
"""
GPUS = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-6b0c-00)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-6b0c-01)
"""
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has, a test has its own."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def model(folder: Path, settings: str) -> Path:
    write_model(folder, MODEL)
    (folder / "geartrain.yaml").write_text(settings)
    return folder


async def replicas(server: LiveServer) -> list[dict[str, Any]]:
    """What each replica has printed in its setup."""
    logs: str = (await server.health())["setup"]["logs"]
    return [json.loads(line) for line in logs.splitlines()]


async def test_replicas_get_a_gpu_each(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((fake_smi(tmp_path, GPUS), os.environ["PATH"])))
    async with serve(model(tmp_path / "m", "replicas: 2\n")) as server:
        found = await replicas(server)
        assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["0", "1"]
        assert [each["GEARTRAIN_REPLICA"] for each in found] == ["0", "1"]
        assert {each["CUDA_DEVICE_ORDER"] for each in found} == {"PCI_BUS_ID"}
        assert [each["devices"] for each in found] == [["cuda:0", "cuda:0"]] * 2
        assert (await server.predict())["output"] == "cuda:0"


async def test_what_the_operator_has_hidden_stays_hidden(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c1,GPU-6b0c")
    settings = "replicas: 2\ngpus_per_replica: 1\ndevices: [cuda:1, cuda:0]\n"
    async with serve(model(tmp_path / "m", settings)) as server:
        assert [each["CUDA_VISIBLE_DEVICES"] for each in await replicas(server)] == ["GPU-6b0c", "MIG-c1"]


@pytest.mark.parametrize("option", [AUTO, Devices("cpu")])
async def test_cpu_hides_all(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, option: Devices) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    async with serve(model(tmp_path / "m", "devices: cpu\n" if option is AUTO else ""), devices=option) as server:
        (found,) = await replicas(server)
        assert (found["CUDA_VISIBLE_DEVICES"], found["devices"]) == ("-1", ["cpu", "cpu"])


async def test_without_a_plan_a_worker_has_what_the_server_has(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    async with serve(model(tmp_path / "m", "")) as server:
        (found,) = await replicas(server)
        assert (found["CUDA_VISIBLE_DEVICES"], found["GEARTRAIN_REPLICA"]) == ("0,1", "0")
        assert found["devices"] == ["cuda:0", "cuda:0"]


async def test_a_plan_that_does_not_fit_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5")
    folder = model(tmp_path / "m", "replicas: 2\ngpus_per_replica: 2\n")
    told: list[Progress] = []
    app = build(ServeOptions(source=find_model(str(folder), environ={}), on_progress=told.append))
    app.spawn()
    await app.start()
    await eventually(lambda: bool(told))
    await app.stop()
    assert told[0].stage == "setup-failed"
    assert told[0].text.startswith(
        "2 replicas × 2 GPUs = 4, and there are 3 GPUs: 2, 3, 5 (CUDA_VISIBLE_DEVICES=2,3,5); "
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process")
async def test_replicas_are_pinned_to_processors_of_their_own(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = sorted(os.sched_getaffinity(0))
    count = min(2, math.ceil(usable_cores()))
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    async with serve(model(tmp_path / "m", f"replicas: {count}\ncpus_per_replica: 1\n")) as server:
        found = await replicas(server)
        assert [each["cpus"] for each in found] == [[cpu] for cpu in usable[:count]]
        assert [(each["OMP_NUM_THREADS"], each["MKL_NUM_THREADS"]) for each in found] == [("1", "7")] * count
