from pathlib import Path

from cog import BasePredictor
from src.words import Counter

from .words import Counter as SameCounter


class Predictor(BasePredictor):
    def setup(self):
        self.greeting = (Path(__file__).parent / "greeting.txt").read_text().strip()

    def predict(self, name: str) -> str:
        return f"{self.greeting}, {name} ({Counter().count(name)} letters, one class: {Counter is SameCounter})"
