"""The number that it is given, after 2 ms."""

import time

from geartrain import BaseRunner


class Runner(BaseRunner):
    def run(self, x: float) -> float:
        until = time.perf_counter() + 0.002
        time.sleep(0.0015)  # less than 2 ms: it may wake late
        while time.perf_counter() < until:
            pass
        return x
