from typing import Any, Dict

from cog import BasePredictor


class Predictor(BasePredictor):
    def predict(self, text: str) -> Dict[str, Any]:
        return {"text": text, "length": len(text), "words": {word: len(word) for word in text.split()}}
