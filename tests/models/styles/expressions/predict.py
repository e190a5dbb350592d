"""A class of a name of its own, no cog.yaml, and inputs that only running the file can know."""

from cog import BasePredictor, Input

SIZES = [64 * step for step in range(1, 5)]


class Euler:
    order = 1


class Heun:
    order = 2


SCHEDULERS = {"euler": Euler, "heun": Heun}


class Upscaler(BasePredictor):
    def predict(
        self,
        size: int = Input(choices=SIZES, default=SIZES[-1] // 2),
        scheduler: str = Input(choices=list(SCHEDULERS), default=next(iter(SCHEDULERS))),
        strength: float = Input(ge=0, le=2**3, default=1 / 4),
    ) -> str:
        return f"{size} {SCHEDULERS[scheduler].order} {strength}"
