"""A loop of steps of 5 ms, each with a piece for all requests that are there; what a step computes is slept instead."""

import time
from collections.abc import Iterator

from geartrain import BaseRunner, Batch, Input, joint, streaming


class Wish:
    steps: int = Input(ge=1)


class Runner(BaseRunner):
    @joint(max_size=32)
    @streaming
    def run(self, batch: Batch[Wish, Iterator[str]]) -> None:
        for live in batch:
            time.sleep(0.005)
            for request in live:
                request.state = (request.state or 0) + 1
                request.send("#")
                if request.state == request.inputs.steps:
                    request.end()
