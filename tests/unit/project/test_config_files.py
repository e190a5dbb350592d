"""Configuration files of Truss and TorchServe: settings of them that have no effect here."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.project.source import ModelSource, find_model

TRUSS = """
model_name: own
python_version: py311
requirements: [torch]
system_packages: []
live_reload: false
environment_variables: {A: b}
external_package_dirs: [../packages]
resources: {accelerator: A10G, use_gpu: true, cpu: 500m}
runtime: {predict_concurrency: 4, streaming_read_timeout: 60}
"""
TORCHSERVE = """
# listens
! everywhere
inference_address=http://0.0.0.0:8080
management_address : http://0.0.0.0:8081
default_workers_per_model=1
number_of_netty_threads=0
cors_allowed_origin=
install_py_dep_per_model=False
job_queue_size = 1000
models={\\
  "net": {"1.0": {"minWorkers": 4}}\\
}
enable_envvars_config=true
"""


def remarks(path: Path, **environ: str) -> list[str]:
    source = find_model(str(path), environ=environ)
    assert isinstance(source, ModelSource)
    return list(source.remarks)


def truss(folder: Path, config: str) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "model/model.py").write_text("class Model:\n    def predict(self, inputs):\n        return inputs\n")
    return folder


def handler(folder: Path) -> Path:
    folder.mkdir()
    (folder / "h.py").write_text("def handle(data, context):\n    return data\n")
    return folder / "h.py"


def test_a_truss(tmp_path: Path) -> None:
    names = [each.partition(" is passed over: ")[0] for each in remarks(truss(tmp_path / "own", TRUSS))]
    assert names == [
        f"config.yaml: `{key}`"
        for key in (
            "requirements",
            "python_version",
            "resources.accelerator",
            "resources.use_gpu",
            "resources.cpu",
            "runtime.streaming_read_timeout",
        )
    ]


@pytest.mark.parametrize(
    "config", ["", "a: [", "- 7", "resources: 7\nruntime: [a]", f"requirements: [a]\n#{'x' * 2_000_000}"]
)
def test_a_truss_without_such_keys(tmp_path: Path, config: str) -> None:
    assert remarks(truss(tmp_path / "own", config)) == []


def test_the_file_of_torchserve_beside_a_handler(tmp_path: Path) -> None:
    path = handler(tmp_path / "net")
    assert remarks(path) == []
    (tmp_path / "net/config.properties").write_text(TORCHSERVE)
    assert remarks(path) == [
        "config.properties: `inference_address` is passed over: use --host and --port",
        "config.properties: `management_address` is passed over: models are managed at /v2/repository",
        "config.properties: `models` is passed over: write them into model-config.yaml, or into geartrain.yaml",
        "config.properties: `job_queue_size` is passed over: write `queue` into geartrain.yaml",
    ]


def test_the_file_that_torchserves_variable_names(tmp_path: Path) -> None:
    path = handler(tmp_path / "net")
    (tmp_path / "net/config.properties").write_text(TORCHSERVE)
    (tmp_path / "own.properties").write_text("default_workers_per_model=4\n")
    assert remarks(path, TS_CONFIG_FILE=str(tmp_path / "own.properties")) == [
        "own.properties: `default_workers_per_model` is passed over: write `replicas` into geartrain.yaml"
    ]
    assert remarks(path, TS_CONFIG_FILE=str(tmp_path / "none")) == []
