"""`config.pbtxt` of Triton as settings: what each field becomes, and what is said of the others."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from geartrain.domain.predictions.priorities import Level, Priorities
from geartrain.domain.signature.types import Declared, DeclaredTensor
from geartrain.project.errors import ProjectError
from geartrain.project.modelfile import settings_of
from geartrain.project.repository import ModelFolder, Repository
from geartrain.project.setting_values import Devices
from geartrain.project.settings import Settings
from geartrain.project.source import ModelSource

INPUT = 'input { name: "x" data_type: TYPE_FP32 dims: 3 }\n'
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: 3 }\n'


def read(folder: Path, text: str) -> Settings:
    (folder / "config.pbtxt").write_text(text)
    return settings_of(folder)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ProjectError) as caught:
        read(folder, text)
    message = caught.value.message
    assert message.startswith(f"{folder}/config.pbtxt:")
    return message.removeprefix(f"{folder}/config.pbtxt:").strip()


def test_an_empty_file_serves_the_latest_version_as_its_file_is(tmp_path: Path) -> None:
    settings = read(tmp_path, "")
    assert (settings.versions, settings.backend, settings.file, settings.batching) == (1, None, None, None)
    assert settings.declared == Declared("config.pbtxt")
    assert settings.remarks == ()


# backends


@pytest.mark.parametrize(
    ("text", "backend", "platform", "file"),
    [
        ('platform: "onnxruntime_onnx"', "onnx", "onnxruntime_onnx", "model.onnx"),
        ('backend: "onnxruntime"', "onnx", "onnxruntime_onnx", "model.onnx"),
        ('backend: "pytorch"', "torch", "pytorch_libtorch", "model.pt"),
        ('platform: "pytorch_libtorch"', "torch", "pytorch_libtorch", "model.pt"),
        ('platform: "tensorflow_savedmodel"', "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
        ('backend: "onnxruntime" default_model_filename: "a.onnx"', "onnx", "onnxruntime_onnx", "a.onnx"),
        ('backend: "sklearn"', "sklearn", "", None),
    ],
)
def test_backends(tmp_path: Path, text: str, backend: str, platform: str, file: str | None) -> None:
    settings = read(tmp_path, text)
    assert (settings.backend, settings.declared.platform, settings.file) == (backend, platform, file)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('platform: "ensemble"', "`input` is missing; an ensemble declares its tensors"),
        ('platform: "tensorrt_plan"', "backend 'tensorrt_plan' is not served; a plan runs only on the kind of GPU"),
        ('backend: "tensorflow" platform: "tensorflow_graphdef"', "TensorFlow 2 no longer makes frozen graphs"),
        ('backend: "vllm"', "backend 'vllm' is not served; there are onnxruntime, pytorch, tensorflow"),
        ("sequence_batching { }", "`sequence_batching`: the state of a sequence is not kept"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "`batch_input`: "),
        ("batch_output { }", "`batch_output`: "),
        ("model_operations { op_library_filename: 'a.so' }", "`model_operations`: operators of other libraries"),
        ("model_repository_agents { }", "`model_repository_agents`: "),
        ("model_transaction_policy { decoupled: true }", "`model_transaction_policy.decoupled` is true"),
    ],
)
def test_what_a_model_would_be_wrong_without_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refused(tmp_path, text)


def test_what_only_runs_otherwise_is_said_by_name(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        name: "other" frobnicate: 3 new_thing { a: [1, 2] b { c: "d" 'e' } }
        dynamic_batching { preserve_ordering: true shiny: -1 } max_batch_size: 2
        response_cache { enable: true } cc_model_filenames { key: "7.5" value: "a" } metric_tags { key: "a" value: "b" }
        instance_group { rate_limiter { priority: 1 } host_policy: "a" passive: true }
        parameters { key: "odd" value { string_value: "1" } }
        optimization { cuda { graphs: true } execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
        """,
    )
    said = "\n".join(settings.remarks)
    for name in (
        "`name` is 'other'",
        "`frobnicate` is not known",
        "`new_thing` is not known",
        "`shiny` is not known",
        "`dynamic_batching.preserve_ordering`",
        "`response_cache` is passed over: responses are not cached",
        "`cc_model_filenames`",
        "`metric_tags`",
        "`instance_group.rate_limiter`",
        "`instance_group.host_policy`",
        "`instance_group.passive`",
        "parameter 'odd'",
        "`optimization.cuda`",
        "'tensorrt' is not used",
    ):
        assert name in said
    assert all(sentence.startswith("config.pbtxt: ") for sentence in settings.remarks)
    assert len(settings.remarks) == 14


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name\n{", "2: "),
        ("\nmax_batch_size: many", "2: "),
        ("max_batch_size: -1", "`max_batch_size` is -1; write 0 for no batches"),
        ("input { name: 'x' data_type: TYPE_FLOAT }", "TYPE_FLOAT"),
        ("input { name: 'x' dims: 3 }", "`data_type` of 'x' is missing; write one such as TYPE_FP32"),
        ("input { name: 'x' data_type: TYPE_FP32 }", "`dims` of 'x' is missing"),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 0 }", "`dims` of 'x' is [0]; write sizes above 0"),
        ("input { data_type: TYPE_FP32 dims: 3 }", "an input or output has no `name`"),
        (INPUT + INPUT, "`input` has 'x' twice"),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 3 is_shape_tensor: true }", "`is_shape_tensor` of 'x'"),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 3 allow_ragged_batch: true }", "`allow_ragged_batch` of 'x'"),
        (
            "input { name: 'x' data_type: TYPE_FP32 dims: [2, -1, 3] reshape { shape: [3, -1, 2] } }",
            "`reshape` of 'x' is [3, -1, 2], and `dims` is [2, -1, 3]",
        ),
        ("max_batch_size: 0 dynamic_batching { }", "`dynamic_batching` is there, and `max_batch_size` is 0"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
            "`dynamic_batching.preferred_batch_size` has [8]; write sizes from 1 to `max_batch_size`, 4",
        ),
        (
            "max_batch_size: 4 dynamic_batching { priority_levels: 2 }",
            "`dynamic_batching.default_priority_level` is 0; write a level from 1, the highest, to 2",
        ),
        ("max_batch_size: 4 dynamic_batching { priority_levels: 101 }", "`dynamic_batching.priority_levels` is 101"),
        (
            (
                "max_batch_size: 4 dynamic_batching { priority_levels: 1 default_priority_level: 1 "
                "priority_queue_policy { key: 2 value { } } }"
            ),
            "`dynamic_batching.priority_queue_policy` has level 2; there are 1 to 1",
        ),
        ("version_policy { specific { } }", "`version_policy.specific` has []; write numbers of versions"),
        ("instance_group { kind: KIND_CPU gpus: 0 }", "`instance_group` is of KIND_CPU, and has `gpus`"),
        ("instance_group { count: -1 }", "`instance_group` has a number below 0"),
        (
            'backend: "onnxruntime" parameters { key: "intra_op_thread_count" value { string_value: "two" } }',
            "parameter 'intra_op_thread_count' is 'two'; write a number of threads",
        ),
        ('backend: "onnxruntime" optimization { graph { level: 7 } }', "`optimization.graph.level` is 7"),
    ],
)
def test_a_wrong_value_is_told_with_its_field(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refused(tmp_path, text)


# tensors


def test_with_a_largest_batch_the_first_dimension_is_left_out(tmp_path: Path) -> None:
    declared = read(
        tmp_path,
        """
        max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] },
                { name: "t" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [ ] } optional: true } ]
        output [ { name: "y" data_type: TYPE_INT64 dims: [ 4, -1 ] reshape { shape: [ 2, 2, -1 ] } } ]
        """,
    ).declared
    assert declared.first == "batch"
    assert declared.inputs == (
        DeclaredTensor("x", "FP32", (-1, -1, 3)),
        DeclaredTensor("t", "BYTES", (-1, 1), optional=True, is_reshaped=True, inner=(-1,)),
    )
    assert declared.outputs == (DeclaredTensor("y", "INT64", (-1, 4, -1), is_reshaped=True, inner=(-1, 2, 2, -1)),)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", "undecided"),
        ("max_batch_size: 0", "plain"),
        (INPUT, "plain"),
        ("max_batch_size: 1", "batch"),
        (INPUT + "max_batch_size: 4", "batch"),
    ],
)
def test_whose_word_counts_for_the_batch(tmp_path: Path, text: str, first: str) -> None:
    assert read(tmp_path, text).declared.first == first


