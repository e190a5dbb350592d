"""Models of tensors. The fake worker and real ones run the same; what they do is told by `steps`."""

# mypy: disable-error-code="name-defined"
# ruff: noqa: F722, TC002 - the annotations are read when it is loaded, and a shape is no annotation

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple, Optional

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

import geartrain
from tests.contract.model.run import wait_in_place, wait_on_loop, write_file


class Both(NamedTuple):
    """What the models give."""

    y: Float32[np.ndarray, "*shape"]
    label: str
    file: Optional[geartrain.Path] = None  # noqa: UP045 - as older models are written


def both(x: NDArray[np.float32], step: str) -> Both:
    """Do a step, and return the tensor with a label."""
    name, _, rest = step.partition(" ")
    if name == "raise":
        raise ValueError("as asked")
    if name == "wrong":
        return Both(np.array(["text"]), "")
    parameters = geartrain.current_scope().parameters
    file = write_file(rest, "content") if name == "file" else None
    return Both(x * 2, f"{x.shape} {parameters}", file)


class AsyncValue(geartrain.BaseRunner):
    """Returns one value, on a loop."""

    async def run(self, x: NDArray[np.float32], step: str = "") -> Both:
        """Do what the step says."""
        if step.startswith("wait "):
            await wait_on_loop(step.removeprefix("wait "))
        return both(x, step)


class SyncValue(geartrain.BaseRunner):
    """Returns one value, without a loop."""

    def run(self, x: NDArray[np.float32], step: str = "") -> Both:
        """Do what the step says."""
        if step.startswith("wait "):
            with contextlib.suppress(StopIteration):
                wait_in_place(step.removeprefix("wait ")).send(None)
        return both(x, step)


class AsyncStream(geartrain.BaseRunner):
    """Streams, on a loop."""

    async def run(self, x: NDArray[np.float32], step: str = "") -> AsyncIterator[NDArray[np.float32]]:
        """Give the tensor as often as the step says, each time with another number added."""
        for number in range(int(step or 1)):
            yield x + np.float32(number)
            await asyncio.sleep(0)


class SyncStream(geartrain.BaseRunner):
    """Streams, without a loop."""

    def run(self, x: NDArray[np.float32], step: str = "") -> Iterator[NDArray[np.float32]]:
        """Give the tensor as often as the step says, each time with another number added."""
        for number in range(int(step or 1)):
            yield x + np.float32(number)
