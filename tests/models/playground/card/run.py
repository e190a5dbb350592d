"""A model with a card: what it is, examples to begin with, and outputs in an order of its author."""

from geartrain import BaseModel, BaseRunner, Input, Path


class Score(BaseModel):
    label: str
    score: float


class Reading(BaseModel):
    title: str
    scores: list[Score]
    bytes: int


class Runner(BaseRunner):
    """Reads a picture, and says how sure it is."""

    def run(self, image: Path, title: str = "A picture", least: float = Input(default=0.1, ge=0, le=1)) -> Reading:
        """Scores below `least` are left out."""
        found = [("gear", 0.140174), ("mill", 0.12485), ("river", 0.5)]
        scores = [Score(label=label, score=score) for label, score in found if score >= least]
        return Reading(title=title, scores=scores, bytes=image.stat().st_size)
