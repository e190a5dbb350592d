import json
import math
from pathlib import Path

from geartrain import BaseModel, BaseRunner, Input


class Guess(BaseModel):
    label: str
    distance: float


class Runner(BaseRunner):
    def setup(self) -> None:
        self.centroids: dict[str, list[float]] = json.loads(Path("centroids.json").read_text())

    def run(self, petal: list[float] = Input(description="Length and width of a petal in cm")) -> Guess:
        distances = {label: math.dist(petal, centroid) for label, centroid in self.centroids.items()}
        label = min(distances, key=lambda label: distances[label])
        return Guess(label=label, distance=round(distances[label], 3))
