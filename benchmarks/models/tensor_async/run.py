"""Gives its tensor, to 16 clients at once."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from jaxtyping import Float32

from geartrain import BaseRunner, concurrent


class Result(TypedDict):
    y: Float32[np.ndarray, "rows columns"]


class Runner(BaseRunner):
    @concurrent(max=16)
    async def run(self, x: Float32[np.ndarray, "rows columns"]) -> Result:
        return {"y": x}
