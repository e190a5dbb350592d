"""Makes the weights of `run.py`: the centroid of each label in a table of points."""

import csv
import json
import tempfile
from collections import defaultdict
from statistics import fmean

from geartrain import BaseModel, Input, Path, current_scope


class TrainingOutput(BaseModel):
    weights: Path
    points: int


def train(data: Path = Input(description="CSV without a head: length, width, label")) -> TrainingOutput:
    points = defaultdict(list)
    with data.open(newline="") as table:
        for *numbers, label in csv.reader(table):
            points[label].append([float(number) for number in numbers])
    centroids = {label: [round(fmean(axis), 3) for axis in zip(*rows, strict=True)] for label, rows in points.items()}
    for label, rows in points.items():
        print(f"{label}: {len(rows)} points around {centroids[label]}")
    current_scope().record_metric("labels", len(centroids))
    weights = Path(tempfile.gettempdir(), "centroids.json")
    weights.write_text(json.dumps(centroids))
    return TrainingOutput(weights=weights, points=sum(map(len, points.values())))
