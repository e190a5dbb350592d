"""Files of Triton's Python backend: how they are found, and what in them is not honoured."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.foreign.triton_python import remarks_of
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource, find_model

CLASS = (
    "import triton_python_backend_utils as pb_utils\nclass TritonPythonModel:\n    def execute(self, requests): ...\n"
)


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def only(root: Path) -> ModelSource | ProjectError:
    repository = Repository(root)
    (name,) = repository.names()
    (source,) = repository.read(name).versions.values()
    return source


def test_a_repository_of_triton_is_recognised_with_and_without_a_configuration(tmp_path: Path) -> None:
    for config in ({}, {"m/config.pbtxt": 'backend: "python" max_batch_size: 2'}):
        source = only(lay(tmp_path, {"m/2/model.py": CLASS, "m/2/weights.onnx": "", **config}))
        assert isinstance(source, ModelSource)
        assert (source.name, source.backend, source.runner) == ("m", "python", "model.py:TritonPythonModel")
        options = source.backend_options
        assert (options["model_name"], options["model_version"]) == ("m", "2")
        assert options["model_repository"] == str(tmp_path / "m")
        assert options["config"].get("max_batch_size", 0) == (2 if config else 0)


def test_a_folder_and_a_file_alone_are_recognised(tmp_path: Path) -> None:
    lay(tmp_path, {"m/model.py": CLASS, "m/config.pbtxt": 'backend: "python"', "n/1/model.py": CLASS})
    assert find_model(str(tmp_path / "m")).backend_options["model_repository"] == str(tmp_path / "m")
    for config in ("", 'backend: "python" max_batch_size: 3'):
        (tmp_path / "n/config.pbtxt").write_text(config)
        for target in ("n/1", "n/1/model.py"):
            source = find_model(str(tmp_path / target))
            assert (source.name, source.backend_options["config"].get("max_batch_size")) == ("n", 3 if config else None)
    (tmp_path / "m/run.py").write_text("def run() -> str: ...")  # of geartrain: it comes first
    assert find_model(str(tmp_path / "m")).backend is None


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("sequence_batching { }", "sequence_batching"),
        ('input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape: { shape: [ 2, 2 ] } } ]', "`reshape` of 'x'"),
    ],
)
def test_a_configuration_that_cannot_be_honoured_is_refused(tmp_path: Path, config: str, sentence: str) -> None:
    lay(tmp_path, {"m/1/model.py": CLASS, "m/config.pbtxt": f'backend: "python" {config}'})
    with pytest.raises(ProjectError, match=sentence):
        only(tmp_path)


def test_a_configuration_that_is_partly_honoured_is_told(tmp_path: Path) -> None:
    config = """
        backend: "python" max_batch_size: 2
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] allow_ragged_batch: true } ]
        dynamic_batching { } model_transaction_policy { decoupled: true }
        parameters { key: "own" value: { string_value: "1" } }
        parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "env.tar.gz" } }
    """
    source = only(lay(tmp_path, {"m/1/model.py": CLASS, "m/config.pbtxt": config}))
    assert isinstance(source, ModelSource)
    assert len(source.remarks) == 2
    assert "EXECUTION_ENV_PATH" in source.remarks[0]
    assert "`dynamic_batching` is passed over" in source.remarks[1]


def test_names_without_effect_are_told_with_their_line(tmp_path: Path) -> None:
    text = CLASS + (
        "pb_utils.load_model('a')\nx = 1\nx.set_release_flags(2)\npb_utils.load_model('b')\npb_utils.Tensor\n"
        "from triton_python_backend_utils import unload_model, Tensor\nother.load_model\n"
    )
    (tmp_path / "model.py").write_text(text)
    assert [each.partition(": it ")[0] for each in remarks_of(tmp_path / "model.py")] == [
        "model.py:4: load_model",
        "model.py:6: set_release_flags",
        "model.py:9: unload_model",
    ]
    (tmp_path / "model.py").write_text("class")
    assert remarks_of(tmp_path / "model.py") == ()
