"""Pipelines on disk: `pipeline` of geartrain.yaml and `ensemble_scheduling` of config.pbtxt, and their refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.domain.signature.pipeline import Pipeline, Step
from geartrain.domain.signature.types import DeclaredTensor
from geartrain.project.errors import ProjectError
from geartrain.project.modelfile import settings_of
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource, find_model

FIVE_LINES = """\
pipeline:
  - model: detector
    output: boxes
  - model: reader
    inputs: {tiles: boxes}
"""
ENSEMBLE = """
name: "both"
platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 3 }
output { name: "OUT" data_type: TYPE_INT64 dims: 1 }
ensemble_scheduling {
  step [
    { model_name: "scale" model_version: -1
      input_map { key: "x" value: "IN" } output_map { key: "y" value: "scaled" } },
    { model_name: "classify" model_version: 2
      input_map { key: "rows" value: "scaled" } output_map { key: "label" value: "OUT" } }
  ]
}
"""


def read(folder: Path, name: str, text: str) -> Pipeline:
    (folder / name).write_text(text)
    found = settings_of(folder).pipeline
    assert found is not None
    return found


def refused(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    with pytest.raises(ProjectError) as caught:
        settings_of(folder)
    return caught.value.message.removeprefix(f"{folder / name}: ")


def test_five_lines(tmp_path: Path) -> None:
    assert read(tmp_path, "geartrain.yaml", FIVE_LINES) == Pipeline(
        (Step("detector", output="boxes"), Step("reader", inputs={"tiles": "boxes"}))
    )


def test_all_keys(tmp_path: Path) -> None:
    text = """
pipeline:
  steps:
    - detector
    - model: reader
      version: 2
      inputs: {image: photo, seed: null}
      outputs: {words: texts}
  outputs: [texts]
