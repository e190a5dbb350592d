"""The formats of model files: how each is recognised, and which backend runs it. A new format is a line in a table."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from geartrain.authoring.sagemaker import CODE_FOLDER, SAGEMAKER_FILE, sagemaker_program
from geartrain.project.errors import ProjectError

_PEEK: Final = 4096  # bytes
_CONFIG_PEEK: Final = 1024 * 1024
_CODE_PEEK: Final = 1024 * 1024
_PICKLE_PEEK: Final = 256 * 1024  # the classes of a pipeline may come after its vocabulary
_PICKLE: Final = b"\x80"  # and the protocol's number, from 2 on
_PROTOCOLS: Final = range(2, 6)
_COMPRESSED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\x04\x22\x4d\x18")
_ESTIMATORS: Final = (b"sklearn", b"xgboost", b"lightgbm", b"catboost")
_MANY: Final = 20_000  # files in a zip


def head(path: Path, size: int = _PEEK) -> bytes:
    """Return the first bytes of a file; none of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def is_pickle(path: Path) -> bool:
    """True if a file is a pickle, or one that joblib has compressed: to load it can run code."""
    first = head(path, 8)
    return (first[:1] == _PICKLE and len(first) > 1 and first[1] in _PROTOCOLS) or first.startswith(_COMPRESSED)


def is_estimator(path: Path) -> bool:
    """True if a pickle holds an estimator of scikit-learn, or of a library that follows it."""
    if not is_pickle(path):
        return False
    start = head(path, _PICKLE_PEEK)
    return start.startswith(_COMPRESSED) or any(name in start for name in _ESTIMATORS)


def is_xgboost_json(path: Path) -> bool:
    """True if a JSON file is a model of XGBoost."""
    start = head(path).lstrip()
    return start.startswith(b"{") and b'"learner"' in start


def is_lightgbm_text(path: Path) -> bool:
    """True if a text file is a model of LightGBM."""
    return head(path, 16).replace(b"\r\n", b"\n").startswith(b"tree\nversion=")


def is_torchscript(path: Path) -> bool:
    """True if a file of torch holds code: weights alone are no model that can be run."""
    names = zip_names(path)
    return any("/code/" in name for name in names) and any(name.endswith("constants.pkl") for name in names)


def zip_names(path: Path) -> list[str]:
    """Return the names of the files in a zip; none for any other file."""
    import zipfile  # here, because few models need it

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()[:_MANY]
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return []


TRITON_PYTHON: Final = "python"
"""The backend of classes that were written for Triton's Python backend."""
TRITON_CLASS: Final = "TritonPythonModel"


def is_triton_python(path: Path) -> bool:
    """True if a file of Python has the class of Triton's Python backend."""
    return _defines(path, rb"class\s+TritonPythonModel\b")


MLFLOW: Final = "mlflow"
MLSERVER: Final = "mlserver"
"""The backend of classes that `model-settings.json` of MLServer names."""
SCRIPT_APIS: Final[Mapping[str, str]] = {
    "sagemaker": "sagemaker",
    "huggingface": "huggingface",
    "azureml": "azure",
    "litserve": "litserve",
    "torchserve": "torchserve",
    "truss": "truss",
    "kserve": "kserve",
    MLFLOW: MLFLOW,
}
"""The backends of scripts that were written for other servers, with the endpoints of these, as `--api` calls them."""
PYTRITON: Final = "pytriton"
SCRIPTS: Final = (*(name for name in SCRIPT_APIS if name != MLFLOW), PYTRITON)
SCRIPT_TITLES: Final[Mapping[str, str]] = {
    "sagemaker": "a script for SageMaker",
    "huggingface": "a handler of Hugging Face",
    "azureml": "a script for Azure ML",
    "litserve": "a file for LitServe",
    "torchserve": "a handler of TorchServe",
    "truss": "a Truss",
    "kserve": "a model for KServe",
    PYTRITON: "a script for PyTriton",
    MLFLOW: "a model of MLflow",
    MLSERVER: "a runtime for MLServer",
}
"""Their names for people."""
WITH_EXAMPLES: Final = (MLFLOW, "truss", "huggingface")
"""The backends whose files may have examples of inputs."""
KSERVE: Final = "kserve"
LITSERVE: Final = "litserve"
CODE: Final = (TRITON_PYTHON, *SCRIPTS)
"""The backends of files of Python, which may load the files beside them."""


def is_sagemaker(path: Path) -> bool:
    """True if a file of Python has a function of a script for SageMaker; each may be left out."""
    return _defines(path, rb"(async\s+)?def\s+(model|input|predict|output|transform)_fn\b")


