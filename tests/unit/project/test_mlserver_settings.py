"""`model-settings.json` of MLServer as settings, and folders of such models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.mlserver_repository import MlserverRepository, find_mlserver
from geartrain.project.modelfile import settings_of
from geartrain.project.repository import Repository
from geartrain.project.served import find_served
from geartrain.project.settings import Settings
from geartrain.project.source import ModelSource

SKLEARN = "mlserver_sklearn.SKLearnModel"
XGBOOST = "mlserver_xgboost.XGBoostModel"


def write(folder: Path, *files: str, implementation: str = SKLEARN, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-settings.json").write_text(json.dumps({"implementation": implementation, **settings}))
    for name in files:
        (folder / name).write_bytes(b"\x80\x04sklearn")
    return folder


def read(folder: Path, *files: str, **settings: Any) -> Settings:
    return settings_of(write(folder, *files, **settings))


def refused(folder: Path, **settings: Any) -> str:
    with pytest.raises(ProjectError) as caught:
        read(folder, **settings)
    message = caught.value.message
    assert message.startswith(f"{folder}/")
    return message.removeprefix(f"{folder}/model-settings.json: ")


@pytest.mark.parametrize(
    ("implementation", "files", "backend", "file"),
    [
        (SKLEARN, ("model.joblib", "model.pkl"), "sklearn", "model.joblib"),
        (SKLEARN, ("mine.joblib",), "sklearn", None),
        (XGBOOST, ("model.bst",), "xgboost", "model.bst"),
        ("mlserver_lightgbm.LightGBMModel", ("model.bst",), "lightgbm", "model.bst"),
        ("mlserver_catboost.CatboostModel", ("model.bst",), "catboost", "model.bst"),
        ("mlserver_onnx.OnnxModel", ("model.onnx",), "onnx", "model.onnx"),
    ],
)
def test_runtimes_and_the_files_that_they_look_for(
    tmp_path: Path, implementation: str, files: tuple[str, ...], backend: str, file: str | None
) -> None:
    settings = read(tmp_path, *files, implementation=implementation)
    assert (settings.backend, settings.file) == (backend, file)
    assert settings.declared.takes_any is (backend != "onnx")
    assert settings.remarks == ()


@pytest.mark.parametrize("uri", ["./mnist-svm.joblib", "mnist-svm.joblib", "../weights/a.joblib", "../weights"])
def test_the_uri_is_a_file_or_a_folder_beside_the_settings(tmp_path: Path, uri: str) -> None:
    folder = write(tmp_path / "m", "mnist-svm.joblib")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.joblib").write_bytes(b"\x80\x04sklearn")
    (tmp_path / "weights" / "model.joblib").write_bytes(b"\x80\x04sklearn")
    file = read(folder, parameters={"uri": uri}).file
    assert file is not None
    assert (folder / file).is_file()
    source = Repository(tmp_path, environ={}).read("m").versions["1"]
    assert isinstance(source, ModelSource)
    assert source.file is not None
    assert source.file.resolve() == (folder / file).resolve()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"implementation": ""}, "`implementation` is missing"),
        ({"implementation": "models.MyModel"}, "`implementation` is models.MyModel, which is not served"),
        (
            {"implementation": "mlserver_huggingface.HuggingFaceRuntime"},
            "`implementation` is mlserver_huggingface.HuggingFaceRuntime, which is not served",
        ),
        ({"parameters": {"uri": "s3://bucket/model.joblib"}}, "only files can be served: copy it into"),
        ({"parameters": {"uri": "./none.joblib"}}, "`parameters.uri` is ./none.joblib, and there is no such file"),
        ({"parameters": {"uri": 3}}, "`uri` is the number 3; write a text"),
        ({"parameters": "a"}, "`parameters` is the text 'a'; write keys"),
        ({"parameters": {"content_type": "pd"}}, "`parameters.content_type` is pd, and `inputs` names no columns"),
        ({"inputs": [{"name": "x"}]}, "`inputs` needs `name`, `datatype` and `shape` of each"),
        ({"inputs": "x"}, "`inputs` is the text 'x'; write a list"),
        ({"max_batch_size": "8"}, "`max_batch_size` is the text '8'; write a whole number"),
        ({"max_batch_time": -1}, "`max_batch_time` is the number -1; write seconds"),
        ({"parallel_workers": 1.5}, "`parallel_workers` is the number 1.5; write a whole number"),
    ],
)
def test_what_a_model_would_be_wrong_without_is_refused(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(tmp_path, **settings)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 3}'])
def test_a_file_that_is_no_settings_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model-settings.json").write_text(text)
    with pytest.raises(ProjectError, match=r"model-settings\.json"):
        settings_of(tmp_path / "m")


def test_what_only_runs_otherwise_is_said_by_name(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(
        '{"http_port": 9000, "load_models_at_startup": true, "parallel_workers": 2}'
    )
    settings = read(
        tmp_path,
        cache_enabled=True,
        shiny=1,
        outputs=[{"name": "predict", "datatype": "FP32", "shape": [-1]}, {"name": "odd"}],
        parameters={"environment_tarball": "env.tar.gz", "extra": {"a": 1}, "frobnicate": 1},
    )
    said = "\n".join(settings.remarks)
    for name in (
        "`cache_enabled` is passed over",
        "`shiny` is not known",
        "`outputs` is passed over for odd",
        "`parameters.environment_tarball` is passed over: the model runs in the server's own environment",
        "`parameters.extra`",
        "`parameters.frobnicate`",
        "`http_port` of settings.json is passed over: use --port",
    ):
        assert name in said
    assert len(settings.remarks) == 7
    assert settings.parameters == {"outputs": ["predict"]}
    assert settings.replicas == 2


def test_inputs_are_those_of_the_table(tmp_path: Path) -> None:
    one = read(tmp_path, inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 4]}])
    assert one.parameters == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}
    assert not one.declared.takes_any
    columns = read(
        tmp_path,
        inputs=[
            {"name": "age", "datatype": "INT32", "shape": [-1, 1]},
            {"name": "city", "datatype": "BYTES", "shape": [-1]},
        ],
        parameters={"content_type": "pd"},
    )
    assert columns.parameters == {
        "inputs": [
            {"name": "age", "datatype": "INT32", "shape": [-1]},
            {"name": "city", "datatype": "BYTES", "shape": [-1]},
        ]
    }


@pytest.mark.parametrize(
    ("size", "time", "batching"),
    [(8, 0.5, {"max_size": 8, "max_delay": 0.5}), (8, 0, None), (0, 0.5, None), (None, None, None)],
)
def test_adaptive_batching(tmp_path: Path, size: int | None, time: float | None, batching: Any) -> None:
    assert read(tmp_path, max_batch_size=size, max_batch_time=time).batching == batching


@pytest.mark.parametrize(
    ("own", "servers", "replicas"), [(3, None, 3), (None, 4, 4), (2, 4, 2), (0, None, 1), (None, None, None)]
)
def test_parallel_workers(tmp_path: Path, own: int | None, servers: int | None, replicas: int | None) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({} if servers is None else {"parallel_workers": servers}))
    assert read(tmp_path, **({} if own is None else {"parallel_workers": own})).replicas == replicas


def test_geartrain_yaml_comes_first_and_so_does_code(tmp_path: Path) -> None:
    folder = write(tmp_path, max_batch_size=8, max_batch_time=1.0)
    (folder / "geartrain.yaml").write_text("batching: {max_size: 2}\n")
    assert settings_of(folder).batching == {"max_size": 2, "max_delay": 1.0}
    (folder / "run.py").write_text("def run() -> int:\n    return 1\n")
    assert settings_of(folder).batching == {"max_size": 2}


# folders of models


def test_models_are_called_as_their_settings_say_wherever_they_lie(tmp_path: Path) -> None:
    write(tmp_path / "models" / "a", "model.joblib", name="mnist-svm", parameters={"version": "v0.1.0"})
    write(tmp_path / "deep" / "er" / "b", "model.joblib")
    write(tmp_path / "models" / "a2", "model.joblib", name="mnist-svm", parameters={"version": "v0.10.0"})
    write(tmp_path / "models" / "bad", name="bad", parameters={"version": "latest"})
    write(tmp_path / ".hidden" / "c", "model.joblib")
    write(tmp_path / "custom", implementation="mine.Model")
    found = find_served(str(tmp_path), environ={})
    assert isinstance(found, MlserverRepository)
    assert found.names() == found.candidates() == ["b", "bad", "custom", "mnist-svm"]
    versions = found.read("mnist-svm").versions
    assert set(versions) == {"v0.1.0", "v0.10.0"}
    source = versions["v0.1.0"]
    assert isinstance(source, ModelSource)
    assert (source.name, source.backend) == ("mnist-svm", "sklearn")
    assert "`parameters.version` is 'latest'" in str(found.read("bad").versions["1"])
    assert "mine.Model, which is not served" in str(found.read("custom").versions["1"])
    assert found.name_of(tmp_path / "models" / "a" / "model.joblib") == "mnist-svm"
    assert found.name_of(tmp_path / "settings.json") is None
    assert found.holds_model("b")
    assert not found.holds_model("a")
    with pytest.raises(ProjectError, match="has a model 'a'"):
        found.read("a")


def test_a_model_alone_keeps_its_name_and_version(tmp_path: Path) -> None:
    write(tmp_path, "mnist-svm.joblib", name="mnist-svm", parameters={"uri": "./mnist-svm.joblib", "version": "v0.1.0"})
    found = find_served(str(tmp_path), environ={})
    assert isinstance(found, MlserverRepository)
    assert found.names() == ["mnist-svm"]
    assert list(found.read("mnist-svm").versions) == ["v0.1.0"]
    assert found.folder("mnist-svm") == tmp_path


def test_beside_models_of_other_kinds_folders_are_models(tmp_path: Path) -> None:
    write(tmp_path / "a", "model.joblib", name="other")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.py").write_text("def run() -> int:\n    return 1\n")
    assert find_mlserver(str(tmp_path), environ={}) is None
    found = find_served(str(tmp_path), environ={})
    assert isinstance(found, Repository)
    assert found.names() == ["a", "b"]


def test_versions_may_have_settings_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "iris" / "1", "model.joblib", name="iris", parameters={"version": "1"})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.py").write_text("def run() -> int:\n    return 1\n")
    source = Repository(tmp_path, environ={}).read("iris").versions["1"]
    assert isinstance(source, ModelSource)
    assert (source.backend, source.origin) == ("sklearn", "model-settings.json")


def test_code_is_no_model_of_mlserver(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "run.py").write_text("def run() -> int:\n    return 1\n")
    assert find_mlserver(str(tmp_path), environ={}) is None


def test_every_file_of_a_model_counts_for_its_digest(tmp_path: Path) -> None:
    write(tmp_path / "m", "model.joblib")
    write(tmp_path / "w", parameters={"uri": "../weights/a.joblib"})
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.joblib").write_bytes(b"1")
    found = MlserverRepository(tmp_path, environ={})
    before = {name: found.digest(name) for name in ("m", "w")}
    assert found.digest("none") == ""
    (tmp_path / "weights" / "a.joblib").write_bytes(b"12")
    assert found.digest("m") == before["m"]
    assert found.digest("w") != before["w"]
    (tmp_path / "settings.json").write_text("{}")
    assert found.digest("m") != before["m"]
