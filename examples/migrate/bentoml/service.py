import json
import math
from pathlib import Path

import bentoml


@bentoml.service(traffic={"timeout": 10})
class Iris:
    def __init__(self) -> None:
        self.centroids = json.loads(Path("centroids.json").read_text())

    @bentoml.api
    def classify(self, petal: list[float]) -> dict[str, str | float]:
        distances = {label: math.dist(petal, centroid) for label, centroid in self.centroids.items()}
        label = min(distances, key=distances.get)
        return {"label": label, "distance": round(distances[label], 3)}