# batches and the queue


def test_batches(tmp_path: Path) -> None:
    dynamic = read(
        tmp_path,
        "max_batch_size: 16 dynamic_batching { preferred_batch_size: [8, 4] max_queue_delay_microseconds: 1500 }",
    )
    assert dynamic.batching == {
        "max_size": 16,
        "refuse_larger": True,
        "gather": True,
        "preferred_sizes": (4, 8),
        "max_delay": 0.0015,
    }
    plain = read(tmp_path, "max_batch_size: 16").batching
    assert plain is not None
    assert (plain["max_size"], plain["gather"], plain["refuse_larger"]) == (16, False, True)
    assert read(tmp_path, "max_batch_size: 0").batching is None


QUEUES: list[tuple[str, int | None, Priorities]] = [
    ("", None, Priorities()),
    ("default_queue_policy { max_queue_size: 7 }", 7, Priorities()),
    (
        "default_queue_policy { default_timeout_microseconds: 2000000 timeout_action: DELAY }",
        None,
        Priorities((Level(timeout=2.0, on_timeout="continue"),), 1),
    ),
    (
        """priority_levels: 3 default_priority_level: 2 default_queue_policy { max_queue_size: 5 }
           priority_queue_policy { key: 1 value { default_timeout_microseconds: 500000 } }""",
        None,
        Priorities((Level(timeout=0.5), Level(max_queue=5), Level(max_queue=5)), 2),
    ),
]


