from cog import BasePredictor


class Predictor(BasePredictor):
    def predict(self, prompt: str, strength: float = 0.5) -> str:
        return self.render(prompt=prompt, strength=strength)

    def render(self, **kwargs):
        raise NotImplementedError


class Shouting(Predictor):
    def render(self, prompt, **kwargs):
        return f"{prompt.upper()}! {kwargs}"
