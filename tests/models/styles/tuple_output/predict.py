from typing import Tuple

from cog import BasePredictor


class Predictor(BasePredictor):
    def predict(self, text: str) -> Tuple[str, int]:
        return text.upper(), len(text)
