"""Gives its tensor, to several clients in one call."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from jaxtyping import Float32

from geartrain import BaseRunner, batched


class Result(TypedDict):
    y: Float32[np.ndarray, "rows columns"]


class Runner(BaseRunner):
    @batched(max_size=64)
    def run(self, x: Float32[np.ndarray, "rows columns"]) -> Result:
        return {"y": x}
