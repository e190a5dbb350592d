"""Decorators as beginners write them: without functools.wraps, with arguments, one above the other."""

import os
import time

from cog import BasePredictor, Input


def timed(function):
    def wrapper(*args, **kwargs):
        started = time.time()
        result = function(*args, **kwargs)
        print(f"took less than {int(time.time() - started) + 1} s")
        return result

    return wrapper


def repeated(times, separator=" "):
    def decorate(function):
        def wrapper(self, *args, **kwargs):
            return separator.join(function(self, *args, **kwargs) for _ in range(times))

        return wrapper

    return decorate


class Predictor(BasePredictor):
    @timed
    def setup(self, weights):
        self.weights = os.path.basename(weights)

    @timed
    @repeated(2, separator="+")
    def predict(
        self,
        prompt: str = Input(description="What to say", min_length=1),
        loud: bool = False,
    ) -> str:
        """Say it."""
        return f"{self.weights}:{prompt.upper() if loud else prompt}"
