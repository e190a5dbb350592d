"""Gives its tensor to 16 clients at once, as a model that batches gives it."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from jaxtyping import Float32

import geartrain


class Result(TypedDict):
    y: Float32[np.ndarray, "rows columns"]


class Runner(geartrain.BaseRunner):
    batched: geartrain.Model

    @geartrain.concurrent(max=16)
    async def run(self, x: Float32[np.ndarray, "rows columns"]) -> Result:
        return {"y": (await self.batched(x=x)).y}
