import json
import math
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel


class Flower(BaseModel):
    petal: list[float]


class Guess(BaseModel):
    label: str
    distance: float


app = FastAPI()
centroids = json.loads(Path("centroids.json").read_text())


@app.post("/classify")
def classify(flower: Flower) -> Guess:
    distances = {label: math.dist(flower.petal, centroid) for label, centroid in centroids.items()}
    label = min(distances, key=distances.get)
    return Guess(label=label, distance=round(distances[label], 3))
