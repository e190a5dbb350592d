"""The backends by name: geartrain's own, and those that other packages offer as entry points."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from typing import Final

from geartrain.backends.interface import Backend, BackendError
from geartrain.backends.text import RankBackend, SpeechBackend, TextBackend

GROUP: Final = "geartrain.backends"

BUILT_IN: Final = {
    "catboost": "geartrain.backends.catboost:CatBoostBackend",
    "cross_encoder": "geartrain.backends.cross_encoder:CrossEncoderBackend",
    "lightgbm": "geartrain.backends.lightgbm:LightGbmBackend",
    "llama_cpp": "geartrain.backends.llama_cpp:LlamaCppBackend",
    "onnx": "geartrain.backends.onnx:OnnxBackend",
    "sentence_transformers": "geartrain.backends.sentence_transformers:SentenceTransformersBackend",
    "sklearn": "geartrain.backends.sklearn:SklearnBackend",
    "tensorflow": "geartrain.backends.tensorflow:TensorFlowBackend",
    "torch": "geartrain.backends.torch:TorchBackend",
    "transformers": "geartrain.backends.transformers:TransformersBackend",
    "whisper": "geartrain.backends.whisper:WhisperBackend",
    "xgboost": "geartrain.backends.xgboost:XgBoostBackend",
}


def backend_class(name: str) -> type[Backend | TextBackend | RankBackend | SpeechBackend]:
    """Return the backend of a name; geartrain's own come before others of the same name. Raises `BackendError`."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
    else:
        found = _entry_point(name)
    if not (isinstance(found, type) and issubclass(found, (Backend, TextBackend, RankBackend, SpeechBackend))):
        kinds = "geartrain.backends.interface.Backend, or of TextBackend and its like in geartrain.backends.text"
        raise BackendError(f"backend '{name}' is no subclass of {kinds}")
    return found


def _entry_point(name: str) -> object:
    points = importlib.metadata.entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            try:
                return point.load()
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise BackendError(f"backend '{name}' ({point.value}) cannot be imported: {what}") from error
    names = sorted({*BUILT_IN, *(point.name for point in points)})
    close = difflib.get_close_matches(name, names, n=1)
    offer = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(names)}"
    raise BackendError(f"there is no backend '{name}'; {offer}")
