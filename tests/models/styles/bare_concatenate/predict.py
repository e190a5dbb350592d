from cog import BasePredictor, ConcatenateIterator


class Predictor(BasePredictor):
    def predict(self, prompt: str) -> ConcatenateIterator:
        for word in prompt.split():
            yield word + " "
