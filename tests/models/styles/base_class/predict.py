from common import CommonPredictor

from cog import Input


class Predictor(CommonPredictor):
    scale = 2

    def predict(
        self,
        prompt: str = Input(description="Text to repeat"),
        times: int = Input(description="How often", default=2),
    ) -> str:
        return super().predict(prompt=prompt, times=times * self.scale)