def has_sagemaker(folder: Path) -> bool:
    """True if a folder is a model of SageMaker, with its script in `code`, or one that `SAGEMAKER_PROGRAM` names."""
    return sagemaker_program(folder) is not None or is_sagemaker(folder / CODE_FOLDER / SAGEMAKER_FILE)


def _is_inference(path: Path) -> bool:
    """True if a file is a script for SageMaker, and the variable names no other one for its folder."""
    return is_sagemaker(path) and sagemaker_program(path.parent) in {None, path}


def is_hugging_face(path: Path) -> bool:
    """True if a file of Python has the class of an endpoint of Hugging Face."""
    return _defines(path, rb"class\s+EndpointHandler\b")


def is_azure(path: Path) -> bool:
    """True if a file of Python, called score.py or like that, has both functions of a script for Azure ML."""
    return "score" in path.stem.lower() and _defines(path, rb"def\s+init\b") and _defines(path, rb"def\s+run\b")


def is_litserve(path: Path) -> bool:
    """True if a file of Python has a class for LitServe, or its server."""
    if not _defines(path, rb"[ \t]*(import|from)\s+litserve"):
        return False
    return _defines(path, rb"class\s+\w+\s*\([^)]*LitAPI") or makes_server(path)


def is_torchserve(path: Path) -> bool:
    """True if a file of Python has a handler of TorchServe: a class derived from one, or a function `handle`."""
    if _defines(path, rb"(async\s+)?def\s+handle\s*\(\s*data\s*,\s*(context|ctx)\b"):
        return True
    return _defines(path, rb"[ \t]*(import|from)\s+ts\b") and _defines(path, rb"class\s+\w+|def\s+handle\b")


def is_torch_archive(folder: Path) -> bool:
    """True if a folder has the contents of an archive for TorchServe."""
    return (folder / "MAR-INF/MANIFEST.json").is_file()


def is_truss(folder: Path) -> bool:
    """True if a folder is a Truss with a class of its own: those of engines have none."""
    return (folder / "config.yaml").is_file() and _defines(folder / "model/model.py", rb"class\s+\w+")


def makes_server(path: Path) -> bool:
    """True if a file of Python makes a server of LitServe: it comes before those with its classes."""
    return _defines(path, rb".*\bLitServer\s*\(")


def is_mlflow(folder: Path) -> bool:
    """True if a folder is a model of MLflow."""
    return _defines(folder / "MLmodel", rb"flavors:")


def is_kserve(path: Path) -> bool:
    """True if a file of Python has a class for KServe, or starts its server with one from elsewhere."""
    if not _defines(path, rb"[ \t]*(import|from)\s+kserve\b"):
        return False
    return _defines(path, rb"class\s+\w+\s*\([^)]*\bModel\b") or _defines(path, rb".*\bModelServer\s*\(")


def is_pytriton(path: Path) -> bool:
    """True if a file of Python binds models to PyTriton's server."""
    return _defines(path, rb"[ \t]*(import|from)\s+pytriton\b") and _defines(path, rb".*\.bind\s*\(")


def _defines(path: Path, pattern: bytes) -> bool:
    return re.search(rb"^(?:" + pattern + rb")", head(path, _CODE_PEEK), re.MULTILINE) is not None


def is_saved_model(folder: Path) -> bool:
    """True if a folder is a SavedModel of TensorFlow."""
    return (folder / "saved_model.pb").is_file()


def is_language_model(folder: Path) -> bool:
    """Return True for a folder with a model of transformers that goes on with a text, in safetensors."""
    return not (folder / "modules.json").is_file() and _is_transformer(folder, rb"ForCausalLM|LMHeadModel")


def is_whisper(folder: Path) -> bool:
    """Return True for a folder with a Whisper of transformers, which writes down speech, in safetensors."""
    return _is_transformer(folder, rb"WhisperForConditionalGeneration")


def is_cross_encoder(folder: Path) -> bool:
    """Return True for a folder with a model of transformers for the classification of texts, in safetensors."""
    if (folder / "modules.json").is_file():
        about = head(folder / "config_sentence_transformers.json")
        if re.search(rb'"model_type"\s*:\s*"CrossEncoder"', about) is None:
            return False
    return _is_transformer(folder, rb"ForSequenceClassification")


def _is_transformer(folder: Path, kinds: bytes) -> bool:
    start = head(folder / "config.json", _CONFIG_PEEK)
    found = re.search(rb'"architectures"\s*:\s*\[\s*"\w*(?:' + kinds + rb')"', start)
    return found is not None and any(folder.glob("*.safetensors"))


