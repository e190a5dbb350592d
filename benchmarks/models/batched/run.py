"""Twice the number and one, 5 ms for each batch, whatever its size."""

import time

from geartrain import BaseRunner, batched


class Runner(BaseRunner):
    @batched(max_size=32)
    def run(self, x: list[float]) -> list[float]:
        until = time.perf_counter() + 0.005
        time.sleep(0.0045)  # less than 5 ms: it may wake late
        while time.perf_counter() < until:
            pass
        return [each * 2 + 1 for each in x]
