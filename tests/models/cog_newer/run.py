"""The newer style: `BaseRunner`, `run()`, streaming, a secret, metrics, clean-up when it is canceled."""

import time
from enum import Enum
from typing import Literal

import cog
from cog import BaseRunner, CancelationException, ConcatenateIterator, Input, Secret, current_scope, streaming


class Case(str, Enum):
    UPPER = "upper"
    LOWER = "lower"


class Runner(BaseRunner):
    def setup(self):
        self.canceled = 0

    def healthcheck(self) -> bool:
        return self.canceled < 1000

    @streaming
    def run(
        self,
        prompt: str = Input(description="Text to give back word by word"),
        case: Case = Input(description="Letters", default=Case.LOWER),
        separator: Literal[" ", "-", "_"] = Input(default=" "),
        pause: float | None = Input(description="Seconds between words", ge=0, le=60, default=None),
        token: Secret | None = Input(description="Not to be shown", default=None),
    ) -> ConcatenateIterator[str]:
        words = prompt.split()
        self.record_metric("words", len(words))
        current_scope().metrics["cog"] = bool(cog.__version__)
        if token is not None:
            print(f"token {token} has {len(token.get_secret_value())} characters")
        try:
            for index, word in enumerate(words):
                word = word.upper() if case == Case.UPPER else word.lower()
                yield (separator if index else "") + word
                if pause:
                    time.sleep(pause)
        except CancelationException:
            self.canceled += 1
            print("cleaned up")
            raise
