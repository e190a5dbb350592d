"""A type of the model's own, as an input and as an output, with a coder beside it."""

from dataclasses import dataclass
from typing import List, Optional

from cog import BasePredictor, Input
from cog.coder import Coder, json_coder  # noqa: F401


class Color:
    def __init__(self, red, green, blue):
        self.red, self.green, self.blue = red, green, blue

    def mixed_with(self, other):
        return Color((self.red + other.red) // 2, (self.green + other.green) // 2, (self.blue + other.blue) // 2)


class ColorCoder(Coder):
    @staticmethod
    def factory(tpe) -> Optional["ColorCoder"]:
        return ColorCoder() if issubclass(tpe, Color) else None

    def encode(self, x):
        return {"hex": f"#{x.red:02x}{x.green:02x}{x.blue:02x}"}

    def decode(self, x):
        text = x["hex"].lstrip("#")
        return Color(*(int(text[place : place + 2], 16) for place in (0, 2, 4)))


@dataclass
class Palette:
    base: Color
    others: List[Color]


class Predictor(BasePredictor):
    def predict(
        self,
        colors: List[Color],
        base: Color = Input(description="Mixed with each", default=Color(0, 0, 0)),
        last: Optional[Color] = None,
    ) -> Palette:
        mixed = [base.mixed_with(color) for color in colors]
        return Palette(base=base, others=mixed + ([last] if last else []))
