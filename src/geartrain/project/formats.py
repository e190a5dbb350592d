"""The formats of model files: how each is recognised, and which backend runs it. A new format is a line in a table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from geartrain.project import sniffing
from geartrain.project.errors import ProjectError

_BACKENDS_GROUP: Final = "geartrain.backends"
_SUFFIXES_GROUP: Final = "geartrain.suffixes"


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format: the backend that runs it, the Open Inference Protocol's names for it, and how it is recognised.

    `suffixes` are those of its files, in lower case. `is_one` tells its files from others that have such a suffix too;
    None where the suffix says enough. `is_folder`: it is a folder, and `is_one` recognises it whatever it is called.
    `runs_code`: whether loading a file can run code that is in it.
    """

    backend: str
    platforms: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    is_one: Callable[[Path], bool] | None = None
    is_folder: bool = False
    runs_code: Callable[[Path], bool] = lambda _path: False

    def fits(self, path: Path) -> bool:
        """True if what lies at a path looks like this format, from its name and as far as is cheap to see."""
        if self.is_folder:
            return path.is_dir() and self.is_one is not None and self.is_one(path)
        return path.suffix.lower() in self.suffixes and (self.is_one is None or self.is_one(path))


def _is_no_archive(path: Path) -> bool:
    """True if a scikit-learn file is none of skops: whatever else it is called, only an archive is never unpickled."""
    return not sniffing.head(path, 4).startswith(b"PK\x03\x04")


def _has_pickled_weights(folder: Path) -> bool:
    return any(folder.rglob("*.bin")) and not any(folder.rglob("*.safetensors"))


FORMATS: Final = (
    Format(backend="onnx", platforms=("onnx_onnxv1", "onnxruntime_onnx"), suffixes=(".onnx",)),
    Format(
        backend="torch",
        platforms=("pytorch_torchscript", "pytorch_libtorch"),
        suffixes=(".pt", ".pth"),
        is_one=sniffing.is_torchscript,
    ),
    Format(backend="torch", platforms=("pytorch_export",), suffixes=(".pt2",)),
    Format(backend="sklearn", platforms=("sklearn_joblib",), suffixes=(".joblib",), runs_code=_is_no_archive),
    Format(
        backend="sklearn",
        platforms=("sklearn_pickle",),
        suffixes=(".pkl", ".pickle"),
        is_one=sniffing.is_estimator,
        runs_code=_is_no_archive,
    ),
    Format(backend="sklearn", platforms=("sklearn_skops",), suffixes=(".skops",), runs_code=_is_no_archive),
    Format(backend="xgboost", platforms=("xgboost_ubj",), suffixes=(".ubj",)),
    Format(backend="xgboost", platforms=("xgboost_json",), suffixes=(".json",), is_one=sniffing.is_xgboost_json),
    Format(backend="lightgbm", platforms=("lightgbm_text",), suffixes=(".txt",), is_one=sniffing.is_lightgbm_text),
    Format(backend="catboost", platforms=("catboost_cbm",), suffixes=(".cbm",)),
    Format(
        backend="tensorflow",
        platforms=("tensorflow_savedmodel",),
        suffixes=(".savedmodel",),
        is_one=sniffing.is_saved_model,
        is_folder=True,
    ),
    Format(backend="llama_cpp", platforms=("llama_cpp",), suffixes=(".gguf",)),
    Format(backend="whisper", platforms=("whisper",), is_one=sniffing.is_whisper, is_folder=True),
    Format(backend="transformers", platforms=("transformers",), is_one=sniffing.is_language_model, is_folder=True),
    Format(backend="cross_encoder", platforms=("cross_encoder",), is_one=sniffing.is_cross_encoder, is_folder=True),
    Format(
        backend="sentence_transformers",
        platforms=("sentence_transformers",),
        is_one=sniffing.is_sentence_transformer,
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
        return path.is_file() and sniffing.is_pickle(path)  # of a backend of another package
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
