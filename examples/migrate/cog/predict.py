import json
import math

from cog import BaseModel, BasePredictor, Input


class Guess(BaseModel):
    label: str
    distance: float


class Predictor(BasePredictor):
    def setup(self) -> None:
        with open("centroids.json") as file:
            self.centroids = json.load(file)

    def predict(self, petal: list[float] = Input(description="Length and width of a petal in cm")) -> Guess:
        distances = {label: math.dist(petal, centroid) for label, centroid in self.centroids.items()}
        label = min(distances, key=distances.get)
        return Guess(label=label, distance=round(distances[label], 3))
