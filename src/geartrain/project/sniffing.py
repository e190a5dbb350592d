"""A cheap look into a file whose suffix other kinds of files have, too: is it a model? Nothing of it is run.

Whatever is in doubt is none: it can still be named, on the command line or by `file:` in `geartrain.yaml`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PEEK: Final = 4096  # bytes
_CONFIG_PEEK: Final = 1024 * 1024
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
