"""Arrays in, arrays out, over REST and gRPC of the Open Inference Protocol, and as nested lists in JSON."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geartrain import BaseRunner


class Result(NamedTuple):
    """Each field is a tensor of the answer."""

    scores: NDArray[np.float32]  # rows x classes; each row adds up to 1
    best: NDArray[np.int64]  # rows


class Runner(BaseRunner):
    def setup(self) -> None:
        # Load weights here, in place of these: 3 features, 2 classes.
        self.weights = np.array([[1, -1], [0.5, 0.5], [-1, 1]], np.float32)

    # To fix the shape, annotate with jaxtyping: Float32[np.ndarray, "rows 3"].
    def run(self, features: NDArray[np.float32]) -> Result:
        if features.ndim != 2 or features.shape[1] != len(self.weights):
            raise ValueError(f"features has the shape {features.shape}; send rows of {len(self.weights)} numbers")
        powers = np.exp(features @ self.weights)
        scores = powers / powers.sum(axis=1, keepdims=True)
        return Result(scores, scores.argmax(axis=1))