def is_sentence_transformer(folder: Path) -> bool:
    """True if a folder is a model of sentence-transformers, or the transformer alone that can be made into one."""
    markers = ("modules.json", "model.safetensors", "config_sentence_transformers.json")
    return (folder / "config.json").is_file() and any((folder / name).is_file() for name in markers)


_BACKENDS_GROUP: Final = "geartrain.backends"
_SUFFIXES_GROUP: Final = "geartrain.suffixes"


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format: the backend that runs it, the Open Inference Protocol's names for it, and how it is recognised.

    `suffixes` are those of its files, in lower case; `names` are names of single files. `is_one` tells its files from
    others that have such a suffix or name too; None where that says enough. `is_folder`: it is a folder, and `is_one`
    recognises it whatever it is called. `is_script`: it is a file of Python, whatever it is called. `runs_code`:
    whether loading a file can run code that is in it.
    """

    backend: str
    platforms: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_one: Callable[[Path], bool] | None = None
    is_folder: bool = False
    is_script: bool = False
    runs_code: Callable[[Path], bool] = lambda _path: False

    def fits(self, path: Path) -> bool:
        """True if what lies at a path looks like this format, from its name and as far as is cheap to see."""
        if self.is_folder:
            return path.is_dir() and self.is_one is not None and self.is_one(path)
        is_named = path.suffix.lower() in self.suffixes or path.name in self.names
        is_named = is_named or (self.is_script and path.suffix == ".py")
        return is_named and (self.is_one is None or self.is_one(path))


def _is_no_archive(path: Path) -> bool:
    """True if a scikit-learn file is none of skops: whatever else it is called, only an archive is never unpickled."""
    return not head(path, 4).startswith(b"PK\x03\x04")


def _has_pickled_weights(folder: Path) -> bool:
    return any(folder.rglob("*.bin")) and not any(folder.rglob("*.safetensors"))


FORMATS: Final = (
    Format(backend="onnx", platforms=("onnx_onnxv1", "onnxruntime_onnx"), suffixes=(".onnx",)),
    Format(
        backend="torch",
        platforms=("pytorch_torchscript", "pytorch_libtorch"),
        suffixes=(".pt", ".pth"),
        is_one=is_torchscript,
    ),
    Format(backend="torch", platforms=("pytorch_export",), suffixes=(".pt2",)),
    Format(backend="sklearn", platforms=("sklearn_joblib",), suffixes=(".joblib",), runs_code=_is_no_archive),
    Format(
        backend="sklearn",
        platforms=("sklearn_pickle",),
        suffixes=(".pkl", ".pickle"),
        is_one=is_estimator,
        runs_code=_is_no_archive,
    ),
    Format(backend="sklearn", platforms=("sklearn_skops",), suffixes=(".skops",), runs_code=_is_no_archive),
    Format(backend="xgboost", platforms=("xgboost_ubj",), suffixes=(".ubj",)),
    Format(backend="xgboost", platforms=("xgboost_json",), suffixes=(".json",), is_one=is_xgboost_json),
    Format(backend="lightgbm", platforms=("lightgbm_text",), suffixes=(".txt",), is_one=is_lightgbm_text),
    Format(backend="catboost", platforms=("catboost_cbm",), suffixes=(".cbm",)),
    Format(
        backend="tensorflow",
        platforms=("tensorflow_savedmodel",),
        suffixes=(".savedmodel",),
        is_one=is_saved_model,
        is_folder=True,
    ),
    Format(
        backend=MLFLOW,
        platforms=(MLFLOW,),
        is_one=is_mlflow,
        is_folder=True,
        runs_code=lambda _folder: True,
    ),
    Format(backend=TRITON_PYTHON, platforms=(TRITON_PYTHON,), names=("model.py",), is_one=is_triton_python),
    Format(backend="sagemaker", platforms=("sagemaker",), names=(SAGEMAKER_FILE,), is_one=_is_inference),
    Format(backend="sagemaker", platforms=("sagemaker",), is_one=has_sagemaker, is_folder=True),
    Format(backend="huggingface", platforms=("huggingface",), names=("handler.py",), is_one=is_hugging_face),
    Format(backend="azureml", platforms=("azureml",), is_one=is_azure, is_script=True),
    Format(backend="litserve", platforms=("litserve",), is_one=is_litserve, is_script=True),
    Format(backend="torchserve", platforms=("torchserve",), suffixes=(".mar",)),
    Format(backend="torchserve", platforms=("torchserve",), is_one=is_torch_archive, is_folder=True),
    Format(backend="torchserve", platforms=("torchserve",), is_one=is_torchserve, is_script=True),
    Format(backend="truss", platforms=("truss",), is_one=is_truss, is_folder=True),
    Format(backend="kserve", platforms=("kserve",), is_one=is_kserve, is_script=True),
    Format(backend=PYTRITON, platforms=(PYTRITON,), is_one=is_pytriton, is_script=True),
    Format(backend=MLSERVER, platforms=(MLSERVER,)),
    Format(backend="llama_cpp", platforms=("llama_cpp",), suffixes=(".gguf",)),
    Format(backend="whisper", platforms=("whisper",), is_one=is_whisper, is_folder=True),
    Format(backend="transformers", platforms=("transformers",), is_one=is_language_model, is_folder=True),
    Format(backend="cross_encoder", platforms=("cross_encoder",), is_one=is_cross_encoder, is_folder=True),
    Format(
        backend="sentence_transformers",
        platforms=("sentence_transformers",),
        is_one=is_sentence_transformer,
        is_folder=True,
        runs_code=_has_pickled_weights,
    ),
)

REFUSED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "caffe2_netdef": (
        (".netdef",),
        "Caffe2 is no longer developed; convert the model to ONNX, with caffe2.python.onnx of PyTorch 1.x",
    ),
    "mxnet_mxnet": (
        ("-symbol.json",),
        "Apache MXNet is retired; convert the model to ONNX, with mxnet.onnx.export_model of MXNet 1.9",
    ),
    "tensorflow_graphdef": (
        (".graphdef",),
        "TensorFlow 2 no longer makes frozen graphs; save it as a SavedModel, or convert it with tf2onnx --graphdef",
    ),
    "tensorrt_plan": (
        (".plan", ".engine"),
        "a plan runs only on the kind of GPU that it was built for; serve the ONNX file that it was built from",
    ),
}
"""Platforms that are not served: the endings of their files' names, and what to do instead."""