@pytest.mark.parametrize(("text", "queue", "priorities"), QUEUES)
def test_the_queue(tmp_path: Path, text: str, queue: int | None, priorities: Priorities) -> None:
    settings = read(tmp_path, f"max_batch_size: 4 dynamic_batching {{ {text} }}")
    assert (settings.queue, settings.priorities) == (queue, priorities)


# instances


@pytest.mark.parametrize(
    ("groups", "replicas", "devices"),
    [
        ("", None, None),
        ("instance_group { count: 3 }", 3, None),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_CPU count: 2 }", 3, Devices("cpu")),
        ("instance_group { kind: KIND_GPU gpus: [0, 2] count: 2 }", 4, Devices("named", ("cuda:0", "cuda:2"))),
        ("instance_group { kind: KIND_GPU }", 1, Devices()),
        ("instance_group { gpus: 1 } instance_group { kind: KIND_CPU count: 5 }", 1, Devices("named", ("cuda:1",))),
    ],
)
def test_instances(tmp_path: Path, groups: str, replicas: int | None, devices: Devices | None) -> None:
    settings = read(tmp_path, groups)
    assert (settings.replicas, settings.devices) == (replicas, devices)


# options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('backend: "onnxruntime" {intra_op_thread_count=2}', {"intra_op_threads": 2}),
        ('backend: "onnxruntime" {intra_op_thread_count=0}{inter_op_thread_count=4}', {}),
        (
            'backend: "onnxruntime" {inter_op_thread_count=4}{execution_mode=1}',
            {"inter_op_threads": 4, "session_options": {"execution_mode": "parallel"}},
        ),
        (
            'backend: "onnxruntime" {session.intra_op.allow_spinning=1}{enable_mem_arena=0}',
            {"session_options": {"enable_cpu_mem_arena": False, "session.intra_op.allow_spinning": "1"}},
        ),
        (
            'backend: "onnxruntime" optimization { graph { level: 1 } }',
            {"session_options": {"graph_optimization_level": "extended"}},
        ),
        ('backend: "pytorch" {INTRA_OP_THREAD_COUNT=3}{INFERENCE_MODE=true}', {"threads": 3}),
        (
            'backend: "tensorflow" {TF_NUM_INTRA_THREADS=1}{TF_SIGNATURE_DEF=mine}',
            {"intra_op_threads": 1, "signature": "mine"},
        ),
    ],
)
def test_parameters_are_options_of_our_backends(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    head, *pairs = text.replace("}{", "} {").split(" {")
    if "graph" in text:
        head, pairs = text, []
    for pair in pairs:
        key, _, value = pair.rstrip("}").partition("=")
        head += f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    settings = read(tmp_path, head)
    assert settings.parameters == expected
    assert settings.remarks == ()


# warm-up


def test_samples_are_inputs_of_the_warm_up(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "row").write_bytes(struct.pack("<3f", 1, 2, 3))
    settings = read(
        tmp_path,
        """
        max_batch_size: 8
        model_warmup { name: "a" batch_size: 2 count: 2
          inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 zero_data: true } }
          inputs { key: "t" value { data_type: TYPE_STRING dims: 1 zero_data: true } } }
        model_warmup { name: "b" inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 input_data_file: "row" } } }
        model_warmup { name: "c" inputs { key: "x" value { data_type: TYPE_INT8 dims: [2, 2] random_data: true } } }
        """,
    )
    first, again, file, random = map(json.loads, settings.warmup)
    assert first == again == {"x": [[0.0] * 3] * 2, "t": [[""]] * 2}
    assert file == {"x": [[1.0, 2.0, 3.0]]}
    assert [len(random["x"]), len(random["x"][0]), len(random["x"][0][0])] == [1, 2, 2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ('input_data_file: "none"', "`model_warmup` 'a': "),
        ('input_data_file: "../../row"', "leads out of the model's folder"),
        ('input_data_file: "short"', "short has 2 bytes, and 'x' takes 12"),
    ],
)
def test_a_wrong_sample_is_named(tmp_path: Path, given: str, sentence: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"12")
    text = f'model_warmup {{ name: "a" inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: 3 {given} }} }} }}'
    assert sentence in refused(tmp_path, text)


