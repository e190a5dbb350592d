"""Models of sentence-transformers: a text in, the vector that stands for it out."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

from geartrain.backends.arrays import decoded
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.backends.libraries import note, require
from geartrain.backends.options import flag, text, whole_number, wrong
from geartrain.backends.torch_device import choose_device, set_threads
from geartrain.domain.tensors.tensor import VARIABLE

if TYPE_CHECKING:
    import numpy as np

_EXTRA: Final = "sentence-transformers"
_POOLINGS: Final = ("mean", "cls", "max", "lasttoken")
_AT_ONCE: Final = 32  # texts; a longer batch is done in parts, sorted by length so that little is padded


class SentenceTransformersBackend(Backend):
    """A folder that `SentenceTransformer.save()` has written: `modules.json`, `config.json`, `model.safetensors`.

    Texts are `text`, their vectors are `embedding`. Nothing is downloaded, and no code in the folder is run. A text's
    vector depends in its last bits on the length of the longest text beside it: within 1e-6 for a vector of length 1.
    """

    platform = "sentence_transformers"
    options = frozenset(
        {"device", "threads", "normalize", "prompt_name", "max_tokens", "batch_size", "pooling"},
    )

    def load(self) -> None:
        pooling = text(self.given, "pooling", choices=_POOLINGS)
        tokens = whole_number(self.given, "max_tokens")
        self._settings = {
            "normalize_embeddings": flag(self.given, "normalize") or False,
            "batch_size": whole_number(self.given, "batch_size") or _AT_ONCE,
            "prompt_name": text(self.given, "prompt_name"),
        }
        self._check_folder(pooling)
        # The library would look on the internet for what is not in the folder, and draw bars into the log.
        os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
        library = require("sentence_transformers", extra=_EXTRA)
        require("transformers", extra=_EXTRA).utils.logging.disable_progress_bar()
        torch = require("torch", extra=_EXTRA)
        device = choose_device(torch, self.given)
        threads = set_threads(torch, self.given)
        try:
            self._model = self._open(library, device, pooling)
            size = len(self._model.encode(["a"])[0])
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"sentence-transformers cannot load it: {type(error).__name__}: {first}") from error
        if tokens is not None:
            self._limit(tokens)
        self._check_prompt()
        self.inputs = (TensorSpec("text", "BYTES", (VARIABLE,)),)
        self.outputs = (TensorSpec("embedding", "FP32", (VARIABLE, size)),)
        self.description = f"Vectors of {size} numbers, of texts of up to {self._model.max_seq_length} tokens."
        note(f"{self.path.name}: sentence-transformers {library.__version__} on {device}, {threads} threads")

    def _check_folder(self, pooling: str | None) -> None:
        if not (self.path / "config.json").is_file():
            raise BackendError("there is no config.json in it; a folder of SentenceTransformer.save() is expected")
        if not (self.path / "modules.json").is_file() and pooling is None:
            fix = (
                "save it with SentenceTransformer.save(), or set `parameters.pooling` to mean, or what it was made for"
            )
            raise BackendError(f"there is no modules.json in it, which says how tokens become one vector; {fix}")
        if (self.path / "modules.json").is_file() and pooling is not None:
            raise BackendError(
                "remove `parameters.pooling`: the folder's modules.json says how tokens become one vector"
            )

    def _open(self, library: Any, device: str, pooling: str | None) -> Any:
        safe = {"use_safetensors": True} if any(self.path.rglob("*.safetensors")) else {}
        model = library.SentenceTransformer(str(self.path), device=device, local_files_only=True, model_kwargs=safe)
        if pooling not in {None, "mean"}:  # the library itself takes the mean, where nothing is said
            size = len(model.encode(["a"])[0])
            model[1] = importlib.import_module("sentence_transformers.models").Pooling(size, pooling)
        return model

    def _limit(self, tokens: int) -> None:
        most = self._model.max_seq_length
        if most is not None and tokens > most:
            raise wrong("max_tokens", tokens, f"the model takes up to {most}")
        self._model.max_seq_length = tokens

    def _check_prompt(self) -> None:
        name = self._settings["prompt_name"]
        if name is not None and name not in self._model.prompts:
            known = ", ".join(self._model.prompts) or "none"
            raise wrong("prompt_name", name, f"the model's prompts are: {known}")

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import numpy as np

        texts = decoded("text", inputs["text"]).tolist()
        if not texts:
            return {"embedding": np.empty((0, self.outputs[0].shape[1]), np.float32)}
        found = self._model.encode(texts, show_progress_bar=False, **self._settings)
        return {"embedding": np.asarray(found, np.float32)}
