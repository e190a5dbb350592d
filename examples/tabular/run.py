"""A row of a table in, a number out, with scikit-learn. Rows that come at once are predicted in one call."""

from pathlib import Path
from typing import Literal

import joblib
from make_weights import make_weights

from geartrain import BaseRunner, Input, batched

WEIGHTS = Path("weights/rents.joblib")
District = Literal["center", "harbor", "hills", "west"]


class Runner(BaseRunner):
    def setup(self) -> None:
        if not WEIGHTS.exists():
            make_weights(WEIGHTS)  # from a table that is made up. Put the file of your own pipeline here instead
        self.pipeline = joblib.load(WEIGHTS)

    # A client sends one flat and gets its rent. `run()` gets a list for each column, with up to 256 rows.
    @batched(max_size=256)
    def run(
        self,
        area: list[float] = Input(description="Square meters", ge=10, le=500),
        rooms: list[int] = Input(description="Rooms without kitchen and bath", ge=1, le=20),
        district: list[District] = Input(description="Part of the town"),
        balcony: list[bool] = Input(description="Is there a balcony", default=False),
    ) -> list[float]:
        names = ("area", "rooms", "district", "balcony")
        rows = [dict(zip(names, row, strict=True)) for row in zip(area, rooms, district, balcony, strict=True)]
        print(f"{len(rows)} rows at once")
        return [round(float(rent), 2) for rent in self.pipeline.predict(rows)]