slots: 8
queue: 3
"""
    found = read(tmp_path, "geartrain.yaml", text)
    reader = Step("reader", version="2", inputs={"image": "photo", "seed": None}, outputs={"words": "texts"})
    assert found == Pipeline((Step("detector"), reader), ("texts",), place="pipeline.steps")
    source = find_model(str(tmp_path))
    assert (source.pipeline, source.slots, source.queue, source.runner) == (found, 8, 3, "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pipeline: detector", "`pipeline` is the text 'detector'; write a list of steps, such as `- model: detector`"),
        ("pipeline: []", "`pipeline` is a list; write a list of steps, such as `- model: detector`"),
        (
            "pipeline: [{}]",
            "`pipeline[0].model` is empty; write the name of a model of the same folder",
        ),
        (
            "pipeline: [3]",
            (
                "`pipeline[0]` is the number 3; write `model: NAME`, with `inputs` and `outputs` below it where names "
                "differ"
            ),
        ),
        (
            "pipeline: [{model: a, input: {}}]",
            "there is no key `pipeline[0].input`; there are model, version, inputs, output, outputs",
        ),
        (
            "pipeline: [{model: a, output: b, outputs: {}}]",
            "`pipeline[0]` has `output` and `outputs`; keep one of them",
        ),
        (
            "pipeline: [{model: a, version: latest}]",
            "`pipeline[0].version` is the text 'latest'; write the number of a version, or nothing for the default one",
        ),
        (
            "pipeline: [{model: a, inputs: [b]}]",
            (
                "`pipeline[0].inputs` is a list; write lines such as `image: photo`, the name in "
                "the model and that of the "
                "value"
            ),
        ),
        ("pipeline: [{model: a, inputs: {b: 3}}]", "`pipeline[0].inputs.b` is the number 3; write the name of a value"),
        (
            "pipeline: {steps: [a], outputs: b}",
            "`pipeline.outputs` is the text 'b'; write a list of values, such as `[boxes, texts]`",
        ),
        ("pipeline: {steps: [a], output: b}", "there is no key `pipeline.output`; there are steps, outputs"),
        (
            "pipeline: [a]\nreplicas: 2",
            "`replicas` is of no use beside `pipeline`; move it to the models of it",
        ),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    assert refused(tmp_path, "geartrain.yaml", text) == sentence


def test_a_pipeline_beside_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "geartrain.yaml").write_text(FIVE_LINES)
    (tmp_path / "run.py").write_text("def run() -> int: ...")
    with pytest.raises(ProjectError, match=r"`pipeline` stands beside run\.py; keep one of them"):
        find_model(str(tmp_path))


# ensembles


def test_an_ensemble_of_triton(tmp_path: Path) -> None:
    found = read(tmp_path, "config.pbtxt", ENSEMBLE)
    assert found.steps == (
        Step("scale", inputs={"x": "IN"}, outputs={"y": "scaled"}),
        Step("classify", version="2", inputs={"rows": "scaled"}, outputs={"label": "OUT"}),
    )
    assert found.is_ensemble
    assert found.declared.inputs == (DeclaredTensor("IN", "FP32", (-1, 3)),)
    assert found.declared.outputs == (DeclaredTensor("OUT", "INT64", (-1, 1)),)
    settings = settings_of(tmp_path)
    assert settings.stated["ensemble_scheduling"]["step"][1]["model_version"] == 2
    assert settings.remarks == (
        f"config.pbtxt: `name` is 'both', and the model is called as its folder is, '{tmp_path.name}'",
    )


def test_limits_of_an_ensemble_may_stand_beside_it(tmp_path: Path) -> None:
    (tmp_path / "geartrain.yaml").write_text("slots: 4\nqueue: 7\n")
    (tmp_path / "config.pbtxt").write_text(ENSEMBLE)
    source = find_model(str(tmp_path))
    assert source.pipeline is not None
    assert (source.slots, source.queue) == (4, 7)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('platform: "ensemble"', 'backend: "onnxruntime"', "`backend` is 'onnxruntime' beside `ensemble_scheduling`"),
        ("max_batch_size: 4", "instance_group { count: 2 }", "`instance_group` is of no use in an ensemble; move it"),
        ('output { name: "OUT" data_type: TYPE_INT64 dims: 1 }', "", "`output` is missing; an ensemble declares its"),
        ("dims: 3", "dims: 3 reshape { shape: [3, 1] }", "`reshape` of 'IN' is of no use in an ensemble; move it"),
        ('model_name: "scale"', "", "`ensemble_scheduling.step[0].model_name` is missing; write the name of a model"),
        ("model_version: 2", "model_version: -2", "`ensemble_scheduling.step[1].model_version` is -2; write -1 for"),
        (
            'output_map { key: "y" value: "scaled" }',
            "",
            "`ensemble_scheduling.step[0].output_map` is missing; write a `key` of the model and a `value`",
        ),
        (
            'key: "rows" value: "scaled"',
            'key: "rows"',
            "`ensemble_scheduling.step[1].input_map` has an empty value; write a name",
        ),
        (
            "model_version: 2",
            'model_namespace: "other"',
            "`ensemble_scheduling.step[1].model_namespace`: models have no namespaces; remove it",
        ),
    ],
)
def test_a_wrong_field_of_an_ensemble_is_named(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in ENSEMBLE
    assert refused(tmp_path, "config.pbtxt", ENSEMBLE.replace(old, new, 1)).startswith(sentence)


def test_an_ensemble_without_steps_is_refused(tmp_path: Path) -> None:
    text = ENSEMBLE[: ENSEMBLE.index("ensemble_scheduling")]
    sentence = "`ensemble_scheduling.step` is missing; write a step for each model"
    assert refused(tmp_path, "config.pbtxt", text) == sentence


# in a folder of models


@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_folder_of_models_has_pipelines_among_them(tmp_path: Path, is_numbered: bool) -> None:
    for name, file, text in (("plain", "geartrain.yaml", FIVE_LINES), ("both", "config.pbtxt", ENSEMBLE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
        if is_numbered:  # Triton needs an empty folder for the version
            (tmp_path / name / "3").mkdir()
    repository = Repository(tmp_path)
    assert repository.names() == ["both", "plain"]
    for name in repository.names():
        versions = repository.read(name).versions
        assert list(versions) == ["3" if is_numbered else "1"]
        (source,) = versions.values()
        assert isinstance(source, ModelSource)
        assert (source.name, source.pipeline is not None) == (name, True)
