"""Predicts with a line that `train.py` has fitted."""

import json
from pathlib import Path

from geartrain import BaseRunner, Input


class Runner(BaseRunner):
    def setup(self, weights: Path | None = None) -> None:
        # COG_WEIGHTS names the result of a training. Without one, there is the line y = x.
        line = {"slope": 1.0, "offset": 0.0} if weights is None else json.loads(weights.read_text())
        self.slope, self.offset = line["slope"], line["offset"]

    def run(self, x: float = Input(description="Where to look at the line")) -> float:
        return self.slope * x + self.offset
