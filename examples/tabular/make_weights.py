"""Trains the pipeline of `run.py` on a table of flats that is made up: `python make_weights.py`."""

import random
from pathlib import Path

import joblib
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

BASE = {"center": 14.0, "harbor": 12.5, "hills": 11.0, "west": 9.0}  # of a square meter


def make_weights(file: Path) -> None:
    """Write a pipeline that takes rows as dicts, so that names and not places say which column is which."""
    rows, rents = zip(*make_table(2000), strict=True)
    train, held_out, train_rents, held_out_rents = train_test_split(rows, rents, random_state=0)
    # Numbers stay as they are, and each text becomes a column for each of its values.
    pipeline = make_pipeline(DictVectorizer(sparse=False), HistGradientBoostingRegressor(random_state=0))
    pipeline.fit(train, train_rents)
    print(f"trained on {len(train)} rows; R² on {len(held_out)} others: {pipeline.score(held_out, held_out_rents):.3f}")
    file.parent.mkdir(exist_ok=True)
    joblib.dump(pipeline, file)


def make_table(size: int) -> list[tuple[dict[str, object], float]]:
    """Return rows of flats, each with its rent."""
    chance = random.Random(0)  # noqa: S311 - for data, not for secrets
    table = []
    for _ in range(size):
        area, district, balcony = chance.uniform(20, 160), chance.choice(list(BASE)), chance.random() < 0.5
        rooms = max(1, round(area / 30 + chance.uniform(-1, 1)))
        rent = (area * BASE[district] + 60 * balcony + 15 * rooms) * chance.gauss(1, 0.03)
        table.append(({"area": area, "rooms": rooms, "district": district, "balcony": balcony}, rent))
    return table


if __name__ == "__main__":
    make_weights(Path(__file__).parent / "weights" / "rents.joblib")