def test_samples_that_are_too_large_are_passed_over(tmp_path: Path) -> None:
    text = 'model_warmup { name: "a" inputs { key: "x" value { data_type: TYPE_FP32 dims: [10000, 1000] } } }'
    settings = read(tmp_path, text)
    assert settings.warmup == ()
    assert "`model_warmup` 'a' and what follows is passed over" in settings.remarks[0]


# among other settings


def test_geartrain_yaml_comes_first(tmp_path: Path) -> None:
    (tmp_path / "geartrain.yaml").write_text("versions: all\nreplicas: 5\nbatching: {max_delay: 0.5}\n")
    settings = read(tmp_path, "max_batch_size: 4 dynamic_batching { } instance_group { count: 2 }")
    assert (settings.versions, settings.replicas) == (None, 5)
    assert settings.batching is not None
    assert (settings.batching["max_size"], settings.batching["max_delay"]) == (4, 0.5)


def test_code_comes_first(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "run.py").write_text("def run() -> int:\n    return 1\n")
    assert read(tmp_path, 'backend: "python"') == Settings()


# repositories


def folder(root: Path, name: str, text: str, *files: str) -> ModelFolder | str:
    (root / name).mkdir(exist_ok=True)
    (root / name / "config.pbtxt").write_text(text)
    for file in files:
        (root / name / file).parent.mkdir(exist_ok=True)
        (root / name / file).write_bytes(b"")
    try:
        return Repository(root, environ={}).read(name)
    except ProjectError as error:
        return error.message


VERSIONS = ("1/model.onnx", "2/model.onnx", "10/model.onnx")


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ["10"]),
        ("version_policy { latest { } }", ["10"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "10"]),
        ("version_policy { all { } }", ["1", "2", "10"]),
        ("version_policy { specific { versions: [2, 1] } }", ["1", "2"]),
    ],
)
def test_versions_are_those_of_the_policy(tmp_path: Path, policy: str, versions: list[str]) -> None:
    found = folder(tmp_path, "m", f'backend: "onnxruntime" {policy}', *VERSIONS)
    assert isinstance(found, ModelFolder)
    assert list(found.versions) == versions
    assert all(isinstance(source, ModelSource) for source in found.versions.values())


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = folder(tmp_path, "m", 'backend: "onnxruntime"', "1/other.onnx")
    assert isinstance(found, ModelFolder)
    assert str(found.versions["1"]) == f"{tmp_path}/m/1: there is no model.onnx, which config.pbtxt asks for"


def test_a_model_that_cannot_be_served_is_in_the_repository_all_the_same(tmp_path: Path) -> None:
    said = folder(tmp_path, "e", 'platform: "ensemble"')
    assert isinstance(said, str)
    assert said.startswith(f"{tmp_path}/e/config.pbtxt: `input` is missing; an ensemble declares")
    assert Repository(tmp_path, environ={}).names() == ["e"]


def test_a_change_of_the_configuration_is_one_of_the_model(tmp_path: Path) -> None:
    folder(tmp_path, "m", "", *VERSIONS)
    repository = Repository(tmp_path, environ={})
    before = repository.digest("m")
    assert repository.digest("m") == before
    (tmp_path / "m" / "config.pbtxt").write_text("max_batch_size: 4")
    assert repository.digest("m") != before
