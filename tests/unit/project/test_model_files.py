"""Model files on disk: which are found, which are told apart, and what is refused. None of them is loaded."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from geartrain.cli.doctor import _not_loaded as not_loaded
from geartrain.project import formats
from geartrain.project.checks import error
from geartrain.project.errors import ProjectError
from geartrain.project.repository import ModelFolder, Repository, find_repository
from geartrain.project.settings import Settings, read_settings
from geartrain.project.source import ModelSource, find_model

RUNNER = "class Runner:\n    def run(self) -> str: ...\n"
XGBOOST = '{"learner":{"attributes":{}}}'
LIGHTGBM = "tree\nversion=v4\nnum_class=1\n"


def write_all(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by their paths."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, "")
    return path


def find(target: Path, **options: Any) -> ModelSource:
    return find_model(str(target), environ={}, **options)


def refused(target: Path, **options: Any) -> str:
    with pytest.raises(ProjectError) as caught:
        find(target, **options)
    return caught.value.message


# by name, and by content where the name says too little


@pytest.mark.parametrize(
    ("name", "content", "backend"),
    [
        ("a.onnx", b"", "onnx"),
        ("a.ONNX", b"", "onnx"),
        ("a.pt2", b"", "torch"),
        ("a.joblib", b"", "sklearn"),
        ("a.skops", b"", "sklearn"),
        ("a.pkl", pickle.dumps({"of": "sklearn"}), "sklearn"),
        ("a.pickle", pickle.dumps({"of": "xgboost"}, protocol=2), "sklearn"),
        ("a.ubj", b"", "xgboost"),
        ("a.json", XGBOOST.encode(), "xgboost"),
        ("a.txt", LIGHTGBM.encode(), "lightgbm"),
        ("a.cbm", b"", "catboost"),
        ("a.gguf", b"GGUF", "llama_cpp"),
    ],
)
def test_a_folder_with_one_model_file_is_that_model(tmp_path: Path, name: str, content: bytes, backend: str) -> None:
    folder = write_all(tmp_path / "digits", {name: content, "README.md": "", "train.py": "", "data.csv": ""})
    found = find(folder)
    assert (found.backend, found.file, found.name, found.runner) == (backend, folder / name, "digits", name)
    named = find(folder / name)
    assert (named.backend, named.file, named.name) == (backend, folder / name, "a")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"hidden_size": 3}'),
        ("vocabulary.txt", b"tree\nhouse\n"),
        ("requirements.txt", b"numpy\n"),
        ("words.pkl", pickle.dumps({"a": 1})),
        ("broken.pkl", b"sklearn"),
        ("weights.pt", b"\x80\x02sklearn"),
        ("notes", b""),
        (".hidden.onnx", b""),
        ("_old.onnx", b""),
    ],
)
def test_a_file_that_only_looks_like_one_is_no_model(tmp_path: Path, name: str, content: bytes) -> None:
    write_all(tmp_path, {name: content})
    assert "no model here" in refused(tmp_path)
    write_all(tmp_path, {"tree.cbm": b""})
    assert find(tmp_path).backend == "catboost"


def test_torchscript_is_told_from_weights(tmp_path: Path) -> None:
    archive(tmp_path / "weights.pt", "weights/data.pkl", "weights/data/0")
    assert "no model here" in refused(tmp_path)
    archive(tmp_path / "net.pt", "net/code/net.py", "net/constants.pkl", "net/data.pkl")
    found = find(tmp_path)
    assert (found.backend, found.runner) == ("torch", "net.pt")


@pytest.mark.parametrize("name", ["model.json", "model.txt", "model.pkl", "model.pt"])
def test_a_file_called_model_is_one_so_that_its_fault_is_told(tmp_path: Path, name: str) -> None:
    write_all(tmp_path, {name: b"cut"})
    assert find(tmp_path).runner == name
    write_all(tmp_path, {"net.onnx": b""})
    assert find(tmp_path).runner == "net.onnx"


def test_folders_are_models_too(tmp_path: Path) -> None:
    saved = write_all(tmp_path / "flowers", {"saved_model.pb": b"", "variables/variables.index": b""})
    assert (find(saved).backend, find(saved).file, find(saved).runner) == ("tensorflow", saved, "flowers")
    triton = write_all(tmp_path / "birds", {"model.savedmodel/saved_model.pb": b""})
    assert find(triton).file == triton / "model.savedmodel"
    assert find(triton / "model.savedmodel").name == "model"
    texts = write_all(tmp_path / "words", {"config.json": b"{}", "modules.json": b"[]", "1_Pooling/config.json": b"{}"})
    assert find(texts).backend == "sentence_transformers"
    config = b'{"architectures": ["LlamaForCausalLM"], "vocab_size": 400}'
    chats = write_all(tmp_path / "chats", {"config.json": config, "model-00001-of-00002.safetensors": b""})
    assert (find(chats).backend, find(chats).file) == ("transformers", chats)
    config = b'{"architectures": ["WhisperForConditionalGeneration"]}'
    ears = write_all(tmp_path / "ears", {"config.json": config, "model.safetensors": b""})
    assert (find(ears).backend, find(ears).file) == ("whisper", ears)
    config = b'{"architectures": ["BertForSequenceClassification"]}'
    ranks = {"config.json": config, "model.safetensors": b""}
    assert find(write_all(tmp_path / "ranks", ranks)).backend == "cross_encoder"
    ranks |= {"modules.json": b"[]", "config_sentence_transformers.json": b'{"model_type": "CrossEncoder"}'}
    assert find(write_all(tmp_path / "saved", ranks)).backend == "cross_encoder"
    plain = write_all(tmp_path / "plain", {"config.json": b"{}", "model.safetensors": b"", "onnx/model.onnx": b""})
    assert (find(plain).backend, find(plain).file) == ("sentence_transformers", plain)


def test_code_comes_before_a_file_and_settings_before_both(tmp_path: Path) -> None:
    write_all(tmp_path, {"run.py": RUNNER, "weights.onnx": b""})
    assert find(tmp_path).backend is None
    (tmp_path / "geartrain.yaml").write_text("platform: onnx_onnxv1")
    assert find(tmp_path).file == tmp_path / "weights.onnx"
    assert find(tmp_path / "run.py").backend is None


def test_several_model_files_are_told_and_one_can_be_named(tmp_path: Path) -> None:
    write_all(tmp_path, {"a.onnx": b"", "b.joblib": b"", "c.cbm": b""})
    assert refused(tmp_path) == (
        f"{tmp_path}: 3 model files, a.onnx, b.joblib and c.cbm; keep one, "
        f"or name it with a line such as `file: a.onnx` in {tmp_path}/geartrain.yaml"
    )
    (tmp_path / "geartrain.yaml").write_text("file: b.joblib")
    assert find(tmp_path).file == tmp_path / "b.joblib"
    (tmp_path / "geartrain.yaml").write_text("backend: catboost")
    assert find(tmp_path).file == tmp_path / "c.cbm"
    (tmp_path / "geartrain.yaml").write_text("file: d.onnx")
    assert refused(tmp_path) == f"{tmp_path}/geartrain.yaml: `file` is d.onnx, and there is none in {tmp_path}"


def test_a_backend_can_be_named_for_a_file_of_any_name(tmp_path: Path) -> None:
    write_all(tmp_path, {"weights.dat": b"", "geartrain.yaml": "platform: sklearn_joblib", "README.md": ""})
    found = find(tmp_path)
    assert (found.backend, found.runner) == ("sklearn", "weights.dat")
    (tmp_path / "weights.dat").unlink()
    assert refused(tmp_path) == f"{tmp_path}: no file here for the backend 'sklearn'"


# what is refused


def test_doctor_says_how_to_install_a_library() -> None:
    finding = not_loaded("a.onnx: onnxruntime is not installed; install it with: pip install 'geartrain[onnx]'", "")
    assert finding == error("a.onnx: onnxruntime is not installed", "pip install 'geartrain[onnx]'")


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("model.plan", "tensorrt_plan"),
        ("net.engine", "tensorrt_plan"),
        ("model.graphdef", "tensorflow_graphdef"),
        ("model.netdef", "caffe2_netdef"),
        ("net-symbol.json", "mxnet_mxnet"),
    ],
)
def test_a_platform_without_a_runtime_is_refused_with_advice(tmp_path: Path, name: str, platform: str) -> None:
    write_all(tmp_path / "net", {name: b"{}"})
    advice = formats.REFUSED[platform][1]
    sentence = f"{tmp_path}/net/{name}: {platform} cannot be served: {advice}"
    assert refused(tmp_path / "net") == sentence
    if not name.endswith(".json"):
        assert refused(tmp_path / "net" / name) == sentence
    assert versions(tmp_path, "net") == {"1": sentence}
    (tmp_path / "net" / "geartrain.yaml").write_text(f"platform: {platform}")
    assert refused(tmp_path / "net") == f"{tmp_path}/net/geartrain.yaml: {platform} cannot be served: {advice}"


def test_no_pickle_refuses_what_runs_code(tmp_path: Path) -> None:
    estimator = pickle.dumps({"of": "sklearn"})
    write_all(tmp_path, {"a.joblib": b"", "b.pkl": estimator, "d.skops": estimator, "e.onnx": b"", "f.json": XGBOOST})
    archive(tmp_path / "c.skops", "schema.json")
    for name in ("a.joblib", "b.pkl", "d.skops"):  # the last one is called otherwise than it is
        assert "--no-pickle refuses that" in refused(tmp_path / name, no_pickle=True)
        assert find(tmp_path / name).backend == "sklearn"
    for name in ("c.skops", "e.onnx", "f.json"):
        assert find(tmp_path / name, no_pickle=True).file == tmp_path / name


def test_a_file_cannot_be_trained_nor_have_slots(tmp_path: Path) -> None:
    write_all(tmp_path, {"a.onnx": b""})
    assert "a model file cannot be trained" in refused(tmp_path / "a.onnx", mode="train")
    (tmp_path / "geartrain.yaml").write_text("slots: 4")
    assert refused(tmp_path).endswith("a model file is run one call at a time; write `replicas: 4`")


# geartrain.yaml


def test_settings_reach_the_model(tmp_path: Path) -> None:
    write_all(tmp_path, {"a.onnx": b"", "cog.yaml": "environment: [A=1]"})
    (tmp_path / "geartrain.yaml").write_text(
        "parameters: {threads: 2}\nbatching: {max_size: 64, max_delay: 0.002, preferred_sizes: [8, 64]}\nreplicas: 2\n"
    )
    found = find(tmp_path)
    assert (found.options, found.replicas, found.environment) == ({"threads": 2}, 2, {"A": "1"})
    assert found.batching == {"max_size": 64, "max_delay": 0.002, "preferred_sizes": (8, 64)}
    (tmp_path / "geartrain.yaml").write_text("batching: {cost: [ids, mask], max_cost: 4096, padded: true, sort: true}")
    assert find(tmp_path).batching == {"cost": "ids + mask", "max_cost": 4096.0, "padded": True, "sort": 2}
    (tmp_path / "geartrain.yaml").write_text("batching: {cost: ids, max_cost: auto}")
    assert find(tmp_path).batching == {"cost": "ids", "max_cost": "auto"}
    (tmp_path / "geartrain.yaml").write_text("batching: off")
    assert find(tmp_path).batching == {
        "max_size": 1,
        "max_delay": 0.0,
        "preferred_sizes": (),
        "refuse_larger": False,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("platform: onnx", "there is no platform 'onnx'; there are onnx_onnxv1, "),
        ("platform: [1]", "`platform` is a list; write the name of a platform"),
        ("backend: onxx", "there is no backend `onxx` installed; did you mean `onnx`?"),
        ("backend: 3", "`backend` is the number 3; write the name of a backend"),
        ("backend: torch\nplatform: onnx_onnxv1", "`platform` is onnx_onnxv1, which the backend onnx runs, and "),
        ("parameters: 3", "`parameters` is the number 3; write keys and values indented below it"),
        ("file: ../a.onnx", "`file` is the text '../a.onnx'; write the name of a file in the model's folder"),
        ("batching: yes", "`batching` has to be `off`, or keys such as `max_size: 64` indented below it"),
        ("batching: {size: 3}", "there is no key `batching.size`; there are max_size, max_delay, "),
        ("batching: {max_size: 0}", "`batching.max_size` is 0; write a whole number of at least 1"),
        ("batching: {max_delay: 5ms}", "`batching.max_delay` is '5ms'; write a number of seconds, such as 0.002"),
        ("batching: {learn_delay: 0}", "`batching.learn_delay` is 0; write true or false"),
        ("batching: {pad_to: [8, 8]}", "`batching.pad_to` is [8, 8]; write a list of sizes that grow"),
        ("batching: {retry_singly: 1}", "`batching.retry_singly` is 1; write true or false"),
        ("batching: {cost: 5}", "`batching.cost` is 5; write the name of an input, a list of names, or an expression"),
        ("batching: {max_cost: lots}", "`batching.max_cost` is 'lots'; write a number, such as 16384, or auto"),
        ("batching: {pad: ids}", "`batching.pad` is 'ids'; write inputs, each with the number that fills it up"),
        ("batching: {pad: {ids: a}}", "`batching.pad` is {'ids': 'a'}; write inputs, each with the number"),
        ("batching: {sort: 1}", "`batching.sort` is 1; write true, false, or the number of calls"),
        ("batching: {sort: all}", "`batching.sort` is 'all'; write true, false, or the number of calls"),
        ("batching: {max_size: 8, preferred_sizes: [16]}", "`batching.preferred_sizes` has 16, which is more than "),
    ],
)
def test_a_wrong_setting_is_told_with_its_fix(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "geartrain.yaml").write_text(text)
    with pytest.raises(ProjectError) as caught:
        read_settings(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path}/geartrain.yaml: {sentence}")


def test_parameters_are_for_files(tmp_path: Path) -> None:
    write_all(tmp_path, {"run.py": RUNNER, "geartrain.yaml": "parameters: {threads: 2}"})
    assert "`parameters` are for a model that is a file" in refused(tmp_path)
    assert Settings().batching is None


# repositories


def versions(root: Path, name: str, **options: Any) -> dict[str, str]:
    """The versions of a model: its file, or what is wrong with it."""
    found: ModelFolder = Repository(root, environ={}, **options).read(name)
    return {
        number: str(source.file.relative_to(root)) if isinstance(source, ModelSource) and source.file else str(source)
        for number, source in found.versions.items()
    }


def test_files_and_code_live_in_one_repository(tmp_path: Path) -> None:
    write_all(
        tmp_path,
        {
            "code/run.py": RUNNER,
            "direct/iris.cbm": b"",
            "triton/1/model.onnx": b"",
            "triton/3/model.onnx": b"",
            "triton/config.pbtxt": "version_policy { all { } }",
            "mixed/1/run.py": RUNNER,
            "mixed/2/model.joblib": b"",
            "two/a.onnx": b"",
            "two/b.onnx": b"",
            "saved/1/model.savedmodel/saved_model.pb": b"",
            "exported/7/saved_model.pb": b"",
            "notes/config.json": b"{}",
            "any/geartrain.yaml": "backend: catboost",
            "any/1/weights": b"",
        },
    )
    found = find_repository(str(tmp_path), environ={})
    assert found is not None
    assert found.names() == ["any", "code", "direct", "exported", "mixed", "saved", "triton", "two"]
    assert versions(tmp_path, "direct") == {"1": "direct/iris.cbm"}
    assert versions(tmp_path, "triton") == {"1": "triton/1/model.onnx", "3": "triton/3/model.onnx"}
    assert versions(tmp_path, "saved") == {"1": "saved/1/model.savedmodel"}
    assert versions(tmp_path, "exported") == {"7": "exported/7"}
    assert versions(tmp_path, "any") == {"1": "any/1/weights"}
    assert "2 model files, a.onnx and b.onnx" in versions(tmp_path, "two")["1"]
    mixed = found.read("mixed").versions
    assert [source.backend for source in mixed.values() if isinstance(source, ModelSource)] == [None, "sklearn"]
    strict = versions(tmp_path, "mixed", no_pickle=True)
    assert "--no-pickle" in strict["2"]
    assert "--no-pickle" not in strict["1"]


def test_one_model_with_version_folders_is_found_by_itself(tmp_path: Path) -> None:
    root = write_all(tmp_path / "linear", {"geartrain.yaml": "backend: sklearn", "1/w.dat": b"", "2/w.dat": b""})
    found = find_repository(str(root), environ={})
    assert found is not None
    assert found.names() == ["linear"]
    assert sorted(found.read("linear").versions) == ["1", "2"]
    write_all(root, {"model.joblib": b""})
    assert find_repository(str(root), environ={}) is None  # a model itself, whatever lies below it


def test_a_file_beside_version_folders_is_refused(tmp_path: Path) -> None:
    write_all(tmp_path, {"net/model.onnx": b"", "net/1/model.onnx": b""})
    with pytest.raises(ProjectError, match=r"model.onnx lies beside version folders; move it into one of them"):
        Repository(tmp_path, environ={}).read("net")


# backends that other packages bring


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in the environment that offers a backend, for one kind of file."""
    points = "[geartrain.backends]\nlinear = linear_models:Linear\n[geartrain.suffixes]\nnpz = linear\n"
    site = write_all(tmp_path / "site", {"linear-1.0.dist-info/entry_points.txt": points})
    write_all(site, {"linear-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: linear\nVersion: 1.0\n"})
    monkeypatch.syspath_prepend(str(site))
    formats.offered_suffixes.cache_clear()
    yield site
    formats.offered_suffixes.cache_clear()


def test_an_installed_backend_is_found_by_suffix_and_by_name(installed: Path, tmp_path: Path) -> None:
    folder = write_all(tmp_path / "prices", {"model.npz": b"", "old.weights": b""})
    assert (find(folder).backend, find(folder).runner) == ("linear", "model.npz")
    (folder / "geartrain.yaml").write_text("backend: linear\nfile: old.weights")
    assert (find(folder).backend, find(folder).runner) == ("linear", "old.weights")
    assert ".npz" in formats.known_suffixes()


def test_no_pickle_looks_into_the_files_of_others_backends(installed: Path, tmp_path: Path) -> None:
    write_all(tmp_path, {"a.npz": b"PK\x03\x04", "b.npz": pickle.dumps({})})
    assert find(tmp_path / "a.npz", no_pickle=True).backend == "linear"
    assert "--no-pickle" in refused(tmp_path / "b.npz", no_pickle=True)
