"""Cross-encoders of sentence-transformers: how well documents fit a query."""

from __future__ import annotations

import os
from typing import Final

from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import note, require
from geartrain.backends.options import whole_number, wrong
from geartrain.backends.text import RankBackend
from geartrain.backends.torch_device import choose_device, set_threads

_EXTRA: Final = "sentence-transformers"
_AT_ONCE: Final = 32  # documents; more are done in parts, sorted by length so that little is padded


class CrossEncoderBackend(RankBackend):
    """A folder that `CrossEncoder.save_pretrained()` has written, or a classifier of texts with a single label.

    Nothing is downloaded, and no code in the folder is run.
    """

    platform = "cross_encoder"
    options = frozenset({"device", "threads", "max_tokens", "batch_size"})

    def load(self) -> None:
        tokens = whole_number(self.given, "max_tokens")
        self._at_once = whole_number(self.given, "batch_size") or _AT_ONCE
        # The library would look on the internet for what is not in the folder, and draw bars into the log.
        os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
        library = require("sentence_transformers", extra=_EXTRA)
        require("transformers", extra=_EXTRA).utils.logging.disable_progress_bar()
        torch = require("torch", extra=_EXTRA)
        device = choose_device(torch, self.given)
        threads = set_threads(torch, self.given)
        try:
            self._model = library.CrossEncoder(
                str(self.path), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"sentence-transformers cannot load it: {type(error).__name__}: {first}") from error
        labels = self._model.config.num_labels
        if labels != 1:
            raise BackendError(f"it tells {labels} labels apart; one that scores documents has a single one")
        longest = self._model.max_length
        if tokens is not None:
            if longest is not None and tokens > longest:
                raise wrong("max_tokens", tokens, f"the model takes up to {longest}")
            self._model.max_length = tokens
        self.description = f"Scores of documents for a query, of up to {self._model.max_length} tokens together."
        note(f"{self.path.name}: sentence-transformers {library.__version__} on {device}, {threads} threads")

    def rank(self, query: str, documents: list[str]) -> list[float]:
        if not documents:
            return []
        pairs = [(query, document) for document in documents]
        scores: list[float] = self._model.predict(pairs, batch_size=self._at_once, show_progress_bar=False).tolist()
        return scores
