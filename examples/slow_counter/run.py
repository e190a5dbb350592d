"""A run that takes its time: its numbers come one by one, and it can be canceled at any of them."""

import time
from collections.abc import Iterator

from geartrain import BaseRunner, CancelationException, Input, streaming


class Runner(BaseRunner):
    @streaming
    def run(
        self,
        up_to: int = Input(description="The last number", default=10, ge=1, le=10_000),
        pause: float = Input(description="Seconds between two numbers", default=0.5, ge=0, le=60),
    ) -> Iterator[int]:
        number = 0
        try:
            for number in range(1, up_to + 1):
                print(f"counting {number} of {up_to}")
                yield number
                time.sleep(pause)
        except CancelationException:
            print(f"canceled at {number}")
            raise  # the place to clean up; the exception has to go on
