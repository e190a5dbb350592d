"""Makes the weights of `run.py`: the line with the least squares through points."""

import csv
import json
import tempfile
from statistics import linear_regression

from geartrain import BaseModel, Input, Path, current_scope


class TrainingOutput(BaseModel):
    """Output of a training; `weights` is the file that `setup()` of `run.py` takes."""

    weights: Path


def train(data: Path = Input(description="CSV without a head: x, y")) -> TrainingOutput:
    """Fit the line."""
    with data.open(newline="") as table:
        points = [(float(x), float(y)) for x, y in csv.reader(table)]
    line = linear_regression(*zip(*points, strict=True))
    print(f"{len(points)} points: y = {line.slope:g} x + {line.intercept:g}")
    current_scope().record_metric("points", len(points))
    weights = Path(tempfile.mkdtemp(), "weights.json")
    weights.write_text(json.dumps({"slope": line.slope, "offset": line.intercept}))
    return TrainingOutput(weights=weights)