def named_format(path: Path) -> Format | None:
    """Return the format that the name of an explicitly named file stands for: its content need not fit."""
    suffix = path.suffix.lower()
    fitting = [each for each in FORMATS if each.fits(path)]
    return next(iter(fitting or [each for each in FORMATS if suffix in each.suffixes]), None)


def backend_of(path: Path) -> str | None:
    """Return the backend of what lies at a path, found by its name and its content; None if it is no model file."""
    found = next((each.backend for each in FORMATS if each.fits(path)), None)
    return found or (None if path.is_dir() else offered_suffixes().get(path.suffix.lower()))


def backend_of_platform(platform: str) -> str:
    """Return the backend that runs a platform; raise ProjectError for one that is refused, or not known."""
    for each in FORMATS:
        if platform in each.platforms:
            return each.backend
    if platform in REFUSED:
        raise ProjectError(f"{platform} cannot be served: {REFUSED[platform][1]}")
    known = ", ".join(each.platforms[0] for each in FORMATS)
    raise ProjectError(f"there is no platform {platform!r}; there are {known}")


def refusal(path: Path) -> ProjectError | None:
    """Return the reason for which a file cannot be served, by the ending of its name; None if it may be served."""
    name = path.name.lower()
    for platform, (endings, advice) in REFUSED.items():
        if name.endswith(endings):
            return ProjectError(f"{path}: {platform} cannot be served: {advice}")
    return None


def can_run_code(path: Path, backend: str) -> bool:
    """True if loading a file can run code that is in it."""
    own = [each for each in FORMATS if each.backend == backend]
    if not own:
        return path.is_file() and is_pickle(path)  # of a backend of another package
    return any(each.runs_code(path) for each in own)


def known_suffixes() -> tuple[str, ...]:
    """Return the suffixes of model files."""
    own = [suffix for each in FORMATS for suffix in each.suffixes]
    return tuple(dict.fromkeys([*own, *offered_suffixes()]))


def known_backends() -> tuple[str, ...]:
    """Return the names of the backends: geartrain's own, and those of other packages."""
    offered = [name for name, _ in _entry_points(_BACKENDS_GROUP)]
    return tuple(dict.fromkeys([*(each.backend for each in FORMATS), *sorted(offered)]))


@functools.cache
def offered_suffixes() -> Mapping[str, str]:
    """Return the suffixes that other packages' backends take, with the backend: only their metadata is read."""
    return {f".{name.lower().removeprefix('.')}": value for name, value in _entry_points(_SUFFIXES_GROUP)}


def _entry_points(group: str) -> list[tuple[str, str]]:
    from importlib.metadata import entry_points  # here, because a model that is code needs none of it

    return [(point.name, point.value) for point in entry_points(group=group)]
