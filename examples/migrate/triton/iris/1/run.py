import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

import geartrain


class Guess(NamedTuple):
    label: NDArray[np.str_]
    distance: Float32[np.ndarray, "batch 1"]


class Runner(geartrain.BaseRunner):
    def setup(self) -> None:
        centroids = json.loads(Path(__file__).with_name("centroids.json").read_text())
        self.labels = np.array(list(centroids))
        self.centroids = np.array(list(centroids.values()), dtype=np.float32)

    @geartrain.batched(max_size=32, max_delay=0.001)
    def run(self, petal: Float32[np.ndarray, "batch 2"]) -> Guess:
        distances = np.linalg.norm(petal[:, None] - self.centroids, axis=2)
        best = distances.argmin(axis=1)
        return Guess(self.labels[best][:, None], distances.min(axis=1)[:, None])
