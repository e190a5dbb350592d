"""Gives its tensor, as another model gives it."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from jaxtyping import Float32

import geartrain


class Result(TypedDict):
    y: Float32[np.ndarray, "rows columns"]


class Runner(geartrain.BaseRunner):
    echo: geartrain.Model

    def run(self, x: Float32[np.ndarray, "rows columns"]) -> Result:
        return {"y": self.echo(x=x).y}
