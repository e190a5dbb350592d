"""Tells the kind of an iris by the nearest of the centroids that `train.py` has made."""

import json
import math
from pathlib import Path

from geartrain import BaseModel, BaseRunner, Input


class Guess(BaseModel):
    label: str
    distance: float


class Runner(BaseRunner):
    def setup(self, weights: str | None = None) -> None:
        # COG_WEIGHTS names the result of a training; without one there are the weights that come with the model.
        self.centroids: dict[str, list[float]] = json.loads(Path(weights or "weights.json").read_text())

    def run(self, petal: list[float] = Input(description="Length and width of a petal in cm")) -> Guess:
        distances = {label: math.dist(petal, centroid) for label, centroid in self.centroids.items()}
        label = min(distances, key=lambda label: distances[label])
        return Guess(label=label, distance=round(distances[label], 3))
