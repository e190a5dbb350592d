from cog import BasePredictor


class Predictor(BasePredictor):
    def setup(self, weights: str):
        self.weights = weights.rstrip("/").split("/")[-1]

    def predict(self) -> str:
        return self.weights
