"""Which GPUs and processors each replica gets. No GPU is needed: what is visible is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from geartrain.authoring.devices import Gpu, Visible
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import AUTO, Devices, read_devices
from geartrain.project.source import ModelSource
from geartrain.server.workers import Placement, Placements

CUDA = "CUDA_VISIBLE_DEVICES"


def source(**fields: Any) -> ModelSource:
    """A model whose geartrain.yaml says this."""
    return ModelSource(name="m", root=Path("/m"), runner="run.py", **fields)


class Machine:
    """A machine with GPUs and processors; counts how often its GPUs were asked for."""

    def __init__(self, gpus: int = 0, *, cpus: int = 4, quota: float = float("inf")) -> None:
        self.asked = 0
        self.environs: list[Mapping[str, str]] = []
        self._gpus = tuple(Gpu(str(index), f"GPU-{index:02}") for index in range(gpus))
        self._cpus = range(10, 10 + cpus)
        self._quota = quota

    def find(self, environ: Mapping[str, str]) -> Visible:
        self.asked += 1
        self.environs.append(environ)
        return Visible(self._gpus, (CUDA,), "test")

    def placements(self, devices: Devices = AUTO, **environ: str) -> Placements:
        return Placements(
            devices,
            environ=environ,
            find=self.find,
            cpus=lambda: list(self._cpus),
            cpu_quota=lambda: self._quota,
        )

    def parts(self, replicas: int, option: Devices = AUTO, **fields: Any) -> list[str | None]:
        """The GPUs that each replica sees, None if it sees all."""
        found = self.placements(option).place("m/1", source(**fields), replicas)
        return [each.environment.get(CUDA) for each in found]

    def refusal(self, replicas: int, **fields: Any) -> str:
        with pytest.raises(ProjectError) as caught:
            self.placements().place("m/1", source(**fields), replicas)
        return caught.value.message


@pytest.mark.parametrize(
    ("gpus", "replicas", "parts"),
    [
        (4, 2, ["0,1", "2,3"]),
        (4, 4, ["0", "1", "2", "3"]),
        (5, 2, ["0,1", "2,3"]),
        (2, 3, ["0", "1", "0"]),
        (0, 2, [None, None]),
    ],
)
def test_auto_divides_what_is_visible(gpus: int, replicas: int, parts: list[str | None]) -> None:
    assert Machine(gpus).parts(replicas) == parts


def test_one_replica_has_all_and_nobody_is_asked() -> None:
    machine = Machine(4)
    assert machine.placements().place("m/1", source(), 1) == (Placement({"GEARTRAIN_REPLICA": "0"}),)
    assert machine.asked == 0


def test_replicas_are_numbered_and_know_their_device() -> None:
    first, second = Machine(1).placements().place("m/1", source(), 2)
    assert first.environment == {"GEARTRAIN_REPLICA": "0", "GEARTRAIN_DEVICE": "cuda:0", CUDA: "0"}
    assert second.environment["GEARTRAIN_REPLICA"] == "1"
    (alone,) = Machine(0).placements().place("m/1", source(devices=Devices("cpu")), 1)
    assert alone.environment == {
        "GEARTRAIN_REPLICA": "0",
        "GEARTRAIN_DEVICE": "cpu",
        CUDA: "-1",
        "HIP_VISIBLE_DEVICES": "-1",
    }


def test_each_replica_has_its_gpus_for_itself() -> None:
    assert Machine(5).parts(2, gpus_per_replica=2) == ["0,1", "2,3"]
    assert Machine(4).parts(1, gpus_per_replica=2) == ["0,1"]


def test_named_gpus_are_those_that_the_server_sees() -> None:
    machine = Machine(4)
    assert machine.parts(2, devices=read_devices(["cuda:1", "cuda:3"])) == ["1", "3"]
    assert machine.parts(1, devices=read_devices(["GPU-02", 0])) == ["2,0"]
    assert machine.parts(1, read_devices("cuda:2")) == ["2"]  # of the option
    assert machine.parts(1, read_devices("cuda:2"), devices=AUTO) == [None]  # the model comes first


def test_models_are_put_where_the_fewest_are() -> None:
    placements = Machine(3).placements()
    wanted = source(gpus_per_replica=1)

    def place(name: str, replicas: int = 1) -> list[str]:
        return [each.environment[CUDA] for each in placements.place(name, wanted, replicas)]

    assert [place("a/1"), place("b/1"), place("c/1"), place("d/1")] == [["0"], ["1"], ["2"], ["0"]]
    assert place("b/1") == ["1"], "a reload"
    assert place("e/1", 2) == ["1", "2"]
    assert sorted(place("f/1", 3)) == ["0", "1", "2"], "no two replicas on one while there are others"


def test_what_the_files_of_a_model_say_counts() -> None:
    machine = Machine(2)
    machine.placements(CUDA_VISIBLE_DEVICES="0,1").place("m/1", source(environment={CUDA: "1"}), 2)
    assert machine.environs == [{CUDA: "1"}]


@pytest.mark.parametrize(
    ("gpus", "replicas", "fields", "message"),
    [
        (3, 2, {"gpus_per_replica": 2}, "2 replicas × 2 GPUs = 4, and there are 3 GPUs: 0, 1, 2 (test); write fewer"),
        (0, 1, {"gpus_per_replica": 1}, "1 replica × 1 GPU = 1, and there are no GPUs (test); write fewer"),
        (
            4,
            3,
            {"gpus_per_replica": 1, "devices": read_devices("cuda:0,cuda:1")},
            "3 replicas × 1 GPU = 3, and `devices` names 2; write fewer",
        ),
        (1, 1, {"devices": read_devices("cuda:1")}, "`devices` names cuda:1, and this server sees 1 GPU: 0 (test)"),
        (0, 1, {"devices": read_devices("MIG-ab")}, "`devices` names MIG-ab, and this server sees no GPUs (test)"),
        (1, 1, {"devices": Devices("cpu"), "gpus_per_replica": 1}, "`gpus_per_replica` is 1, and `devices` is cpu"),
        (0, 3, {"cpus_per_replica": 2}, "3 replicas × 2 processors = 6, and this process may use 4; write a smaller"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(gpus: int, replicas: int, fields: dict[str, Any], message: str) -> None:
    assert Machine(gpus).refusal(replicas, **fields).startswith(message)


def test_a_quota_of_processor_time_counts() -> None:
    assert "= 4, and this process may use 3" in Machine(cpus=8, quota=2.5).refusal(2, cpus_per_replica=2)


def test_processors_are_divided_and_threads_follow() -> None:
    placements = Machine(cpus=4).placements(MKL_NUM_THREADS="7")
    first, second = placements.place("m/1", source(cpus_per_replica=2), 2)
    assert (first.cpus, second.cpus) == ((10, 11), (12, 13))
    assert first.environment == {
        "GEARTRAIN_REPLICA": "0",
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "GEARTRAIN_DEVICE": "cpu",
    }
    (other,) = placements.place("n/1", source(cpus_per_replica=1), 1)
    assert other.cpus == (10,)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cpu,cuda:0", "cuda:0,0", "auto,auto", "GPU-"])
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        read_devices(text)
