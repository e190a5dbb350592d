"""Counts until it is canceled. It gives numbers one by one, but has no stream of events."""

import time
from collections.abc import Iterator

from geartrain import BaseRunner


class Runner(BaseRunner):
    def run(self) -> Iterator[int]:
        print("it begins")
        number = 0
        while True:
            number += 1
            if number <= 5:
                yield number
            time.sleep(0.01)
