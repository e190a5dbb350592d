from cog import BasePredictor

from .text import Shouter
from .text.tools import EXCLAMATION


class Predictor(BasePredictor):
    def predict(self, text: str) -> str:
        return Shouter().shout(text) + EXCLAMATION
